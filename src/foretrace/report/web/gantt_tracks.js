// Arranges the rows of a chart below each other.
//
// A track is a line of the picture. It shows one row, or, where stages are compared, all rows of a rank that
// communicate on one axis: a pipeline with several chunks has a lane per chunk and direction.

/** @typedef {import("./gantt_data.js").GanttChart} GanttChart */
/**
 * @typedef {{rows: number[], bars: Int32Array, ends: Int32Array, thin: boolean, first: boolean, y: number,
 *   height: number, label: string, strong: boolean}} GanttTrack
 *   `bars` are numbers of bars in the order of their starts, and `ends` the latest end up to each of them. A heading
 *   has no rows. A track that is `first` begins a stage, a rank or a lane.
 */
/** @typedef {"stage" | "rank" | "lane"} GanttGrouping */

/** The height of the time axis. All sizes are CSS pixels. */
export const GANTT_AXIS = 24;
/** The least height of a track in which text can be read and ops inside bars are drawn. */
export const GANTT_READABLE = 20;
const GANTT_WIDE = { bar: 26, lane: 20, thin: 11, head: 20, gap: 6, line: 2 };
/** Sizes for stages that do not fit on the screen otherwise. */
const GANTT_DENSE = { ...GANTT_WIDE, bar: 20, thin: 4, gap: 2 };
const GANTT_MARGIN = 4;

/**
 * Returns the tracks of a chart, which `stackGantt` gives their places.
 * @param {GanttChart} chart
 * @param {GanttGrouping} grouping
 * @param {boolean} allRanks whether those that stand for no stage are shown, too
 * @returns {GanttTrack[]}
 */
export function ganttTracks(chart, grouping, allRanks) {
  const { lanes } = chart;
  const rows = lanes.map((_, row) => row).filter((row) => allRanks || lanes[row].main);
  const roles = new Set(rows.map((row) => lanes[row].role));
  const severalRanks = roles.size < new Set(rows.map((row) => lanes[row].rank)).size;
  const ofRank = (/** @type {number} */ row) => `${lanes[row].role}\n${lanes[row].rank}`;
  const owner = (/** @type {number} */ row) => {
    const { role } = lanes[row];
    return role && !severalRanks ? role : ganttRank(chart, row);
  };
  /** @type {GanttTrack[]} */
  const tracks = [];
  for (const group of gathered(rows, grouping === "lane" ? (row) => lanes[row].lane : ofRank)) {
    const start = tracks.length;
    const queues = group.filter((row) => lanes[row].kind === "compute").length;
    const isThin = (/** @type {number} */ row) => queues > 0 && lanes[row].kind !== "compute";
    if (grouping === "stage") {
      const parts = gathered(group, (row) => (isThin(row) ? `${lanes[row].kind} ${lanes[row].axis}` : `row ${row}`));
      for (const part of parts) {
        const [row] = part;
        const isFirst = row === group[0];
        let label = isFirst ? owner(row) : lanes[row].lane;
        if (isFirst && queues > 1) label += ` · ${lanes[row].lane}`;
        // Narrow bars are drawn in pale shades: the name of the axis says which communication it is.
        if (isThin(row)) label = lanes[row].axis || lanes[row].kind;
        tracks.push(ganttTrack(chart, part, label, isThin(row), isFirst));
      }
    } else {
      const head = grouping === "lane" ? lanes[group[0]].lane : ganttRank(chart, group[0]);
      tracks.push(ganttTrack(chart, [], head, false, true));
      for (const row of group) {
        tracks.push(ganttTrack(chart, [row], grouping === "lane" ? owner(row) : lanes[row].lane, isThin(row), false));
      }
    }
    tracks[start].first = true;
  }
  return tracks;
}

/**
 * Gives tracks their places and heights, so that they fit into so many pixels if they can; returns the height of all.
 * @param {GanttTrack[]} tracks
 * @param {GanttGrouping} grouping
 * @param {number} room
 */
export function stackGantt(tracks, grouping, room) {
  const height = stackGanttBy(tracks, grouping, GANTT_WIDE);
  return height > room && grouping === "stage" ? stackGanttBy(tracks, grouping, GANTT_DENSE) : height;
}

/**
 * @param {GanttTrack[]} tracks
 * @param {GanttGrouping} grouping
 * @param {typeof GANTT_WIDE} sizes
 */
function stackGanttBy(tracks, grouping, sizes) {
  let y = GANTT_MARGIN - sizes.gap;
  for (const track of tracks) {
    if (track.first) y += sizes.gap;
    track.y = y;
    if (!track.rows.length) track.height = sizes.head;
    else if (track.thin) track.height = grouping === "stage" ? sizes.thin : sizes.lane;
    else track.height = sizes.bar;
    y += track.height + (!track.rows.length ? 0 : grouping === "stage" ? 1 : sizes.line);
  }
  return y + sizes.gap + GANTT_AXIS;
}

/**
 * Returns the rank of a row in words.
 * @param {GanttChart} chart
 * @param {number} row
 */
function ganttRank(chart, row) {
  const { role, rank } = chart.lanes[row];
  return role ? `${role} · rank ${rank}` : `rank ${rank}`;
}

/**
 * Returns rows in groups with the same key, in the order in which they begin.
 * @param {number[]} rows
 * @param {(row: number) => string} key
 */
function gathered(rows, key) {
  /** @type {Map<string, number[]>} */
  const groups = new Map();
  for (const row of rows) {
    const group = groups.get(key(row));
    if (group) group.push(row);
    else groups.set(key(row), [row]);
  }
  return [...groups.values()];
}

/**
 * @param {GanttChart} chart
 * @param {number[]} rows
 * @param {string} label
 * @param {boolean} thin
 * @param {boolean} strong
 * @returns {GanttTrack}
 */
function ganttTrack({ bars }, rows, label, thin, strong) {
  const total = bars.start.length;
  const keys = new Float64Array(rows.reduce((sum, row) => sum + bars.first[row + 1] - bars.first[row], 0));
  let place = 0;
  for (const row of rows) {
    // A key holds the start and the number of a bar: numbers are sorted many times faster than with a comparison.
    for (let bar = bars.first[row]; bar < bars.first[row + 1]; bar++) keys[place++] = bars.start[bar] * total + bar;
  }
  if (rows.length > 1) keys.sort();
  const order = Int32Array.from(keys, (key) => key % total);
  const ends = new Int32Array(order.length);
  let latest = 0;
  for (let i = 0; i < order.length; i++) ends[i] = latest = Math.max(latest, bars.end[order[i]]);
  return { rows, bars: order, ends, thin, first: false, y: 0, height: 0, label, strong };
}
