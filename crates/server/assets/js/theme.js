// Runs before the first paint, so that the other theme does not flash.
(() => {
  const chosen = localStorage.getItem("redrive-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
