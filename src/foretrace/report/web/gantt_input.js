// Listens to the keyboard, the wheel and pointers.

/** @typedef {import("./gantt.js").GanttView} GanttView */

/** The keys, for a screen reader. */
export const GANTT_KEYS =
  "Arrow keys or A and D move, plus and minus or W and S zoom, 0 shows the whole step, " +
  "N and P go from bar to bar, up and down from row to row, F zooms to the bar, Escape ends the selection.";

/** @param {GanttView} view */
export function listenToGantt(view) {
  const { canvas } = view;
  canvas.addEventListener("wheel", (event) => turnGantt(view, event), { passive: false });
  canvas.addEventListener("keydown", (event) => pressGantt(view, event));
  canvas.addEventListener("pointerleave", () => view.hover(null, 0, 0));
  canvas.addEventListener("dblclick", () => view.scene.zoomToSelected());
  listenToPointers(view);
}

/** @param {GanttView} view */
function listenToPointers(view) {
  const { canvas, scene } = view;
  /** @type {Map<number, {x: number, y: number}>} */
  const pointers = new Map();
  let moved = 0;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    moved = 0;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) {
      view.hover(view.hitAt(event.offsetX, event.offsetY), event.offsetX, event.offsetY);
      return;
    }
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    moved += Math.abs(event.offsetX - before.x) + Math.abs(event.offsetY - before.y);
    if (other) {
      const distance = Math.max(Math.abs(event.offsetX - other.x), 8);
      scene.zoom(Math.max(Math.abs(before.x - other.x), 8) / distance, (event.offsetX + other.x) / 2);
    } else if (moved > 3) {
      scene.pan(((before.x - event.offsetX) * (scene.high - scene.low)) / scene.plotWidth());
      view.scroller.scrollTop += event.pointerType === "mouse" ? before.y - event.offsetY : 0;
      view.hover(null, 0, 0);
    }
    pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
  });
  /** @param {PointerEvent} event */
  const release = (event) => {
    const wasDown = pointers.delete(event.pointerId);
    if (wasDown && moved <= 3 && event.type === "pointerup") view.select(view.hitAt(event.offsetX, event.offsetY));
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
}

/**
 * Zooms or moves with the wheel. Without a modifier the wheel scrolls the page, as everywhere.
 * @param {GanttView} view
 * @param {WheelEvent} event
 */
function turnGantt({ scene }, event) {
  const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    scene.zoom(Math.exp(Math.max(-200, Math.min(200, event.deltaY * unit)) * 0.005), event.offsetX);
  } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault();
    const delta = (event.deltaX || event.deltaY) * unit;
    scene.pan((delta * (scene.high - scene.low)) / scene.plotWidth());
  }
}

/**
 * @param {GanttView} view
 * @param {KeyboardEvent} event
 */
function pressGantt(view, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { scene } = view;
  const page = scene.high - scene.low;
  /** @type {Record<string, () => void>} */
  const actions = {
    ArrowLeft: () => scene.pan(-page / 8),
    ArrowRight: () => scene.pan(page / 8),
    a: () => scene.pan(-page / 8),
    d: () => scene.pan(page / 8),
    w: () => scene.zoom(2 / 3),
    s: () => scene.zoom(3 / 2),
    "+": () => scene.zoom(2 / 3),
    "=": () => scene.zoom(2 / 3),
    "-": () => scene.zoom(3 / 2),
    0: () => scene.showAll(),
    Home: () => scene.showAll(),
    n: () => view.reveal(scene.nextBar(1)),
    Enter: () => view.reveal(scene.nextBar(event.shiftKey ? -1 : 1)),
    p: () => view.reveal(scene.nextBar(-1)),
    ArrowDown: () => view.reveal(scene.barBelow(1)),
    ArrowUp: () => view.reveal(scene.barBelow(-1)),
    f: () => scene.zoomToSelected(),
    Escape: () => view.select(null),
  };
  const act = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act) return;
  // Without a selection, the page handles Escape.
  if (event.key === "Escape" && !scene.selected) return;
  event.preventDefault();
  act();
}
