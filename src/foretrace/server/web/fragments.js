/**
 * Makes the HTML of answers, which the server rendered, interactive, and adds buttons to it.
 */

import { el, keepingFocus } from "./dom.js";
import { inheritGantt } from "./gantt.js";
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
 * Replaces HTML without losing what a reader has done to it: the parts that are open, how tables are sorted, the view of
 * the pipeline, and the keyboard's place.
 *
 * @param {HTMLElement} root
 * @param {() => void} replace  replaces parts of the root and makes them interactive
 */
export function keepingState(root, replace) {
  const opened = new Set([...root.querySelectorAll("details[open]")].map(partKey));
  const sorted = new Map([...root.querySelectorAll("th[aria-sort]")].map((head) => [headKey(head), head.ariaSort]));
  const charts = [...root.querySelectorAll("[data-gantt]")];
  keepingFocus(() => {
    inheritGantt(root, charts, replace);
    for (const part of root.querySelectorAll("details")) if (opened.has(partKey(part))) part.open = true;
    for (const head of root.querySelectorAll("thead th")) {
      const order = head.ariaSort === null ? sorted.get(headKey(head)) : undefined;
      const button = order && head.querySelector("button");
      if (!button) continue;
      button.click();
      if (order === "descending") button.click();
    }
  });
}

/**
 * @param {Element} part
 * @returns {string}
 */
function partKey(part) {
  return `${part.closest("section")?.id}/${part.querySelector("summary")?.textContent}`;
}

/**
 * @param {Element} head
 * @returns {string}
 */
function headKey(head) {
  const table = head.closest("table");
  const place = [...(head.closest("section")?.querySelectorAll("table") ?? [])].findIndex((other) => other === table);
  return `${head.closest("section")?.id}/${place}/${head.textContent}`;
}
