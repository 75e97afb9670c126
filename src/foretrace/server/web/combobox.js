/**
 * A text field with a list to pick from: the combobox of the ARIA practices, with a search over names and titles.
 */

import { el, newId } from "./dom.js";

/** @typedef {import("./api.js").Named} Named */

const MAX_SHOWN = 200;

/** A field whose text may be any, and whose list shows what is known. */
export class Combobox {
  /**
   * @param {HTMLInputElement} input
   * @param {Named[]} items
   * @param {() => void} changed  called once a name is picked, or a typed one is left
   */
  constructor(input, items, changed) {
    this.input = input;
    this.items = items;
    this.changed = changed;
    this.committed = "";
    this.active = -1;
    this.list = el("ul", { role: "listbox", id: newId("list"), class: "combo-list", hidden: true });
    this.list.setAttribute("aria-label", `Choices for ${input.getAttribute("aria-label") ?? "this field"}`);
    for (const [name, value] of Object.entries({
      role: "combobox",
      autocomplete: "off",
      spellcheck: "false",
      "aria-autocomplete": "list",
      "aria-expanded": "false",
      "aria-controls": this.list.id,
    })) {
      input.setAttribute(name, value);
    }
    this.element = el("div", { class: "combo" }, input, this.list);
    input.addEventListener("input", () => this.open(input.value));
    input.addEventListener("click", () => this.open(""));
    input.addEventListener("keydown", (event) => this.press(event));
    input.addEventListener("blur", () => this.commit(input.value));
    // A pointer on the list must not take the focus from the field.
    this.list.addEventListener("pointerdown", (event) => event.preventDefault());
    this.list.addEventListener("click", (event) => {
      const option = /** @type {Element} */ (event.target).closest("[role=option]");
      if (option instanceof HTMLElement) this.commit(option.dataset.name ?? "");
    });
  }

  /** @param {string} text */
  set(text) {
    this.input.value = text;
    this.committed = text;
    this.close();
  }

  /**
   * Shows the items in which every word of `search` occurs.
   *
   * @param {string} search
   */
  open(search) {
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = this.items.filter(({ name, title }) => {
      const text = `${name} ${title}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    this.list.replaceChildren(...matches.slice(0, MAX_SHOWN).map((item) => this.option(item)));
    this.active = -1;
    const at = matches.findIndex(({ name }) => name === this.input.value);
    const isOpen = matches.length > 0;
    this.list.hidden = !isOpen;
    this.input.setAttribute("aria-expanded", String(isOpen));
    this.activate(search ? -1 : at);
  }

  /**
   * @param {Named} item
   * @returns {HTMLLIElement}
   */
  option({ name, title }) {
    const isChosen = name === this.committed;
    const attributes = { role: "option", id: newId("option"), "aria-selected": String(isChosen), "data-name": name };
    const isPlain = !title || title === name;
    return el(
      "li",
      attributes,
      el("span", { class: "combo-name" }, name),
      !isPlain && el("span", { class: "combo-title" }, title),
    );
  }

  close() {
    this.list.hidden = true;
    this.active = -1;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  /** @param {string} name */
  commit(name) {
    const text = name.trim();
    this.close();
    this.input.value = text;
    if (text === this.committed) return;
    this.committed = text;
    this.changed();
  }

  /** @param {number} position */
  activate(position) {
    const options = /** @type {HTMLElement[]} */ ([...this.list.children]);
    options.forEach((option, index) => option.classList.toggle("active", index === position));
    this.active = position;
    if (position < 0 || position >= options.length) {
      this.input.removeAttribute("aria-activedescendant");
      return;
    }
    this.input.setAttribute("aria-activedescendant", options[position].id);
    options[position].scrollIntoView({ block: "nearest" });
  }

  /** @param {KeyboardEvent} event */
  press(event) {
    const count = this.list.hidden ? 0 : this.list.children.length;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (count === 0) this.open("");
      else if (event.key === "ArrowDown") this.activate((this.active + 1) % count);
      else this.activate((Math.max(this.active, 0) - 1 + count) % count);
    } else if (event.key === "Enter") {
      // Without a choice to make, Enter asks again, as in every other field.
      if (count === 0 && this.input.value.trim() === this.committed) return;
      event.preventDefault();
      const option = /** @type {HTMLElement | undefined} */ (this.list.children[this.active]);
      this.commit(count > 0 && option ? (option.dataset.name ?? "") : this.input.value);
    } else if (event.key === "Escape" && count > 0) {
      // Escape also cancels what runs; an open list has the first claim.
      event.preventDefault();
      event.stopPropagation();
      this.set(this.committed);
    }
  }
}
