// Runs before the first paint, so that neither the theme nor the overlay's strength flashes.
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  try {
    const theme = localStorage.getItem("theme");
    if (theme === "dark" || theme === "light") root.dataset.theme = theme;
    const overlay = Number.parseFloat(localStorage.getItem("overlay"));
    if (overlay >= 0 && overlay <= 1) root.style.setProperty("--overlay", overlay);
  } catch {
    // Storage may be forbidden; the defaults then stand.
  }
})();
