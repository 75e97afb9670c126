// Writes times as the screens do: basics/units.py, `format_time`.

const TIME_UNITS = [["ns", 1e-9], ["µs", 1e-6], ["ms", 1e-3]];

/**
 * Writes a time in the unit that suits it: 12.84 s, 3.20 ms, 25.0 µs, 2.3 h.
 * @param {number} seconds
 */
export function formatTime(seconds) {
  const size = Math.abs(seconds);
  if (size < 1e-12) return "0 s";
  return (seconds < 0 ? "−" : "") + formatPositiveTime(size);
}

/** @param {number} seconds */
function formatPositiveTime(seconds) {
  for (const [unit, scale] of /** @type {[string, number][]} */ (TIME_UNITS)) {
    const figures = threeFigures(seconds / scale);
    if (Number(figures) < 1000) return `${figures} ${unit}`;
  }
  if (seconds < 600) return `${seconds.toFixed(seconds < 100 ? 2 : 1)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(1)} min`;
  if (seconds < 172_800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86_400).toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 })} d`;
}

/**
 * Writes a number with three figures or more: 0.123, 1.23, 12.3, 123, 1234.
 * @param {number} value
 */
function threeFigures(value) {
  if (value < 1) return value.toPrecision(3);
  for (const digits of [2, 1]) {
    const text = value.toFixed(digits);
    if (Number(text) < 10 ** (3 - digits)) return text;
  }
  return value.toFixed(0);
}

/** Units of a time axis: the least time at which a unit is used, its length in seconds, its symbol. */
const AXIS_UNITS = [[7200, 3600, "h"], [600, 60, "min"], [1, 1, "s"], [1e-3, 1e-3, "ms"], [0, 1e-6, "µs"]];

/** From which time on an axis has one unit, of minutes or hours. */
const AXIS_MINUTES = 600;

/**
 * Returns the seconds of the unit whose round numbers are the marks of an axis.
 * @param {number} latest the latest time of the axis
 * @param {number} step the least distance of two marks
 */
export function axisUnit(latest, step) {
  return Math.max(1, Number(unitOfAxis(latest, step)[1]));
}

/**
 * Minutes and hours are units of long times whose marks are not close to each other.
 * @param {number} size
 * @param {number} step
 */
function unitOfAxis(size, step) {
  const units = /** @type {[number, number, string][]} */ (AXIS_UNITS);
  const found = units.find(([least, scale]) => size >= least && (scale <= 1 || step >= scale / 10));
  return found ?? units[units.length - 1];
}

/**
 * Writes a time on an axis: with a unit, and as many digits as the distance of two marks needs.
 * @param {number} seconds
 * @param {number} step the distance
 * @param {number} [latest] the latest time of an axis of minutes or hours, all of which has one unit
 */
export function formatAxisTime(seconds, step, latest = 0) {
  const size = Math.max(Math.abs(seconds), step);
  const [, scale, unit] = unitOfAxis(latest >= AXIS_MINUTES ? Math.max(size, latest) : size, step);
  const digits = Math.min(9, Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9)));
  return `${(seconds / scale).toFixed(digits).replace("-", "−")} ${unit}`;
}
