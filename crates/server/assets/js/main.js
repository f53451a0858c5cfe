// Scripts of every page: relative times, theme, actions, live updates, tooltips.
import { actions } from "./actions.js";
import { live } from "./live.js";
import { search } from "./search.js";
import { showTimes } from "./times.js";
import { tips } from "./tooltips.js";

document.querySelector("[data-theme-toggle]")?.addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("redrive-theme", root.dataset.theme);
});

// A filter is applied when a list entry is chosen; empty fields are left out of the URL.
for (const form of document.querySelectorAll("form[data-filters]")) {
  form.addEventListener("submit", () => {
    for (const field of form.elements) if (field.name && !field.value) field.disabled = true;
  });
  form.addEventListener("change", (event) => {
    if (event.target.tagName === "SELECT") form.requestSubmit();
  });
}
// A page restored from the back/forward cache gets its fields enabled again.
addEventListener("pageshow", () => {
  for (const field of document.querySelectorAll("form[data-filters] :disabled")) field.disabled = false;
});

// On a phone the menu is wider than the screen: scroll to the current entry.
const menu = document.querySelector(".menu");
const here = menu?.querySelector('[aria-current="page"]');
if (here) menu.scrollLeft = here.offsetLeft - menu.offsetLeft - (menu.clientWidth - here.clientWidth) / 2;

showTimes();
setInterval(showTimes, 1000);
actions();
tips();
search();
live();
