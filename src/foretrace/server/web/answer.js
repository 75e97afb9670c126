/**
 * The side of the page that shows answers: the current one, the pinned one next to it, and their difference.
 */

import { announce, byId, el, fill, keepingFocus, setHtml, show } from "./dom.js";
import { DownloadMenu } from "./downloads.js";
import { enliven, keepingState } from "./fragments.js";
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
 * @property {() => void} moved  what is pinned, or whether the difference is on show, has changed
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

/** The share of a figure below which a change of it is none. */
const MIN_CHANGE = 5e-5;

/**
 * Returns the change from one answer to another: of the step, or of the rate where a step does other work.
 *
 * @param {Summary} first
 * @param {Summary} second
 * @returns {{text: string, tone: "good" | "bad" | ""} | null}  null where the answers have no figures to compare
 */
function changeOf(first, second) {
  if (!first.step_time_s || !second.step_time_s) return null;
  const isSameWork = (first.tokens_per_step ?? null) === (second.tokens_per_step ?? null);
  const isRate = !isSameWork && Boolean(first.tokens_per_s_per_gpu && second.tokens_per_s_per_gpu);
  if (!isSameWork && !isRate) return { text: "other work in a step", tone: "" };
  const from = isRate ? Number(first.tokens_per_s_per_gpu) : first.step_time_s;
  const to = isRate ? Number(second.tokens_per_s_per_gpu) : second.step_time_s;
  const change = to / from - 1;
  const unit = isRate ? " tokens/s per GPU" : "";
  if (Math.abs(change) < MIN_CHANGE) return { text: isRate ? `no other rate: ${Math.round(to)}${unit}` : "no difference", tone: "" };
  const share = signed(100 * change, (size) => `${size < 0.1 ? size.toPrecision(1) : size.toFixed(1)} %`);
  const isBetter = isRate ? change > 0 : change < 0;
  return { text: isRate ? `${share}${unit}` : `${signed(to - from, formatTime)}, ${share}`, tone: isBetter ? "good" : "bad" };
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
    this.misfit = byId("step-misfit");
    this.held = byId("held-note");
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
    /** Whether the answer on show is that of an earlier question than the one that has failed. */
    this.isHeld = false;
    /** Whether the first part of the answer that is waited for is on show. */
    this.isPart = false;
    /** Whether the difference is to be shown as soon as both answers are there. */
    this.wantsDifference = false;
    // What is scrolled to the top stops below the bar, whose height depends on what it says.
    new ResizeObserver(() => {
      document.documentElement.style.setProperty("--bar-height", `${this.bar.offsetHeight}px`);
    }).observe(this.bar);
    this.timer = 0;
    this.announcedAt = -ANNOUNCED_MS;
    this.connect();
  }

  connect() {
    this.cancelButton.addEventListener("click", () => this.listener.cancel());
    this.pinButton.addEventListener("click", () => (this.answer ? this.pin(this.answer) : undefined));
    this.linkButton.addEventListener("click", () => void copyText(this.linkButton, location.href));
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

  /**
   * Shows that a question is being answered; the answer before stays, dimmed.
   *
   * @param {string} text
   */
  wait(text) {
    this.before = this.shown ?? this.before;
    this.isHeld = false;
    this.isPart = false;
    show(this.held, false);
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
    this.showStopping(false);
    this.timer = setTimeout(() => show(this.cancelButton, true), CANCEL_AFTER_MS);
  }

  /**
   * Shows that what runs is about to end.
   *
   * @param {boolean} isStopping
   */
  showStopping(isStopping) {
    this.cancelButton.disabled = isStopping;
    if (isStopping) this.say("stopping …");
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
  }

  /** Takes the dimming off. */
  freshen() {
    this.current.classList.remove("stale", "partly", "held");
    this.bar.classList.remove("stale", "held");
    this.isHeld = false;
    show(this.held, false);
  }

  /**
   * Shows that there is no complete answer: an answer of an earlier question stays and is marked as such. If the first
   * part of the new one has come, only that stays.
   *
   * @param {"failed" | "cancelled"} reason
   */
  hold(reason) {
    this.rest();
    if (this.isPart) {
      this.isPart = false;
      // Where the part took its place in the answer before, the rest of that one goes.
      const isMixed = this.current.classList.contains("partly");
      const others = isMixed ? this.current.querySelectorAll("article > section:not(.fresh)") : [];
      for (const section of others) section.remove();
      this.freshen();
      this.hideDifference();
      this.say(reason === "cancelled" ? "cancelled: this is the first part of the answer, Enter asks for all of it" : "");
      return;
    }
    const isAnswer = this.current.childElementCount > 0 && this.shown !== null;
    for (const box of [this.current, this.bar, this.differenceBox]) {
      box.classList.remove("stale");
      box.classList.toggle("held", isAnswer);
    }
    this.isHeld = isAnswer && reason === "failed";
    show(this.held, isAnswer);
    this.showActions();
    if (reason === "cancelled") this.say("cancelled");
  }

  /** Shows nothing. */
  clear() {
    this.rest();
    this.freshen();
    this.hideDifference();
    fill(this.current);
    this.answer = null;
    this.isPart = false;
    this.shown = null;
    this.before = null;
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
    keepingState(this.current, () => {
      if (article && places.length > 0 && places.every((place) => place !== null)) {
        const header = quick.querySelector("article.answer > header");
        if (header) article.querySelector(":scope > header")?.replaceWith(header);
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
    this.bar.classList.remove("stale", "held");
    this.isPart = true;
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
    keepingState(this.current, () => {
      setHtml(this.current, html, "current-");
      enliven(this.current);
    });
    this.freshen();
    // The front is not an answer, and the figures are those of the question before.
    show(this.misfit, false);
    this.step.textContent = "";
    this.title.textContent = "";
    document.title = "Searching · Foretrace";
    this.change.textContent = "";
    this.shown = null;
    this.answer = null;
    this.isPart = false;
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
    this.isPart = false;
    const position = window.scrollY;
    keepingState(this.current, () => {
      setHtml(this.current, answer.html, "current-");
      enliven(this.current);
    });
    window.scrollTo({ top: position, behavior: "instant" });
    this.rest();
    this.freshen();
    this.showProblem(null);
    this.showFigures(answer.summary, question);
    this.showActions();
    if (!this.differenceBox.hidden) this.followDifference(question);
    this.showWantedDifference();
  }

  /** Shows the difference that a link asks for, once both answers are there. */
  showWantedDifference() {
    if (!this.wantsDifference || !isComparable(this.pinned) || !isComparable(this.answer)) return;
    this.wantsDifference = false;
    if (this.pinned?.answer !== this.answer?.answer) this.askDifference();
  }

  /**
   * @param {Summary} summary
   * @param {Question} question
   */
  showFigures(summary, question) {
    this.step.textContent = summary.step_text;
    this.title.textContent = summary.title;
    this.title.title = summary.title;
    show(this.misfit, summary.fits === false);
    this.shown = { summary, question };
    const sentence = this.showChange();
    const misfit = summary.fits === false ? "does not fit" : "";
    announce([summary.step_text && `Step ${summary.step_text}`, misfit, sentence].filter(Boolean).join(", "));
    document.title = `${summary.step_text ? `${summary.step_text} · ` : ""}${summary.title} · Foretrace`;
  }

  /**
   * Shows what changed since the pinned answer, or since the answer before, and returns it as a sentence.
   *
   * @returns {string}
   */
  showChange() {
    const { pinned, before, shown } = this;
    const bases = [
      pinned?.question ? { summary: pinned.summary, question: pinned.question, name: "pinned" } : null,
      before && { ...before, name: "your last answer" },
    ];
    fill(this.change);
    this.change.className = "step-change";
    if (!shown) return "";
    for (const base of bases) {
      if (!base || base.summary.kind !== shown.summary.kind) continue;
      const reasons = changes(base.question, shown.question);
      const change = reasons.length > 0 ? changeOf(base.summary, shown.summary) : null;
      if (!change) continue;
      const why = `against ${base.name}: ${reasons.slice(0, 2).join(", ")}${reasons.length > 2 ? ", …" : ""}`;
      fill(this.change, change.text, el("span", { class: "why", title: reasons.join(", ") }, why));
      this.change.classList.add(...[change.tone].filter(Boolean));
      return `${change.text} against ${base.name}`;
    }
    return "";
  }

  /** Shows what can be done with the answer on show. */
  showActions() {
    const answer = this.isHeld ? null : this.answer;
    this.pinButton.disabled = !answer;
    this.commandButton.disabled = !answer?.command;
    this.linkButton.disabled = false;
    const isDifferent = this.pinned?.answer !== answer?.answer;
    const canCompare = isDifferent && isComparable(this.pinned) && isComparable(answer);
    this.downloads.offer(answer, canCompare ? (this.pinned?.answer ?? "") : "");
    show(this.differenceButton, canCompare);
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
    this.showChange();
    this.listener.moved();
    announce("Pinned");
    this.showWantedDifference();
    if (this.differenceBox.hidden) return;
    if (this.answer?.question) this.followDifference(this.answer.question);
    else this.hideDifference();
  }

  unpin() {
    this.pinned = null;
    remember("pinned", null);
    fill(this.pinnedBox);
    show(this.pinnedBox, false);
    byId("columns").classList.remove("two");
    this.hideDifference();
    this.showActions();
    this.showChange();
    this.listener.moved();
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
    keepingState(this.differenceBox, () => {
      fill(this.differenceBox, head, ...content.childNodes);
      enliven(this.differenceBox);
    });
    this.differenceBox.classList.remove("stale", "held");
    if (this.differenceBox.hidden) {
      show(this.differenceBox, true);
      this.differenceBox.scrollIntoView({ block: "start" });
      this.differenceBox.focus({ preventScroll: true });
      this.listener.moved();
    }
  }

  hideDifference() {
    this.listener.dropComparison();
    if (this.differenceBox.hidden) return;
    keepingFocus(() => {
      show(this.differenceBox, false);
      fill(this.differenceBox);
    });
    this.differenceBox.classList.remove("stale", "held");
    this.listener.moved();
  }
}
