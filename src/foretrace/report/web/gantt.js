// Shows the pipeline of a step on a canvas. The chart comes from report/page/gantt_chart.py.
//
// gantt_data decodes it, gantt_tracks arranges its rows, gantt_scene holds what is in view, gantt_draw paints that.
import { decodeGantt } from "./gantt_data.js";
import { GanttPainter } from "./gantt_draw.js";
import { ganttFacts, ganttSentence } from "./gantt_facts.js";
import { GANTT_KEYS, listenToGantt } from "./gantt_input.js";
import { readGanttPalette } from "./gantt_palette.js";
import { GanttScene } from "./gantt_scene.js";
import { GANTT_AXIS } from "./gantt_tracks.js";
import { formatTime } from "./times.js";

/** @typedef {import("./gantt_data.js").GanttChart} GanttChart */
/** @typedef {import("./gantt_scene.js").GanttHit} GanttHit */
/** @typedef {import("./gantt_tracks.js").GanttGrouping} GanttGrouping */

/** The picture on paper: CSS pixels of its width and of a page, and pixels per CSS pixel. */
const GANTT_PAPER = { width: 680, height: 900, ratio: 3 };
/** By what share two steps may differ so that the part of one in view is of use in the other. */
const GANTT_SIMILAR = 0.25;

/**
 * @typedef {{grouping: GanttGrouping, allRanks: boolean, onlyCritical: boolean, stepTime: number, low: number,
 *   high: number, focus: string}} GanttSettings
 *   What a reader has set in a chart. `low` and `high` are shares of the step, and `focus` is the key of the part that
 *   has the focus.
 */
/** @type {WeakMap<Element, GanttView>} */
const ganttViews = new WeakMap();
/** @type {WeakMap<Element, GanttSettings>} settings for charts that are not drawn yet */
const ganttInherited = new WeakMap();

/**
 * Gives the charts that replace others their settings and, until they are drawn, their heights.
 * @param {Element} root
 * @param {Element[]} before the charts that may be replaced
 * @param {() => void} replace
 */
export function inheritGantt(root, before, replace) {
  const settings = before.map((element) => ganttViews.get(element)?.settings() ?? ganttInherited.get(element));
  const heights = before.map((element) => element.getBoundingClientRect().height);
  replace();
  root.querySelectorAll("[data-gantt]").forEach((element, place) => {
    const inherited = settings[place];
    if (!(element instanceof HTMLElement) || element === before[place] || !inherited) return;
    ganttInherited.set(element, inherited);
    element.style.minHeight = `${heights[place]}px`;
  });
}

/**
 * Makes the chart in an element live.
 * @param {HTMLElement} element
 */
export async function mountGantt(element) {
  const source = element.querySelector('script[type="application/json"]');
  if (!source) return;
  try {
    const chart = await decodeGantt(JSON.parse(source.textContent ?? ""));
    source.remove();
    const view = new GanttView(element, chart);
    ganttViews.set(element, view);
    const inherited = ganttInherited.get(element);
    if (inherited) view.restore(inherited);
    element.style.minHeight = "";
  } catch (error) {
    element.style.minHeight = "";
    const reason = error instanceof Error ? error.message : String(error);
    const problem = `The chart cannot be drawn: ${reason}. The table below has its rows.`;
    element.append(ganttElement("p", "gantt-status", problem));
  }
}

export class GanttView {
  /**
   * @param {HTMLElement} element
   * @param {GanttChart} chart
   */
  constructor(element, chart) {
    this.element = element;
    this.scene = new GanttScene(chart, () => this.redraw());
    this.frame = 0;
    this.printing = false;
    /** What the reader had set before the page was printed. */
    this.before = this.settings();
    /** @type {AbortController | null} */
    this.following = null;

    this.toolbar = ganttElement("div", "gantt-toolbar");
    this.scroller = ganttElement("div", "gantt-scroll");
    this.canvas = ganttElement("canvas", "gantt-canvas");
    this.spacer = ganttElement("div", "gantt-spacer");
    this.tip = ganttElement("div", "gantt-tip");
    this.legend = ganttElement("ul", "gantt-legend");
    this.status = ganttElement("p", "gantt-status");
    this.tip.hidden = true;
    this.tip.setAttribute("aria-hidden", "true");
    this.status.setAttribute("aria-live", "polite");
    this.canvas.tabIndex = 0;
    this.canvas.dataset.key = "pipeline";
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "timeline");
    this.canvas.setAttribute("aria-label", `Pipeline of a step of ${formatTime(chart.stepTime)}. ${GANTT_KEYS}`);
    this.buildToolbar();
    this.scroller.append(this.canvas, this.spacer);
    element.append(this.toolbar, this.legend, this.scroller, this.tip, this.status);
    this.painter = new GanttPainter(this.canvas, this.scene, readGanttPalette(element, chart.colours));
    this.buildLegend();
    this.describe();
    listenToGantt(this);
    this.scroller.addEventListener("scroll", () => this.redraw(), { passive: true });
    new ResizeObserver(() => {
      this.followPage();
      if (element.isConnected) this.layOut();
    }).observe(element);
    this.layOut();
  }

  buildToolbar() {
    const { scene } = this;
    const { lanes } = scene.chart;
    this.toolbar.setAttribute("role", "group");
    this.toolbar.setAttribute("aria-label", "View of the pipeline");
    const groupings = [["stage", "by stage"], ["rank", "by rank"], ["lane", "by lane"]];
    this.addSelect("Rows", groupings, (value) => (scene.grouping = /** @type {GanttGrouping} */ (value)));
    const main = new Set(lanes.filter((lane) => lane.main).map((lane) => lane.rank)).size;
    const all = new Set(lanes.map((lane) => lane.rank)).size;
    if (all > main) {
      const choices = [["main", `one of each stage (${main})`], ["all", `all that differ (${all})`]];
      this.addSelect("Ranks", choices, (value) => (scene.allRanks = value === "all"));
    }
    const label = ganttElement("label", "gantt-check");
    const box = ganttElement("input");
    box.type = "checkbox";
    box.dataset.key = "Critical path";
    box.addEventListener("change", () => {
      scene.onlyCritical = box.checked;
      this.redraw();
    });
    label.append(box, "Critical path");
    this.toolbar.append(label);
    const buttons = ganttElement("span", "gantt-buttons");
    /** @type {[string, string, () => void][]} */
    const actions = [
      ["−", "Zoom out", () => scene.zoom(2)],
      ["+", "Zoom in", () => scene.zoom(0.5)],
      ["Whole step", "Show the whole step", () => scene.showAll()],
    ];
    for (const [text, title, act] of actions) {
      const button = ganttElement("button", "gantt-button", text);
      button.type = "button";
      button.dataset.key = button.title = title;
      if (text.length === 1) button.setAttribute("aria-label", title);
      button.addEventListener("click", act);
      buttons.append(button);
    }
    this.toolbar.append(buttons);
  }

  /**
   * @param {string} text
   * @param {string[][]} choices values and their texts
   * @param {(value: string) => void} choose
   */
  addSelect(text, choices, choose) {
    const label = ganttElement("label", "gantt-choice", `${text} `);
    const select = ganttElement("select");
    select.dataset.key = text;
    for (const [value, shown] of choices) {
      const option = ganttElement("option", "", shown);
      option.value = value;
      select.append(option);
    }
    select.addEventListener("change", () => {
      choose(select.value);
      this.scene.arrange();
      this.scroller.scrollTop = 0;
      this.layOut();
    });
    label.append(select);
    this.toolbar.append(label);
  }

  buildLegend() {
    const { palette } = this.painter;
    const entries = this.scene.chart.colours.map((colour, i) => {
      const item = ganttElement("li", "gantt-entry");
      const swatch = ganttElement("span", "gantt-swatch", colour.sign);
      swatch.style.backgroundColor = palette.css[i];
      swatch.style.color = palette.text[i];
      item.append(swatch, colour.name);
      return item;
    });
    this.legend.replaceChildren(...entries);
  }

  /**
   * Returns what the reader has set.
   * @returns {GanttSettings}
   */
  settings() {
    const { grouping, allRanks, onlyCritical, low, high, chart } = this.scene;
    const focused = document.activeElement;
    const focus = focused instanceof HTMLElement && this.element.contains(focused) ? (focused.dataset.key ?? "") : "";
    const shares = { low: low / chart.span, high: high / chart.span };
    return { grouping, allRanks, onlyCritical, stepTime: chart.stepTime, focus, ...shares };
  }

  /**
   * Sets what a reader had set in another chart. The focus comes back if nothing else has taken it.
   * @param {GanttSettings} settings
   */
  restore({ grouping, allRanks, onlyCritical, stepTime, low, high, focus }) {
    const { scene } = this;
    const keyed = (/** @type {string} */ key) => this.element.querySelector(`[data-key="${CSS.escape(key)}"]`);
    const [rows, ranks, path] = [keyed("Rows"), keyed("Ranks"), keyed("Critical path")];
    scene.grouping = grouping;
    if (rows instanceof HTMLSelectElement) rows.value = grouping;
    if (ranks instanceof HTMLSelectElement) {
      scene.allRanks = allRanks;
      ranks.value = allRanks ? "all" : "main";
    }
    scene.onlyCritical = onlyCritical;
    if (path instanceof HTMLInputElement) path.checked = onlyCritical;
    scene.arrange();
    const { span, stepTime: time } = scene.chart;
    if (Math.abs(time / stepTime - 1) <= GANTT_SIMILAR) scene.show(low * span, high * span);
    this.layOut();
    const part = focus ? keyed(focus) : null;
    const isFree = document.activeElement === document.body || document.activeElement?.localName === "main";
    if (part instanceof HTMLElement && isFree) part.focus({ preventScroll: true });
  }

  /** Follows the scheme of colours, the resolution of the screen and printing, as long as the chart is part of the page. */
  followPage() {
    const { isConnected } = this.element;
    if (isConnected === Boolean(this.following)) return;
    if (!isConnected) {
      this.following?.abort();
      this.following = null;
      return;
    }
    this.following = new AbortController();
    const { signal } = this.following;
    const restyle = () => {
      if (!this.printing) this.readPalette();
    };
    const observer = new MutationObserver(restyle);
    observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme", "class"] });
    signal.addEventListener("abort", () => observer.disconnect());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle, { signal });
    addEventListener("resize", () => this.layOut(), { signal });
    this.followResolution(signal);
    addEventListener("beforeprint", () => this.print(true), { signal });
    addEventListener("afterprint", () => this.print(false), { signal });
    restyle();
  }

  /**
   * Draws again when the window comes to a screen of another resolution, or the page is zoomed.
   * @param {AbortSignal} signal
   */
  followResolution(signal) {
    const changed = () => {
      this.layOut();
      if (!signal.aborted) this.followResolution(signal);
    };
    matchMedia(`(resolution: ${devicePixelRatio}dppx)`).addEventListener("change", changed, { signal, once: true });
  }

  /** Reads the colours of the page again. */
  readPalette() {
    const palette = readGanttPalette(this.element, this.scene.chart.colours);
    if (palette.key === this.painter.palette.key) return;
    this.painter.palette = palette;
    this.buildLegend();
    this.redraw();
  }

  /**
   * Shows the whole step in light colours, as wide as a page of paper, while the page is printed. What is higher than
   * a page is shown by stage.
   * @param {boolean} starts
   */
  print(starts) {
    const { scene } = this;
    const root = document.documentElement;
    this.printing = starts;
    if (starts) {
      this.before = this.settings();
      const theme = root.dataset.theme;
      root.dataset.theme = "light";
      this.readPalette();
      if (theme === undefined) delete root.dataset.theme;
      else root.dataset.theme = theme;
      scene.showAll();
      scene.stack(GANTT_PAPER.height);
      if (scene.contentHeight > GANTT_PAPER.height) {
        scene.grouping = "stage";
        scene.allRanks = !scene.chart.lanes.some((lane) => lane.main);
        scene.arrange();
      }
    } else {
      this.readPalette();
      scene.grouping = this.before.grouping;
      scene.allRanks = this.before.allRanks;
      scene.arrange();
      scene.show(this.before.low * scene.chart.span, this.before.high * scene.chart.span);
    }
    this.layOut();
    this.draw();
  }

  /** Fits the picture into the page. */
  layOut() {
    const { scene, scroller, printing } = this;
    scene.stack(printing ? GANTT_PAPER.height : Math.max(320, Math.round(innerHeight * 0.8)));
    // Paper does not scroll: what is higher than a page goes on to the next one.
    if (printing) scene.height = scene.contentHeight;
    scroller.style.height = `${scene.height}px`;
    this.spacer.style.height = `${scene.contentHeight - scene.height}px`;
    // The scroll bar, which takes a part of the width, appears and goes with the height.
    scene.widen(printing ? GANTT_PAPER.width : scroller.clientWidth, this.painter.labelWidth());
    if (scene.width) this.painter.fit(printing ? GANTT_PAPER.ratio : devicePixelRatio || 1);
    this.redraw();
  }

  redraw() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (this.scene.width) this.painter.draw(this.printing ? 0 : this.scroller.scrollTop);
  }

  /**
   * Returns the bar at a place of the canvas.
   * @param {number} x
   * @param {number} y
   */
  hitAt(x, y) {
    return y < GANTT_AXIS ? null : this.scene.hitAt(x, y - GANTT_AXIS + this.scroller.scrollTop);
  }

  /** @param {GanttHit | null} hit */
  select(hit) {
    this.scene.selected = hit;
    this.describe();
    this.redraw();
  }

  /**
   * Selects a bar and moves it into view.
   * @param {number | undefined} bar
   */
  reveal(bar) {
    if (bar === undefined) return;
    const { scene, scroller } = this;
    const hit = { bar, op: -1 };
    const track = scene.trackOf(hit);
    scene.panTo(bar);
    if (track) {
      const room = scene.height - GANTT_AXIS;
      if (track.y < scroller.scrollTop) scroller.scrollTop = track.y;
      else if (track.y + track.height > scroller.scrollTop + room) scroller.scrollTop = track.y + track.height - room;
    }
    this.select(hit);
  }

  describe() {
    this.status.textContent = ganttSentence(this.scene);
  }

  /**
   * Shows the facts of a bar next to the pointer.
   * @param {GanttHit | null} hit
   * @param {number} x
   * @param {number} y
   */
  hover(hit, x, y) {
    const { scene, tip } = this;
    if (hit?.bar !== scene.hovered?.bar || hit?.op !== scene.hovered?.op) {
      scene.hovered = hit;
      tip.hidden = !hit;
      this.redraw();
      if (hit) {
        const [[title], ...facts] = ganttFacts(scene, hit);
        const list = ganttElement("dl");
        for (const [name, value] of facts) list.append(ganttElement("dt", "", name), ganttElement("dd", "", value));
        tip.replaceChildren(ganttElement("strong", "", title), list);
      }
    }
    if (!hit) return;
    const left = this.scroller.offsetLeft + x;
    const top = this.scroller.offsetTop + y;
    const over = left + 16 + tip.offsetWidth > this.element.clientWidth;
    tip.style.left = `${Math.max(0, over ? left - 12 - tip.offsetWidth : left + 16)}px`;
    tip.style.top = `${top + 14}px`;
  }
}

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {string} [name] its class
 * @param {string} [text]
 * @returns {HTMLElementTagNameMap[Tag]}
 */
function ganttElement(tag, name, text) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
}
