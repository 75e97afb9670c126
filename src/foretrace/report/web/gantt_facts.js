// Says the facts of a bar in words.
import { formatAxisTime, formatTime } from "./times.js";

/** @typedef {import("./gantt_scene.js").GanttScene} GanttScene */
/** @typedef {import("./gantt_scene.js").GanttHit} GanttHit */

/**
 * Returns the facts of a bar as pairs of names and values; the first is its title.
 * @param {GanttScene} scene
 * @param {GanttHit} hit
 * @returns {string[][]}
 */
export function ganttFacts(scene, hit) {
  const { bars, patterns, lanes, colours, names, low, tick } = scene.chart;
  const { bar, op } = hit;
  const lane = lanes[scene.rowOf(bar)];
  const { start, end } = scene.extent(hit);
  const colour = colours[op < 0 ? bars.colour[bar] : patterns.colour[op]];
  const name = names[op < 0 ? bars.name[bar] : patterns.name[op]];
  const facts = [[name === colour.name ? name : `${name} · ${colour.name}`, ""]];
  if (bars.microbatch[bar] >= 0) facts.push(["microbatch", String(bars.microbatch[bar])]);
  if (bars.chunk[bar] > 0) facts.push(["chunk", String(bars.chunk[bar])]);
  const identical = lane.ranks > 1 ? ` and ${(lane.ranks - 1).toLocaleString("en")} identical` : "";
  const ranks = `${lane.rank}${identical}`;
  const stage = /^stage (\d.*)$/.exec(lane.role);
  if (lane.role) facts.push(stage ? ["stage", stage[1]] : ["role", lane.role]);
  facts.push(["rank", ranks], ["lane", lane.lane]);
  const precision = 10 ** Math.floor(Math.log10(Math.max(end - start, 1) * tick) - 1);
  facts.push(["start", formatAxisTime(low + start * tick, precision)], ["duration", formatTime((end - start) * tick)]);
  if (op >= 0) return facts;
  if (bars.wait[bar] > 0) facts.push(["waited before", formatTime(bars.wait[bar] * tick)]);
  if (bars.ops[bar] > 1) facts.push(["ops", bars.ops[bar].toLocaleString("en")]);
  if (bars.idle[bar] > 0) facts.push(["gaps inside", formatTime(bars.idle[bar] * tick)]);
  if (bars.critical[bar]) facts.push(["critical path", "yes"]);
  return facts;
}

/**
 * Returns the facts of a bar as a sentence, or what to do where none is selected.
 * @param {GanttScene} scene
 */
export function ganttSentence(scene) {
  if (!scene.selected) {
    return (
      "Select a bar to see its facts. Dragging moves, Ctrl and the wheel zoom; " +
      "keys: arrows, + and −, 0, N, P, F."
    );
  }
  const [[title], ...facts] = ganttFacts(scene, scene.selected);
  return `${title}: ${facts.map(([name, value]) => `${name} ${value}`).join(", ")}`;
}
