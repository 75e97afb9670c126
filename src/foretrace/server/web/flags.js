/**
 * Reads texts that speak of options as a command line has them: plans, proposals, and problems.
 */

/** @typedef {import("./api.js").Field} Field */
/** @typedef {import("./api.js").Values} Values */

/**
 * Reads options as a command line has them: `--tp 4 --no-sp`.
 *
 * @param {string} line
 * @param {Field[]} fields
 * @returns {Values}
 */
export function readFlags(line, fields) {
  const words = [...line.matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, plain]) => quoted ?? plain);
  /** @type {Values} */
  const values = {};
  for (let at = 0; at < words.length; at += 1) {
    const field = fields.find(
      ({ flag, kind }) => flag === words[at] || (kind === "flag" && words[at] === flag.replace("--", "--no-")),
    );
    if (!field) continue;
    if (field.kind === "flag") values[field.name] = words[at] === field.flag;
    else {
      at += 1;
      values[field.name] = words[at] ?? "";
    }
  }
  return values;
}

/**
 * Returns the names of the fields that a problem is about, as far as it names them.
 *
 * @param {import("./api.js").Problem} problem
 * @param {Field[]} fields
 * @returns {Set<string>}
 */
export function namedFields(problem, fields) {
  // A hint names the options to change, such as `--tp 2 or --tp 4 runs`.
  const text = `${problem.where ?? ""} ${problem.message} ${problem.hint ?? ""}`;
  const flags = new Set(text.match(/--[a-z][\w-]*/g) ?? []);
  const place = /^(?:options|machine|scenario|input|search\.axes|search)\.(\w+)/.exec(problem.where ?? "")?.[1];
  if (place) return new Set([place]);
  if (fields.some(({ name }) => name === problem.where)) return new Set([problem.where ?? ""]);
  const names = new Set(fields.filter(({ flag }) => flags.has(flag)).map(({ name }) => name));
  // Messages without a flag begin with the option and its value: `gbs 1000 cannot be divided by …`.
  const first = /^(?:the )?(\w+)/.exec(problem.message)?.[1];
  if (names.size === 0 && first)
    for (const { name, label } of fields) if (name === first || label === first) names.add(name);
  return names;
}
