// Makes the fragments that Python renders interactive: the pipeline, copy buttons, sortable tables, the colour scheme.
import { mountGantt } from "./gantt.js";

/** How long a button says that its text is copied. */
const COPIED_MS = 2000;

/**
 * Makes everything below an element interactive, once.
 * @param {ParentNode} root
 */
export function activate(root) {
  for (const element of root.querySelectorAll("[data-gantt]")) {
    if (element instanceof HTMLElement && isNew(element)) mountGantt(element);
  }
  for (const button of root.querySelectorAll("button[data-copy]")) {
    const source = button.parentElement?.querySelector("pre");
    if (button instanceof HTMLButtonElement && source && isNew(button)) {
      button.addEventListener("click", () => void copyText(button, source.textContent ?? ""));
    }
  }
  for (const table of root.querySelectorAll("table[data-sortable]")) {
    if (table instanceof HTMLTableElement && isNew(table)) makeSortable(table);
  }
  for (const part of root.querySelectorAll(".scroll")) {
    if (part instanceof HTMLElement && isNew(part)) scrollable.observe(part);
  }
  for (const button of root.querySelectorAll("button[data-scheme]")) {
    if (button instanceof HTMLElement && isNew(button)) button.addEventListener("click", switchScheme);
  }
}

/** Lets the keyboard reach the parts that are too wide for their place, since they scroll sideways, and no others. */
const scrollable = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollWidth > target.clientWidth) target.setAttribute("tabindex", "0");
    else target.removeAttribute("tabindex");
  }
});

/**
 * Returns whether an element is not yet interactive, and marks it.
 * @param {HTMLElement} element
 */
function isNew(element) {
  const first = element.dataset.live === undefined;
  element.dataset.live = "";
  return first;
}

/**
 * Copies a text, and says so: on the button for a moment, and to screen readers.
 * @param {HTMLButtonElement} button
 * @param {string} text
 */
export async function copyText(button, text) {
  let copied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copied = copyBySelection(text);
  }
  button.dataset.label ??= button.textContent ?? "";
  // Its neighbours stay where they are, since somebody may be about to press one.
  button.style.minWidth = `${button.offsetWidth}px`;
  button.textContent = copied ? "Copied" : "Copying is blocked";
  let status = button.nextElementSibling;
  if (!status?.matches(".copy-status")) {
    status = document.createElement("span");
    status.className = "copy-status visually-hidden";
    status.setAttribute("role", "status");
    button.after(status);
  }
  status.textContent = copied ? "The text is copied" : "The browser blocks copying";
  setTimeout(() => {
    button.textContent = button.dataset.label ?? "";
    status.textContent = "";
  }, COPIED_MS);
}

/**
 * Copies a text where the page has no clipboard, as on a plain http address of another machine.
 * @param {string} text
 * @returns {boolean} whether it is copied
 */
function copyBySelection(text) {
  const focused = document.activeElement;
  const area = document.createElement("textarea");
  area.className = "visually-hidden";
  area.setAttribute("aria-hidden", "true");
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return copied;
}

/** Changes from the light to the dark scheme, or back. */
function switchScheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

/**
 * Turns the headings of a table into buttons that sort by their column. All rows are sorted; as many as before are
 * folded away.
 * @param {HTMLTableElement} table
 */
function makeSortable(table) {
  const bodies = [...table.tBodies];
  const heads = [...(table.tHead?.rows[0]?.cells ?? [])];
  const counts = bodies.map((body) => body.rows.length);
  if (counts.reduce((sum, count) => sum + count, 0) < 3) return;
  heads.forEach((head, column) => {
    if (!head.textContent) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const rows = bodies.flatMap((body) => [...body.rows]);
      rows.sort((first, second) => compareCells(first.cells[column], second.cells[column], sign));
      bodies.forEach((body, number) => body.append(...rows.splice(0, counts[number])));
    });
  });
}

/**
 * Compares two cells by the numbers that they carry, otherwise as texts. Numbers come before texts, empty cells last.
 * @param {HTMLTableCellElement | undefined} first
 * @param {HTMLTableCellElement | undefined} second
 * @param {number} sign -1 sorts the largest first
 */
function compareCells(first, second, sign) {
  const [a, b] = [cellValue(first), cellValue(second)];
  if (a === "" || b === "") return Number(a === "") - Number(b === "");
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return sign * String(a).localeCompare(String(b), "en", { numeric: true });
}

/** A number, a share, or a range of them, which is sorted by its low end. */
const PLAIN_NUMBER = /^([+-]?[\d.]+(?:e[+-]?\d+)?)(?:to[+-]?[\d.]+)?%?$/;

/**
 * @param {HTMLTableCellElement | undefined} cell
 * @returns {number | string}
 */
function cellValue(cell) {
  const text = cell?.textContent?.trim() ?? "";
  const plain = PLAIN_NUMBER.exec(text.replace(/[,\s]/g, "").replaceAll("−", "-"))?.[1];
  const number = Number(cell?.dataset.sort ?? plain ?? NaN);
  if (Number.isNaN(number)) return text === "–" ? "" : text;
  return number;
}
