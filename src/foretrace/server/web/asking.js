/**
 * Asks one question after the other: a new one replaces the one that is still being answered. After a broken connection
 * the same job is followed again; if it is gone, the question is asked again, ever more rarely.
 */

import { cancelJob, ConnectionError, followJob, isJobKnown, postJob, ProblemError } from "./api.js";

/** @typedef {import("./api.js").JobListener} JobListener */
/** @typedef {import("./api.js").Problem} Problem */
/**
 * What a page does for one question: at the events of its job, and while the server cannot be reached.
 *
 * @typedef {object} ConnectionListener
 * @property {(message: string, wait_s: number) => void} offline
 * @property {() => void} online
 * @property {(job: string) => void} [began]  the server has begun to answer
 */
/** @typedef {JobListener & ConnectionListener} AskListener */

const MIN_WAIT_S = 1;
const MAX_WAIT_S = 15;
/** Statuses after which the same request may succeed later. */
const BUSY = [429, 502, 503, 504];

/** The question that a part of the page waits for. */
export class Asking {
  constructor() {
    /** @type {string | null} the job that runs */
    this.job = null;
    /** @type {AskListener | null} who waits for an answer; null while nobody does */
    this.listener = null;
    /** Counts questions: what belongs to an earlier one is dropped. */
    this.turn = 0;
    /** The request that begins a job: one at a time, since each names the job that it replaces. */
    this.posting = Promise.resolve();
    /** @type {(() => void) | null} ends the connection to the events of the job */
    this.stop = null;
    /** @type {(() => void) | null} ends the pause before the next attempt */
    this.endPause = null;
    this.wait_s = MIN_WAIT_S;
    this.isCancelling = false;
    /** Whether the question is a search, which has plans to show when it is cancelled. */
    this.isSearch = false;
  }

  /** Whether somebody waits for an answer. */
  get isWaiting() {
    return this.listener !== null;
  }

  /**
   * Asks a question; its events go to the listener until another one is asked.
   *
   * @param {object} body
   * @param {AskListener} listener
   * @param {string} [job]  the job that answers the question already
   */
  ask(body, listener, job) {
    this.begin(listener);
    this.isSearch = isSearch(body);
    if (job === undefined) void this.post(body, this.turn);
    else {
      this.job = job;
      this.follow(body, this.turn);
    }
  }

  /** Forgets the question; its job is cancelled. */
  drop() {
    const job = this.job;
    this.begin(null);
    this.job = null;
    if (job !== null) this.abandon(job);
  }

  /**
   * Cancels what runs. A search then ends with what it has; everything else ends at once.
   *
   * @returns {Promise<Problem | null>}  why it cannot be cancelled
   */
  async cancel() {
    if (this.job === null || (this.stop === null && !this.isSearch)) {
      const listener = this.listener;
      this.drop();
      listener?.cancelled();
      return null;
    }
    const { job, turn } = this;
    this.isCancelling = true;
    try {
      await cancelJob(job);
    } catch (error) {
      if (turn !== this.turn || !this.isWaiting) return null;
      const isGone = this.stop === null && error instanceof ProblemError && error.status === 404;
      if (!isGone) {
        this.isCancelling = false;
        return problemOf(error);
      }
    }
    // The server can be reached again: what the job has ended with, if anything, comes now.
    if (turn === this.turn) this.retryNow();
    return null;
  }

  /** Ends a pause: the next attempt is made now. */
  retryNow() {
    this.endPause?.();
  }

  /** @param {AskListener | null} listener */
  begin(listener) {
    this.turn += 1;
    this.listener = listener;
    this.isCancelling = false;
    this.wait_s = MIN_WAIT_S;
    this.stop?.();
    this.stop = null;
    this.retryNow();
  }

  /**
   * Cancels a job that nobody waits for.
   *
   * @param {string} job
   */
  abandon(job) {
    // A job that ended in the meantime cannot be cancelled.
    cancelJob(job).catch(() => undefined);
  }

  /**
   * Begins a job, however often that has to be tried.
   *
   * @param {object} body
   * @param {number} turn
   */
  async post(body, turn) {
    await this.posting;
    while (turn === this.turn) {
      const posting = this.postOnce(body);
      this.posting = posting.then(() => undefined);
      const error = await posting;
      if (turn !== this.turn) {
        // The question that came next replaces this job, unless it is a search. Without one, nobody waits for it.
        const isReplaced = this.isWaiting && !isSearch(body);
        if (error === null && this.job !== null && !isReplaced) {
          this.abandon(this.job);
          this.job = null;
        }
        return;
      }
      if (error === null) {
        this.follow(body, turn);
        return;
      }
      if (!isPassing(error)) {
        this.job = null;
        this.end((listener) => listener.failed(problemOf(error)));
        return;
      }
      await this.pause(error);
    }
  }

  /**
   * Begins a job; returns what went wrong, or null.
   *
   * @param {object} body
   * @returns {Promise<unknown>}
   */
  async postOnce(body) {
    try {
      this.job = await postJob(this.job === null ? body : { ...body, replaces: this.job });
      return null;
    } catch (error) {
      return error;
    }
  }

  /**
   * Follows the job that runs.
   *
   * @param {object} body
   * @param {number} turn
   */
  follow(body, turn) {
    const { job, listener } = this;
    if (job === null || listener === null) return;
    listener.began?.(job);
    let isReached = false;
    /** @param {() => void} act */
    const reached = (act) => {
      if (!isReached) {
        this.wait_s = MIN_WAIT_S;
        listener.online();
      }
      isReached = true;
      act();
    };
    /** @type {JobListener} */
    const following = {
      queued: (position) => reached(() => listener.queued(position)),
      progress: (text) => reached(() => listener.progress(text)),
      quick: (quick) => reached(() => listener.quick(quick)),
      front: (front) => reached(() => listener.front(front)),
      answer: (answer) => reached(() => this.end(() => listener.answer(answer))),
      failed: (problem) => reached(() => this.end(() => listener.failed(problem))),
      cancelled: () => {
        if (this.isCancelling) this.end(() => listener.cancelled());
        else void this.askAgain(body, turn);
      },
    };
    this.stop = followJob(job, following, async () => {
      if (turn !== this.turn) return;
      this.stop = null;
      await this.pause(new ConnectionError("events"));
      if (turn !== this.turn) return;
      const isKnown = isReached || (await isJobKnown(job));
      if (turn !== this.turn) return;
      if (isKnown) this.follow(body, turn);
      else if (this.isCancelling) this.end(() => listener.cancelled());
      else void this.askAgain(body, turn);
    });
  }

  /**
   * Asks again what the server no longer works on.
   *
   * @param {object} body
   * @param {number} turn
   */
  async askAgain(body, turn) {
    this.stop = null;
    this.job = null;
    await this.post(body, turn);
  }

  /**
   * Ends the question, and tells its listener.
   *
   * @param {(listener: AskListener) => void} tell
   */
  end(tell) {
    const { listener } = this;
    this.job = null;
    this.listener = null;
    this.stop = null;
    if (listener) tell(listener);
  }

  /**
   * Waits before the next attempt, and says so.
   *
   * @param {unknown} error
   */
  async pause(error) {
    const wait_s = this.wait_s;
    this.wait_s = Math.min(2 * wait_s, MAX_WAIT_S);
    const message = error instanceof ProblemError ? error.problem.message : "The server cannot be reached";
    this.listener?.offline(message, wait_s);
    await /** @type {Promise<void>} */ (
      new Promise((resolve) => {
        const timer = setTimeout(resolve, wait_s * 1000);
        this.endPause = () => {
          clearTimeout(timer);
          resolve();
        };
      })
    );
    this.endPause = null;
  }
}

/**
 * Returns whether the same request may succeed later.
 *
 * @param {unknown} error
 * @returns {boolean}
 */
function isPassing(error) {
  return error instanceof ConnectionError || (error instanceof ProblemError && BUSY.includes(error.status));
}

/**
 * @param {object} body
 * @returns {boolean}
 */
function isSearch(body) {
  return "ask" in body && body.ask === "plan";
}

/**
 * Says how many questions the server answers first.
 *
 * @param {number} position
 * @returns {string}
 */
export function queueText(position) {
  if (position <= 0) return "";
  return position === 1 ? "1 question before yours" : `${position.toLocaleString("en")} questions before yours`;
}

/**
 * Returns any error as a problem that the page can show.
 *
 * @param {unknown} error
 * @returns {import("./api.js").Problem}
 */
export function problemOf(error) {
  if (error instanceof ProblemError) return error.problem;
  if (error instanceof ConnectionError) {
    return {
      code: "not-reachable",
      message: "The server cannot be reached.",
      hint: "is foretrace serve still running?",
    };
  }
  return { code: "page-error", message: error instanceof Error ? error.message : String(error) };
}
