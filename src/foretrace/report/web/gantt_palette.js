// Reads the colours of the page for a canvas: shades for bars narrower than a pixel, dimmed bars, and text on bars.

/** @typedef {import("./gantt_data.js").GanttColour} GanttColour */
/** @typedef {[number, number, number]} GanttRgb */
/**
 * @typedef {{key: string, card: string, ink: string, muted: string, back: number, levels: Uint32Array,
 *   edges: Uint32Array, text: string[], css: string[], font: string}} GanttPalette
 *   The dimmed colours follow the full ones in `levels`, `edges` and `text`.
 */

/** Shades from an empty pixel column to a full one. */
export const GANTT_LEVELS = 8;
/** The share of the background in what is dimmed, and in the edges of bars. */
const GANTT_DIMMED = 0.82;
const GANTT_EDGE = 0.6;

/**
 * Reads the palette of an element.
 * @param {Element} element
 * @param {GanttColour[]} meanings
 * @returns {GanttPalette}
 */
export function readGanttPalette(element, meanings) {
  const style = getComputedStyle(element);
  const [card, ink, muted] = ["--card", "--ink", "--muted"].map((name) => style.getPropertyValue(name).trim());
  const bases = meanings.map((colour) => style.getPropertyValue(colour.variable).trim());
  const back = rgbOfCss(card || "#ffffff");
  const front = rgbOfCss(ink || "#000000");
  // Each tone is told apart from those before it by its lightness. The last one is darker in both schemes.
  /** @type {[GanttRgb, number][]} */
  const tones = [[front, 0], [back, 0.4], [front, 0.45], [front, 0.7], [back, 0.6], [front, 0.22], [[0, 0, 0], 0.25]];
  const colours = meanings.map((colour, i) => {
    const [towards, share] = tones[colour.tone % tones.length];
    return mixedRgb(rgbOfCss(bases[i] || "#888888"), towards, share);
  });
  const all = [...colours, ...colours.map((rgb) => mixedRgb(rgb, back, GANTT_DIMMED))];
  const levels = new Uint32Array(all.length * GANTT_LEVELS);
  all.forEach((rgb, i) => {
    for (let level = 0; level < GANTT_LEVELS; level++) {
      levels[i * GANTT_LEVELS + level] = pixelOfRgb(mixedRgb(back, rgb, level / (GANTT_LEVELS - 1)));
    }
  });
  return {
    key: [card, ink, muted, ...bases].join(),
    card,
    ink,
    muted,
    back: pixelOfRgb(back),
    levels,
    edges: Uint32Array.from(all, (rgb) => pixelOfRgb(mixedRgb(rgb, back, GANTT_EDGE))),
    // Black or white, whichever contrasts more.
    text: all.map((rgb) => (luminanceOfRgb(rgb) > 0.179 ? "#000000" : "#ffffff")),
    css: colours.map((rgb) => `rgb(${rgb.join(" ")})`),
    font: style.fontFamily,
  };
}

/**
 * Mixes two colours: `share` of the second.
 * @param {GanttRgb} a
 * @param {GanttRgb} b
 * @param {number} share
 * @returns {GanttRgb}
 */
function mixedRgb(a, b, share) {
  const part = (/** @type {number} */ i) => Math.round(a[i] + (b[i] - a[i]) * share);
  return [part(0), part(1), part(2)];
}

/** @param {GanttRgb} rgb */
function pixelOfRgb([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** @param {GanttRgb} rgb as the contrast of WCAG 2 defines it */
function luminanceOfRgb(rgb) {
  const [red, green, blue] = rgb.map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/**
 * @param {string} colour as CSS has it
 * @returns {GanttRgb}
 */
function rgbOfCss(colour) {
  const probe = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  if (!probe) return [128, 128, 128];
  probe.fillStyle = colour;
  probe.fillRect(0, 0, 1, 1);
  const [red, green, blue] = probe.getImageData(0, 0, 1, 1).data;
  return [red, green, blue];
}
