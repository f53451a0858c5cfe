// Recover failed deliveries of a webhook: the count is known when the dialog opens, and counted again for another window.
import { bodyOf } from "./actions.js";
import { call } from "./api.js";
import { clearFaults, showFaults } from "./faults.js";
import { fromField } from "./zone.js";

const dialog = document.getElementById("recover");
const form = dialog?.querySelector("form");
/** Start of the failures that the button counted. */
let since = "";
/** Number of the newest count; an older one that arrives later is dropped. */
let counting = 0;

const field = (id) => document.getElementById(id);

/** Returns the start of the chosen window; empty while no custom time is entered. */
function windowStart() {
  const chosen = field("recover-window").value;
  if (chosen === "") return since;
  if (chosen !== "custom") return new Date(Date.now() - Number(chosen) * 1000).toISOString();
  const custom = field("recover-from").value;
  return custom ? fromField(custom).toISOString() : "";
}

function requestBody(start) {
  return { filter: { webhook_ids: [form.dataset.recoverWebhook], failed_from: start }, include_delivered: false };
}

function show(text, count) {
  form.querySelector("[data-found]").textContent = text;
  form.querySelector("[data-go]").disabled = count === 0;
}

function showCount(count, isComplete) {
  const many = count === 1 ? "delivery" : "deliveries";
  show(count === 0 ? "Nothing failed in this time." : `${isComplete ? "" : "At least "}${count.toLocaleString("en")} ${many} will be resent.`, count);
}

async function count() {
  field("recover-from").closest(".field").hidden = field("recover-window").value !== "custom";
  const start = windowStart();
  const number = ++counting;
  if (!start) return show("Enter the time from which on deliveries failed.", 0);
  show("Counting…", 0);
  try {
    const found = await call("POST", "/v1/deliveries/retry-batch", { ...requestBody(start), dry_run: true });
    if (number === counting) showCount(found.total, found.count_complete);
  } catch (problem) {
    if (number === counting) show(problem.message, 0);
  }
}

/** Opens the dialog with the count of a button. */
function open(opener) {
  since = opener.dataset.since;
  counting += 1;
  form.reset();
  field("recover-window").options[0].textContent = opener.dataset.cause;
  field("recover-from").closest(".field").hidden = true;
  for (const part of form.querySelectorAll("[data-blocked], [data-reset]")) part.hidden = opener.dataset.circuit === "closed";
  showCount(Number(opener.dataset.count), opener.dataset.complete === "true");
  dialog.showModal();
}

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-recover]");
  if (opener) open(opener);
});

// Overviews link to the dialog. The address without it opens the page alone, such as after a reload.
const linked = location.hash === "#recover" && document.querySelector("[data-recover]");
if (linked) {
  history.replaceState(null, "", location.pathname + location.search);
  open(linked);
}

form?.addEventListener("change", (event) => {
  if (event.target === field("recover-window") || event.target === field("recover-from")) count();
});

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  clearFaults(form);
  const go = form.querySelector("[data-go]");
  go.setAttribute("aria-busy", "true");
  try {
    const reset = form.querySelector("[data-reset]:not([hidden]) input");
    if (reset?.checked) await call("PATCH", `/v1/webhooks/${form.dataset.recoverWebhook}/circuit-breaker`, { action: "reset" });
    const operation = await call("POST", "/v1/deliveries/retry-batch", { ...bodyOf(form), ...requestBody(windowStart()) });
    location.assign(form.dataset.next.replace("{id}", encodeURIComponent(operation.id)));
  } catch (problem) {
    showFaults(form, problem);
  } finally {
    go.removeAttribute("aria-busy");
  }
});
