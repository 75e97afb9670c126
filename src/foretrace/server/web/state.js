/**
 * The state of the page as data: questions, links, and what the browser remembers.
 */

/** @typedef {import("./api.js").Question} Question */
/** @typedef {import("./api.js").Values} Values */

/** The id of an answer. */
const ID = /^[\w-]{1,64}$/;
const ASKS = ["step", "plan", "explain", "compare"];

/**
 * Returns a question without anything that is not given, its names sorted, so that equal questions have equal texts.
 *
 * @param {Question} question
 * @returns {Question}
 */
function tidied(question) {
  /** @type {any} */
  const tidy = { ask: question.ask, input: question.input };
  for (const group of /** @type {const} */ (["options", "machine", "scenario"]))
    tidy[group] = given(question[group] ?? {});
  if (question.ask === "plan") tidy.search = given(question.search ?? {});
  return tidy;
}

/**
 * @param {Record<string, any>} values
 * @returns {Record<string, any>}
 */
function given(values) {
  return Object.fromEntries(
    Object.entries(values)
      .filter(([, value]) => !isEmpty(value))
      .sort(([first], [second]) => (first < second ? -1 : 1)),
  );
}

/**
 * @param {unknown} value
 * @returns {boolean}
 */
function isEmpty(value) {
  if (value === null || value === undefined || value === "") return true;
  if (Array.isArray(value)) return value.length === 0;
  return typeof value === "object" && Object.keys(value).length === 0;
}

/**
 * @param {Question} first
 * @param {Question} second
 * @returns {boolean}
 */
export function isSame(first, second) {
  return JSON.stringify(tidied(first)) === JSON.stringify(tidied(second));
}

/**
 * Returns what changed from one question to the next, as short texts: `tp 4 → 8`.
 *
 * @param {Question} before
 * @param {Question} after
 * @returns {string[]}
 */
export function changes(before, after) {
  if (JSON.stringify(before.input) !== JSON.stringify(after.input)) return [];
  const texts = [];
  for (const group of /** @type {const} */ (["options", "machine", "scenario"])) {
    const [first, second] = [before[group] ?? {}, after[group] ?? {}];
    for (const name of new Set([...Object.keys(first), ...Object.keys(second)])) {
      const [from, to] = [text(first[name]), text(second[name])];
      if (from !== to) texts.push(`${name.replaceAll("_", " ")} ${from || "auto"} → ${to || "auto"}`);
    }
  }
  return texts;
}

/**
 * @param {import("./api.js").Value} value
 * @returns {string}
 */
function text(value) {
  if (value === true) return "on";
  if (value === false) return "off";
  return Array.isArray(value) ? value.join(" ") : String(value ?? "");
}

/**
 * A place that an address leads to: a question or an answer, the answer that is pinned next to it, and whether their
 * difference is on show.
 *
 * @typedef {{question?: Question, answer?: string, pin?: string, isDifferent?: boolean, isBroken?: boolean}} Place
 */

/**
 * Returns an address with a pinned answer, or without one.
 *
 * @param {string} hash  the part of the address after and including `#`
 * @param {string | undefined} pin
 * @param {boolean} isDifferent  whether the difference from the pinned answer is on show
 * @returns {string}
 */
export function placeHash(hash, pin, isDifferent) {
  const place = hash.split("&")[0];
  return pin === undefined ? place : `${place}&pin=${pin}${isDifferent ? "&diff=1" : ""}`;
}

/**
 * Writes a question into the part of an address after `#`.
 *
 * @param {Question} question
 * @returns {string}
 */
export function questionHash(question) {
  const bytes = new TextEncoder().encode(JSON.stringify(tidied(question)));
  const base64 = btoa(String.fromCharCode(...bytes));
  return `#q=${base64.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`;
}

/**
 * Reads the part of an address after `#`.
 *
 * @param {string} hash
 * @returns {Place} without a question and an answer where the address has none, or is broken
 */
export function readHash(hash) {
  if (hash === "" || hash === "#") return {};
  const values = new URLSearchParams(hash.slice(1));
  const [link, answer, pin] = ["q", "a", "pin"].map((name) => values.get(name) ?? undefined);
  const aside = pin !== undefined && ID.test(pin) ? { pin, isDifferent: values.get("diff") === "1" } : {};
  if (answer !== undefined && ID.test(answer)) return { answer, ...aside };
  try {
    const binary = atob((link ?? "").replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = Uint8Array.from(binary, (character) => character.charCodeAt(0));
    const question = questionOf(JSON.parse(new TextDecoder().decode(bytes)));
    if (question) return { question, ...aside };
  } catch {
    // The address was cut or changed on its way.
  }
  return { isBroken: true };
}

/**
 * Returns JSON as a question; null where it is none, whoever has written it.
 *
 * @param {unknown} json
 * @returns {Question | null}
 */
function questionOf(json) {
  if (!isRecord(json) || !isRecord(json.input)) return null;
  if (!ASKS.includes(String(json.ask ?? "step"))) return null;
  if (!Object.values(json.input).every((name) => typeof name === "string")) return null;
  for (const group of ["options", "machine", "scenario"]) {
    const values = json[group] ?? {};
    if (!isRecord(values) || !Object.values(values).every(isValue)) return null;
  }
  const search = json.search ?? {};
  if (!isRecord(search)) return null;
  const { axes = {}, ...others } = search;
  if (!isRecord(axes) || ![...Object.values(axes), ...Object.values(others)].every(isPlain)) return null;
  return completed(/** @type {Partial<Question>} */ (/** @type {unknown} */ (json)));
}

/**
 * @param {unknown} value
 * @returns {value is Record<string, unknown>}
 */
function isRecord(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/**
 * @param {unknown} value
 * @returns {boolean}
 */
function isPlain(value) {
  return value === null || ["string", "number", "boolean", "undefined"].includes(typeof value);
}

/**
 * @param {unknown} value
 * @returns {value is import("./api.js").Value}
 */
function isValue(value) {
  return Array.isArray(value) ? value.every((part) => typeof part === "string") : isPlain(value);
}

/**
 * Returns a question with every group.
 *
 * @param {Partial<Question>} question
 * @returns {Question}
 */
export function completed(question) {
  return {
    ask: question.ask ?? "step",
    input: { ...question.input },
    options: { ...question.options },
    machine: { ...question.machine },
    scenario: { ...question.scenario },
    search: { ...question.search },
  };
}

/**
 * Returns a number with a sign that is always there, and a true minus.
 *
 * @param {number} value
 * @param {(size: number) => string} write
 * @returns {string}
 */
export function signed(value, write) {
  return (value < 0 ? "−" : "+") + write(Math.abs(value));
}

/**
 * Returns what this browser remembers under a name; null where it remembers nothing, or may not.
 *
 * @param {string} name
 * @returns {string | null}
 */
export function remembered(name) {
  try {
    return localStorage.getItem(`foretrace-${name}`);
  } catch {
    return null;
  }
}

/**
 * Makes this browser remember a text, or forget it.
 *
 * @param {string} name
 * @param {string | null} value
 */
export function remember(name, value) {
  try {
    if (value === null) localStorage.removeItem(`foretrace-${name}`);
    else localStorage.setItem(`foretrace-${name}`, value);
  } catch {
    // Without storage the page works as well, it only forgets.
  }
}

/**
 * Returns the search that runs in this window; null where none does.
 *
 * @returns {{job: string, question: Question} | null}
 */
export function rememberedSearch() {
  try {
    const search = JSON.parse(sessionStorage.getItem("foretrace-search") ?? "null");
    const question = isRecord(search) ? questionOf(search.question) : null;
    return question && typeof search.job === "string" ? { job: search.job, question } : null;
  } catch {
    return null;
  }
}

/**
 * Makes this window remember the search that runs, beyond a reload.
 *
 * @param {{job: string, question: Question} | null} search
 */
export function rememberSearch(search) {
  try {
    if (search === null) sessionStorage.removeItem("foretrace-search");
    else sessionStorage.setItem("foretrace-search", JSON.stringify(search));
  } catch {
    // Without storage a reload starts the search again.
  }
}
