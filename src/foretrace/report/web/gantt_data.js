// Decodes the chart of a step, which report/page/gantt_chart.py packs.

/**
 * @typedef {{role: string, rank: number, ranks: number, lane: string, kind: string, axis: string, main: boolean,
 *   bars: number}} GanttLane
 */
/** @typedef {{name: string, sign: string, variable: string, tone: number}} GanttColour */
/** @typedef {Uint8Array | Int8Array | Uint16Array | Int16Array | Int32Array} GanttColumn */
/** @typedef {{start: Int32Array, end: Int32Array, colour: GanttColumn, name: GanttColumn}} GanttOps */
/**
 * @typedef {GanttOps & {first: Int32Array, idle: GanttColumn, wait: GanttColumn, microbatch: GanttColumn,
 *   chunk: GanttColumn, ops: GanttColumn, critical: GanttColumn, pattern: GanttColumn}} GanttBars
 */
/**
 * @typedef {{stepTime: number, begin: number, low: number, tick: number, span: number, lanes: GanttLane[],
 *   colours: GanttColour[], names: string[], bars: GanttBars, patterns: GanttOps & {first: Int32Array}}} GanttChart
 */

/** @typedef {{type: keyof typeof GANTT_TYPES, data: string}} GanttPacked */
/**
 * @typedef {{step_time_s: number, begin_s: number, span_s: [number, number], tick_s: number, rows: GanttLane[],
 *   colours: GanttColour[], names: string[], bars: Record<string, GanttPacked>,
 *   patterns: Record<string, GanttPacked>}} GanttJson
 *   What `GanttChart.to_json()` returns.
 */

const GANTT_TYPES = { u8: Uint8Array, i8: Int8Array, u16: Uint16Array, i16: Int16Array, i32: Int32Array };

/**
 * Unpacks a chart.
 * @param {GanttJson} json
 * @returns {Promise<GanttChart>}
 */
export async function decodeGantt(json) {
  /**
   * @param {Record<string, GanttPacked>} columns
   * @returns {Promise<any>} arrays by the names of the columns
   */
  const unpacked = async (columns) => {
    const entries = Object.entries(columns).map(async ([name, packed]) => [name, await unpackGantt(packed)]);
    return Object.fromEntries(await Promise.all(entries));
  };
  const [bars, patterns] = await Promise.all([unpacked(json.bars), unpacked(json.patterns)]);
  const first = ganttOffsets(json.rows.map((lane) => lane.bars));
  const inner = ganttOffsets(patterns.ops);
  const [low, high] = json.span_s;
  return {
    stepTime: json.step_time_s,
    begin: json.begin_s,
    low,
    tick: json.tick_s,
    span: Math.round((high - low) / json.tick_s),
    lanes: json.rows,
    colours: json.colours,
    names: json.names,
    bars: { ...bars, ...ganttTimes(bars.gap, bars.duration, first), first },
    patterns: { ...patterns, ...ganttTimes(patterns.gap, patterns.duration, inner), first: inner },
  };
}

/**
 * Unpacks a column of whole numbers.
 * @param {GanttPacked} packed
 * @returns {Promise<GanttColumn>}
 */
async function unpackGantt(packed) {
  const bytes = Uint8Array.from(atob(packed.data), (sign) => sign.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new GANTT_TYPES[packed.type](await new Response(stream).arrayBuffer());
}

/**
 * Turns gaps after the bar before into starts and ends; `first` are the places where a row or a pattern begins.
 * @param {GanttColumn} gap
 * @param {GanttColumn} duration
 * @param {Int32Array} first
 */
function ganttTimes(gap, duration, first) {
  const start = new Int32Array(gap.length);
  const end = new Int32Array(gap.length);
  for (let row = 0; row + 1 < first.length; row++) {
    let at = 0;
    for (let bar = first[row]; bar < first[row + 1]; bar++) {
      start[bar] = at + gap[bar];
      at = end[bar] = start[bar] + duration[bar];
    }
  }
  return { start, end };
}

/** @param {ArrayLike<number>} counts */
function ganttOffsets(counts) {
  const first = new Int32Array(counts.length + 1);
  for (let i = 0; i < counts.length; i++) first[i + 1] = first[i] + counts[i];
  return first;
}

/**
 * Returns the first place in [low, high) whose value exceeds a limit; values rise.
 * @param {Int32Array} values
 * @param {number} low
 * @param {number} high
 * @param {number} limit
 */
export function ganttAbove(values, low, high, limit) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}
