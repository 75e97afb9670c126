/**
 * Controls for single options: each has a label, a help text, a value, and can be marked as wrong.
 */

import { Combobox } from "./combobox.js";
import { el, fill, newId } from "./dom.js";

/** @typedef {import("./api.js").Field} Field */
/** @typedef {import("./api.js").Value} Value */
/**
 * A control of the form.
 *
 * @typedef {object} Control
 * @property {HTMLElement} element
 * @property {() => Value} get  undefined where nothing is given
 * @property {(value: Value) => void} set
 * @property {(problemId: string | null) => void} mark  marks it as wrong, described by the element of this id
 * @property {(text: string) => void} [choose]  shows what an empty control stands for in the answer on show
 */
/** @typedef {(isFinal: boolean) => void} Changed  with false while the value may still be typed */

/**
 * Makes the control that suits an option.
 *
 * @param {Field} field
 * @param {Changed} changed
 * @returns {Control}
 */
export function control(field, changed) {
  if (field.kind === "flag")
    return field.two_way ? choiceControl(field, ["on", "off"], changed) : flagControl(field, changed);
  if (field.kind === "list") return listControl(field, changed);
  if (field.doubled) return stepControl(field, changed);
  if (field.choices && field.choices.length > 0 && !field.metavar.startsWith("'")) {
    const isOpen = field.metavar.startsWith("NAME");
    return isOpen ? suggestControl(field, field.choices, changed) : choiceControl(field, field.choices, changed);
  }
  return samples(field).length > 0 ? suggestControl(field, samples(field), changed) : textControl(field, changed);
}

/**
 * Returns what an empty field says: what it stands for.
 *
 * @param {Field} field
 * @returns {string}
 */
function emptyText(field) {
  return { true: "on", false: "off" }[field.default ?? ""] ?? (field.default || "auto");
}

/**
 * Returns the values that stand for an open set in a usage text: `bf16|fp8|mxfp8|…`.
 *
 * @param {Field} field
 * @returns {string[]}
 */
function samples(field) {
  const words = field.metavar.split("|");
  return words.length > 2 && words.at(-1) === "…" ? words.slice(0, -1) : [];
}

/**
 * Puts a label and a help text around the input of an option.
 *
 * @param {Field} field
 * @param {HTMLInputElement | HTMLSelectElement} input
 * @param {HTMLElement} [box]  what holds the input
 * @returns {{element: HTMLElement, mark: Control["mark"], choose: (text: string) => void}}
 */
function framed(field, input, box = input) {
  input.id = newId(field.name);
  const help = el("p", { class: "help", id: `${input.id}-help` }, el("code", {}, usage(field)), ` ${field.help}`);
  input.dataset.field = field.name;
  const [title, ...rest] = field.label.split("|");
  const name = field.name.endsWith("_s") ? `${title}, s` : title;
  const label = el(
    "label",
    { for: input.id },
    name,
    rest.length > 0 && el("span", { class: "visually-hidden" }, ` ${rest.join(" ")}`),
  );
  const chosen = el("span", { class: "chosen", id: `${input.id}-chosen`, hidden: true });
  const described = `${chosen.id} ${help.id}`;
  const element = el(
    "div",
    { class: "field", "data-words": `${field.label} ${field.flag} ${field.help}`.toLowerCase() },
    label,
    chosen,
    box,
    help,
  );
  input.setAttribute("aria-describedby", described);
  return {
    element,
    choose(text) {
      chosen.hidden = text === "";
      chosen.title = `auto: ${text}`;
      fill(chosen, el("span", { class: "visually-hidden" }, "auto: "), text);
    },
    mark: (problemId) => markField(element, [input], problemId, described),
  };
}

/**
 * Marks a field as wrong, or as right.
 *
 * @param {HTMLElement} element
 * @param {Iterable<Element>} inputs
 * @param {string | null} problemId  the element that says what is wrong
 * @param {string} [described]  the ids of the elements that always describe the inputs
 */
export function markField(element, inputs, problemId, described = "") {
  element.classList.toggle("wrong", problemId !== null);
  const descriptions = [problemId, described].filter(Boolean).join(" ");
  for (const input of inputs) {
    if (problemId === null) input.removeAttribute("aria-invalid");
    else input.setAttribute("aria-invalid", "true");
    if (descriptions === "") input.removeAttribute("aria-describedby");
    else input.setAttribute("aria-describedby", descriptions);
  }
}

/**
 * @param {Field} field
 * @returns {string}
 */
function usage(field) {
  return field.metavar ? `${field.flag} ${field.metavar}` : field.flag;
}

/**
 * @param {HTMLInputElement | HTMLSelectElement} input
 * @returns {Pick<Control, "get" | "set">}
 */
function textValue(input) {
  return {
    get: () => input.value.trim() || undefined,
    set: (value) => {
      input.value = value === null || value === undefined ? "" : String(value);
    },
  };
}

/**
 * @param {Field} field
 * @param {Changed} changed
 * @returns {Control}
 */
function textControl(field, changed) {
  const input = textInput(field, changed);
  return { ...framed(field, input), ...textValue(input) };
}

/**
 * @param {Field} field
 * @param {Changed} changed
 * @returns {HTMLInputElement}
 */
function textInput(field, changed) {
  const input = el("input", {
    type: "text",
    autocomplete: "off",
    spellcheck: "false",
    placeholder: emptyText(field),
    oninput: () => changed(false),
  });
  if (field.kind === "number") input.inputMode = "numeric";
  return input;
}

/**
 * @param {Field} field
 * @param {string[]} choices
 * @param {Changed} changed
 * @returns {Control}
 */
function suggestControl(field, choices, changed) {
  const input = el("input", { type: "text", placeholder: "auto", "aria-label": field.label });
  const box = new Combobox(
    input,
    choices.map((name) => ({ name, title: "" })),
    () => changed(true),
  );
  input.removeAttribute("aria-label");
  return {
    ...framed(field, input, box.element),
    get: () => input.value.trim() || undefined,
    set: (value) => box.set(value === undefined || value === null ? "" : String(value)),
  };
}

/**
 * A count with buttons, and arrow keys, that double and halve it.
 *
 * @param {Field} field
 * @param {Changed} changed
 * @returns {Control}
 */
function stepControl(field, changed) {
  const input = textInput(field, changed);
  input.inputMode = "text";
  let chosen = "";
  /** @param {boolean} up */
  const step = (up) => {
    const next = doubled(input.value.trim() || chosen, up);
    if (next === null || next === input.value) return;
    input.value = next;
    changed(true);
  };
  input.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
    event.preventDefault();
    step(event.key === "ArrowUp");
  });
  /** @param {boolean} up */
  const button = (up) =>
    el(
      "button",
      // The arrow keys do the same: two more stops of the Tab key for each field would be in the way.
      {
        type: "button",
        tabindex: -1,
        "aria-label": `${up ? "Double" : "Halve"} ${field.label}`,
        onclick: () => step(up),
      },
      up ? "×2" : "÷2",
    );
  const box = el("div", { class: "stepper" }, button(false), input, button(true));
  const frame = framed({ ...field, help: `${field.help} Arrow keys double and halve.` }, input, box);
  return {
    ...frame,
    ...textValue(input),
    choose(text) {
      chosen = text;
      frame.choose(text);
    },
  };
}

/**
 * Returns a count doubled, or halved; null where the text is not a count.
 *
 * @param {string} text
 * @param {boolean} up
 * @returns {string | null}
 */
function doubled(text, up) {
  const match = /^\s*([\d,]*)\s*([kKmM]?)\s*$/.exec(text);
  if (!match) return null;
  const count = match[1] === "" ? 1 : Number(match[1].replaceAll(",", ""));
  const next = up ? count * 2 : Math.max(1, Math.floor(count / 2));
  return `${next}${match[2]}`;
}

/**
 * @param {Field} field
 * @param {string[]} choices
 * @param {Changed} changed
 * @returns {Control}
 */
function choiceControl(field, choices, changed) {
  const select = el("select", { onchange: () => changed(true) }, el("option", { value: "" }, emptyText(field)));
  for (const choice of choices) select.append(el("option", { value: choice }, choice));
  const isFlag = field.kind === "flag";
  return {
    ...framed(field, select),
    get: () => (select.value === "" ? undefined : isFlag ? select.value === "on" : select.value),
    set: (value) => {
      const text = value === true ? "on" : value === false ? "off" : String(value ?? "");
      // A link may hold what the list does not: it is shown, and the server says what is wrong with it.
      if (![...select.options].some((option) => option.value === text))
        select.append(el("option", { value: text }, text));
      select.value = text;
    },
  };
}

/**
 * @param {Field} field
 * @param {Changed} changed
 * @returns {Control}
 */
function flagControl(field, changed) {
  const input = el("input", { type: "checkbox", onchange: () => changed(true) });
  const { element, mark } = framed(field, input);
  element.classList.add("check");
  return {
    element,
    mark,
    get: () => (input.checked ? true : undefined),
    set: (value) => {
      input.checked = value === true || value === "true";
    },
  };
}

/**
 * Texts of an option that may be repeated, in one field, divided by spaces.
 *
 * @param {Field} field
 * @param {Changed} changed
 * @returns {Control}
 */
function listControl(field, changed) {
  const input = textInput(field, changed);
  return {
    ...framed({ ...field, help: `${field.help} Several are divided by spaces.` }, input),
    get: () => {
      const parts = input.value.split(/\s+/).filter(Boolean);
      return parts.length > 0 ? parts : undefined;
    },
    set: (value) => {
      input.value = Array.isArray(value) ? value.join(" ") : String(value ?? "");
    },
  };
}
