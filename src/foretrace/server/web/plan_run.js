/**
 * The search for a plan that runs: on show, or in the background while other questions are asked.
 */

import { Asking } from "./asking.js";
import { byId, el, fill, show } from "./dom.js";

/** @typedef {import("./answer.js").AnswerPane} AnswerPane */
/** @typedef {import("./api.js").FullAnswer} FullAnswer */
/** @typedef {import("./api.js").Problem} Problem */
/** @typedef {import("./api.js").Question} Question */
/**
 * @typedef {object} PlanRunListener
 * @property {(queued: string) => void} say  the progress of the search on show
 * @property {(answer: FullAnswer, question: Question) => void} answer  the search on show has ended
 * @property {(problem: Problem) => void} failed
 * @property {() => void} cancelled
 * @property {(question: Question) => void} resume  the reader wants to see the search again
 * @property {(answer: string) => void} open  the reader wants to see the answer of a search that has ended
 */

/** One search at a time. */
export class PlanRun {
  /**
   * @param {AnswerPane} pane
   * @param {PlanRunListener} listener
   */
  constructor(pane, listener) {
    this.pane = pane;
    this.listener = listener;
    this.asking = new Asking();
    this.note = byId("search-note");
    /** @type {Question | null} what is searched for */
    this.question = null;
    /** @type {{html: string} | null} the plans found so far */
    this.front = null;
    this.isShown = false;
  }

  /**
   * Starts a search; another one that still runs is cancelled.
   *
   * @param {Question} question
   */
  start(question) {
    this.asking.drop();
    this.question = question;
    this.front = null;
    this.isShown = true;
    fill(this.note);
    show(this.note, false);
    this.asking.ask(question, {
      queued: (position) => this.say(position > 0 ? `waiting, position ${position}` : "looking for plans …"),
      progress: (text) => this.say(text),
      quick: () => undefined,
      front: (front) => {
        this.front = front;
        if (this.isShown) this.pane.showFront(front.html);
      },
      answer: (answer) => {
        if (this.isShown) this.listener.answer(answer, question);
        else this.report("The search has ended.", "Show its plans", () => this.listener.open(answer.answer));
      },
      failed: (problem) => {
        if (this.isShown) this.listener.failed(problem);
        else this.report(`The search has failed: ${problem.message}`);
      },
      cancelled: () => {
        if (this.isShown) this.listener.cancelled();
        else this.report("The search is cancelled.");
      },
      offline: (message, wait_s) => this.say(`${message}. Trying again in ${wait_s} s.`),
      online: () => this.say("looking for plans …"),
    });
  }

  /** Lets the search run on in the background, where it says how far it is. */
  hide() {
    if (!this.isShown) return;
    this.isShown = false;
    if (this.asking.isWaiting) this.say("looking for plans …");
  }

  /** Shows the search that runs in the background. */
  showAgain() {
    this.isShown = true;
    show(this.note, false);
    if (this.front) this.pane.showFront(this.front.html);
  }

  /** @param {string} text */
  say(text) {
    if (this.isShown) {
      this.listener.say(text);
      return;
    }
    const question = this.question;
    const again = () => (question ? this.listener.resume(question) : undefined);
    this.report(`Search in the background: ${text}`, "Show", again, "Cancel", () => this.asking.cancel());
  }

  /**
   * Writes a line about the search in the background, with buttons.
   *
   * @param {string} text
   * @param {string} [action]
   * @param {() => void} [act]
   * @param {string} [end]
   * @param {() => void} [close]
   */
  report(text, action, act, end = "Close", close = () => show(this.note, false)) {
    const words = this.note.querySelector("span");
    const labels = [...this.note.querySelectorAll("button")].map((button) => button.textContent);
    const actions = action ? [action, end] : [end];
    if (words && labels.join() === actions.join()) {
      // The buttons stay where they are: somebody may be about to press one.
      words.textContent = text;
    } else {
      const button = (/** @type {string} */ label, /** @type {(() => void) | undefined} */ onclick) =>
        el("button", { type: "button", class: "quiet-button", onclick }, label);
      fill(this.note, el("span", {}, text), " ", action ? button(action, act) : null, " ", button(end, close));
    }
    show(this.note, true);
  }
}
