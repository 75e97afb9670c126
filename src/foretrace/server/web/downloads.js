/**
 * The menu of the formats in which an answer can be downloaded.
 */

import { getDownload } from "./api.js";
import { problemOf } from "./asking.js";
import { announce, byId, el, fill, show } from "./dom.js";
import { connectMenu } from "./menu.js";

/** @typedef {import("./api.js").FullAnswer} FullAnswer */
/** @typedef {import("./api.js").Problem} Problem */

/** The name of each format, and what it is for. */
const FORMATS = /** @type {Record<string, [string, string]>} */ ({
  report: ["Report", "one HTML file, opens offline"],
  json: ["JSON", "every number"],
  perfetto: ["Perfetto", "the timeline, for ui.perfetto.dev"],
  saved: ["Saved answer", "for foretrace compare and foretrace report"],
  launch: ["Launch arguments", "of the framework"],
});
/** @type {[string, string]} */
const COMPARED = ["Report of both", "this answer, the pinned one, and their difference"];
/** From how many ranks on a timeline makes a large file. */
const LARGE_RANKS = 256;
/** How long the browser may take to store a file. */
const STORED_MS = 60_000;

/** The menu. Formats are made by the server when they are asked for, which may take a while or fail. */
export class DownloadMenu {
  /** @param {(problem: Problem) => void} failed */
  constructor(failed) {
    this.failed = failed;
    this.box = /** @type {HTMLDetailsElement} */ (byId("downloads"));
    this.list = /** @type {HTMLElement} */ (this.box.querySelector("ul"));
    connectMenu(this.box);
  }

  /**
   * Offers the formats of an answer, and a report of it with another.
   *
   * @param {FullAnswer | null} answer
   * @param {string} base  the id of the other answer; empty where there is none to compare with
   */
  offer(answer, base) {
    const formats = answer?.downloads ?? [];
    const ranks = answer?.summary.gpus ?? 0;
    const items = formats.map((format) => this.item(answer?.answer ?? "", format, ranks));
    if (answer && base) items.push(this.item(answer.answer, "report", ranks, base));
    fill(this.list, ...items);
    show(this.box, formats.length > 0);
  }

  /**
   * @param {string} answer
   * @param {string} format
   * @param {number} ranks  0 where it is not known
   * @param {string} base  the other answer of a comparison
   * @returns {HTMLElement}
   */
  item(answer, format, ranks, base = "") {
    const [name, use] = base ? COMPARED : (FORMATS[format] ?? [format, ""]);
    const isLarge = format === "perfetto" && ranks >= LARGE_RANKS;
    const about = isLarge ? `${use}; large: ${ranks.toLocaleString("en")} ranks` : use;
    const button = el("button", { type: "button" }, el("strong", {}, name), " ", el("span", { class: "muted" }, about));
    button.addEventListener("click", () => void this.download(button, answer, format, base));
    return el("li", {}, button);
  }

  /**
   * @param {HTMLButtonElement} button
   * @param {string} answer
   * @param {string} format
   * @param {string} base
   */
  async download(button, answer, format, base) {
    if (button.getAttribute("aria-disabled") === "true") return;
    button.setAttribute("aria-disabled", "true");
    button.setAttribute("aria-busy", "true");
    try {
      const { blob, name } = await getDownload(answer, format, base);
      const address = URL.createObjectURL(blob);
      el("a", { href: address, download: name }).click();
      setTimeout(() => URL.revokeObjectURL(address), STORED_MS);
      if (this.box.contains(document.activeElement)) this.box.querySelector("summary")?.focus();
      this.box.open = false;
      announce(`Downloaded ${name}`);
    } catch (error) {
      this.failed(problemOf(error));
    }
    button.removeAttribute("aria-disabled");
    button.removeAttribute("aria-busy");
  }
}
