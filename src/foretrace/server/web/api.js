/**
 * Speaks to the server: one function for each address of its interface.
 */

/** @typedef {{code: string, message: string, where?: string | null, hint?: string | null}} Problem */
/** @typedef {string | number | boolean | string[] | null | undefined} Value */
/** @typedef {Record<string, Value>} Values */
/** @typedef {{model?: string, example?: string, upload?: string}} Source */
/**
 * @typedef {object} SearchValues
 * @property {string} [objective]
 * @property {Record<string, string>} [axes]
 * @property {string | number | null} [time_s]
 */
/**
 * A question as the server takes it, and as a link holds it.
 *
 * @typedef {object} Question
 * @property {"step" | "plan" | "explain" | "compare"} ask
 * @property {Source} input
 * @property {Values} options
 * @property {Values} machine
 * @property {Values} scenario
 * @property {SearchValues} [search]
 */
/**
 * An option as a form shows it.
 *
 * @typedef {object} Field
 * @property {string} name
 * @property {string} flag
 * @property {string} label
 * @property {string} help
 * @property {string} metavar
 * @property {string[] | null} choices
 * @property {"text" | "number" | "flag" | "list"} kind
 * @property {boolean} two_way  whether a flag can be turned off as well as on
 * @property {boolean} doubled  whether it is a count that is usually doubled and halved
 * @property {string} [default]  the meaning of an empty field, where that can be said
 */
/** @typedef {{name: string, title: string}} Named */
/** @typedef {{name: string, title: string, value: string}} WhatIf  a left side of a what-if, and its usual right side */
/** @typedef {{id: string, title: string, noun: string, kind: string, question: Question}} Example */
/**
 * The facts that the page needs before it can show a form.
 *
 * @typedef {object} Start
 * @property {string} version
 * @property {Named[]} models
 * @property {Named[]} clusters
 * @property {Example[]} examples
 * @property {Record<string, Field[]>} fields
 * @property {Field[]} machine
 * @property {Field[]} scenario
 * @property {Field[]} search
 * @property {WhatIf[]} what_ifs
 * @property {Record<string, string>} [glossary]  what the terms of the page mean, in a sentence each
 * @property {{upload_bytes: number, upload_text: string, files: number}} limits
 */
/**
 * @typedef {object} Summary
 * @property {string} title
 * @property {number | null} step_time_s
 * @property {[number, number] | null} band_s
 * @property {string} step_text
 * @property {string} kind
 * @property {boolean} fits  whether the job fits into memory
 * @property {number | null} tokens_per_step
 * @property {number | null} tokens_per_s_per_gpu
 * @property {number | null} gpus
 * @property {Record<string, string>} plan  the values of the plan, those that were chosen included, by field
 */
/**
 * An answer with what the page can do with it.
 *
 * @typedef {object} FullAnswer
 * @property {string} answer
 * @property {string} html
 * @property {Summary} summary
 * @property {Question} [question]
 * @property {string} command
 * @property {string[]} downloads
 */
/**
 * An upload that was opened as an input.
 *
 * @typedef {object} Opened
 * @property {string} upload
 * @property {string} kind
 * @property {string} noun
 * @property {string} title
 * @property {boolean} is_measured
 * @property {Field[]} fields
 * @property {boolean} needs_cluster
 */
/** @typedef {{answer: string, title: string, step_text: string, kind: string, at: number, downloads: string[]}} Past */
/**
 * The events of a job, and what each holds.
 *
 * @typedef {object} EventMap
 * @property {{position: number}} queued
 * @property {{text: string}} progress
 * @property {{html: string, summary: Summary}} quick
 * @property {{html: string}} front
 * @property {FullAnswer} answer
 * @property {Problem} failed
 * @property {object} cancelled
 */
/**
 * The functions of a page for each event of a job.
 *
 * @typedef {object} JobListener
 * @property {(position: number) => void} queued
 * @property {(text: string) => void} progress
 * @property {(quick: EventMap["quick"]) => void} quick
 * @property {(front: EventMap["front"]) => void} front
 * @property {(answer: FullAnswer) => void} answer
 * @property {(problem: Problem) => void} failed
 * @property {() => void} cancelled
 */

/** An answer of the server that states a problem. */
export class ProblemError extends Error {
  /**
   * @param {Problem} problem
   * @param {number} status
   */
  constructor(problem, status) {
    super(problem.message);
    this.problem = problem;
    this.status = status;
  }
}

/** The server could not be reached. */
export class ConnectionError extends Error {}

/**
 * Sends a request and returns its response; raises `ProblemError` or `ConnectionError`.
 *
 * @param {string} method
 * @param {string} path
 * @param {unknown} [body]
 * @returns {Promise<Response>}
 */
async function send(method, path, body) {
  /** @type {RequestInit} */
  const request = { method, headers: { "X-Foretrace": "1" }, credentials: "same-origin", cache: "no-store" };
  if (body !== undefined) {
    request.headers = { "X-Foretrace": "1", "Content-Type": "application/json" };
    request.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, request);
  } catch {
    throw new ConnectionError(path);
  }
  if (!response.ok) throw new ProblemError(await problemOfResponse(response), response.status);
  return response;
}

/**
 * Reads the problem that a response states.
 *
 * @param {Response} response
 * @returns {Promise<Problem>}
 */
async function problemOfResponse(response) {
  return problemOfText(await response.text(), response.status);
}

/**
 * Reads the problem that the body of a response states.
 *
 * @param {string} text
 * @param {number} status
 * @returns {Problem}
 */
function problemOfText(text, status) {
  try {
    const problem = JSON.parse(text).error;
    if (problem && typeof problem.message === "string") return problem;
  } catch {
    // The body is not JSON: a proxy may have answered.
  }
  return { code: `http-${status}`, message: `the server answered with status ${status}` };
}

/** @returns {Promise<Start>} */
export async function getStart() {
  return (await send("GET", "/api/start")).json();
}

/**
 * Asks a question, and returns its job.
 *
 * @param {object} body
 * @returns {Promise<string>}
 */
export async function postJob(body) {
  return (await (await send("POST", "/api/jobs", body)).json()).job;
}

/**
 * Cancels a job; a plan search then ends with what it has.
 *
 * @param {string} job
 */
export async function cancelJob(job) {
  await send("POST", `/api/jobs/${encodeURIComponent(job)}/cancel`, {});
}

/**
 * Follows the events of a job, until one ends it.
 *
 * @param {string} job
 * @param {JobListener} listener
 * @param {() => void} lost  called where the connection broke before the end
 * @returns {() => void}  ends the connection
 */
export function followJob(job, listener, lost) {
  const source = new EventSource(`/api/jobs/${encodeURIComponent(job)}/events`);
  /**
   * @template {keyof EventMap} Name
   * @param {Name} name
   * @param {(content: EventMap[Name]) => void} act
   * @param {boolean} [last]
   */
  const on = (name, act, last = false) => {
    source.addEventListener(name, (event) => {
      if (last) source.close();
      act(JSON.parse(/** @type {MessageEvent<string>} */ (event).data || "{}"));
    });
  };
  on("queued", (content) => listener.queued(content.position));
  on("progress", (content) => listener.progress(content.text));
  on("quick", listener.quick);
  on("front", listener.front);
  on("answer", listener.answer, true);
  on("failed", listener.failed, true);
  on("cancelled", () => listener.cancelled(), true);
  // The browser would connect again by itself, but says neither when nor that the job is gone.
  source.addEventListener("error", () => {
    source.close();
    lost();
  });
  return () => source.close();
}

/**
 * Returns whether the server still has the events of a job: false only where it says that it has not, and true where it
 * cannot be reached or is busy.
 *
 * @param {string} job
 * @returns {Promise<boolean>}
 */
export async function isJobKnown(job) {
  const ending = new AbortController();
  try {
    const { status } = await fetch(`/api/jobs/${encodeURIComponent(job)}/events`, { signal: ending.signal });
    return status !== 404;
  } catch {
    return true;
  } finally {
    ending.abort();
  }
}

/**
 * Announces an upload, and returns its id.
 *
 * @param {string[]} names
 * @returns {Promise<string>}
 */
export async function postUpload(names) {
  return (await (await send("POST", "/api/uploads", { names })).json()).upload;
}

/**
 * Sends one file of an upload. `fetch` does not tell how much was sent, so this takes the older interface.
 *
 * @param {string} upload
 * @param {number} number
 * @param {File} file
 * @param {AbortSignal} signal  ends it
 * @param {(share: number) => void} sent
 * @returns {Promise<void>}
 */
export function putFile(upload, number, file, signal, sent) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    signal.addEventListener("abort", () => request.abort());
    request.onabort = () => reject(new ConnectionError("upload"));
    request.open("PUT", `/api/uploads/${encodeURIComponent(upload)}/${number}`);
    request.setRequestHeader("X-Foretrace", "1");
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.upload.onprogress = (event) => sent(event.total ? event.loaded / event.total : 1);
    request.onerror = () => reject(new ConnectionError("upload"));
    request.onload = () => {
      if (request.status < 300) resolve();
      else reject(new ProblemError(problemOfText(request.responseText, request.status), request.status));
    };
    request.send(file);
  });
}

/**
 * Opens an upload as an input; opens it again if needed.
 *
 * @param {string} upload
 * @returns {Promise<Opened>}
 */
export async function openUpload(upload) {
  return (await send("POST", `/api/uploads/${encodeURIComponent(upload)}/open`, {})).json();
}

/** @returns {Promise<Past[]>} */
export async function getHistory() {
  return (await (await send("GET", "/api/history")).json()).answers;
}

/**
 * @param {string} id
 * @returns {Promise<FullAnswer>}
 */
export async function getAnswer(id) {
  return (await send("GET", `/api/answers/${encodeURIComponent(id)}`)).json();
}

/** @param {string} id */
export async function deleteAnswer(id) {
  await send("DELETE", `/api/answers/${encodeURIComponent(id)}`);
}

/**
 * Fetches an answer in another format, with the name that the server gives the file.
 *
 * @param {string} id
 * @param {string} format
 * @param {string} base  the answer that it is compared with; empty for none
 * @returns {Promise<{blob: Blob, name: string}>}
 */
export async function getDownload(id, format, base = "") {
  const address = `/api/answers/${encodeURIComponent(id)}/${encodeURIComponent(format)}`;
  const response = await send("GET", base ? `${address}?with=${encodeURIComponent(base)}` : address);
  const disposition = response.headers.get("Content-Disposition") ?? "";
  const name = /filename="?([^";]+)"?/.exec(disposition)?.[1] ?? `foretrace-${format}`;
  return { blob: await response.blob(), name };
}
