/**
 * The dialog of past answers: open one, compare it with the current one, or delete it.
 */

import { isComparable } from "./answer.js";
import { deleteAnswer, getHistory } from "./api.js";
import { problemOf } from "./asking.js";
import { byId, el, fill } from "./dom.js";

/** @typedef {import("./api.js").Past} Past */
/**
 * @typedef {object} HistoryListener
 * @property {(id: string) => void} open
 * @property {(id: string) => void} compare
 * @property {() => import("./api.js").FullAnswer | null} current  the answer on show
 */

/** The dialog of past answers. */
export class HistoryDialog {
  /** @param {HistoryListener} listener */
  constructor(listener) {
    this.listener = listener;
    this.dialog = /** @type {HTMLDialogElement} */ (byId("history"));
    this.list = byId("history-list");
  }

  async open() {
    fill(this.list, el("p", { class: "muted" }, "Loading …"));
    if (!this.dialog.open) this.dialog.showModal();
    try {
      this.fillList(await getHistory());
    } catch (error) {
      fill(this.list, el("p", { role: "alert" }, problemOf(error).message));
    }
  }

  /** @param {Past[]} answers */
  fillList(answers) {
    if (answers.length === 0) {
      fill(this.list, el("p", { class: "muted" }, "No answers yet. Every answer that is complete is kept here."));
      return;
    }
    fill(this.list, el("ul", { class: "history" }, ...answers.map((answer) => this.item(answer))));
  }

  /**
   * @param {Past} past
   * @returns {HTMLElement}
   */
  item(past) {
    const at = new Date(past.at * 1000);
    const open = el(
      "button",
      { type: "button", class: "history-open", onclick: () => this.leave(() => this.listener.open(past.answer)) },
      el("span", { class: "history-title" }, past.title),
      el("span", { class: "history-step" }, past.step_text),
      el("span", { class: "muted" }, `${past.kind} · `, el("time", { datetime: at.toISOString() }, shortTime(at))),
    );
    const current = this.listener.current();
    const compare = el(
      "button",
      {
        type: "button",
        "aria-label": `Compare ${past.title} ${past.step_text} with the current answer`,
        disabled: current?.answer === past.answer || !isComparable(current) || !isComparable(past),
        onclick: () => this.leave(() => this.listener.compare(past.answer)),
      },
      "Compare",
    );
    const remove = el("button", { type: "button", "aria-label": `Delete ${past.title} ${past.step_text}` }, "Delete");
    const row = el("li", {}, open, compare, remove);
    remove.addEventListener("click", () => void this.remove(past.answer, row));
    return row;
  }

  /** @param {() => void} act */
  leave(act) {
    this.dialog.close();
    act();
  }

  /**
   * @param {string} id
   * @param {HTMLElement} row
   */
  async remove(id, row) {
    try {
      await deleteAnswer(id);
    } catch (error) {
      row.append(el("p", { role: "alert" }, problemOf(error).message));
      return;
    }
    const next = row.nextElementSibling ?? row.previousElementSibling;
    row.remove();
    const button = next?.querySelector("button");
    if (button) button.focus();
    else this.fillList([]);
  }
}

/**
 * Returns the time of day, with the date if it is not today.
 *
 * @param {Date} at
 * @returns {string}
 */
function shortTime(at) {
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString()} ${time}`;
}
