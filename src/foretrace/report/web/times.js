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
