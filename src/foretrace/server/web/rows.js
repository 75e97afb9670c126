/**
 * Options that are rows of two parts, such as `nic=2x`: what-ifs, stragglers and slow links.
 */

import { Combobox } from "./combobox.js";
import { el, fill, newId } from "./dom.js";
import { markField } from "./fields.js";

/** @typedef {import("./fields.js").Changed} Changed */
/** @typedef {import("./fields.js").Control} Control */

/** @typedef {import("./api.js").WhatIf} WhatIf */

/**
 * Returns the texts of the scenario's options that are rows of two parts.
 *
 * @param {WhatIf[]} whatIfs
 * @returns {Record<string, RowTexts>}
 */
export function rowTexts(whatIfs) {
  return {
    what_if: { title: "What if", first: "What", second: "Factor", add: "Add a what-if", known: whatIfs, value: "2x" },
    straggler: {
      title: "Stragglers",
      first: "Rank",
      second: "Slower by",
      add: "Add a straggler",
      known: [],
      value: "1.2x",
    },
    slow_link: {
      title: "Slow links",
      first: "Rank:axis",
      second: "Slower by",
      add: "Add a slow link",
      known: [],
      value: "2x",
    },
  };
}

/**
 * The names of the two parts of a repeated row, and known values of the first.
 *
 * @typedef {object} RowTexts
 * @property {string} title
 * @property {string} first
 * @property {string} second
 * @property {string} add
 * @property {WhatIf[]} known
 * @property {string} value  the second part of a new row
 */

/**
 * Makes rows of two parts joined by `=`, such as `nic=2x`, with buttons that add and remove them.
 *
 * @param {RowTexts} texts
 * @param {Changed} changed
 * @returns {Control}
 */
export function rowsControl(texts, changed) {
  const rows = el("div", { class: "rows" });
  const add = el(
    "button",
    { type: "button", class: "quiet-button", onclick: () => addRow("", texts.value).querySelector("input")?.focus() },
    texts.add,
  );
  const heading = el("p", { class: "rows-title", id: newId("rows") }, texts.title);
  const element = el(
    "div",
    { class: "field rows-field", role: "group", "aria-labelledby": heading.id },
    heading,
    rows,
    add,
  );

  /** Numbers the rows, which are told apart by that alone. */
  function number() {
    [...rows.children].forEach((row, index) => {
      const [name, value] = row.querySelectorAll("input");
      name.setAttribute("aria-label", `${texts.first} ${index + 1}`);
      value.setAttribute("aria-label", `${texts.second} ${index + 1}`);
      row.querySelector("button")?.setAttribute("aria-label", `Remove ${texts.first} ${index + 1}`);
    });
  }

  /**
   * Offers the known first parts; each brings its usual second part along.
   *
   * @param {HTMLInputElement} name
   * @param {HTMLInputElement} value
   */
  function knownNames(name, value) {
    let proposed = value.value;
    return new Combobox(name, texts.known, () => {
      const item = texts.known.find((known) => known.name === name.value);
      if (item && value.value === proposed) value.value = proposed = item.value;
      changed(true);
    });
  }

  /**
   * @param {string} first
   * @param {string} second
   * @returns {HTMLElement}
   */
  function addRow(first, second) {
    const name = el("input", { type: "text", class: "row-first", placeholder: texts.first });
    const value = el("input", {
      type: "text",
      class: "row-second",
      placeholder: texts.second,
      autocomplete: "off",
      oninput: () => changed(false),
    });
    value.value = second;
    const box = texts.known.length > 0 ? knownNames(name, value) : null;
    if (box) box.set(first);
    else {
      name.value = first;
      name.addEventListener("input", () => changed(false));
    }
    const remove = el("button", { type: "button", class: "quiet-button" }, "×");
    const row = el("div", { class: "row" }, box?.element ?? name, value, remove);
    remove.addEventListener("click", () => {
      row.remove();
      number();
      add.focus();
      changed(true);
    });
    rows.append(row);
    number();
    return row;
  }

  return {
    element,
    get: () => {
      const values = [...rows.children].map((row) => {
        const [first, second] = [...row.querySelectorAll("input")].map((input) => input.value.trim());
        return first && second ? `${first}=${second}` : first;
      });
      const complete = values.filter(Boolean);
      return complete.length > 0 ? complete : undefined;
    },
    set: (value) => {
      fill(rows);
      for (const part of Array.isArray(value) ? value : value ? [String(value)] : []) {
        const [first, ...rest] = part.split("=");
        addRow(first, rest.join("="));
      }
    },
    mark: (problemId) => markField(element, rows.querySelectorAll("input"), problemId),
  };
}
