// Makes the fragments that Python renders live: the pipeline, copy buttons, sortable tables, the scheme of colours.
import { mountGantt } from "./gantt.js";

/**
 * Makes everything below an element live. An element that is live already is left as it is.
 * @param {ParentNode} root
 */
export function activate(root) {
  for (const element of root.querySelectorAll("[data-gantt]")) {
    if (element instanceof HTMLElement && once(element)) mountGantt(element);
  }
  for (const button of root.querySelectorAll("button[data-copy]")) {
    if (button instanceof HTMLButtonElement && once(button)) button.addEventListener("click", () => copyText(button));
  }
  for (const table of root.querySelectorAll("table[data-sortable]")) {
    if (table instanceof HTMLTableElement && once(table)) makeSortable(table);
  }
  for (const button of root.querySelectorAll("button[data-scheme]")) {
    if (button instanceof HTMLElement && once(button)) button.addEventListener("click", switchScheme);
  }
}

/**
 * Says whether an element is met for the first time, and remembers it.
 * @param {HTMLElement} element
 */
function once(element) {
  const first = element.dataset.live === undefined;
  element.dataset.live = "";
  return first;
}

/**
 * Copies the text next to a button, and says so on it for a while.
 * @param {HTMLButtonElement} button
 */
async function copyText(button) {
  const source = button.parentElement?.querySelector("pre");
  if (!source) return;
  try {
    await navigator.clipboard.writeText(source.textContent ?? "");
    button.textContent = "Copied";
  } catch {
    // Pages from disk may not reach the clipboard: the text is marked, so that the keyboard copies it.
    const range = document.createRange();
    range.selectNodeContents(source);
    const selection = getSelection();
    selection?.removeAllRanges();
    selection?.addRange(range);
    button.textContent = "Press Ctrl-C";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

/** Changes from the light to the dark scheme, or back. */
export function switchScheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

/**
 * Turns the headings of a table into buttons that sort by their column.
 * @param {HTMLTableElement} table
 */
function makeSortable(table) {
  const body = table.tBodies[0];
  const heads = [...(table.tHead?.rows[0]?.cells ?? [])];
  if (!body || body.rows.length < 3) return;
  heads.forEach((head, column) => {
    if (!head.textContent) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const rising = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const sign = rising ? 1 : -1;
      const rows = [...body.rows].sort((a, b) => sign * compareCells(a.cells[column], b.cells[column]));
      body.append(...rows);
    });
  });
}

/**
 * Compares two cells by the numbers that they carry, otherwise as texts.
 * @param {HTMLTableCellElement | undefined} a
 * @param {HTMLTableCellElement | undefined} b
 */
function compareCells(a, b) {
  const first = cellNumber(a);
  const second = cellNumber(b);
  if (!Number.isNaN(first) && !Number.isNaN(second)) return first - second;
  return (a?.textContent ?? "").localeCompare(b?.textContent ?? "", "en", { numeric: true });
}

/** @param {HTMLTableCellElement | undefined} cell */
function cellNumber(cell) {
  return Number(cell?.dataset.sort ?? cell?.textContent?.replace(/[, ]/g, "") ?? NaN);
}
