/**
 * Shows the help of a field next to it: for the field that the keyboard has reached, and the label under the pointer.
 *
 * Screen readers get the help from the field itself, which it describes; the tip is only for the eye.
 */

import { el, show } from "./dom.js";

const DELAY_MS = 400;
const MARGIN_PX = 8;

/**
 * Makes the tips of a form.
 *
 * @param {HTMLElement} form
 */
export function connectTips(form) {
  const tip = el("div", { class: "tip", "aria-hidden": "true", hidden: true });
  document.body.append(tip);
  let timer = 0;
  let isKeyboard = false;
  /** @type {HTMLElement | null} the field whose tip is shown */
  let shown = null;

  const hide = () => {
    clearTimeout(timer);
    show(tip, false);
  };
  /** @param {EventTarget | null} target */
  const showLater = (target) => {
    hide();
    const field = target instanceof Element ? target.closest(".field") : null;
    const help = field?.querySelector(".help");
    if (!(field instanceof HTMLElement) || !help) return;
    timer = setTimeout(() => {
      tip.replaceChildren(...[...help.childNodes].map((node) => node.cloneNode(true)));
      shown = field;
      show(tip, true);
      place(tip, field);
    }, DELAY_MS);
  };
  document.addEventListener("keydown", (event) => {
    isKeyboard = true;
    if (event.key !== "Escape" || tip.hidden) return;
    // The first Escape only closes the tip, which may cover text; the next one cancels what runs.
    event.preventDefault();
    hide();
  });
  document.addEventListener("pointerdown", () => {
    isKeyboard = false;
    hide();
  });
  form.addEventListener("focusin", (event) => (isKeyboard ? showLater(event.target) : undefined));
  form.addEventListener("focusout", hide);
  form.addEventListener("pointerover", (event) => {
    if (event.target instanceof HTMLLabelElement) showLater(event.target);
  });
  form.addEventListener("pointerout", (event) => {
    if (event.target instanceof HTMLLabelElement) hide();
  });
  form.addEventListener("input", hide);
  // A field that gets the focus may scroll into view by that: its tip goes along.
  const follow = () => {
    if (!tip.hidden && shown) place(tip, shown);
  };
  document.addEventListener("scroll", follow, { capture: true, passive: true });
}

/**
 * Puts the tip below a field, or above it where there is no room, and within the window.
 *
 * @param {HTMLElement} tip
 * @param {HTMLElement} field
 */
function place(tip, field) {
  const [at, size] = [field.getBoundingClientRect(), tip.getBoundingClientRect()];
  const isRoom = at.bottom + size.height + MARGIN_PX < window.innerHeight;
  const left = Math.min(at.left, document.documentElement.clientWidth - size.width - MARGIN_PX);
  tip.style.left = `${Math.max(MARGIN_PX, left)}px`;
  tip.style.top = `${isRoom ? at.bottom + 4 : at.top - size.height - 4}px`;
}
