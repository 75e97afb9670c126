/**
 * Options that are rows of two parts, such as `nic=2x`: what-ifs, stragglers and slow links.
 */

import { Combobox } from "./combobox.js";
import { el, fill, newId } from "./dom.js";

/** @typedef {import("./fields.js").Changed} Changed */
/** @typedef {import("./fields.js").Control} Control */

const WHAT_IFS = [
  ["compute", "all computation"],
  ["tp", "tensor-parallel communication"],
  ["dp", "data-parallel communication"],
  ["pp", "communication of stages"],
  ["ep", "communication of experts"],
  ["gemm", "matrix products"],
  ["attention", "attention kernels"],
  ["nic", "network cards"],
  ["nvlink", "links within a node"],
  ["hbm", "memory bandwidth"],
  ["pcie", "PCIe"],
  ["flops", "tensor cores"],
  ["memory", "size of memory"],
  ["power", "power of a GPU, such as 500W"],
  ["gpu", "another GPU, such as h200-sxm"],
  ["cluster", "another cluster"],
  ["cuda-graphs", "of a profiler trace: no launches"],
  ["no-host-gaps", "of a profiler trace: no host"],
  ["unprofiled", "of a profiler trace: without the profiler"],
  ["batch", "of a profiler trace: other batch"],
].map(([name, title]) => ({ name, title }));
/** The scenario's options that are rows of two parts. */
export const ROWS = /** @type {Record<string, RowTexts>} */ ({
  what_if: { title: "What if", first: "What", second: "Factor", add: "Add a what-if", known: WHAT_IFS, factor: "2x" },
  straggler: {
    title: "Stragglers",
    first: "Rank",
    second: "Slower by",
    add: "Add a straggler",
    known: [],
    factor: "1.2x",
  },
  slow_link: {
    title: "Slow links",
    first: "Rank:axis",
    second: "Slower by",
    add: "Add a slow link",
    known: [],
    factor: "2x",
  },
});

/**
 * How the two parts of a repeated row are called, and what is known for the first.
 *
 * @typedef {object} RowTexts
 * @property {string} title
 * @property {string} first
 * @property {string} second
 * @property {string} add
 * @property {import("./api.js").Named[]} known
 * @property {string} factor  what a new row has as its second part
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
    { type: "button", class: "quiet-button", onclick: () => addRow("", texts.factor).querySelector("input")?.focus() },
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

  /**
   * @param {string} first
   * @param {string} second
   * @returns {HTMLElement}
   */
  function addRow(first, second) {
    const number = rows.children.length + 1;
    const name = el("input", {
      type: "text",
      class: "row-first",
      placeholder: texts.first,
      "aria-label": `${texts.first} ${number}`,
    });
    const box = texts.known.length > 0 ? new Combobox(name, texts.known, () => changed(true)) : null;
    if (box) box.set(first);
    else {
      name.value = first;
      name.addEventListener("input", () => changed(false));
    }
    const factor = el("input", {
      type: "text",
      class: "row-second",
      placeholder: texts.second,
      "aria-label": `${texts.second} ${number}`,
      autocomplete: "off",
      oninput: () => changed(false),
    });
    factor.value = second;
    const remove = el(
      "button",
      {
        type: "button",
        class: "quiet-button",
        "aria-label": `Remove ${texts.first} ${number}`,
        onclick: () => {
          row.remove();
          add.focus();
          changed(true);
        },
      },
      "×",
    );
    const row = el("div", { class: "row" }, box ? box.element : name, factor, remove);
    rows.append(row);
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
    mark: (problemId) => {
      element.classList.toggle("wrong", problemId !== null);
    },
  };
}
