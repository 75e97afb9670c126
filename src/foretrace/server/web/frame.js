/**
 * What works all over the page, whatever it shows: dropped files, links within it, and the theme.
 */

import { byId, show } from "./dom.js";
import { remember, remembered } from "./state.js";

/**
 * Takes files that are dropped anywhere on the page.
 *
 * @param {(files: File[]) => void} take
 */
export function connectDrop(take) {
  const cover = byId("drop");
  let depth = 0;
  /** @param {DragEvent} event */
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files") ?? false;
  document.addEventListener("dragenter", (event) => {
    if (!hasFiles(event)) return;
    depth += 1;
    show(cover, true);
  });
  document.addEventListener("dragleave", () => {
    depth = Math.max(0, depth - 1);
    if (depth === 0) show(cover, false);
  });
  document.addEventListener("dragover", (event) => {
    if (hasFiles(event)) event.preventDefault();
  });
  document.addEventListener("drop", (event) => {
    depth = 0;
    show(cover, false);
    if (!hasFiles(event)) return;
    event.preventDefault();
    take([...(event.dataTransfer?.files ?? [])]);
  });
}

/**
 * Follows links within the page without touching the address, which holds the question.
 *
 * @param {MouseEvent} event
 */
export function keepAddress(event) {
  const link = /** @type {Element} */ (event.target).closest("a[href^='#']");
  if (!link || link.getAttribute("href") === "#") return;
  event.preventDefault();
  const target = document.getElementById(decodeURIComponent((link.getAttribute("href") ?? "").slice(1)));
  if (!target) return;
  if (!target.hasAttribute("tabindex")) target.tabIndex = -1;
  target.focus({ preventScroll: true });
  target.scrollIntoView();
}

/** Makes the switch of the theme work. */
export function connectTheme() {
  const chosen = remembered("theme") ?? "auto";
  for (const input of /** @type {NodeListOf<HTMLInputElement>} */ (document.querySelectorAll("input[name=theme]"))) {
    input.checked = input.value === chosen;
    input.addEventListener("change", () => {
      const { value } = input;
      remember("theme", value === "auto" ? null : value);
      if (value === "auto") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = value;
    });
  }
}
