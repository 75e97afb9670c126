/**
 * Makes elements. Nothing here parses text as HTML except `setHtml`, which takes only what the server rendered.
 */

/** @typedef {string | number | boolean | null | undefined | ((event: any) => void)} AttributeValue */
/** @typedef {Node | string | null | undefined | false} Child */

/**
 * Creates an element.
 *
 * An attribute whose value is a function becomes an event listener of that name (`onclick`), `true` an empty attribute,
 * and `false`, `null` or `undefined` none.
 *
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, AttributeValue>} [attributes]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (typeof value === "function") element.addEventListener(name.replace(/^on/, ""), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...present(children));
  return element;
}

/**
 * Drops the children that stand for nothing.
 *
 * @param {Child[]} children
 * @returns {(Node | string)[]}
 */
function present(children) {
  return /** @type {(Node | string)[]} */ (
    children.filter((child) => child !== null && child !== undefined && child !== false)
  );
}

/**
 * Replaces the children of an element.
 *
 * @param {Element} element
 * @param {...Child} children
 */
export function fill(element, ...children) {
  element.replaceChildren(...present(children));
}

/**
 * Returns the element of `index.html` with this id.
 *
 * @param {string} id
 * @returns {HTMLElement}
 */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no #${id}`);
  return element;
}

/**
 * Shows or hides an element.
 *
 * @param {HTMLElement} element
 * @param {boolean} visible
 */
export function show(element, visible) {
  element.hidden = !visible;
}

let lastId = 0;

/**
 * Returns an id that no other element has.
 *
 * @param {string} prefix
 * @returns {string}
 */
export function newId(prefix) {
  lastId += 1;
  return `${prefix}-${lastId}`;
}

/**
 * Writes HTML that the server rendered, and renames its ids so that two answers can stand on one page.
 *
 * @param {HTMLElement} container
 * @param {string} html
 * @param {string} prefix
 */
export function setHtml(container, html, prefix) {
  const template = document.createElement("template");
  template.innerHTML = html;
  if (prefix) renameIds(template.content, prefix);
  container.replaceChildren(template.content);
}

const REFERENCES = ["for", "aria-labelledby", "aria-describedby", "aria-controls", "aria-owns", "headers"];

/**
 * Puts `prefix` before every id of a fragment and before every reference to one of them.
 *
 * @param {DocumentFragment} root
 * @param {string} prefix
 */
function renameIds(root, prefix) {
  const ids = new Set();
  for (const element of root.querySelectorAll("[id]")) {
    ids.add(element.id);
    element.id = prefix + element.id;
  }
  if (ids.size === 0) return;
  /** @param {string} id */
  const renamed = (id) => (ids.has(id) ? prefix + id : id);
  for (const element of root.querySelectorAll("*")) {
    for (const { name, value } of [...element.attributes]) {
      if (REFERENCES.includes(name)) element.setAttribute(name, value.split(/\s+/).map(renamed).join(" "));
      else if (value.startsWith("#")) element.setAttribute(name, `#${renamed(value.slice(1))}`);
      else if (value.startsWith("url(#")) element.setAttribute(name, `url(#${renamed(value.slice(5, -1))})`);
    }
  }
}

/**
 * Says a sentence to screen readers, once.
 *
 * @param {string} sentence
 */
export function announce(sentence) {
  const region = byId("announcer");
  if (region.textContent !== sentence) region.textContent = sentence;
}

/**
 * Replaces parts of the page without losing the keyboard's place: the part that had the focus has it again, by its id
 * or its label. If it is gone, the focus goes to `otherwise`.
 *
 * @param {() => void} replace
 * @param {HTMLElement} [otherwise]
 */
export function keepingFocus(replace, otherwise = byId("main")) {
  const focused = document.activeElement;
  const key = focused instanceof HTMLElement ? focusKey(focused) : "";
  replace();
  if (!key || (focused?.isConnected && document.activeElement === focused)) return;
  const same = [...document.querySelectorAll("button, input, select, summary, a, canvas, [tabindex]")].find(
    (element) => element instanceof HTMLElement && focusKey(element) === key,
  );
  const target = same instanceof HTMLElement && same.checkVisibility() ? same : otherwise;
  target.focus({ preventScroll: true });
}

/**
 * @param {HTMLElement} element
 * @returns {string}
 */
function focusKey(element) {
  if (element === document.body) return "";
  const place = element.closest("section[id]")?.id ?? "";
  // The name of a part may hold numbers of the answer; then it has a key that stays.
  const name = element.dataset.key || element.id || element.getAttribute("aria-label") || element.textContent || "";
  return `${place}/${element.tagName}/${name}`;
}
