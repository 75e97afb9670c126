/**
 * The search for a plan that runs: on show, or in the background while other questions are asked.
 */

import { isJobKnown } from "./api.js";
import { Asking, queueText } from "./asking.js";
import { byId, el, fill, show } from "./dom.js";
import { completed, isSame, questionHash, readHash, rememberedSearch, rememberSearch } from "./state.js";

/** @typedef {import("./answer.js").AnswerPane} AnswerPane */
/** @typedef {import("./api.js").FullAnswer} FullAnswer */
/** @typedef {import("./api.js").Problem} Problem */
/** @typedef {import("./api.js").Question} Question */
/**
 * @typedef {object} PlanRunListener
 * @property {(queued: string) => void} say  the progress of the search on show
 * @property {(answer: FullAnswer, question: Question) => void} answer  the search on show has ended
 * @property {(problem: Problem, question: Question) => void} failed
 * @property {() => void} cancelled
 * @property {(question: Question) => void} resume  the reader wants to see the search again
 * @property {(answer: string) => void} open  the reader wants to see the answer of a search that has ended
 */

const LOOKING = "looking for plans …";

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
    /** @type {string | undefined} the job of the search that was on show when the page was loaded the last time */
    this.job = undefined;
    /** @type {{html: string} | null} the plans found so far */
    this.front = null;
    this.isShown = false;
    /** @type {Map<string, string>} the answers of searches that have ended, by the addresses of their questions */
    this.answers = new Map();
  }

  /** @param {string} id  an answer that is gone */
  forgetAnswer(id) {
    for (const [place, answer] of this.answers) if (answer === id) this.answers.delete(place);
  }

  /**
   * Follows the search that ran when the page was loaded the last time. It is on show if the address is about it, and
   * otherwise runs in the background.
   */
  followAgain() {
    const { job, question } = rememberedSearch() ?? {};
    if (job === undefined || question === undefined) return;
    const place = readHash(location.hash);
    const isSought = place.question !== undefined && isSame(place.question, question);
    if (isSought) {
      // The page asks the question of its address, which this search answers.
      this.job = job;
      return;
    }
    void isJobKnown(job).then((isKnown) => {
      if (isKnown && !this.asking.isWaiting) this.follow(completed(question), job, false);
      else if (!isKnown) rememberSearch(null);
    });
  }

  /**
   * Starts a search; another one that still runs is cancelled.
   *
   * @param {Question} question
   */
  start(question) {
    const { job } = this;
    this.job = undefined;
    this.asking.drop();
    this.question = question;
    this.isShown = true;
    if (job === undefined) {
      this.follow(question, undefined, true);
      return;
    }
    void isJobKnown(job).then((isKnown) => {
      if (this.question === question) this.follow(question, isKnown ? job : undefined, this.isShown);
    });
  }

  /**
   * @param {Question} question
   * @param {string | undefined} job  the job that searches already
   * @param {boolean} isShown
   */
  follow(question, job, isShown) {
    this.question = question;
    this.front = null;
    this.isShown = isShown;
    fill(this.note);
    show(this.note, false);
    /** @type {import("./asking.js").AskListener} */
    const listener = {
      began: (began) => rememberSearch({ job: began, question }),
      queued: (position) => this.say(queueText(position) || LOOKING),
      progress: (text) => this.say(text),
      quick: () => undefined,
      front: (front) => {
        this.front = front;
        if (this.isShown) this.pane.showFront(front.html);
      },
      answer: (answer) => {
        rememberSearch(null);
        this.answers.set(questionHash(question), answer.answer);
        if (this.isShown) this.listener.answer(answer, question);
        else this.report("The search has ended.", "Show its plans", () => this.listener.open(answer.answer));
      },
      failed: (problem) => {
        rememberSearch(null);
        if (this.isShown) this.listener.failed(problem, question);
        else this.report(`The search has failed: ${problem.message}`);
      },
      cancelled: () => {
        rememberSearch(null);
        if (this.isShown) this.listener.cancelled();
        else this.report("The search is cancelled.");
      },
      offline: (message, wait_s) => this.say(`${message}. Trying again in ${wait_s} s.`),
      online: () => this.say(LOOKING),
    };
    this.asking.ask(question, listener, job);
    if (!isShown) this.say(LOOKING);
  }

  /** Lets the search run on in the background, where it says how far it is. */
  hide() {
    if (!this.isShown) return;
    this.isShown = false;
    if (this.asking.isWaiting) this.say(LOOKING);
  }

  /** Shows the search that runs in the background. */
  showAgain() {
    this.isShown = true;
    show(this.note, false);
    if (this.front) this.pane.showFront(this.front.html);
  }

  /**
   * Writes how far the search is; nothing while it ends, which the page says by itself.
   *
   * @param {string} text
   */
  say(text) {
    if (this.asking.isCancelling) return;
    if (this.isShown) {
      this.listener.say(text);
      return;
    }
    const question = this.question;
    const again = () => (question ? this.listener.resume(question) : undefined);
    this.report(`Search in the background: ${text}`, "Show", again, "Stop the search", () => void this.stop());
  }

  /** Ends the search in the background with what it has. */
  async stop() {
    this.report("Search in the background: stopping …");
    const problem = await this.asking.cancel();
    if (problem) this.say(problem.message);
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
