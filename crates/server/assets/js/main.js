// Scripts of every page: times, theme, actions, tables, live updates, tooltips.
import { actions } from "./actions.js";
import { resizing } from "./column-widths.js";
import { filters } from "./filters.js";
import { trackReading } from "./held-rows.js";
import { live } from "./live.js";
import { search } from "./search.js";
import { enhanceTables, sorting } from "./tables.js";
import { timeFields } from "./time-fields.js";
import { showTimes } from "./times.js";
import { tips } from "./tooltips.js";
import { zoneChoice } from "./zone.js";

document.querySelector("[data-theme-toggle]")?.addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("redrive-theme", root.dataset.theme);
});

// On a phone the menu is wider than the screen: scroll to the current entry.
const menu = document.querySelector(".menu");
const here = menu?.querySelector('[aria-current="page"]');
if (here) menu.scrollLeft = here.offsetLeft - menu.offsetLeft - (menu.clientWidth - here.clientWidth) / 2;

enhanceTables();
zoneChoice();
timeFields();
filters();
showTimes();
setInterval(showTimes, 1000);
actions();
sorting();
resizing();
trackReading();
tips();
search();
live();
