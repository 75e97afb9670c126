// Runs before the first paint, so that a chosen theme does not flash; therefore no module.
(() => {
  try {
    const theme = localStorage.getItem("foretrace-theme");
    if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage may be blocked: the theme then follows the system.
  }
})();
