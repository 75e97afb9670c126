/**
 * The form that holds a question: an input, its options, the machine, the scenario, and the search for a plan.
 */

import { Combobox } from "./combobox.js";
import { el, fill, newId, show } from "./dom.js";
import { control, markField } from "./fields.js";
import { namedFields, readFlags } from "./flags.js";
import { connectMenu } from "./menu.js";
import { PlanSearchFields, SEARCHED, setOption } from "./plan_search.js";
import { rowsControl, rowTexts } from "./rows.js";
import { completed } from "./state.js";
import { connectTips } from "./tips.js";

/** @typedef {import("./api.js").Field} Field */
/** @typedef {import("./api.js").Named} Named */
/** @typedef {import("./api.js").Opened} Opened */
/** @typedef {import("./api.js").Question} Question */
/** @typedef {import("./api.js").Start} Start */
/** @typedef {import("./api.js").Values} Values */
/** @typedef {import("./fields.js").Control} Control */
/** @typedef {"options" | "machine" | "scenario"} Group */

/** The options that the form shows at once; all others are under "More options". */
const COMMON = [
  "gpus",
  "tp",
  "pp",
  "vpp",
  "cp",
  "ep",
  "gbs",
  "mbs",
  "seq_len",
  "zero",
  "schedule",
  "recompute",
  "precision",
  "overlap",
  "stack",
  "mesh",
  "microbatches",
  "steps",
];
/** Inputs whose recorded times are explained as they are: options belong to a replay. */
const PROFILES = ["profiler-trace", "profiler-table"];

/**
 * The events of the form.
 *
 * @typedef {object} FormListener
 * @property {(isFinal: boolean) => void} changed
 * @property {() => void} search
 * @property {(files: File[]) => void} files
 * @property {(id: string) => void} example
 */

/** The form. It reads and shows questions, and tells its listener what changes. */
export class QuestionForm {
  /**
   * @param {HTMLElement} root
   * @param {Start} start
   * @param {FormListener} listener
   */
  constructor(root, start, listener) {
    this.start = start;
    this.listener = listener;
    /** @type {Question["input"]} */
    this.input = { model: "llama3-70b" };
    /** @type {Question["ask"]} */
    this.ask = "step";
    /**
     * The values of the plan's fields before a plan of a search was opened, by the input of the search.
     *
     * @type {Map<string, Values>}
     */
    this.plansBefore = new Map();
    /** @type {Map<string, Opened>} */
    this.uploads = new Map();
    /** @type {Record<Group, Map<string, Control>>} */
    this.controls = { options: new Map(), machine: new Map(), scenario: new Map() };
    /** @type {Values} values of options that the input at hand has no field for */
    this.others = {};
    this.fieldsKey = "";
    this.sourceKey = "";
    this.changed = /** @type {import("./fields.js").Changed} */ ((isFinal) => this.listener.changed(isFinal));
    this.model = this.pickBox("Model", this.start.models, () => {
      this.input = { model: this.modelInput().value };
      this.listener.changed(true);
    });
    this.cluster = this.pickBox("Cluster", this.start.clusters, () => this.listener.changed(true));
    this.source = el("div", { class: "source" });
    this.openedAs = this.measuredChoice();
    this.plan = el("div", { class: "grid" });
    this.planTitle = el("h2", {}, "Plan");
    this.more = el("div", { class: "grid wide-fields" });
    this.moreCount = el("span", { class: "count" });
    this.moreBox = this.foldedGroup("More options", this.moreCount, this.filterBox(), this.more);
    this.machineFields = el("div", { class: "grid wide-fields" });
    this.scenarioFields = el("div", { class: "grid wide-fields" });
    this.machineCount = el("span", { class: "count" });
    this.scenarioCount = el("span", { class: "count" });
    this.search = new PlanSearchFields(start, () => listener.search());
    this.searchBox = this.foldedGroup("Best plan", null, ...this.search.parts);
    this.planBox = el("section", { class: "group" }, this.planTitle, this.plan, this.moreBox);
    this.machineBox = this.foldedGroup("Machine", this.machineCount, this.machineFields);
    this.scenarioBox = this.foldedGroup("Scenario", this.scenarioCount, this.scenarioFields);
    const files = el("input", {
      type: "file",
      multiple: true,
      class: "visually-hidden",
      tabindex: -1,
      "aria-label": "Files of one job",
    });
    files.addEventListener("change", () => {
      this.listener.files([...(files.files ?? [])]);
      files.value = "";
    });
    this.chooseFiles = () => files.click();
    fill(
      root,
      el(
        "section",
        { class: "group", "aria-labelledby": "group-job" },
        el("div", { class: "group-head" }, el("h2", { id: "group-job" }, "Job"), this.sourceButtons(files)),
        this.source,
        this.openedAs,
        this.cluster.element,
      ),
      this.planBox,
      this.machineBox,
      this.scenarioBox,
      this.searchBox,
      // Enter asks again in any field, which needs a button that submits the form.
      el("button", { type: "submit", class: "visually-hidden", tabindex: -1, "aria-hidden": "true" }, "Ask again"),
    );
    this.fillFixedGroups();
    connectTips(root);
  }

  /** @returns {HTMLInputElement} */
  modelInput() {
    return this.model.box.input;
  }

  /**
   * @param {HTMLInputElement} files
   * @returns {HTMLElement}
   */
  sourceButtons(files) {
    const items = this.start.examples.map(({ id, title }) => {
      const open = () => {
        examples.open = false;
        this.listener.example(id);
      };
      return el("li", {}, el("button", { type: "button", onclick: open }, title));
    });
    const examples = el("details", { class: "menu" }, el("summary", {}, "Examples"), el("ul", {}, ...items));
    connectMenu(examples);
    const open = el("button", { type: "button", onclick: () => this.chooseFiles() }, "Open files …");
    return el("div", { class: "source-buttons" }, examples, open, files);
  }

  /**
   * @param {string} label
   * @param {Named[]} items
   * @param {() => void} changed
   */
  pickBox(label, items, changed) {
    const input = el("input", { type: "text", id: newId("pick"), placeholder: "none", "aria-label": label });
    const box = new Combobox(input, items, changed);
    input.removeAttribute("aria-label");
    const note = el("p", { class: "pick-note", id: `${input.id}-note` });
    input.setAttribute("aria-describedby", note.id);
    const element = el("div", { class: "field pick" }, el("label", { for: input.id }, label), box.element, note);
    /** @param {string | null} problemId */
    const mark = (problemId) => markField(element, [input], problemId, note.id);
    return { box, element, note, mark };
  }

  /**
   * @param {string} title
   * @param {HTMLElement | null} count
   * @param {...HTMLElement} parts
   * @returns {HTMLDetailsElement}
   */
  foldedGroup(title, count, ...parts) {
    const isInner = title === "More options";
    const heading = isInner ? el("span", {}, title) : el("h2", {}, title);
    return el("details", { class: isInner ? "more" : "group" }, el("summary", {}, heading, count), ...parts);
  }

  /** @returns {HTMLElement} */
  filterBox() {
    const input = el("input", { type: "search", placeholder: "Filter options", "aria-label": "Filter options" });
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const field of /** @type {Iterable<HTMLElement>} */ (this.more.children)) {
        show(
          field,
          words.every((word) => (field.dataset.words ?? "").includes(word)),
        );
      }
    });
    return el("div", { class: "filter" }, input);
  }

  /** Makes the fields that are the same for every input. */
  fillFixedGroups() {
    for (const field of this.start.machine) {
      if (field.name === "cluster") continue;
      const part = control(field, this.changed);
      this.controls.machine.set(field.name, part);
      this.machineFields.append(part.element);
    }
    const rows = rowTexts(this.start.what_ifs);
    for (const field of this.start.scenario) {
      const texts = rows[field.name];
      const part = texts ? rowsControl(texts, this.changed) : control(field, this.changed);
      this.controls.scenario.set(field.name, part);
      this.scenarioFields.append(part.element);
    }
  }

  /** @returns {{kind: string, title: string, noun: string, is_measured: boolean, needs_cluster: boolean}} */
  inputFacts() {
    const { model, example, upload } = this.input;
    if (model !== undefined) return { kind: "model", title: "", noun: "", is_measured: false, needs_cluster: true };
    const opened = this.uploads.get(upload ?? "");
    if (opened) return opened;
    const known = this.start.examples.find(({ id }) => id === example);
    if (!known) return { kind: "", title: "Uploaded files", noun: "", is_measured: false, needs_cluster: true };
    const is_measured = known.question.ask === "explain";
    return { ...known, is_measured, needs_cluster: known.question.machine?.cluster !== undefined };
  }

  /** @returns {Field[]} the options of the current input */
  inputFields() {
    const { kind } = this.inputFacts();
    return this.uploads.get(this.input.upload ?? "")?.fields ?? this.start.fields[kind] ?? [];
  }

  /** @returns {boolean} whether a profile is shown as it was recorded, which no option changes */
  isProfile() {
    return this.ask === "explain" && PROFILES.includes(this.inputFacts().kind);
  }

  /** Shows what the input is, and the fields of its options. */
  showInput() {
    const { model } = this.input;
    const facts = this.inputFacts();
    const key = model === undefined ? JSON.stringify([this.input, facts.title]) : "";
    // Fields that stay as they are keep the focus.
    if (key !== this.sourceKey || this.source.children.length === 0)
      fill(this.source, model === undefined ? this.inputCard(facts) : this.model.element);
    this.sourceKey = key;
    if (model !== undefined) {
      this.model.box.set(model);
      this.model.note.textContent = this.start.models.find(({ name }) => name === model)?.title ?? "";
    }
    show(this.openedAs, facts.is_measured);
    for (const input of this.openedAs.querySelectorAll("input")) input.checked = input.value === this.ask;
    this.cluster.note.textContent = facts.needs_cluster ? this.clusterTitle() : "Not needed: the files hold times.";
    const isProfile = this.isProfile();
    for (const box of [this.cluster.element, this.planBox, this.machineBox, this.scenarioBox]) show(box, !isProfile);
    show(this.searchBox, model !== undefined);
    this.planTitle.textContent = model === undefined ? "Options" : "Plan";
    this.showFields();
  }

  /**
   * @param {{title: string, noun: string}} facts
   * @returns {HTMLElement}
   */
  inputCard({ title, noun }) {
    const back = el(
      "button",
      { type: "button", class: "quiet-button", onclick: () => this.backToModel() },
      "Use a model instead",
    );
    return el("div", { class: "input-card" }, el("strong", {}, title), el("span", { class: "muted" }, noun), back);
  }

  clusterTitle() {
    const name = this.cluster.box.input.value;
    const title = this.start.clusters.find((cluster) => cluster.name === name)?.title ?? "";
    return title === name ? "" : title;
  }

  /** @returns {HTMLElement} the choice between a recorded run and its replay */
  measuredChoice() {
    const legend = el("legend", { class: "visually-hidden" }, "View of the recorded run");
    const name = newId("ask");
    const options = /** @type {const} */ ([
      ["explain", "As recorded"],
      ["step", "Replayed"],
    ]).map(([ask, label]) => {
      const input = el("input", { type: "radio", name, value: ask });
      input.addEventListener("change", () => {
        this.ask = ask;
        this.listener.changed(true);
      });
      return el("label", {}, input, el("span", {}, label));
    });
    return el("fieldset", { class: "segments", hidden: true }, legend, ...options);
  }

  backToModel() {
    this.input = { model: this.modelInput().value || "llama3-70b" };
    this.ask = "step";
    this.showInput();
    this.modelInput().focus();
    // Options that only the files had are not part of the question about a model.
    this.others = {};
    this.listener.changed(true);
  }

  showFields() {
    const fields = this.inputFields();
    const key = fields.map(({ name }) => name).join(" ");
    if (key === this.fieldsKey) return;
    const values = this.optionValues();
    this.fieldsKey = key;
    this.controls.options.clear();
    fill(this.plan);
    fill(this.more);
    const isShort = fields.length <= COMMON.length;
    const ordered = [...fields].sort((first, second) => rank(first.name) - rank(second.name));
    for (const field of ordered) {
      const part = control(field, this.changed);
      this.controls.options.set(field.name, part);
      (isShort || COMMON.includes(field.name) ? this.plan : this.more).append(part.element);
    }
    show(this.moreBox, this.more.children.length > 0);
    this.setOptions(values);
  }

  /** @returns {Values} */
  optionValues() {
    const shown = Object.fromEntries([...this.controls.options].map(([name, part]) => [name, part.get()]));
    return { ...this.others, ...shown };
  }

  /** @param {Values} values */
  setOptions(values) {
    this.others = {};
    for (const part of this.controls.options.values()) part.set(undefined);
    for (const [name, value] of Object.entries(values)) {
      const part = this.controls.options.get(name);
      if (part) part.set(value);
      else this.others[name] = value;
    }
    this.countGiven();
  }

  /** Says on folded groups how many of their options are given, since a folded one changes the answer as well. */
  countGiven() {
    const count = (/** @type {Iterable<Control>} */ parts) =>
      [...parts].filter((part) => part.get() !== undefined).length;
    const more = [...this.controls.options.values()].filter((part) => part.element.parentElement === this.more);
    const shown = [
      /** @type {const} */ ([this.moreCount, count(more)]),
      /** @type {const} */ ([this.machineCount, count(this.controls.machine.values())]),
      /** @type {const} */ ([this.scenarioCount, count(this.controls.scenario.values())]),
    ];
    for (const [element, number] of shown) element.textContent = number > 0 ? `${number} set` : "";
  }

  /**
   * Returns the question that the form holds.
   *
   * @returns {Question}
   */
  question() {
    this.countGiven();
    /** @param {Group} group */
    const values = (group) => Object.fromEntries([...this.controls[group]].map(([name, part]) => [name, part.get()]));
    if (this.isProfile()) return completed({ ask: "explain", input: this.input });
    const cluster = this.cluster.box.input.value.trim() || undefined;
    return completed({
      ask: this.input.model === undefined && this.ask === "explain" ? "explain" : "step",
      input: this.input,
      options: this.optionValues(),
      machine: { ...values("machine"), cluster },
      scenario: values("scenario"),
    });
  }

  /** @returns {Question} the question for the best plan */
  searchQuestion() {
    return this.search.question(this.question());
  }

  /**
   * Remembers the plan in the form, which shows it again with a search when a plan of that search was opened.
   *
   * @param {Question} sought  what was searched for
   */
  rememberPlan(sought) {
    this.plansBefore.set(JSON.stringify(sought.input), this.optionValues());
  }

  /**
   * Shows a question. The form keeps its plan where a search for a plan leaves the options out, and its scenario.
   *
   * @param {Question} question
   */
  show(question) {
    this.input = { ...question.input };
    this.ask = question.ask === "explain" ? "explain" : "step";
    this.cluster.box.set(String(question.machine.cluster ?? ""));
    this.showInput();
    const before = this.plansBefore.get(JSON.stringify(question.input));
    const shown = question.ask === "plan" ? (before ?? this.optionValues()) : {};
    const kept = Object.fromEntries(Object.entries(shown).filter(([name]) => SEARCHED.includes(name)));
    this.setOptions({ ...kept, ...question.options });
    for (const [name, part] of this.controls.machine) part.set(question.machine[name]);
    if (question.ask !== "plan") {
      for (const [name, part] of this.controls.scenario) part.set(question.scenario[name]);
    } else {
      this.searchBox.open = true;
      this.search.show(question.search ?? {});
    }
    this.countGiven();
  }

  /** @param {Opened} opened */
  addUpload(opened) {
    this.uploads.set(opened.upload, opened);
  }

  /** @returns {Field[]} all fields on show except those of a search */
  shownFields() {
    return [...this.inputFields(), ...this.start.machine, ...this.start.scenario];
  }

  /**
   * Returns a problem whose place is the label of a field, where it is one of the form.
   *
   * @param {import("./api.js").Problem} problem
   * @returns {import("./api.js").Problem}
   */
  placed(problem) {
    const name = /^(?:options|machine|scenario|input|search\.axes|search)\.(\w+)$/.exec(problem.where ?? "")?.[1];
    if (name === undefined) return problem;
    const fields = [...this.shownFields(), ...(this.start.fields.model ?? []), ...this.start.search];
    const label = fields.find((field) => field.name === name)?.label ?? name;
    return { ...problem, where: label.split("|")[0].replaceAll("_", " ") };
  }

  /**
   * Returns a question with another value in the field that a problem names; null where it names no single one.
   *
   * @param {import("./api.js").Problem} problem
   * @param {string} value
   * @param {Question} question
   * @returns {Question | null}
   */
  withNamed(problem, value, question) {
    const [name, ...others] = namedFields(problem, this.shownFields());
    if (name === undefined || others.length > 0) return null;
    if (name === "model" && question.input.model !== undefined) return { ...question, input: { model: value } };
    for (const group of /** @type {Group[]} */ (["options", "machine", "scenario"])) {
      const isThere = this.controls[group].has(name) || (group === "machine" && name === "cluster");
      if (isThere && typeof question[group][name] === "string")
        return { ...question, [group]: { ...question[group], [name]: value } };
    }
    const axis = question.search?.axes?.[name];
    // Of several values to try, the problem does not say which one is meant.
    if (typeof axis !== "string" || !/^[\w-]+$/.test(axis)) return null;
    const changed = completed(question);
    setOption(changed, name, value);
    return changed;
  }

  /**
   * Shows in empty fields which value an answer took for them.
   *
   * @param {Values} plan  texts by field
   */
  showChosen(plan) {
    for (const [name, part] of this.controls.options) part.choose?.(plan[name] === undefined ? "" : String(plan[name]));
  }

  /**
   * Marks the fields that a problem names; none where it is null.
   *
   * @param {import("./api.js").Problem | null} problem
   * @param {string} problemId
   */
  mark(problem, problemId) {
    const named = problem ? namedFields(problem, this.shownFields()) : new Set();
    const inSearch = problem?.where?.startsWith("search.");
    this.search.mark(inSearch ? named : new Set(), problemId);
    if (inSearch) return;
    this.model.mark(named.has("model") ? problemId : null);
    this.cluster.mark(named.has("cluster") ? problemId : null);
    for (const parts of [this.controls.options, this.controls.machine, this.controls.scenario]) {
      for (const [name, part] of parts) {
        part.mark(named.has(name) ? problemId : null);
        const folded = named.has(name) && part.element.closest("details");
        if (folded instanceof HTMLDetailsElement) folded.open = true;
      }
    }
  }

  /**
   * Reads options as a command line has them, with the fields of a model or of the current input.
   *
   * @param {string} line
   * @returns {Values}
   */
  readFlags(line) {
    return readFlags(line, this.input.model === undefined ? this.inputFields() : (this.start.fields.model ?? []));
  }
}

/**
 * @param {string} name
 * @returns {number}
 */
function rank(name) {
  const at = COMMON.indexOf(name);
  return at < 0 ? COMMON.length : at;
}
