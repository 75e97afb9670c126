/**
 * Asks one question after the other: a new one replaces the one that is still being answered, and a broken connection
 * is tried again, ever more rarely.
 */

import { cancelJob, ConnectionError, followJob, postJob, ProblemError } from "./api.js";

/** @typedef {import("./api.js").JobListener} JobListener */
/**
 * What a page does for one question: at the events of its job, and while the server cannot be reached.
 *
 * @typedef {JobListener & {offline: (message: string, wait_s: number) => void, online: () => void}} AskListener
 */

const MIN_WAIT_S = 1;
const MAX_WAIT_S = 15;
/** Statuses after which the same request may succeed later. */
const BUSY = [429, 502, 503, 504];

/** The one question that a part of the page waits for. */
export class Asking {
  constructor() {
    /** @type {string | null} the job that runs */
    this.job = null;
    /** Counts questions: what belongs to an earlier one is dropped. */
    this.turn = 0;
    this.isPosting = false;
    /** @type {(() => void) | null} */
    this.stop = null;
    /** @type {(() => void) | null} */
    this.waiting = null;
    this.wait_s = MIN_WAIT_S;
  }

  /**
   * Asks a question; its events go to the listener until another one is asked.
   *
   * @param {object} body
   * @param {AskListener} listener
   */
  ask(body, listener) {
    this.turn += 1;
    this.stopFollowing();
    this.retryNow();
    void this.post(body, listener, this.turn);
  }

  /** Forgets the question; its job is cancelled. */
  drop() {
    this.turn += 1;
    this.stopFollowing();
    this.cancel();
    this.job = null;
  }

  /** Cancels the job that runs. Its listener hears of it. */
  cancel() {
    const job = this.job;
    // A job that ended in the meantime cannot be cancelled, and needs not be.
    if (job) cancelJob(job).catch(() => undefined);
  }

  /** Ends a wait for the next attempt. */
  retryNow() {
    this.waiting?.();
  }

  stopFollowing() {
    this.stop?.();
    this.stop = null;
  }

  /**
   * @param {object} body
   * @param {AskListener} listener
   * @param {number} turn
   */
  async post(body, listener, turn) {
    // One request at a time: each names the job that it replaces, which the one before is about to tell.
    while (this.isPosting) await this.posted();
    while (turn === this.turn) {
      const error = await this.tryPosting(body);
      if (error === null) {
        listener.online();
        break;
      }
      if (turn !== this.turn) break;
      if (!isPassing(error)) {
        this.job = null;
        listener.failed(problemOf(error));
        break;
      }
      await this.pause(error, listener);
    }
    if (turn === this.turn && this.job !== null) this.follow(this.job, body, listener, turn);
  }

  /**
   * Posts a question once; returns what went wrong, or null.
   *
   * @param {object} body
   * @returns {Promise<unknown>}
   */
  async tryPosting(body) {
    this.isPosting = true;
    try {
      this.job = await postJob(this.job === null ? body : { ...body, replaces: this.job });
      this.wait_s = MIN_WAIT_S;
      return null;
    } catch (error) {
      return error;
    } finally {
      this.isPosting = false;
      this.whenPosted?.();
    }
  }

  /**
   * @param {string} job
   * @param {object} body
   * @param {AskListener} listener
   * @param {number} turn
   */
  follow(job, body, listener, turn) {
    this.stop = followJob(job, this.ended(listener), async () => {
      if (turn !== this.turn) return;
      await this.pause(new ConnectionError("events"), listener);
      if (turn !== this.turn) return;
      // The job may be gone with the server that ran it. A question asked again gives the same answer.
      this.job = null;
      void this.post(body, listener, turn);
    });
  }

  /**
   * Returns a listener that also forgets the job at its end.
   *
   * @param {AskListener} listener
   * @returns {JobListener}
   */
  ended(listener) {
    return {
      ...listener,
      answer: (answer) => {
        this.job = null;
        listener.answer(answer);
      },
      failed: (problem) => {
        this.job = null;
        listener.failed(problem);
      },
      cancelled: () => {
        this.job = null;
        listener.cancelled();
      },
    };
  }

  /**
   * @param {unknown} error
   * @param {AskListener} listener
   */
  async pause(error, listener) {
    const wait_s = this.wait_s;
    this.wait_s = Math.min(2 * wait_s, MAX_WAIT_S);
    const message = error instanceof ProblemError ? error.problem.message : "The server cannot be reached.";
    listener.offline(message, wait_s);
    await /** @type {Promise<void>} */ (
      new Promise((resolve) => {
        const timer = setTimeout(resolve, wait_s * 1000);
        this.waiting = () => {
          clearTimeout(timer);
          resolve();
        };
      })
    );
    this.waiting = null;
  }

  /** @returns {Promise<void>} */
  posted() {
    return new Promise((resolve) => {
      const before = this.whenPosted;
      this.whenPosted = () => {
        before?.();
        this.whenPosted = undefined;
        resolve();
      };
    });
  }

  /** @type {(() => void) | undefined} */
  whenPosted = undefined;
}

/**
 * Says whether the same request may succeed later.
 *
 * @param {unknown} error
 * @returns {boolean}
 */
function isPassing(error) {
  return error instanceof ConnectionError || (error instanceof ProblemError && BUSY.includes(error.status));
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
