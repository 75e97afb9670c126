// Paints a scene on a canvas: rows as pixels, then texts, frames, labels and the axis.
import { GanttLine } from "./gantt_line.js";
import { GANTT_STRIP } from "./gantt_scene.js";
import { GANTT_AXIS, GANTT_READABLE } from "./gantt_tracks.js";
import { axisUnit, formatAxisTime, formatTime } from "./times.js";

/** @typedef {import("./gantt_palette.js").GanttPalette} GanttPalette */
/** @typedef {import("./gantt_scene.js").GanttScene} GanttScene */
/** @typedef {import("./gantt_scene.js").GanttHit} GanttHit */
/** @typedef {import("./gantt_tracks.js").GanttTrack} GanttTrack */

/** Distances in CSS pixels: left of labels, and the narrowest bar that may hold text. */
const GANTT_PAD = 8;
const GANTT_TEXT_WIDTH = 11;
/** The largest type in bars; in low ones it is smaller, down to the least size, below which none is written. */
const GANTT_TYPE = 11;
const GANTT_MIN_TYPE = 9;
/** The largest width, height and number of pixels of a canvas that all browsers draw. */
const GANTT_MAX_SIDE = 16_384;
const GANTT_MAX_PIXELS = 1 << 27;
/** The distance between the end of the step, with its label, and other marks. */
const GANTT_LABEL_GAP = 8;

export class GanttPainter {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {GanttScene} scene
   * @param {GanttPalette} palette
   */
  constructor(canvas, scene, palette) {
    this.canvas = canvas;
    this.scene = scene;
    this.palette = palette;
    this.context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { alpha: false }));
    this.ratio = 1;
    /** The part of the picture above the canvas. */
    this.top = 0;
    this.image = this.context.createImageData(1, 1);
    this.line = new GanttLine(1, 1);
    this.strip = new GanttLine(1, 1);
  }

  /**
   * Gives the canvas the size of the scene.
   * @param {number} ratio pixels of the canvas per CSS pixel
   */
  fit(ratio) {
    const { canvas, scene } = this;
    const side = GANTT_MAX_SIDE / Math.max(scene.width, scene.height, 1);
    const area = Math.sqrt(GANTT_MAX_PIXELS / Math.max(scene.width * scene.height, 1));
    ratio = Math.min(ratio, side, area);
    const width = Math.max(1, Math.round(scene.width * ratio));
    const height = Math.max(1, Math.round(scene.height * ratio));
    const plot = Math.max(1, width - Math.round(scene.gutter * ratio));
    const { image } = this;
    if (width === image.width && height === image.height && plot === this.line.width && ratio === this.ratio) return;
    this.ratio = ratio;
    canvas.width = width;
    canvas.height = height;
    canvas.style.width = `${scene.width}px`;
    canvas.style.height = `${scene.height}px`;
    this.image = this.context.createImageData(width, height);
    this.line = new GanttLine(plot, scene.chart.colours.length);
    this.strip = new GanttLine(plot, scene.chart.colours.length);
  }

  /** @param {number} scrolled how far the tracks are scrolled */
  draw(scrolled) {
    const { context, image, palette, ratio, scene } = this;
    const pixels = new Uint32Array(image.data.buffer);
    pixels.fill(palette.back);
    this.top = scrolled - GANTT_AXIS;
    const inView = scene.tracks.filter(({ y, height }) => y + height > scrolled && y < this.top + scene.height);
    for (const track of inView) if (track.rows.length) this.paintTrack(pixels, track);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.putImageData(image, 0, 0);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.textBaseline = "middle";
    this.drawEnds();
    for (const track of inView) if (track.rows.length && track.height >= GANTT_READABLE) this.writeTexts(track);
    this.outline(scene.hovered, 1);
    this.outline(scene.selected, 2.5);
    this.drawLabels(inView);
    this.drawAxis();
  }

  /**
   * Returns what to add to the colour of a bar: bars off the critical path are dimmed where the path is shown.
   * @param {number} bar
   */
  dimmed(bar) {
    const { chart, onlyCritical } = this.scene;
    return onlyCritical && !chart.bars.critical[bar] ? chart.colours.length : 0;
  }

  /**
   * Writes the pixels of a track.
   * @param {Uint32Array} pixels
   * @param {GanttTrack} track
   */
  paintTrack(pixels, track) {
    const { line, strip, ratio, scene } = this;
    const { low, high, onlyCritical } = scene;
    const { bars } = scene.chart;
    const scale = line.width / (high - low);
    const [from, to] = scene.placesInView(track);
    line.begin(this.palette);
    let opened = false;
    let reach = -Infinity;
    for (let i = from; i < to; i++) {
      const bar = track.bars[i];
      const dim = this.dimmed(bar);
      // Bars overlap only where a track has several rows. Then the rest of the later bar is added. A bar of the
      // critical path is always shown.
      const start = onlyCritical && !dim ? bars.start[bar] : Math.max(bars.start[bar], reach);
      if (start > bars.end[bar]) continue;
      line.add((start - low) * scale, (bars.end[bar] - low) * scale, bars.colour[bar] + dim);
      reach = Math.max(reach, bars.end[bar]);
      opened ||= scene.opensUp(bar, track);
    }
    line.finish();
    if (opened) this.paintStrip(track, from, to, scale);
    const width = this.canvas.width;
    const left = width - line.width;
    const y = track.y - this.top;
    const y0 = Math.round(y * ratio);
    const y1 = Math.round((y + track.height) * ratio);
    const split = opened ? y1 - Math.round(track.height * GANTT_STRIP * ratio) : y1;
    const bottom = Math.min(y1, this.canvas.height);
    for (let row = Math.max(0, y0); row < bottom; row++) {
      pixels.set(row < split ? line.pixels : strip.pixels, row * width + left);
    }
  }

  /**
   * Draws the ops inside bars, which take the lower part of a track.
   * @param {GanttTrack} track
   * @param {number} from
   * @param {number} to
   * @param {number} scale
   */
  paintStrip(track, from, to, scale) {
    const { line, strip, scene, palette } = this;
    const { bars, patterns } = scene.chart;
    strip.begin(palette);
    strip.pixels.set(line.pixels);
    for (let i = from; i < to; i++) {
      const bar = track.bars[i];
      if (!scene.opensUp(bar, track)) continue;
      const origin = bars.start[bar] - scene.low;
      // Between the ops inside, the gaps show.
      const right = Math.max(0, (bars.end[bar] - scene.low) * scale);
      strip.pixels.fill(palette.back, Math.max(0, Math.ceil(origin * scale)), right);
      const last = patterns.first[bars.pattern[bar] + 1];
      for (let op = patterns.first[bars.pattern[bar]]; op < last; op++) {
        const begins = (origin + patterns.start[op]) * scale;
        strip.add(begins, (origin + patterns.end[op]) * scale, patterns.colour[op] + this.dimmed(bar));
      }
      // The next bar begins on a clean pixel column.
      strip.flush();
      strip.column = -1;
    }
    strip.finish();
  }

  /**
   * Writes signs, microbatches and names into the bars that are wide enough.
   * @param {GanttTrack} track
   */
  writeTexts(track) {
    const { scene, palette } = this;
    const { bars, patterns, colours, names } = scene.chart;
    const [from, to] = scene.placesInView(track);
    const y = track.y - this.top;
    for (let i = from; i < to; i++) {
      const bar = track.bars[i];
      const dim = this.dimmed(bar);
      const opened = scene.opensUp(bar, track);
      const height = opened ? track.height * (1 - GANTT_STRIP) : track.height;
      if (scene.isWide({ bar, op: -1 }, GANTT_TEXT_WIDTH)) {
        const { sign, name: kind } = colours[bars.colour[bar]];
        const number = bars.microbatch[bar] < 0 ? "" : String(bars.microbatch[bar]);
        const name = names[bars.name[bar]];
        const short = number ? `${sign} ${number}` : sign;
        const texts = [`${short} · ${name}`, short, number || sign];
        if (name === kind && !number) texts[0] = name;
        this.writeText(texts, { bar, op: -1 }, y, height, palette.text[bars.colour[bar] + dim]);
      }
      if (!opened) continue;
      const [first, last] = scene.opsAfter(bar, scene.low);
      for (let op = first; op < last && bars.start[bar] + patterns.start[op] < scene.high; op++) {
        const colour = patterns.colour[op];
        const texts = [names[patterns.name[op]], colours[colour].sign];
        this.writeText(texts, { bar, op }, y + height, track.height - height, palette.text[colour + dim]);
      }
    }
    this.context.textAlign = "left";
  }

  /**
   * Writes the first of some texts that fits into a bar or an op.
   * @param {string[]} texts
   * @param {GanttHit} hit
   * @param {number} y its upper edge
   * @param {number} height
   * @param {string} colour
   */
  writeText(texts, hit, y, height, colour) {
    const { context, scene } = this;
    const { start, end } = scene.extent(hit);
    const x0 = Math.max(scene.placeOf(start), scene.gutter);
    const x1 = Math.min(scene.placeOf(end), scene.width);
    const size = Math.min(GANTT_TYPE, Math.floor(height));
    if (x1 - x0 < GANTT_TEXT_WIDTH || size < GANTT_MIN_TYPE) return;
    const text = texts.find((candidate) => candidate.length * size * 0.6 + 4 <= x1 - x0);
    if (!text) return;
    const font = `${size}px ${this.palette.font}`;
    if (context.font !== font) context.font = font;
    context.textAlign = "center";
    context.fillStyle = colour;
    context.fillText(text, (x0 + x1) / 2, y + height / 2 + 0.5);
  }

  /**
   * Frames a bar, and shows with a line how long it waited.
   * @param {GanttHit | null} hit
   * @param {number} width
   */
  outline(hit, width) {
    const { context, scene, palette, top } = this;
    const track = scene.trackOf(hit);
    if (!hit || !track) return;
    const { bars } = scene.chart;
    const { start, end } = scene.extent(hit);
    const x0 = Math.max(scene.placeOf(start), scene.gutter - 4);
    const x1 = Math.min(Math.max(scene.placeOf(end), x0 + 2), scene.width + 4);
    const strip = hit.op < 0 ? 0 : track.height * (1 - GANTT_STRIP);
    context.strokeStyle = palette.ink;
    context.lineWidth = width;
    if (scene.placeOf(end) >= scene.gutter && x0 <= scene.width) {
      context.strokeRect(x0, track.y - top + strip, x1 - x0, track.height - strip);
    }
    if (hit.op >= 0 || bars.wait[hit.bar] <= 0) return;
    const y = Math.round(track.y - top + track.height / 2) + 0.5;
    const from = Math.max(scene.placeOf(start - bars.wait[hit.bar]), scene.gutter);
    if (x0 <= from) return;
    context.lineWidth = 1.5;
    this.dash([3, 3], from, y, Math.min(x0, scene.width), y);
  }

  /** Draws the ends of the step. */
  drawEnds() {
    const { context, scene } = this;
    const { begin, stepTime, low, tick } = scene.chart;
    context.strokeStyle = this.palette.muted;
    context.lineWidth = 1;
    for (const seconds of [begin, begin + stepTime]) {
      const x = Math.round(scene.placeOf((seconds - low) / tick)) + 0.5;
      if (x < scene.gutter || x > scene.width + 1) continue;
      const inside = Math.min(x, scene.width - 0.5);
      this.dash([5, 4], inside, GANTT_AXIS, inside, Math.min(scene.height, scene.contentHeight - this.top));
    }
  }

  /**
   * @param {number[]} pattern
   * @param {number} x0
   * @param {number} y0
   * @param {number} x1
   * @param {number} y1
   */
  dash(pattern, x0, y0, x1, y1) {
    const { context } = this;
    context.setLineDash(pattern);
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
    context.stroke();
    context.setLineDash([]);
  }

  /**
   * Writes the labels of the tracks on the left.
   * @param {GanttTrack[]} tracks
   */
  drawLabels(tracks) {
    const { context, palette, scene } = this;
    context.fillStyle = palette.card;
    context.fillRect(0, 0, scene.gutter - 1, scene.height);
    context.textAlign = "left";
    for (const track of tracks) {
      const size = this.setLabelFont(track);
      if (!track.label || track.height < size) continue;
      const { strong } = track;
      const indent = GANTT_PAD + (strong || scene.grouping === "stage" ? 0 : 12);
      context.fillStyle = strong ? palette.ink : palette.muted;
      context.textAlign = size < GANTT_TYPE ? "right" : "left";
      const x = size < GANTT_TYPE ? scene.gutter - GANTT_PAD / 2 : indent;
      const middle = track.y - this.top + track.height / 2 + 0.5;
      context.fillText(this.shortened(track.label, scene.gutter - GANTT_PAD - indent), x, middle);
    }
    context.textAlign = "left";
  }

  /** Returns how wide the labels of the tracks are, with the space around them. */
  labelWidth() {
    const widths = this.scene.tracks.map((track) => {
      this.setLabelFont(track);
      return track.label ? this.context.measureText(track.label).width + 2 * GANTT_PAD + 12 : 0;
    });
    return Math.ceil(widths.reduce((most, width) => Math.max(most, width), 0));
  }

  /**
   * Sets the font of the label of a track, and returns its size.
   * @param {GanttTrack} track
   */
  setLabelFont({ strong, thin }) {
    const size = thin && this.scene.grouping === "stage" ? GANTT_MIN_TYPE : 12;
    this.context.font = `${strong ? "600 " : ""}${size}px ${this.palette.font}`;
    return size;
  }

  /**
   * Returns a label as it fits: without its first words, since the last tells it from others, or cut.
   *
   * @param {string} text
   * @param {number} room
   */
  shortened(text, room) {
    const words = text.split(" ");
    const ends = words.map((_, first) => words.slice(first).join(" "));
    const fitting = ends.find((end) => this.context.measureText(end).width <= room);
    if (fitting !== undefined) return fitting;
    let kept = text.length;
    while (kept > 1 && this.context.measureText(`${text.slice(0, kept)}…`).width > room) kept--;
    return `${text.slice(0, kept)}…`;
  }

  drawAxis() {
    const { context, palette, scene } = this;
    const { gutter, width, chart } = scene;
    context.fillStyle = palette.card;
    context.fillRect(0, 0, width, GANTT_AXIS);
    context.strokeStyle = palette.muted;
    context.fillStyle = palette.muted;
    context.font = `11px ${palette.font}`;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(gutter, GANTT_AXIS - 0.5);
    context.lineTo(width, GANTT_AXIS - 0.5);
    const shown = (scene.high - scene.low) * chart.tick;
    const rough = (shown * 100) / scene.plotWidth();
    // Marks are round numbers of the unit that they are written in.
    const latest = chart.low + scene.high * chart.tick;
    const unit = axisUnit(latest, rough);
    const power = unit * 10 ** Math.floor(Math.log10(rough / unit));
    const step = power * (rough / power <= 2 ? 2 : rough / power <= 5 ? 5 : 10);
    const begin = chart.low + scene.low * chart.tick;
    // Where the axis shows a small part, labels count from its left end on, which is written there.
    const origin = step < Math.abs(begin) * 1e-4 ? Math.floor(begin / step) * step : 0;
    const end = Math.ceil((begin + shown - origin) / step);
    const stepEnd = scene.placeOf((chart.begin + chart.stepTime - chart.low) / chart.tick);
    const isEndShown = stepEnd >= gutter && stepEnd <= width + 1;
    const endLabel = `step ${formatTime(chart.stepTime)}`;
    const endRight = Math.max(stepEnd, gutter + 90);
    const endLeft = endRight - context.measureText(endLabel).width - GANTT_LABEL_GAP;
    for (let i = Math.ceil((begin - origin) / step); i < end; i++) {
      const x = scene.placeOf((origin + i * step - chart.low) / chart.tick);
      context.moveTo(Math.round(x) + 0.5, GANTT_AXIS - 6);
      context.lineTo(Math.round(x) + 0.5, GANTT_AXIS);
      const label = `${origin ? "+" : ""}${formatAxisTime(i * step, step, origin ? undefined : latest)}`;
      const half = context.measureText(label).width / 2;
      const middle = Math.max(x, gutter + half);
      const isCovered = isEndShown && middle + half > endLeft && middle - half < endRight + GANTT_LABEL_GAP;
      if (isCovered || middle + half > width) continue;
      context.textAlign = "center";
      context.fillText(label, middle, 10);
    }
    context.stroke();
    context.fillStyle = palette.ink;
    if (isEndShown) {
      context.textAlign = "right";
      context.fillText(endLabel, endRight, 10);
    }
    if (origin) {
      context.textAlign = "left";
      context.fillText(`${formatAxisTime(origin, step)} +`, GANTT_PAD, 10);
    }
    context.textAlign = "left";
  }
}
