/**
 * The state of the page as data: questions, links, and what the browser remembers.
 */

/** @typedef {import("./api.js").Question} Question */
/** @typedef {import("./api.js").Values} Values */

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
    const [old, now] = [before[group] ?? {}, after[group] ?? {}];
    for (const name of new Set([...Object.keys(old), ...Object.keys(now)])) {
      const [was, is] = [text(old[name]), text(now[name])];
      if (was !== is) texts.push(`${name.replaceAll("_", " ")} ${was || "auto"} → ${is || "auto"}`);
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
 * A place that an address leads to: a question or an answer, and the answer that is pinned next to it.
 *
 * @typedef {{question?: Question, answer?: string, pin?: string, isBroken?: boolean}} Place
 */

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
  if (answer !== undefined && /^[\w-]{1,64}$/.test(answer)) return { answer, pin };
  try {
    const binary = atob((link ?? "").replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = Uint8Array.from(binary, (character) => character.charCodeAt(0));
    const question = JSON.parse(new TextDecoder().decode(bytes));
    if (question && typeof question.input === "object") return { question: completed(question), pin };
  } catch {
    // The address was cut or changed on its way.
  }
  return { isBroken: true };
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
