// Draws bars into a line of pixels.
//
// Every bar adds to the pixel columns that it covers, and a column shows the kind that fills most of it. The cost of a
// frame therefore depends only on the bars in view and the size of the canvas.
import { GANTT_LEVELS } from "./gantt_palette.js";

/** @typedef {import("./gantt_palette.js").GanttPalette} GanttPalette */

/** The shade of a column that is nearly empty: even the shortest bar is visible. */
const GANTT_FAINTEST = 3;

/** A line of pixels, into which bars are drawn in the order of their starts. */
export class GanttLine {
  /**
   * @param {number} width
   * @param {number} colours
   */
  constructor(width, colours) {
    this.pixels = new Uint32Array(width);
    this.width = width;
    this.edgeAt = new Int32Array(width);
    this.edgeColour = new Uint32Array(width);
    this.edges = 0;
    this.share = new Float32Array(2 * colours);
    this.owed = new Float32Array(2 * colours);
    /** @type {number[]} */
    this.touched = [];
    this.column = -1;
    this.colours = colours;
    /** @type {GanttPalette | undefined} */
    this.palette = undefined;
  }

  /** @param {GanttPalette} palette */
  begin(palette) {
    this.palette = palette;
    this.pixels.fill(palette.back);
    this.owed.fill(0);
    this.edges = 0;
    this.column = -1;
  }

  /**
   * Draws a bar between two places in pixels; colours from `colours` on are the dimmed ones.
   * @param {number} low
   * @param {number} high
   * @param {number} colour
   */
  add(low, high, colour) {
    if (high < 0 || low >= this.width) return;
    const palette = /** @type {GanttPalette} */ (this.palette);
    if (high - low >= 4 && low >= 0 && this.edges < this.width) {
      this.edgeAt[this.edges] = low | 0;
      this.edgeColour[this.edges++] = palette.edges[colour];
    }
    low = Math.max(low, 0);
    high = Math.min(high, this.width);
    const from = low | 0;
    const to = high | 0;
    if (from === to) {
      this.cover(from, colour, Math.max(high - low, 0.06));
      return;
    }
    this.cover(from, colour, from + 1 - low);
    if (to > from + 1) this.pixels.fill(palette.levels[(colour + 1) * GANTT_LEVELS - 1], from + 1, to);
    if (to < this.width) this.cover(to, colour, high - to);
  }

  /**
   * @param {number} column
   * @param {number} colour
   * @param {number} share
   */
  cover(column, colour, share) {
    if (column !== this.column) {
      this.flush();
      this.column = column;
    }
    if (this.share[colour] === 0) this.touched.push(colour);
    this.share[colour] += share;
  }

  /**
   * Gives the current pixel column one colour. The share that a colour does not get is carried over to the next columns
   * (error diffusion), so that bars narrower than a pixel show in proportion. A full colour wins over a dimmed one.
   */
  flush() {
    const { share, owed, touched } = this;
    let total = 0;
    let best = -1;
    let most = -Infinity;
    for (const colour of touched) {
      total += share[colour];
      owed[colour] = Math.min(owed[colour] + share[colour], 4);
      const weight = colour < this.colours ? owed[colour] + 100 : owed[colour];
      if (weight > most) {
        most = weight;
        best = colour;
      }
      share[colour] = 0;
    }
    touched.length = 0;
    if (best < 0 || this.column < 0) return;
    owed[best] -= total;
    const level = Math.min(GANTT_LEVELS - 1, Math.max(GANTT_FAINTEST, Math.round(total * (GANTT_LEVELS - 1))));
    const palette = /** @type {GanttPalette} */ (this.palette);
    this.pixels[this.column] = palette.levels[best * GANTT_LEVELS + level];
  }

  finish() {
    this.flush();
    for (let i = 0; i < this.edges; i++) this.pixels[this.edgeAt[i]] = this.edgeColour[i];
  }
}
