// Holds what of a chart is in view: a part of the time axis, the tracks, the selection, and the geometry of them.
import { ganttAbove } from "./gantt_data.js";
import { GANTT_READABLE, ganttTracks, stackGantt } from "./gantt_tracks.js";

/** @typedef {import("./gantt_data.js").GanttChart} GanttChart */
/** @typedef {import("./gantt_tracks.js").GanttTrack} GanttTrack */
/** @typedef {import("./gantt_tracks.js").GanttGrouping} GanttGrouping */
/** @typedef {{bar: number, op: number}} GanttHit a bar, and the op inside it that is meant, or -1 */

const GANTT_MIN_TICKS = 200;
/** From how many pixels on a bar shows the ops inside, and the share of the track that they take. */
const GANTT_INNER = 48;
export const GANTT_STRIP = 0.46;
/** How wide the labels may be in CSS pixels. */
const GANTT_MIN_GUTTER = 90;
const GANTT_MAX_GUTTER = 220;

export class GanttScene {
  /**
   * @param {GanttChart} chart
   * @param {() => void} changed is called when something else has come into view
   */
  constructor(chart, changed) {
    this.chart = chart;
    this.changed = changed;
    this.low = 0;
    this.high = chart.span;
    /** @type {GanttGrouping} */
    this.grouping = "stage";
    this.allRanks = !chart.lanes.some((lane) => lane.main);
    this.onlyCritical = false;
    /** @type {GanttHit | null} */
    this.selected = null;
    /** @type {GanttHit | null} */
    this.hovered = null;
    this.width = 1;
    this.height = 1;
    this.gutter = 0;
    this.contentHeight = 0;
    /** @type {GanttTrack[]} */
    this.tracks = [];
    this.arrange();
  }

  /** Makes the tracks that the grouping asks for; `stack` gives them their places. */
  arrange() {
    this.tracks = ganttTracks(this.chart, this.grouping, this.allRanks);
  }

  /**
   * Gives the tracks their places; they become thinner where they do not fit into so many pixels.
   * @param {number} room
   */
  stack(room) {
    this.contentHeight = stackGantt(this.tracks, this.grouping, room);
    this.height = Math.min(this.contentHeight, room);
  }

  /**
   * Divides a width between labels and bars.
   * @param {number} width
   * @param {number} labels how wide the longest label is
   */
  widen(width, labels) {
    this.width = width;
    this.gutter = Math.round(Math.min(Math.max(labels, GANTT_MIN_GUTTER), GANTT_MAX_GUTTER, width * 0.2));
  }

  plotWidth() {
    return Math.max(this.width - this.gutter, 1);
  }

  /**
   * Shows a part of the time axis, in ticks.
   * @param {number} low
   * @param {number} high
   */
  show(low, high) {
    const { span } = this.chart;
    const width = Math.min(Math.max(high - low, GANTT_MIN_TICKS), span);
    this.low = Math.min(Math.max(low, 0), span - width);
    this.high = this.low + width;
    this.changed();
  }

  showAll() {
    this.show(0, this.chart.span);
  }

  /** @param {number} ticks */
  pan(ticks) {
    this.show(this.low + ticks, this.high + ticks);
  }

  /**
   * Zooms by a factor around a place of the canvas; without one, around the selection if it is in view.
   * @param {number} factor
   * @param {number} [x]
   */
  zoom(factor, x) {
    let at = (this.low + this.high) / 2;
    if (x !== undefined) at = this.tickAt(Math.max(x, this.gutter));
    else if (this.selected) {
      const { start, end } = this.extent(this.selected);
      if (end > this.low && start < this.high) at = Math.min(Math.max((start + end) / 2, this.low), this.high);
    }
    const width = Math.max((this.high - this.low) * factor, GANTT_MIN_TICKS);
    const low = at - ((at - this.low) / (this.high - this.low)) * width;
    this.show(low, low + width);
  }

  zoomToSelected() {
    if (!this.selected) return;
    const { start, end } = this.extent(this.selected);
    const margin = Math.max((end - start) / 4, GANTT_MIN_TICKS / 2);
    this.show(start - margin, end + margin);
  }

  /**
   * Moves a bar into view.
   * @param {number} bar
   */
  panTo(bar) {
    const { start, end } = this.extent({ bar, op: -1 });
    const page = this.high - this.low;
    if (start >= this.low && end <= this.high) return;
    const low = start - Math.max((page - (end - start)) / 2, page / 10);
    this.show(low, low + page);
  }

  /** @param {number} x */
  tickAt(x) {
    return this.low + ((x - this.gutter) / this.plotWidth()) * (this.high - this.low);
  }

  /** @param {number} tick */
  placeOf(tick) {
    return this.gutter + ((tick - this.low) / (this.high - this.low)) * this.plotWidth();
  }

  /**
   * Returns the start and end in ticks of a bar, or of an op inside.
   * @param {GanttHit} hit
   */
  extent({ bar, op }) {
    const { bars, patterns } = this.chart;
    if (op < 0) return { start: bars.start[bar], end: bars.end[bar] };
    return { start: bars.start[bar] + patterns.start[op], end: bars.start[bar] + patterns.end[op] };
  }

  /**
   * Returns whether a bar or op takes this many CSS pixels.
   * @param {GanttHit} hit
   * @param {number} width
   */
  isWide(hit, width) {
    const { start, end } = this.extent(hit);
    return ((end - start) * this.plotWidth()) / (this.high - this.low) >= width;
  }

  /**
   * Returns the places of a track from which and up to which its bars may be in view.
   * @param {GanttTrack} track
   * @returns {[number, number]}
   */
  placesInView(track) {
    const { start } = this.chart.bars;
    const from = this.firstAfter(track, this.low);
    let to = from;
    while (to < track.bars.length && start[track.bars[to]] < this.high) to++;
    return [from, to];
  }

  /**
   * Returns the place of the first bar of a track that ends after a moment in ticks.
   * @param {GanttTrack} track
   * @param {number} tick
   */
  firstAfter(track, tick) {
    return ganttAbove(track.ends, 0, track.ends.length, tick);
  }

  /**
   * Returns the first op inside a bar that ends after a moment in ticks, and the op after the last one.
   * @param {number} bar
   * @param {number} tick
   * @returns {[number, number]}
   */
  opsAfter(bar, tick) {
    const { bars, patterns } = this.chart;
    const [first, last] = [patterns.first[bars.pattern[bar]], patterns.first[bars.pattern[bar] + 1]];
    return [ganttAbove(patterns.end, first, last, tick - bars.start[bar]), last];
  }

  /**
   * Says whether the ops inside a bar are drawn.
   * @param {number} bar
   * @param {GanttTrack} track
   */
  opensUp(bar, track) {
    const { bars } = this.chart;
    const wide = ((bars.end[bar] - bars.start[bar]) / (this.high - this.low)) * this.plotWidth();
    return track.height >= GANTT_READABLE && bars.pattern[bar] >= 0 && wide >= GANTT_INNER;
  }

  /** @param {number} bar */
  rowOf(bar) {
    const { first } = this.chart.bars;
    return ganttAbove(first, 0, first.length, bar) - 1;
  }

  /**
   * Returns the track that shows a bar; none where its rank is not shown.
   * @param {GanttHit | null} hit
   */
  trackOf(hit) {
    if (!hit) return undefined;
    const row = this.rowOf(hit.bar);
    return this.tracks.find((track) => track.rows.includes(row));
  }

  /**
   * Returns the bar at a place of the picture; one that is at most two pixels away counts.
   * @param {number} x
   * @param {number} y from the first track on
   * @returns {GanttHit | null}
   */
  hitAt(x, y) {
    if (x < this.gutter) return null;
    const track = this.tracks.find(({ rows, y: top, height }) => rows.length && y >= top && y < top + height);
    if (!track) return null;
    const { start, end } = this.chart.bars;
    const tick = this.tickAt(x);
    const near = (2 * (this.high - this.low)) / this.plotWidth();
    let bar = -1;
    let least = near;
    // Where bars overlap, the one that starts last is on top.
    for (let i = this.firstAfter(track, tick - near); i < track.bars.length; i++) {
      const next = track.bars[i];
      if (start[next] > tick + near) break;
      const distance = Math.max(start[next] - tick, tick - end[next], 0);
      if (distance > least) continue;
      least = distance;
      bar = next;
    }
    return bar < 0 ? null : { bar, op: y - track.y > track.height * (1 - GANTT_STRIP) ? this.opAt(bar, track, x) : -1 };
  }

  /**
   * Returns the op inside a bar at a place of the canvas, -1 where none is drawn.
   * @param {number} bar
   * @param {GanttTrack} track
   * @param {number} x
   */
  opAt(bar, track, x) {
    if (!this.opensUp(bar, track)) return -1;
    const tick = this.tickAt(x);
    const [op, last] = this.opsAfter(bar, tick);
    return op < last && this.extent({ bar, op }).start <= this.tickAt(x + 2) ? op : -1;
  }

  /**
   * Returns the bar after or before the selected one in its track; the first in view where none is selected.
   * @param {number} direction
   * @returns {number | undefined}
   */
  nextBar(direction) {
    const track = this.trackOf(this.selected);
    if (!track || !this.selected) {
      const first = this.tracks.find(({ rows }) => rows.length);
      return first?.bars[Math.min(this.firstAfter(first, this.low), first.bars.length - 1)];
    }
    const place = track.bars.indexOf(this.selected.bar) + direction;
    return track.bars[Math.min(Math.max(place, 0), track.bars.length - 1)];
  }

  /**
   * Returns the bar of the track below or above that is nearest in time to the selected one.
   * @param {number} direction
   * @returns {number | undefined}
   */
  barBelow(direction) {
    const track = this.trackOf(this.selected);
    if (!track || !this.selected) return this.nextBar(direction);
    const tracks = this.tracks.filter(({ rows }) => rows.length);
    const next = tracks[tracks.indexOf(track) + direction];
    if (!next) return undefined;
    const place = this.firstAfter(next, this.chart.bars.start[this.selected.bar]);
    return next.bars[Math.min(place, next.bars.length - 1)];
  }
}
