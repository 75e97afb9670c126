/**
 * Connects the parts of the page that do not depend on what it shows: dropped files, links, dialogs and the theme.
 */

import { byId, show } from "./dom.js";
import { remember, remembered } from "./state.js";

/**
 * Takes files that are dropped anywhere on the page.
 *
 * @param {{take: (files: File[]) => void, failed: (error: unknown) => void}} listener
 */
export function connectDrop({ take, failed }) {
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
    void droppedFiles(event.dataTransfer).then(take, failed);
  });
}

/**
 * Returns the files that were dropped, and those in folders that were dropped.
 *
 * @param {DataTransfer | null} transfer
 * @returns {Promise<File[]>}
 */
async function droppedFiles(transfer) {
  const entries = [...(transfer?.items ?? [])].map((item) => item.webkitGetAsEntry()).filter((entry) => entry !== null);
  if (!entries.some((entry) => entry.isDirectory)) return [...(transfer?.files ?? [])];
  return (await Promise.all(entries.map((entry) => filesOf(entry)))).flat();
}

/**
 * @param {FileSystemEntry} entry
 * @returns {Promise<File[]>}
 */
async function filesOf(entry) {
  if (entry.isFile) {
    const file = /** @type {FileSystemFileEntry} */ (entry);
    return [await new Promise((resolve, reject) => file.file(resolve, reject))];
  }
  const reader = /** @type {FileSystemDirectoryEntry} */ (entry).createReader();
  /** @type {File[]} */
  const files = [];
  for (;;) {
    /** @type {FileSystemEntry[]} */
    const batch = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (batch.length === 0) return files;
    for (const inner of batch) files.push(...(await filesOf(inner)));
  }
}

/** Makes the dialogs open and close: by their buttons, and by a click next to them. */
export function connectDialogs() {
  const help = /** @type {HTMLDialogElement} */ (byId("help"));
  byId("open-help").addEventListener("click", () => help.showModal());
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.querySelector("[data-close]")?.addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", ({ clientX, clientY }) => {
      const box = dialog.getBoundingClientRect();
      const isInside = clientX >= box.left && clientX <= box.right && clientY >= box.top && clientY <= box.bottom;
      // Keys that press a button send a click at the origin of the window.
      if (!isInside && (clientX !== 0 || clientY !== 0)) dialog.close();
    });
  }
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
