/**
 * The menu of the formats in which an answer can be downloaded.
 */

import { getDownload } from "./api.js";
import { problemOf } from "./asking.js";
import { announce, byId, el, fill, show } from "./dom.js";

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
/** How long the browser may take to store a file. */
const STORED_MS = 60_000;

/** The menu. Formats are made by the server when they are asked for, which may take a while or fail. */
export class DownloadMenu {
  /** @param {(problem: Problem) => void} failed */
  constructor(failed) {
    this.failed = failed;
    this.box = /** @type {HTMLDetailsElement} */ (byId("downloads"));
    this.list = /** @type {HTMLElement} */ (this.box.querySelector("ul"));
    this.box.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.box.open) return;
      event.stopPropagation();
      this.box.open = false;
      this.box.querySelector("summary")?.focus();
    });
    this.box.addEventListener("toggle", () => {
      const { bottom } = this.box.getBoundingClientRect();
      // On a narrow page the bar of figures may stand at the bottom of the window.
      this.box.classList.toggle("up", bottom > window.innerHeight / 2);
    });
    document.addEventListener("click", (event) => {
      if (event.target instanceof Node && !this.box.contains(event.target)) this.box.open = false;
    });
  }

  /**
   * Offers the formats of an answer.
   *
   * @param {FullAnswer | null} answer
   */
  offer(answer) {
    const formats = answer?.downloads ?? [];
    fill(this.list, ...formats.map((format) => this.item(answer?.answer ?? "", format)));
    show(this.box, formats.length > 0);
  }

  /**
   * @param {string} answer
   * @param {string} format
   * @returns {HTMLElement}
   */
  item(answer, format) {
    const [name, about] = FORMATS[format] ?? [format, ""];
    const button = el("button", { type: "button" }, el("strong", {}, name), " ", el("span", { class: "muted" }, about));
    button.addEventListener("click", () => void this.download(button, answer, format));
    return el("li", {}, button);
  }

  /**
   * @param {HTMLButtonElement} button
   * @param {string} answer
   * @param {string} format
   */
  async download(button, answer, format) {
    if (button.getAttribute("aria-disabled") === "true") return;
    button.setAttribute("aria-disabled", "true");
    button.setAttribute("aria-busy", "true");
    try {
      const { blob, name } = await getDownload(answer, format);
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
