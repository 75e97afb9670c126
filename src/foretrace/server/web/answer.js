/**
 * The side of the page that shows answers: the current one, the pinned one next to it, and their difference.
 */

import { announce, byId, el, fill, keepingFocus, setHtml, show } from "./dom.js";
import { DownloadMenu } from "./downloads.js";
import { enliven, openedParts, reopen } from "./fragments.js";
import { copyText } from "./report.js";
import { changes, isSame, remember, signed } from "./state.js";
import { formatTime } from "./times.js";

/** @typedef {import("./api.js").FullAnswer} FullAnswer */
/** @typedef {import("./api.js").Problem} Problem */
/** @typedef {import("./api.js").Question} Question */
/** @typedef {import("./api.js").Summary} Summary */

const CANCEL_AFTER_MS = 1000;
/** How often progress is announced to screen readers. */
const ANNOUNCED_MS = 10_000;

/**
 * The actions that the answer side leaves to the page.
 *
 * @typedef {object} AnswerListener
 * @property {() => void} cancel
 * @property {(line: string, question: Question | undefined) => void} openPlan  opens a plan of the answer to a question
 * @property {(line: string, question: Question | undefined) => void} apply  tries a change of the job of a question
 * @property {(first: string, second: string) => void} compare
 * @property {() => void} dropComparison
 */

/**
 * Returns whether an answer has a timeline, which can be compared.
 *
 * @param {{downloads: string[]} | null} answer
 * @returns {boolean}
 */
export function isComparable(answer) {
  return answer?.downloads.includes("saved") ?? false;
}

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
    this.announcedAt = -ANNOUNCED_MS;
    this.connect();
  }

  connect() {
    this.cancelButton.addEventListener("click", () => this.listener.cancel());
    this.pinButton.addEventListener("click", () => (this.answer ? this.pin(this.answer) : undefined));
    this.linkButton.addEventListener("click", () => void copyText(this.linkButton, this.link()));
    this.commandButton.addEventListener("click", () => void copyText(this.commandButton, this.answer?.command ?? ""));
    this.differenceButton.addEventListener("click", () => this.askDifference());
    byId("main").addEventListener("click", (event) => {
      const target = /** @type {Element} */ (event.target);
      const question = this.pinnedBox.contains(target) ? this.pinned?.question : undefined;
      const plan = target.closest("button[data-open-plan]");
      if (plan instanceof HTMLElement) this.listener.openPlan(plan.dataset.openPlan ?? "", question);
      const change = target.closest("button[data-apply]");
      if (change instanceof HTMLElement) this.listener.apply(change.dataset.apply ?? "", question);
    });
  }

  /** Returns the address that restores what is shown, the pinned answer included. */
  link() {
    const isPlain = !this.pinned || !/^#[qa]=/.test(location.hash);
    return isPlain ? location.href : `${location.href}&pin=${this.pinned?.answer}`;
  }

  /**
   * Shows that a question is being answered; the answer before stays, dimmed.
   *
   * @param {string} text
   */
  wait(text) {
    this.before = this.shown;
    this.listener.dropComparison();
    for (const box of [this.current, this.bar, this.differenceBox]) {
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

  /**
   * Writes the progress of a question; screen readers hear of it now and then.
   *
   * @param {string} text
   */
  say(text) {
    this.status.textContent = text;
    const now = performance.now();
    if (text === "" || now - this.announcedAt < ANNOUNCED_MS) return;
    this.announcedAt = now;
    announce(text);
  }

  /** Ends the wait for an answer. */
  rest() {
    clearTimeout(this.timer);
    keepingFocus(() => show(this.cancelButton, false));
    this.progress.classList.remove("running");
    this.say("");
    for (const box of [this.current, this.bar, this.differenceBox]) box.removeAttribute("aria-busy");
    this.differenceBox.classList.remove("stale");
  }

  /** Takes the dimming off. */
  freshen() {
    this.current.classList.remove("stale", "partly", "held");
    this.bar.classList.remove("stale", "held");
  }

  /**
   * Shows that there is no complete answer: an answer of an earlier question stays and is marked as such. If the first
   * part of the new one has come, only that stays.
   */
  hold() {
    if (this.current.classList.contains("partly")) {
      for (const section of this.current.querySelectorAll("article > section:not(.fresh)")) section.remove();
      this.freshen();
      return;
    }
    for (const box of [this.current, this.bar]) {
      box.classList.remove("stale");
      box.classList.add("held");
    }
  }

  /** Shows nothing. */
  clear() {
    this.rest();
    this.freshen();
    this.hideDifference();
    fill(this.current);
    this.answer = null;
    this.shown = null;
    this.showProblem(null);
    this.showActions();
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
    setHtml(quick, html, "current-");
    const article = this.current.querySelector("article.answer");
    const parts = [...quick.querySelectorAll("article.answer > section[id]")];
    const places = parts.map((part) => article?.querySelector(`:scope > section[id="${CSS.escape(part.id)}"]`) ?? null);
    keepingFocus(() => {
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
    });
    this.bar.classList.remove("stale");
    // Until the whole answer has come, there is nothing to keep, to copy or to download.
    this.answer = null;
    this.showActions();
    this.showFigures(summary, question);
  }

  /**
   * Shows the growing front of a search.
   *
   * @param {string} html
   */
  showFront(html) {
    const opened = openedParts(this.current);
    keepingFocus(() => {
      setHtml(this.current, html, "current-");
      reopen(this.current, opened);
      enliven(this.current);
    });
    this.freshen();
    // The front is not an answer, and the figures are those of the question before.
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
    keepingFocus(() => {
      setHtml(this.current, answer.html, "current-");
      reopen(this.current, opened);
      enliven(this.current);
    });
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
    const text = `${signed(is - was, formatTime)}, ${share}`;
    return { parts: [text, reason], tone: is < was ? "good" : "bad", sentence: text };
  }

  /** Shows what can be done with the answer on show. */
  showActions() {
    const { answer } = this;
    this.pinButton.disabled = !answer;
    this.commandButton.disabled = !answer?.command;
    this.linkButton.disabled = false;
    this.downloads.offer(answer);
    const isDifferent = this.pinned?.answer !== answer?.answer;
    show(this.differenceButton, isDifferent && isComparable(this.pinned) && isComparable(answer));
  }

  /**
   * Shows a problem next to the form, or takes the last one away.
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
    (this.pinButton.disabled ? byId("main") : this.pinButton).focus({ preventScroll: true });
  }

  askDifference() {
    if (!this.pinned || !this.answer || !isComparable(this.pinned) || !isComparable(this.answer)) return;
    this.listener.compare(this.pinned.answer, this.answer.answer);
  }

  /**
   * Renews the difference that is on show; an answer does not differ from itself.
   *
   * @param {Question} question  the question of the answer on show
   */
  followDifference(question) {
    const isEqual = this.pinned?.question && isSame(this.pinned.question, question);
    if (isEqual || !isComparable(this.answer)) this.hideDifference();
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
    this.listener.dropComparison();
    keepingFocus(() => {
      show(this.differenceBox, false);
      fill(this.differenceBox);
    });
  }
}
