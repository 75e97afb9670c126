/**
 * The side of the page that shows answers: the current one, the pinned one next to it, and their difference.
 */

import { announce, byId, copyText, el, fill, setHtml, show } from "./dom.js";
import { DownloadMenu } from "./downloads.js";
import { enliven, offerPlans, openedParts, reopen } from "./fragments.js";
import { changes, duration, isSame, remember, signed } from "./state.js";

/** @typedef {import("./api.js").FullAnswer} FullAnswer */
/** @typedef {import("./api.js").Problem} Problem */
/** @typedef {import("./api.js").Question} Question */
/** @typedef {import("./api.js").Summary} Summary */

const CANCEL_AFTER_MS = 1000;

/**
 * What the answer side asks of the page.
 *
 * @typedef {object} AnswerListener
 * @property {() => void} cancel
 * @property {() => string} link  the address that restores what is shown
 * @property {(line: string) => void} openPlan
 * @property {(line: string) => void} apply
 * @property {(first: string, second: string) => void} compare
 */

/** The answer side of the page. */
export class AnswerPane {
  /** @param {AnswerListener} listener */
  constructor(listener) {
    this.listener = listener;
    this.bar = byId("figures");
    this.current = byId("current");
    this.pinnedBox = byId("pinned");
    this.differenceBox = byId("difference");
    this.step = byId("step-figure");
    this.change = byId("step-change");
    this.title = byId("step-title");
    this.status = byId("status");
    this.progress = byId("progress");
    this.problemBox = byId("problem");
    this.cancelButton = /** @type {HTMLButtonElement} */ (byId("cancel"));
    this.pinButton = /** @type {HTMLButtonElement} */ (byId("pin"));
    this.differenceButton = /** @type {HTMLButtonElement} */ (byId("show-difference"));
    this.linkButton = /** @type {HTMLButtonElement} */ (byId("copy-link"));
    this.commandButton = /** @type {HTMLButtonElement} */ (byId("copy-command"));
    this.downloads = new DownloadMenu((problem) => this.showProblem(problem));
    /** @type {FullAnswer | null} the complete answer on show */
    this.answer = null;
    /** @type {FullAnswer | null} */
    this.pinned = null;
    /** @type {{summary: Summary, question: Question} | null} what the next answer is compared with */
    this.before = null;
    /** @type {{summary: Summary, question: Question} | null} what is on show */
    this.shown = null;
    this.timer = 0;
    this.connect();
  }

  connect() {
    this.cancelButton.addEventListener("click", () => this.listener.cancel());
    this.pinButton.addEventListener("click", () => (this.answer ? this.pin(this.answer) : undefined));
    this.linkButton.addEventListener("click", () => void copyText(this.linkButton, this.listener.link()));
    this.commandButton.addEventListener("click", () => void copyText(this.commandButton, this.answer?.command ?? ""));
    this.differenceButton.addEventListener("click", () => this.askDifference());
    byId("main").addEventListener("click", (event) => {
      const target = /** @type {Element} */ (event.target);
      const plan = target.closest("button[data-open-plan]");
      if (plan instanceof HTMLElement) this.listener.openPlan(plan.dataset.openPlan ?? "");
      const applied = target.closest("button[data-apply]");
      if (applied instanceof HTMLElement) this.listener.apply(applied.dataset.apply ?? "");
    });
  }

  /**
   * Shows that a question is being answered; what is on show stays, dimmed.
   *
   * @param {string} text
   */
  wait(text) {
    this.before = this.shown;
    for (const box of [this.current, this.bar]) {
      box.setAttribute("aria-busy", "true");
      box.classList.add("stale");
      box.classList.remove("held", "partly");
    }
    for (const section of this.current.querySelectorAll("section.view")) section.classList.remove("fresh");
    this.progress.classList.add("running");
    this.say(text);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => show(this.cancelButton, true), CANCEL_AFTER_MS);
  }

  /** @param {string} text */
  say(text) {
    this.status.textContent = text;
  }

  /** Ends the wait, whatever came of it. */
  rest() {
    clearTimeout(this.timer);
    show(this.cancelButton, false);
    this.progress.classList.remove("running");
    this.say("");
    this.current.removeAttribute("aria-busy");
    this.bar.removeAttribute("aria-busy");
  }

  /** Takes the dimming off. */
  freshen() {
    this.current.classList.remove("stale", "partly", "held");
    this.bar.classList.remove("stale", "held");
  }

  /** Shows that the answer is one of an earlier question, and stays until there is another. */
  hold() {
    for (const box of [this.current, this.bar]) {
      box.classList.remove("stale", "partly");
      box.classList.add("held");
    }
  }

  /**
   * Shows the first part of an answer. The other sections of the answer before stay, dimmed, so that nothing jumps.
   *
   * @param {string} html
   * @param {Summary} summary
   * @param {Question} question
   */
  showQuick(html, summary, question) {
    const quick = el("div");
    setHtml(quick, html, "");
    const article = this.current.querySelector("article.answer");
    const parts = [...quick.querySelectorAll("article.answer > section[id]")];
    const places = parts.map((part) => article?.querySelector(`:scope > section[id="${CSS.escape(part.id)}"]`) ?? null);
    if (article && places.length > 0 && places.every((place) => place !== null)) {
      const [old, now] = [article.querySelector(":scope > header"), quick.querySelector("article.answer > header")];
      if (old && now) old.replaceWith(now);
      parts.forEach((part, index) => {
        part.classList.add("fresh");
        places[index]?.replaceWith(part);
      });
      this.current.classList.add("partly");
    } else {
      fill(this.current, ...quick.childNodes);
      this.freshen();
    }
    enliven(this.current);
    this.bar.classList.remove("stale");
    this.showFigures(summary, question);
  }

  /**
   * Shows the growing front of a search.
   *
   * @param {string} html
   */
  showFront(html) {
    setHtml(this.current, html, "");
    offerPlans(this.current);
    enliven(this.current);
    this.freshen();
    // The front is no answer: the figures are those of the question before, which stands no longer.
    this.step.textContent = "";
    this.title.textContent = "";
    this.change.textContent = "";
    this.shown = null;
    this.answer = null;
    this.showActions();
  }

  /**
   * Shows a complete answer.
   *
   * @param {FullAnswer} answer
   * @param {Question} question
   */
  showAnswer(answer, question) {
    this.answer = { ...answer, question };
    const position = window.scrollY;
    const opened = openedParts(this.current);
    setHtml(this.current, answer.html, "");
    reopen(this.current, opened);
    offerPlans(this.current);
    enliven(this.current);
    window.scrollTo({ top: position, behavior: "instant" });
    this.rest();
    this.freshen();
    this.showProblem(null);
    this.showFigures(answer.summary, question);
    this.showActions();
    if (!this.differenceBox.hidden) this.followDifference(question);
  }

  /**
   * @param {Summary} summary
   * @param {Question} question
   */
  showFigures(summary, question) {
    this.step.textContent = summary.step_text;
    this.title.textContent = summary.title;
    const difference = this.difference(summary, question);
    fill(this.change, ...difference.parts);
    this.change.className = `step-change ${difference.tone}`;
    this.shown = { summary, question };
    announce([summary.step_text && `Step ${summary.step_text}`, difference.sentence].filter(Boolean).join(", "));
    document.title = `${summary.step_text ? `${summary.step_text} · ` : ""}${summary.title} · Foretrace`;
  }

  /**
   * Returns what changed since the answer before, as parts of the bar and as a sentence.
   *
   * @param {Summary} summary
   * @param {Question} question
   * @returns {{parts: (Node | string)[], tone: string, sentence: string}}
   */
  difference(summary, question) {
    const before = this.before;
    if (!before || before.summary.kind !== summary.kind) return { parts: [], tone: "", sentence: "" };
    const [was, is] = [before.summary.step_time_s, summary.step_time_s];
    if (!was || !is) return { parts: [], tone: "", sentence: "" };
    const why = changes(before.question, question);
    if (why.length === 0) return { parts: [], tone: "", sentence: "" };
    const reason = el("span", { class: "why" }, why.slice(0, 2).join(", ") + (why.length > 2 ? ", …" : ""));
    if (Math.abs(is / was - 1) < 5e-5) return { parts: ["no difference", reason], tone: "", sentence: "no difference" };
    const share = signed(100 * (is / was - 1), (size) => `${size < 0.1 ? size.toPrecision(1) : size.toFixed(1)} %`);
    const text = `${signed(is - was, duration)}, ${share}`;
    return { parts: [text, reason], tone: is < was ? "good" : "bad", sentence: text };
  }

  /** Shows what can be done with the answer on show. */
  showActions() {
    const { answer } = this;
    this.pinButton.disabled = !answer;
    this.commandButton.disabled = !answer?.command;
    this.linkButton.disabled = false;
    this.downloads.offer(answer);
    show(this.differenceButton, Boolean(this.pinned && answer && this.pinned.answer !== answer.answer));
  }

  /**
   * Shows a problem next to the form, or takes the last one away. The answer before stays, dimmed.
   *
   * @param {Problem | null} problem
   * @param {{label: string, act: () => void}[]} [actions]
   */
  showProblem(problem, actions = []) {
    show(this.problemBox, problem !== null);
    if (problem === null) return fill(this.problemBox);
    const buttons = actions.map(({ label, act }) => el("button", { type: "button", onclick: act }, label));
    return fill(
      this.problemBox,
      el(
        "p",
        {},
        problem.where ? el("span", { class: "problem-place" }, `${problem.where}: `) : null,
        el("strong", { id: "problem-message" }, problem.message),
        " ",
        el("code", {}, problem.code),
      ),
      problem.hint ? el("p", { class: "muted" }, problem.hint) : null,
      buttons.length > 0 ? el("div", { class: "problem-actions" }, ...buttons) : null,
    );
  }

  /**
   * Keeps an answer next to the current ones.
   *
   * @param {FullAnswer} answer
   */
  pin(answer) {
    this.pinned = answer;
    remember("pinned", answer.answer);
    const content = el("div");
    setHtml(content, answer.html, "pinned-");
    const unpin = el("button", { type: "button", class: "quiet-button", onclick: () => this.unpin() }, "Unpin");
    const head = el(
      "div",
      { class: "column-head" },
      el("strong", {}, "Pinned"),
      el("span", { class: "step-small" }, answer.summary.step_text),
      unpin,
    );
    fill(this.pinnedBox, head, ...content.childNodes);
    offerPlans(this.pinnedBox);
    enliven(this.pinnedBox);
    show(this.pinnedBox, true);
    byId("columns").classList.add("two");
    this.showActions();
    announce("Pinned");
  }

  unpin() {
    this.pinned = null;
    remember("pinned", null);
    fill(this.pinnedBox);
    show(this.pinnedBox, false);
    byId("columns").classList.remove("two");
    this.hideDifference();
    this.showActions();
    this.pinButton.focus();
  }

  askDifference() {
    if (this.pinned && this.answer) this.listener.compare(this.pinned.answer, this.answer.answer);
  }

  /**
   * Renews the difference that is on show; an answer does not differ from itself.
   *
   * @param {Question} question  the question of the answer on show
   */
  followDifference(question) {
    if (this.pinned?.question && isSame(this.pinned.question, question)) this.hideDifference();
    else this.askDifference();
  }

  /**
   * Shows the difference of two answers above them.
   *
   * @param {string} html
   */
  showDifference(html) {
    const content = el("div");
    setHtml(content, html, "difference-");
    const close = el(
      "button",
      { type: "button", class: "quiet-button", onclick: () => this.hideDifference() },
      "Close",
    );
    const head = el("div", { class: "column-head" }, el("strong", {}, "Difference"), close);
    fill(this.differenceBox, head, ...content.childNodes);
    enliven(this.differenceBox);
    if (this.differenceBox.hidden) {
      show(this.differenceBox, true);
      this.differenceBox.scrollIntoView({ block: "start" });
      this.differenceBox.focus({ preventScroll: true });
    }
  }

  hideDifference() {
    show(this.differenceBox, false);
    fill(this.differenceBox);
  }
}
