/**
 * The part of the form that asks for the best plan: what it is best in, how long to look, and which axes to vary.
 */

import { el } from "./dom.js";
import { control } from "./fields.js";
import { completed } from "./state.js";

/** @typedef {import("./api.js").Question} Question */
/** @typedef {import("./api.js").SearchValues} SearchValues */
/** @typedef {import("./fields.js").Control} Control */

/** The axes that a search may vary; a question for the best plan leaves their options out. */
export const SEARCHED = ["tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "zero", "schedule", "recompute"];
/** Options of one plan, which do not apply to a search. */
const OF_ONE_PLAN = [
  "stage_layers",
  "layout",
  "first_stage_layers",
  "last_stage_layers",
  "recompute_layers",
  "recompute_modules",
];

const OWN = ["objective", "time_s"];

/**
 * Sets an option of a question; in a question for the best plan, the axis of that name where a search may vary it.
 *
 * @param {Question} question  is changed
 * @param {string} name
 * @param {import("./api.js").Value} value
 */
export function setOption(question, name, value) {
  if (question.ask !== "plan" || !SEARCHED.includes(name)) question.options[name] = value;
  else question.search = { ...question.search, axes: { ...question.search?.axes, [name]: String(value) } };
}

/** The fields of a search. They ask nothing by themselves: a search begins with its button. */
export class PlanSearchFields {
  /**
   * @param {import("./api.js").Start} start
   * @param {() => void} begin
   */
  constructor(start, begin) {
    /** @type {Map<string, Control>} */
    this.own = new Map();
    /** @type {Map<string, Control>} */
    this.axes = new Map();
    const fields = el("div", { class: "grid wide-fields" });
    for (const field of start.search.filter(({ name }) => OWN.includes(name))) {
      const part = control(field, () => undefined);
      this.own.set(field.name, part);
      fields.append(part.element);
    }
    const axes = el("div", { class: "grid" });
    for (const field of (start.fields.model ?? []).filter(({ name }) => SEARCHED.includes(name))) {
      const part = axisControl(field);
      this.axes.set(field.name, part);
      axes.append(part.element);
    }
    /** The elements of this part of the form. */
    this.parts = [
      fields,
      el("p", { class: "rows-title" }, "Axes: values to try"),
      axes,
      el("p", { class: "muted" }, "A search tries plans without the scenario."),
      el("button", { type: "button", class: "primary", onclick: begin }, "Find the best plan"),
    ];
  }

  /**
   * Returns the question for the best plan: the axes of the search take the place of the options of the same name.
   *
   * @param {Question} question  the question for the step of a plan
   * @returns {Question}
   */
  question(question) {
    const isKept = (/** @type {string} */ name) => !SEARCHED.includes(name) && !OF_ONE_PLAN.includes(name);
    const options = Object.fromEntries(Object.entries(question.options).filter(([name]) => isKept(name)));
    /** @type {Record<string, string>} */
    const axes = {};
    for (const [name, part] of this.axes) {
      const value = part.get();
      if (value !== undefined) axes[name] = String(value);
    }
    /** @type {SearchValues} */
    const search = { axes };
    const objective = this.own.get("objective")?.get();
    const time_s = this.own.get("time_s")?.get();
    if (objective !== undefined) search.objective = String(objective);
    if (time_s !== undefined) search.time_s = String(time_s);
    return completed({ ...question, ask: "plan", options, scenario: {}, search });
  }

  /** @param {SearchValues} search */
  show(search) {
    this.own.get("objective")?.set(search.objective);
    this.own.get("time_s")?.set(search.time_s === undefined || search.time_s === null ? undefined : `${search.time_s}`);
    for (const [name, part] of this.axes) part.set(search.axes?.[name]);
  }

  /**
   * Marks the fields that a problem names.
   *
   * @param {Set<string>} named
   * @param {string} problemId
   */
  mark(named, problemId) {
    for (const parts of [this.own, this.axes])
      for (const [name, part] of parts) part.mark(named.has(name) ? problemId : null);
  }
}

/**
 * @param {import("./api.js").Field} field
 * @returns {Control}
 */
function axisControl(field) {
  // The visually hidden words let a screen reader tell these fields from those of the plan.
  const label = `${field.label}|values to try`;
  const help = "Values to try: 8, or 1,2,4, or 1..16. An empty field tries all.";
  const usage = { kind: /** @type {const} */ ("text"), choices: null, metavar: "VALUES", default: "all" };
  return control({ ...field, ...usage, name: `axis-${field.name}`, label, help }, () => undefined);
}
