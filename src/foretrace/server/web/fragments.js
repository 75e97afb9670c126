/**
 * Makes the HTML of answers, which the server rendered, interactive, and adds buttons to it.
 */

import { el } from "./dom.js";
import { activate } from "./report.js";

/** @param {HTMLElement} root */
export function enliven(root) {
  offerPlans(root);
  offerChanges(root);
  activate(root);
}

/**
 * Adds buttons that open the plans which an answer lists.
 *
 * @param {HTMLElement} root
 */
function offerPlans(root) {
  for (const place of newPlaces(root, "[data-plan-options]")) {
    place.prepend(
      el(
        "button",
        {
          type: "button",
          class: "inline-button",
          "data-open-plan": place.dataset.planOptions,
          "aria-label": `Open this plan: ${place.textContent}`,
        },
        "Open",
      ),
      " ",
    );
  }
}

/**
 * Adds buttons that try the changes which an answer proposes.
 *
 * @param {HTMLElement} root
 */
function offerChanges(root) {
  for (const place of newPlaces(root, "th[data-options]")) {
    const line = place.dataset.options ?? "";
    place.classList.add("offered");
    place.prepend(
      el("button", { type: "button", class: "inline-button", "data-apply": line, "aria-label": `Try ${line}` }, "Try"),
      " ",
    );
  }
}

/**
 * Returns the places that have no button yet.
 *
 * @param {HTMLElement} root
 * @param {string} selector
 * @returns {HTMLElement[]}
 */
function newPlaces(root, selector) {
  const places = /** @type {HTMLElement[]} */ ([...root.querySelectorAll(selector)]);
  return places.filter((place) => place.querySelector(".inline-button") === null);
}

/**
 * Returns keys of the parts that a reader has opened.
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
