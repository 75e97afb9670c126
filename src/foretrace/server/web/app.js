/**
 * Ties the page together: the form asks, the server answers, the link holds the question.
 */

import { AnswerPane } from "./answer.js";
import { getAnswer, getStart, openUpload, postUpload, putFile } from "./api.js";
import { Asking, problemOf } from "./asking.js";
import { announce, byId, el, fill, show } from "./dom.js";
import { QuestionForm } from "./form.js";
import { connectDrop, connectTheme, keepAddress } from "./frame.js";
import { HistoryDialog } from "./history.js";
import { completed, isSame, questionHash, readHash, remember, remembered } from "./state.js";

/** @typedef {import("./api.js").Problem} Problem */
/** @typedef {import("./api.js").Question} Question */
/** @typedef {import("./api.js").Start} Start */

/** How long a text may still be typed before it is asked. */
const TYPING_MS = 120;
/** Changes of one field within this time are one step of the browser's history. */
const SAME_STEP_MS = 1500;

/** @type {Question} */
const FIRST = completed({
  input: { model: "llama3-70b" },
  options: { gpus: "512", tp: "4", pp: "4", gbs: "1024" },
  machine: { cluster: "h100-dgx" },
});

/** The page. */
class App {
  /** @param {Start} start */
  constructor(start) {
    this.start = start;
    this.asking = new Asking();
    this.comparing = new Asking();
    /** @type {Question | null} the question on show, or being answered */
    this.question = null;
    this.typing = 0;
    this.lastPush = { at: 0, field: "" };
    this.pane = new AnswerPane({
      cancel: () => this.asking.cancel(),
      link: () => this.link(),
      openPlan: (line) => this.openPlan(line),
      apply: (line) => this.apply(line),
      compare: (first, second) => this.compare(first, second),
    });
    this.form = new QuestionForm(byId("question"), start, {
      changed: (isFinal) => this.changed(isFinal),
      search: () => {
        this.ask(this.form.searchQuestion(), "push");
        byId("result").scrollIntoView();
      },
      files: (files) => void this.upload(files),
      example: (id) => this.openExample(id),
    });
    this.history = new HistoryDialog({
      open: (id) => void this.openAnswer(id, "push"),
      compare: (id) => void this.pinAndCompare(id),
      current: () => this.pane.answer?.answer ?? null,
    });
    this.connect();
    this.fillStart();
  }

  connect() {
    byId("question").addEventListener("submit", (event) => {
      event.preventDefault();
      clearTimeout(this.typing);
      this.ask(this.form.question(), "push");
    });
    byId("open-history").addEventListener("click", () => void this.history.open());
    byId("open-help").addEventListener("click", () => /** @type {HTMLDialogElement} */ (byId("help")).showModal());
    byId("start-open").addEventListener("click", () => this.form.chooseFiles());
    window.addEventListener("popstate", () => this.restore());
    window.addEventListener("online", () => this.asking.retryNow());
    document.addEventListener("keydown", (event) => {
      const isFree = !event.defaultPrevented && !document.querySelector("dialog[open]");
      if (event.key === "Escape" && isFree && this.asking.job !== null) this.asking.cancel();
    });
    document.addEventListener("click", (event) => keepAddress(event));
    for (const dialog of document.querySelectorAll("dialog")) {
      dialog.querySelector("[data-close]")?.addEventListener("click", () => dialog.close());
      dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    }
    connectTheme();
    connectDrop((files) => void this.upload(files));
  }

  /** Fills the cards of the start page. */
  fillStart() {
    byId("version").textContent = this.start.version;
    const cards = this.start.examples.map(({ id, title, noun }) =>
      el(
        "li",
        {},
        el(
          "button",
          { type: "button", class: "card-button", onclick: () => this.openExample(id) },
          el("strong", {}, title),
          el("span", { class: "muted" }, noun),
        ),
      ),
    );
    fill(byId("examples"), ...cards);
  }

  /** Shows what the address says: a question, an answer, or the start. */
  restore() {
    const place = readHash(location.hash);
    if (place === null) this.showStart();
    else if ("answer" in place) void this.openAnswer(place.answer, "keep");
    else void this.restoreQuestion(place.question);
  }

  showStart() {
    this.asking.drop();
    this.pane.rest();
    this.question = null;
    this.form.show(FIRST);
    this.form.mark(null, "");
    show(byId("start"), true);
    show(byId("result"), false);
    show(byId("figures"), false);
    document.title = "Foretrace";
  }

  /** @param {Question} question */
  async restoreQuestion(question) {
    const { upload } = question.input;
    if (upload !== undefined && !this.form.uploads.has(upload)) {
      try {
        this.form.addUpload(await openUpload(upload));
      } catch (error) {
        this.form.show(question);
        this.fail(problemOf(error));
        return;
      }
    }
    this.form.show(question);
    this.ask(question, "keep");
  }

  /** @param {boolean} isFinal */
  changed(isFinal) {
    clearTimeout(this.typing);
    const act = () => {
      const question = this.form.question();
      this.form.showInput();
      if (this.question === null || !isSame(question, this.question)) this.ask(question, "push");
    };
    if (isFinal) act();
    else this.typing = setTimeout(act, TYPING_MS);
  }

  /**
   * Asks a question, and puts it into the address.
   *
   * @param {Question} question
   * @param {"push" | "keep"} address
   */
  ask(question, address) {
    clearTimeout(this.typing);
    this.question = question;
    if (address === "push") this.push(questionHash(question));
    this.showResult();
    this.pane.wait(question.ask === "plan" ? "looking for plans …" : "");
    this.asking.ask(question, {
      queued: (position) => this.pane.say(queueText(position)),
      progress: (text) => this.pane.say(text),
      quick: ({ html, summary }) => {
        this.form.mark(null, "");
        this.form.learnKind(question, summary.kind);
        this.pane.showProblem(null);
        this.pane.showQuick(html, summary, question);
      },
      front: ({ html }) => this.pane.showFront(html),
      answer: (answer) => {
        this.form.mark(null, "");
        this.form.learnKind(question, answer.summary.kind);
        this.pane.showAnswer(answer, question);
        // The link of a search leads to its answer: who opens it wants to see the plans, not to search again.
        if (question.ask === "plan") history.replaceState(null, "", `#a=${answer.answer}`);
      },
      failed: (problem) => this.fail(problem),
      cancelled: () => {
        this.pane.rest();
        this.pane.hold();
        this.pane.say("cancelled");
        this.question = null;
      },
      offline: (message, wait_s) => this.pane.say(`${message} Trying again in ${wait_s} s.`),
      online: () => this.pane.say(""),
    });
  }

  showResult() {
    show(byId("start"), false);
    show(byId("result"), true);
    show(byId("figures"), true);
  }

  /** @param {Problem} problem */
  fail(problem) {
    this.showResult();
    this.pane.rest();
    this.pane.hold();
    this.pane.showProblem(problem, this.repairs(problem));
    this.form.mark(problem, "problem-message");
  }

  /**
   * Returns buttons for what a hint proposes: `--tp 2 or --tp 4 runs`.
   *
   * @param {Problem} problem
   * @returns {{label: string, act: () => void}[]}
   */
  repairs(problem) {
    if (this.form.input.model === undefined || !/\bruns?\b/.test(problem.hint ?? "")) return [];
    const lines = [...(problem.hint ?? "").matchAll(/--[a-z][\w-]* [\w.]+/g)].map(([line]) => line);
    return lines
      .filter((line) => Object.keys(this.form.readFlags(line)).length > 0)
      .map((line) => ({ label: `Use ${line}`, act: () => this.apply(line) }));
  }

  /**
   * Sets some options, and asks.
   *
   * @param {string} line
   */
  apply(line) {
    const question = this.form.question();
    Object.assign(question.options, this.form.readFlags(line));
    const whatIfs = [...line.matchAll(/--what-if (\S+)/g)].map(([, text]) => text);
    const known = Array.isArray(question.scenario.what_if) ? question.scenario.what_if : [];
    if (whatIfs.length > 0) question.scenario.what_if = [...known, ...whatIfs];
    this.form.show(question);
    this.ask(question, "push");
    // The button that was pressed goes with the answer that it stands in.
    byId("main").focus({ preventScroll: true });
  }

  /**
   * Fills the form with a plan that a search has listed, and asks for its step.
   *
   * @param {string} line
   */
  openPlan(line) {
    const base = completed(this.question ?? this.form.question());
    const question = completed({
      ...base,
      ask: "step",
      options: { ...base.options, ...this.form.readFlags(line) },
      search: {},
    });
    this.form.setOptions({});
    this.form.show(question);
    this.ask(this.form.question(), "push");
    byId("result").scrollIntoView();
    byId("main").focus({ preventScroll: true });
  }

  /** @param {string} id */
  openExample(id) {
    const example = this.start.examples.find((each) => each.id === id);
    if (!example) return;
    const question = completed(example.question);
    this.form.show(question);
    this.ask(question, "push");
  }

  /**
   * Shows an answer by its id, and the question that it answers.
   *
   * @param {string} id
   * @param {"push" | "keep"} address
   */
  async openAnswer(id, address) {
    this.asking.drop();
    this.showResult();
    this.pane.wait("opening the answer …");
    try {
      const answer = await getAnswer(id);
      const question = completed(answer.question ?? FIRST);
      const { upload } = question.input;
      if (upload !== undefined && !this.form.uploads.has(upload)) {
        // The files may be gone; their answer is still there to be read.
        await openUpload(upload).then(
          (opened) => this.form.addUpload(opened),
          () => undefined,
        );
      }
      if (question.ask !== "compare") this.form.show(question);
      this.question = question;
      this.form.mark(null, "");
      this.pane.showAnswer(answer, question);
      if (address === "push") this.push(`#a=${id}`);
    } catch (error) {
      this.fail(problemOf(error));
    }
  }

  /** @param {string} id */
  async pinAndCompare(id) {
    try {
      this.pane.pin(await getAnswer(id));
      this.pane.askDifference();
    } catch (error) {
      this.pane.showProblem(problemOf(error));
    }
  }

  /**
   * @param {string} first
   * @param {string} second
   */
  compare(first, second) {
    const nothing = () => undefined;
    this.comparing.ask(
      { ask: "compare", answers: [first, second] },
      {
        queued: nothing,
        progress: nothing,
        quick: nothing,
        front: nothing,
        cancelled: nothing,
        online: nothing,
        offline: nothing,
        answer: ({ html }) => this.pane.showDifference(html),
        failed: (problem) => this.pane.showProblem(problem),
      },
    );
  }

  /**
   * Sends files as one job, opens them as an input, and asks.
   *
   * @param {File[]} files
   */
  async upload(files) {
    if (files.length === 0) return;
    const { limits } = this.start;
    const large = files.find(({ size }) => size > limits.upload_bytes);
    if (large || files.length > limits.files) {
      const message = large ? `${large.name} is too large` : `${files.length} files are too many`;
      const most = `${limits.files} files of up to ${(limits.upload_bytes / 2 ** 20).toFixed(0)} MiB each`;
      this.fail({ code: "input-too-large", message, hint: `at most ${most}` });
      return;
    }
    this.asking.drop();
    this.showResult();
    this.pane.wait(`uploading ${files.length === 1 ? files[0].name : `${files.length} files`} …`);
    try {
      const upload = await postUpload(files.map(({ name }) => name));
      for (const [number, file] of files.entries()) {
        await putFile(upload, number, file, (share) =>
          this.pane.say(`uploading ${file.name}: ${Math.floor(100 * share)} %`),
        );
      }
      this.pane.say("reading …");
      const opened = await openUpload(upload);
      this.form.addUpload(opened);
      const cluster = this.form.question().machine.cluster;
      const ask = opened.is_measured ? "explain" : "step";
      const question = completed({
        ask,
        input: { upload },
        machine: opened.needs_cluster ? { cluster: cluster ?? "h100-dgx" } : {},
      });
      announce(`Opened ${opened.title}: ${opened.noun}`);
      this.form.show(question);
      this.ask(question, "push");
    } catch (error) {
      this.fail(problemOf(error));
    }
  }

  /** @returns {string} */
  link() {
    return location.href;
  }

  /**
   * Puts a state into the browser's history. What is typed into one field in one go is one step of it.
   *
   * @param {string} hash
   */
  push(hash) {
    if (hash === location.hash) return;
    const focused = document.activeElement;
    const field = focused instanceof HTMLElement ? (focused.dataset.field ?? "") && focused.id : "";
    const now = performance.now();
    const isSameStep = field !== "" && field === this.lastPush.field && now - this.lastPush.at < SAME_STEP_MS;
    this.lastPush = { at: now, field };
    if (isSameStep) history.replaceState(null, "", hash);
    else history.pushState(null, "", hash);
  }
}

/**
 * @param {number} position
 * @returns {string}
 */
function queueText(position) {
  if (position <= 0) return "";
  return position === 1 ? "1 question before yours" : `${position.toLocaleString("en")} questions before yours`;
}

/** Starts the page, however long the server takes to answer. */
async function begin() {
  for (let wait_s = 1; ; wait_s = Math.min(2 * wait_s, 15)) {
    try {
      const app = new App(await getStart());
      byId("loading").remove();
      app.restore();
      const pinned = remembered("pinned");
      if (pinned)
        getAnswer(pinned).then(
          (answer) => app.pane.pin(answer),
          () => remember("pinned", null),
        );
      return;
    } catch (error) {
      byId("loading").textContent = `${problemOf(error).message} Trying again in ${wait_s} s.`;
      await new Promise((resolve) => setTimeout(resolve, wait_s * 1000));
    }
  }
}

void begin();
