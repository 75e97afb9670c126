/**
 * Ties the page together: the form asks, the server answers, the link holds the question.
 */

import { AnswerPane } from "./answer.js";
import { getAnswer, getStart, openUpload, ProblemError } from "./api.js";
import { Asking, problemOf, queueText } from "./asking.js";
import { announce, byId, el, fill, show } from "./dom.js";
import { readFlags } from "./flags.js";
import { QuestionForm } from "./form.js";
import { connectDialogs, connectDrop, connectTheme, keepAddress } from "./frame.js";
import { HistoryDialog } from "./history.js";
import { PlanRun } from "./plan_run.js";
import { setOption } from "./plan_search.js";
import { completed, isSame, placeHash, questionHash, readHash, remember, remembered } from "./state.js";
import { sendFiles } from "./upload.js";

/** @typedef {import("./api.js").FullAnswer} FullAnswer */
/** @typedef {import("./api.js").Problem} Problem */
/** @typedef {import("./api.js").Question} Question */
/** @typedef {import("./api.js").Start} Start */
/** @typedef {"push" | "keep"} Address  whether a state is a step of the browser's history */
/** @typedef {{label: string, act: () => void}} Repair  a button next to a problem */

/** How long a text may still be typed before it is asked. */
const TYPING_MS = 250;
/** The state of the browser's history at every place that the page itself has made. */
const OWN = { own: true };
/** Changes of one field within this time are one step of the browser's history. */
const SAME_STEP_MS = 1500;
/** Problems of the server rather than of the question: the same question may succeed when it is asked again. */
const OF_THE_SERVER = [
  "gave-up",
  "worker-died",
  "memory-exhausted",
  "internal-error",
  "not-reachable",
  "busy",
  "too-many",
  "too-slow",
  "unwritable-file",
  "interrupted",
];

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
      moved: () => this.keepPlace(),
    });
    this.planRun = new PlanRun(this.pane, {
      say: (text) => this.pane.say(text),
      answer: (answer, question) => this.showAnswer(answer, question),
      failed: (problem, question) => this.fail(problem, this.askAgain(question), question),
      cancelled: () => this.showCancelled(),
      resume: (question) => this.resumeSearch(question, "push"),
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
    window.addEventListener("popstate", ({ state }) => {
      // A link that is opened in this window has no state. It brings its pinned answer along; going back does not.
      if (state === null) this.bringPinned();
      this.restore();
    });
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
    connectDrop({
      take: (files) => void this.upload(files),
      failed: (error) => this.fail({ ...problemOf(error), code: "unreadable-file", hint: "drop the files themselves" }),
    });
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
    const terms = Object.entries(this.start.glossary ?? {});
    fill(byId("glossary"), ...terms.flatMap(([term, meaning]) => [el("dt", {}, term), el("dd", {}, meaning)]));
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

  /**
   * Begins something other than a question: the question that is being answered is dropped, and a search goes on in the
   * background. Returns whether what begins is still wanted.
   *
   * @returns {() => boolean}
   */
  leave() {
    const isWanted = this.begin();
    this.asking.drop();
    this.planRun.hide();
    return isWanted;
  }

  /** Cancels what the reader waits for. */
  cancel() {
    if (this.planRun.isShown && this.planRun.asking.isWaiting) void this.stop(this.planRun.asking);
    else if (this.asking.isWaiting) void this.stop(this.asking);
    else if (this.uploading) {
      this.begin();
      this.showCancelled();
    }
  }

  /**
   * Cancels a question, and says so until it has ended.
   *
   * @param {Asking} asking
   */
  async stop(asking) {
    this.pane.showStopping(true);
    const problem = await asking.cancel();
    if (problem === null) return;
    this.pane.showStopping(false);
    this.pane.showProblem(problem, [{ label: "Cancel", act: () => void this.stop(asking) }]);
  }

  /** Pins the answer that the address names, and otherwise the one that this browser remembers. */
  bringPinned() {
    const { pin, isDifferent } = readHash(location.hash);
    this.pane.wantsDifference = isDifferent ?? false;
    const id = pin ?? remembered("pinned");
    if (id && id !== this.pane.pinned?.answer) void this.pin(id);
  }

  /** Shows what the address says: a question, an answer, or the start. */
  restore() {
    const place = readHash(location.hash);
    if (place.answer) void this.openAnswer(place.answer, "keep");
    else if (place.question) void this.restoreQuestion(place.question);
    else this.showStart();
    this.keepPlace();
    if (place.isBroken) {
      const message = "The link is incomplete: it was cut or changed on its way.";
      this.fail({ code: "bad-link", message, hint: "copy it again, or fill in the form" });
    }
  }

  showStart() {
    this.leave();
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
      this.resumeSearch(question, "keep");
      return;
    }
    const known = this.planRun.answers.get(questionHash(question));
    if (known !== undefined) {
      await this.openAnswer(known, "keep");
      return;
    }
    const isWanted = this.leave();
    try {
      await this.openFiles(question);
    } catch (error) {
      if (!isWanted()) return;
      this.form.show(question);
      this.fail(problemOf(error), { label: "Try again", act: () => void this.restoreQuestion(question) });
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
        this.form.showChosen(summary.plan ?? {});
      },
      front: () => undefined,
      answer: (answer) => this.showAnswer(answer, question),
      failed: (problem) => this.fail(problem, this.askAgain(question)),
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
    this.form.showChosen(answer.summary.plan ?? {});
    // The link of a search leads to its answer: who opens it wants to see the plans, not to search again.
    if (question.ask === "plan") this.replacePlace(`#a=${answer.answer}`);
  }

  /**
   * @param {Question} question
   * @returns {Repair}
   */
  askAgain(question) {
    return { label: "Ask again", act: () => this.ask(question, "keep") };
  }

  showCancelled() {
    this.pane.hold("cancelled");
    this.showBar();
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

  /** Shows the bar of figures with the start page, or with an answer where there is one. */
  showBar() {
    const isEmpty = byId("current").childElementCount === 0;
    show(byId("start"), isEmpty);
    show(byId("result"), !isEmpty);
    show(byId("figures"), true);
  }

  /**
   * Shows a problem; the answer before stays.
   *
   * @param {Problem} problem
   * @param {Repair} [again]  tries again what failed
   * @param {Question} [question]  the question that failed, where it is not the one that the form holds
   */
  fail(problem, again, question = this.form.question()) {
    this.showBar();
    this.pane.hold("failed");
    const isOfServer = OF_THE_SERVER.includes(problem.code) || problem.code.startsWith("http-");
    this.pane.showProblem(this.form.placed(problem), again && isOfServer ? [again] : this.repairs(problem, question));
    this.form.mark(problem, "problem-message");
  }

  /**
   * Returns buttons for the changes that a problem proposes: `--tp 2 or --tp 4 runs`, `did you mean fp8?`.
   *
   * @param {Problem} problem
   * @param {Question} question  what the problem is of
   * @returns {Repair[]}
   */
  repairs(problem, question) {
    const meant = /did you mean (?:--?\S+ )?'?([\w.:/-]+)'?\?/.exec(`${problem.message} ${problem.hint ?? ""}`)?.[1];
    const named = meant === undefined ? null : this.form.withNamed(problem, meant, question);
    if (named) return [{ label: `Use ${meant}`, act: () => this.show(named) }];
    if (question.input.model === undefined || !/\bruns?\b/.test(problem.hint ?? "")) return [];
    // Options that follow each other are one change.
    const changes = /--[a-z][\w-]* [\w.]+(?: --[a-z][\w-]* [\w.]+)*/g;
    const lines = [...(problem.hint ?? "").matchAll(changes)].map(([line]) => line);
    return lines
      .filter((line) => Object.keys(this.form.readFlags(line)).length > 0)
      .map((line) => ({ label: `Use ${line}`, act: () => this.apply(line, question) }));
  }

  /**
   * Shows a question in the form, and asks it.
   *
   * @param {Question} question
   */
  show(question) {
    this.form.show(question);
    this.ask(question, "push");
    // The button that was pressed goes with what it stands in.
    byId("main").focus({ preventScroll: true });
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
    for (const [name, value] of Object.entries(this.form.readFlags(added))) setOption(question, name, value);
    const whatIfs = [...added.matchAll(/--what-if (\S+)/g)].map(([, text]) => text);
    const known = Array.isArray(question.scenario.what_if) ? question.scenario.what_if : [];
    if (whatIfs.length > 0) question.scenario.what_if = [...known, ...whatIfs];
    this.show(question);
  }

  /**
   * Fills the form with a plan that a search has listed, and asks for its step. The form may show another input.
   *
   * @param {string} line
   * @param {Question} sought  what was searched for
   */
  openPlan(line, sought) {
    const base = completed(sought);
    const question = completed({
      ...base,
      ask: "step",
      options: { ...base.options, ...readFlags(line, this.start.fields.model ?? []) },
      scenario: this.form.question().scenario,
      search: {},
    });
    this.form.rememberPlan(sought);
    this.form.setOptions({});
    this.form.show(question);
    this.ask(question, "push");
    byId("result").scrollIntoView();
    byId("main").focus({ preventScroll: true });
  }

  /**
   * Shows the search that runs in the background.
   *
   * @param {Question} question
   * @param {Address} address
   */
  resumeSearch(question, address) {
    this.leave();
    this.question = question;
    this.form.show(question);
    if (address === "push") this.push(questionHash(question));
    this.showResult();
    this.pane.wait("looking for plans …");
    this.clearProblem();
    this.planRun.showAgain();
  }

  /** @param {string} id */
  openExample(id) {
    const example = this.start.examples.find((known) => known.id === id);
    if (!example) return;
    this.show(completed(example.question));
  }

  /**
   * Shows an answer by its id, and the question that it answers.
   *
   * @param {string} id
   * @param {Address} address
   */
  async openAnswer(id, address) {
    const isWanted = this.leave();
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
      this.form.showChosen(answer.summary.plan ?? {});
      if (address === "push") this.push(`#a=${id}`);
      else this.replacePlace(`#a=${id}`);
    } catch (error) {
      if (error instanceof ProblemError && error.status === 404) this.planRun.forgetAnswer(id);
      const again = { label: "Try again", act: () => void this.openAnswer(id, address) };
      if (isWanted()) this.fail(problemOf(error), again);
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
      if (!(error instanceof ProblemError && error.status === 404)) {
        this.pane.showProblem(problemOf(error), [{ label: "Try again", act: () => void this.pin(id) }]);
        return;
      }
      // The pinned answer of somebody's link may be gone; the one that this browser remembers stays.
      const own = remembered("pinned");
      if (own === id) remember("pinned", null);
      else if (own && this.pane.pinned === null) await this.pin(own);
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
          this.pane.hideDifference();
          this.pane.showProblem(problem, [{ label: "Try again", act: () => this.compare(first, second) }]);
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
    const isWanted = this.leave();
    const { limits } = this.start;
    const large = files.find(({ size }) => size > limits.upload_bytes);
    if (large || files.length > limits.files) {
      const message = large ? `${large.name} is too large` : `${files.length} files are too many`;
      const limit = `${limits.files} files of up to ${limits.upload_text} each`;
      this.fail({ code: "input-too-large", message, hint: `at most ${limit}` });
      return;
    }
    this.showBar();
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
      if (isWanted()) this.fail(problemOf(error), { label: "Try again", act: () => void this.upload(files) });
    }
  }

  /**
   * Puts a state into the browser's history. All that is typed into one field in one go is one step of it.
   *
   * @param {string} place  a question or an answer
   */
  push(place) {
    const hash = this.hash(place);
    if (hash === location.hash) return;
    const focused = document.activeElement;
    const field = focused instanceof HTMLElement ? (focused.dataset.field ?? "") && focused.id : "";
    const now = performance.now();
    const isSameStep = field !== "" && field === this.lastPush.field && now - this.lastPush.at < SAME_STEP_MS;
    this.lastPush = { at: now, field };
    if (isSameStep) history.replaceState(OWN, "", hash);
    else history.pushState(OWN, "", hash);
  }

  /**
   * Returns the address of a question or an answer together with what is pinned next to it.
   *
   * @param {string} place
   * @returns {string}
   */
  hash(place) {
    return placeHash(place, this.pane.pinned?.answer, !this.pane.differenceBox.hidden);
  }

  /**
   * Puts a question or an answer into the address, in place of the one that is there.
   *
   * @param {string} place
   */
  replacePlace(place) {
    history.replaceState(OWN, "", this.hash(place));
  }

  /** Makes the address say what is pinned. */
  keepPlace() {
    if (/^#[qa]=/.test(location.hash)) this.replacePlace(location.hash);
  }
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
app.bringPinned();
app.planRun.followAgain();
app.restore();
