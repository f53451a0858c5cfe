// Filters of listings: a choice from a list applies immediately, empty fields are left out of the URL, and an invalid
// value is reported beside its field.
import { showFaults } from "./faults.js";

/** Time after which a filter is applied without its check, in milliseconds. */
const CHECK_TIMEOUT_MS = 4000;

/** Returns the URL of a filter without its empty fields. */
function urlOf(form) {
  const url = new URL(form.getAttribute("action") ?? location.pathname, location.href);
  const filled = [...new FormData(form)].filter(([, value]) => value !== "");
  url.search = new URLSearchParams(filled).toString();
  return url;
}

/** Returns the error that a page reports about a field of its filter, or null. The page checks the filter without running it. */
async function findError(url) {
  try {
    const signal = AbortSignal.timeout(CHECK_TIMEOUT_MS);
    const response = await fetch(url, { signal, headers: { "x-redrive-check": "filter" } });
    if (response.status !== 400) return null;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const detail = page.querySelector("[data-field]");
    return detail && { field: detail.dataset.field, detail: detail.textContent };
  } catch {
    // The page itself reports what is wrong.
    return null;
  }
}

async function apply(form) {
  const url = urlOf(form);
  const error = await findError(url);
  if (error) showFaults(form, error);
  else location.assign(url);
}

export function filters() {
  for (const form of document.querySelectorAll("form[data-filters]")) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      apply(form);
    });
    form.addEventListener("change", (event) => {
      if (event.target.tagName === "SELECT") form.requestSubmit();
    });
  }
}
