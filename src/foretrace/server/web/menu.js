/**
 * Menus: a summary that opens a list of buttons.
 */

/**
 * Makes a menu close by Escape, by a click next to it and by leaving it, and open where there is room.
 *
 * @param {HTMLDetailsElement} box
 */
export function connectMenu(box) {
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !box.open) return;
    event.stopPropagation();
    box.open = false;
    box.querySelector("summary")?.focus();
  });
  box.addEventListener("toggle", () => {
    const { bottom } = box.getBoundingClientRect();
    // On a narrow page the bar of figures may stand at the bottom of the window.
    box.classList.toggle("up", bottom > window.innerHeight / 2);
  });
  document.addEventListener("click", (event) => {
    if (event.target instanceof Node && !box.contains(event.target)) box.open = false;
  });
  box.addEventListener("focusout", ({ relatedTarget }) => {
    if (relatedTarget instanceof Node && !box.contains(relatedTarget)) box.open = false;
  });
}
