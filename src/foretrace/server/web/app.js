/**
 * Ties the page together: the form asks, the server answers, the link holds the question.
 */

import { AnswerPane } from "./answer.js";
import { getAnswer, getStart, openUpload, ProblemError } from "./api.js";
import { Asking, problemOf } from "./asking.js";
import { announce, byId, el, fill, show } from "./dom.js";
import { QuestionForm } from "./form.js";
import { connectDialogs, connectDrop, connectTheme, keepAddress } from "./frame.js";
import { HistoryDialog } from "./history.js";
import { PlanRun } from "./plan_run.js";
import { completed, isSame, questionHash, readHash, remember, remembered } from "./state.js";
import { sendFiles } from "./upload.js";

/** @typedef {import("./api.js").FullAnswer} FullAnswer */
/** @typedef {import("./api.js").Problem} Problem */
/** @typedef {import("./api.js").Question} Question */
/** @typedef {import("./api.js").Start} Start */
/** @typedef {"push" | "keep"} Address  whether a state is a step of the browser's history */

/** How long a text may still be typed before it is asked. */
const TYPING_MS = 250;
/** Changes of one field within this time are one step of the browser's history. */
const SAME_STEP_MS = 1500;
/** Problems of the server rather than of the question: the same question may succeed when it is asked again. */
const OF_THE_SERVER = ["gave-up", "worker-died", "memory-exhausted", "internal-error", "not-reachable", "busy", "too-many"];

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
    /** Counts what was asked, opened or uploaded: what comes late does not replace what came after it. */
    this.turn = 0;
    /** @type {AbortController | null} ends the upload that is under way */
    this.uploading = null;
    this.typing = 0;
    this.lastPush = { at: 0, field: "" };
    this.pane = new AnswerPane({
      cancel: () => this.cancel(),
      openPlan: (line, question) => this.openPlan(line, question ?? this.question ?? this.form.question()),
      apply: (line, question) => this.apply(line, question ?? this.form.question()),
      compare: (first, second) => this.compare(first, second),
      dropComparison: () => this.comparing.drop(),
    });
    this.planRun = new PlanRun(this.pane, {
      say: (text) => this.pane.say(text),
      answer: (answer, question) => this.showAnswer(answer, question),
      failed: (problem) => this.fail(problem),
      cancelled: () => this.showCancelled(),
      resume: (question) => this.resumeSearch(question),
      open: (answer) => void this.openAnswer(answer, "push"),
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
      current: () => this.pane.answer,
    });
    this.connect();
    this.fillStart();
  }

  connect() {
    byId("question").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask(this.form.question(), "push");
    });
    byId("open-history").addEventListener("click", () => void this.history.open());
    byId("start-open").addEventListener("click", () => this.form.chooseFiles());
    window.addEventListener("popstate", () => this.restore());
    window.addEventListener("online", () => {
      for (const asking of [this.asking, this.comparing, this.planRun.asking]) asking.retryNow();
    });
    document.addEventListener("keydown", (event) => {
      const { target } = event;
      const isFilter = target instanceof HTMLInputElement && target.type === "search" && target.value !== "";
      const isFree = !event.defaultPrevented && !isFilter && !document.querySelector("dialog[open]");
      if (event.key === "Escape" && isFree) this.cancel();
    });
    document.addEventListener("click", (event) => keepAddress(event));
    connectDialogs();
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

  /**
   * Begins something that replaces what is on its way, and returns whether it is still wanted.
   *
   * @returns {() => boolean}
   */
  begin() {
    this.turn += 1;
    const { turn } = this;
    clearTimeout(this.typing);
    this.uploading?.abort();
    this.uploading = null;
    return () => turn === this.turn;
  }

  /** Cancels what the reader waits for. */
  cancel() {
    if (this.planRun.isShown && this.planRun.asking.isWaiting) this.planRun.asking.cancel();
    else if (this.asking.isWaiting) this.asking.cancel();
    else if (this.uploading) {
      this.begin();
      this.showCancelled();
    }
  }

  /** Shows what the address says: a question, an answer, or the start. */
  restore() {
    const place = readHash(location.hash);
    if (place.pin && place.pin !== this.pane.pinned?.answer) void this.pin(place.pin);
    if (place.answer) void this.openAnswer(place.answer, "keep");
    else if (place.question) void this.restoreQuestion(place.question);
    else this.showStart();
    if (place.isBroken) {
      const message = "The link is incomplete: it was cut or changed on its way.";
      this.fail({ code: "bad-link", message, hint: "copy it again, or fill in the form" });
    }
  }

  showStart() {
    this.begin();
    this.asking.drop();
    this.planRun.hide();
    this.pane.clear();
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
    const { question: sought } = this.planRun;
    if (sought && this.planRun.asking.isWaiting && isSame(question, sought)) {
      this.resumeSearch(question);
      return;
    }
    const isWanted = this.begin();
    try {
      await this.openFiles(question);
    } catch (error) {
      if (!isWanted()) return;
      this.form.show(question);
      this.fail(problemOf(error));
      return;
    }
    if (!isWanted()) return;
    this.form.show(question);
    this.ask(question, "keep");
  }

  /**
   * Makes the files of a question known to the form.
   *
   * @param {Question} question
   */
  async openFiles(question) {
    const { upload } = question.input;
    if (upload !== undefined && !this.form.uploads.has(upload)) this.form.addUpload(await openUpload(upload));
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
   * @param {Address} address
   */
  ask(question, address) {
    this.begin();
    this.question = question;
    if (address === "push") this.push(questionHash(question));
    this.showResult();
    if (question.ask === "plan") {
      this.asking.drop();
      this.pane.wait("looking for plans …");
      this.clearProblem();
      this.planRun.start(question);
      return;
    }
    this.planRun.hide();
    this.pane.wait("");
    this.asking.ask(question, {
      queued: (position) => this.pane.say(queueText(position)),
      progress: (text) => this.pane.say(text),
      quick: ({ html, summary }) => {
        this.clearProblem();
        this.pane.showQuick(html, summary, question);
      },
      front: () => undefined,
      answer: (answer) => this.showAnswer(answer, question),
      failed: (problem) => this.fail(problem),
      cancelled: () => this.showCancelled(),
      offline: (message, wait_s) => this.pane.say(`${message}. Trying again in ${wait_s} s.`),
      online: () => this.pane.say(""),
    });
  }

  /**
   * @param {FullAnswer} answer
   * @param {Question} question
   */
  showAnswer(answer, question) {
    this.clearProblem();
    this.pane.showAnswer(answer, question);
    // The link of a search leads to its answer: who opens it wants to see the plans, not to search again.
    if (question.ask === "plan") history.replaceState(null, "", `#a=${answer.answer}`);
  }

  showCancelled() {
    this.pane.rest();
    this.pane.hold();
    this.pane.say("cancelled");
    this.question = null;
  }

  clearProblem() {
    this.form.mark(null, "");
    this.pane.showProblem(null);
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
   * Returns buttons for the changes that a hint proposes (`--tp 2 or --tp 4 runs`), or one that asks again.
   *
   * @param {Problem} problem
   * @returns {{label: string, act: () => void}[]}
   */
  repairs(problem) {
    const { question } = this;
    if (question && (OF_THE_SERVER.includes(problem.code) || problem.code.startsWith("http-")))
      return [{ label: "Ask again", act: () => this.ask(question, "keep") }];
    if (this.form.input.model === undefined || !/\bruns?\b/.test(problem.hint ?? "")) return [];
    const lines = [...(problem.hint ?? "").matchAll(/--[a-z][\w-]* [\w.]+/g)].map(([line]) => line);
    return lines
      .filter((line) => Object.keys(this.form.readFlags(line)).length > 0)
      .map((line) => ({ label: `Use ${line}`, act: () => this.apply(line, this.form.question()) }));
  }

  /**
   * Sets some options of a question, and asks. `--layout Et|tL instead of --vpp` also leaves an option out.
   *
   * @param {string} line
   * @param {Question} base
   */
  apply(line, base) {
    const question = completed(base);
    this.form.show(question);
    const [added, replaced = ""] = line.split(" instead of ");
    for (const name of Object.keys(this.form.readFlags(replaced.replaceAll(" and ", " ")))) delete question.options[name];
    Object.assign(question.options, this.form.readFlags(added));
    const whatIfs = [...added.matchAll(/--what-if (\S+)/g)].map(([, text]) => text);
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
   * @param {Question} sought  what was searched for
   */
  openPlan(line, sought) {
    const base = completed(sought);
    const question = completed({
      ...base,
      ask: "step",
      options: { ...base.options, ...this.form.readFlags(line) },
      scenario: this.form.question().scenario,
      search: {},
    });
    this.form.setOptions({});
    this.form.show(question);
    this.ask(this.form.question(), "push");
    byId("result").scrollIntoView();
    byId("main").focus({ preventScroll: true });
  }

  /** @param {Question} question */
  resumeSearch(question) {
    this.begin();
    this.asking.drop();
    this.question = question;
    this.form.show(question);
    this.push(questionHash(question));
    this.showResult();
    this.pane.wait("looking for plans …");
    this.clearProblem();
    this.planRun.showAgain();
  }

  /** @param {string} id */
  openExample(id) {
    const example = this.start.examples.find((known) => known.id === id);
    if (!example) return;
    const question = completed(example.question);
    this.form.show(question);
    this.ask(question, "push");
    byId("main").focus({ preventScroll: true });
  }

  /**
   * Shows an answer by its id, and the question that it answers.
   *
   * @param {string} id
   * @param {Address} address
   */
  async openAnswer(id, address) {
    const isWanted = this.begin();
    this.asking.drop();
    this.planRun.hide();
    this.showResult();
    this.pane.wait("opening the answer …");
    try {
      const answer = await getAnswer(id);
      const question = completed(answer.question ?? FIRST);
      // The files may be gone; their answer is still there to be read.
      await this.openFiles(question).catch(() => undefined);
      if (!isWanted()) return;
      if (question.ask !== "compare") this.form.show(question);
      this.question = question;
      this.clearProblem();
      this.pane.showAnswer(answer, question);
      if (address === "push") this.push(`#a=${id}`);
    } catch (error) {
      if (isWanted()) this.fail(problemOf(error));
    }
  }

  /**
   * Pins an answer by its id.
   *
   * @param {string} id
   */
  async pin(id) {
    const { pinned } = this.pane;
    try {
      const answer = await getAnswer(id);
      if (this.pane.pinned === pinned) this.pane.pin(answer);
    } catch (error) {
      if (error instanceof ProblemError && error.status === 404) remember("pinned", null);
      else this.pane.showProblem(problemOf(error));
    }
  }

  /** @param {string} id */
  async pinAndCompare(id) {
    await this.pin(id);
    if (this.pane.pinned?.answer === id) this.pane.askDifference();
  }

  /**
   * @param {string} first
   * @param {string} second
   */
  compare(first, second) {
    /** @param {string} text */
    const say = (text) => this.pane.say(text);
    say("comparing …");
    this.comparing.ask(
      { ask: "compare", answers: [first, second] },
      {
        queued: (position) => say(queueText(position) || "comparing …"),
        progress: say,
        quick: () => undefined,
        front: () => undefined,
        cancelled: () => say(""),
        online: () => say("comparing …"),
        offline: (message, wait_s) => say(`${message}. Trying again in ${wait_s} s.`),
        answer: ({ html }) => {
          say("");
          this.pane.showDifference(html);
        },
        failed: (problem) => {
          say("");
          this.pane.showProblem(problem);
        },
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
      const limit = `${limits.files} files of up to ${(limits.upload_bytes / 2 ** 20).toFixed(0)} MiB each`;
      this.fail({ code: "input-too-large", message, hint: `at most ${limit}` });
      return;
    }
    const isWanted = this.begin();
    this.asking.drop();
    this.planRun.hide();
    this.showResult();
    this.pane.wait("");
    const uploading = new AbortController();
    this.uploading = uploading;
    try {
      const opened = await sendFiles(files, uploading.signal, (text) => this.pane.say(text));
      if (!isWanted()) return;
      this.uploading = null;
      this.form.addUpload(opened);
      const cluster = this.form.question().machine.cluster;
      const question = completed({
        ask: opened.is_measured ? "explain" : "step",
        input: { upload: opened.upload },
        machine: opened.needs_cluster ? { cluster: cluster ?? FIRST.machine.cluster } : {},
      });
      announce(`Opened ${opened.title}: ${opened.noun}`);
      this.form.show(question);
      this.ask(question, "push");
    } catch (error) {
      if (isWanted()) this.fail(problemOf(error));
    }
  }

  /**
   * Puts a state into the browser's history. All that is typed into one field in one go is one step of it.
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

/**
 * Returns what the page needs to begin, however long the server takes to answer.
 *
 * @returns {Promise<Start>}
 */
async function loadStart() {
  for (let wait_s = 1; ; wait_s = Math.min(2 * wait_s, 15)) {
    try {
      return await getStart();
    } catch (error) {
      byId("loading").textContent = `${problemOf(error).message} Trying again in ${wait_s} s.`;
      await new Promise((resolve) => setTimeout(resolve, wait_s * 1000));
    }
  }
}

const app = new App(await loadStart());
byId("loading").remove();
app.restore();
const pinned = remembered("pinned");
if (pinned && !app.pane.pinned && !readHash(location.hash).pin) void app.pin(pinned);
