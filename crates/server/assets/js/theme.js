// Runs before anything is drawn, so that nobody sees the other theme for a moment.
(() => {
  const chosen = localStorage.getItem("redrive-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
