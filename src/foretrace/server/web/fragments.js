/**
 * What the page does with the HTML of answers, which the server rendered: it makes it live, and adds buttons to it.
 */

import { el } from "./dom.js";
import { activate } from "./report.js";

/**
 * Adds buttons that open the plans which an answer lists.
 *
 * @param {HTMLElement} root
 */
export function offerPlans(root) {
  for (const place of /** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll("[data-plan-options]"))) {
    const line = place.dataset.planOptions ?? "";
    const name = place.textContent ?? "";
    place.prepend(
      el(
        "button",
        { type: "button", class: "inline-button", "data-open-plan": line, "aria-label": `Open this plan: ${name}` },
        "Open",
      ),
      " ",
    );
  }
  // Changes that would help are named by the options that make them.
  for (const place of /** @type {NodeListOf<HTMLElement>} */ (
    root.querySelectorAll("tbody th:not([data-plan-options])")
  )) {
    const line = place.textContent ?? "";
    if (!/^--[a-z]/.test(line)) continue;
    place.classList.add("offered");
    place.prepend(
      el("button", { type: "button", class: "inline-button", "data-apply": line, "aria-label": `Try ${line}` }, "Try"),
      " ",
    );
  }
}

/**
 * Makes what the server rendered live.
 *
 * @param {HTMLElement} root
 */
export function enliven(root) {
  activate(root);
  // Pictures scroll sideways where two answers share the page, and the keyboard has to reach what scrolls.
  for (const picture of root.querySelectorAll(".picture:not([tabindex])")) picture.setAttribute("tabindex", "0");
}

/**
 * Returns the summaries of the parts that a reader has opened.
 *
 * @param {HTMLElement} root
 * @returns {Set<string>}
 */
export function openedParts(root) {
  return new Set([...root.querySelectorAll("details[open]")].map(partKey));
}

/**
 * @param {HTMLElement} root
 * @param {Set<string>} keys
 */
export function reopen(root, keys) {
  for (const part of root.querySelectorAll("details")) if (keys.has(partKey(part))) part.open = true;
}

/**
 * @param {Element} part
 * @returns {string}
 */
function partKey(part) {
  return `${part.closest("section")?.id}/${part.querySelector("summary")?.textContent}`;
}
