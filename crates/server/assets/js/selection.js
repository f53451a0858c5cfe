// Selection of rows: by checkbox, by range with Shift, all on the page, all that match. It survives live updates, which
// replace the table, because the selected ids are kept here.
import { askForConfirmation } from "./actions.js";
import { call, toast } from "./api.js";

const bar = document.querySelector(".selection-bar");
/** Ids of the selected rows, each with its tenant. */
const selected = new Map();
/** Id of the row that was clicked last; a click with Shift selects the rows up to it. */
let anchor = "";
/** Whether everything that matches the filter is selected. */
let isAll = false;
/** Number of rows that match the filter: `total`, and as text. `null` until it is counted, which happens once per page. */
let matching = null;
let isCounted = false;

const boxes = () => [...document.querySelectorAll("input[data-pick]")];
const count = (number) => number.toLocaleString("en");

/** Shows the selection: boxes of the rows, of the header, and the bar. */
function show() {
  const rows = boxes();
  for (const box of rows) box.checked = isAll || selected.has(box.value);
  const checked = rows.filter((box) => box.checked).length;
  for (const header of document.querySelectorAll("input[data-pick-all]")) {
    header.checked = rows.length > 0 && checked === rows.length;
    header.indeterminate = checked > 0 && checked < rows.length;
  }
  bar.hidden = !isAll && selected.size === 0;
  const elsewhere = selected.size - checked;
  const note = !isAll && elsewhere > 0 ? ` (${count(elsewhere)} no longer on this page)` : "";
  bar.querySelector("[data-selected]").textContent = isAll ? `${allThatMatch("All")} are selected` : `${count(selected.size)} selected${note}`;
  const all = bar.querySelector("[data-select-all]");
  if (!all) return;
  // A page with everything that matches needs no further selection.
  all.hidden = isAll || rows.length === 0 || checked < rows.length || (matching?.total ?? Infinity) <= rows.length;
  all.textContent = allThatMatch("Select all");
  if (!all.hidden) countMatching();
}

/** Returns the words for everything that matches, with its number once it is known. */
function allThatMatch(words) {
  return [words, matching?.text, "that match"].filter(Boolean).join(" ");
}

/** Counts what matches the filter, once the whole page is selected. The button works without the number. */
async function countMatching() {
  if (isCounted) return;
  isCounted = true;
  try {
    const [method, path] = bar.dataset.retry.split(" ", 2);
    const found = await call(method, path, { filter: JSON.parse(bar.dataset.filter), include_delivered: true, dry_run: true });
    matching = { total: found.total, text: `${count(found.total)}${found.count_complete ? "" : "+"}` };
    show();
  } catch {
    // The dialog counts again, and reports the error.
  }
}

function clear() {
  selected.clear();
  isAll = false;
  anchor = "";
  show();
}

function setRow(box, isChecked) {
  if (isChecked) selected.set(box.value, box.dataset.tenant);
  else selected.delete(box.value);
}

function pick(box, isRange) {
  if (isAll) {
    isAll = false;
    for (const row of boxes()) setRow(row, true);
  }
  const rows = boxes();
  const [from, to] = [rows.findIndex((row) => row.value === anchor), rows.indexOf(box)];
  if (isRange && from >= 0) for (const row of rows.slice(Math.min(from, to), Math.max(from, to) + 1)) setRow(row, box.checked);
  else setRow(box, box.checked);
  anchor = box.value;
  show();
}

/** Reports what the operations took, and why they refused the rest. */
function report(operations, what) {
  const results = operations.flatMap((operation) => operation.results ?? []);
  const refused = results.filter((one) => one.error);
  const taken = results.length - refused.length;
  if (taken > 0) toast(`${what} of ${count(taken)} queued.`);
  if (refused.length > 0) toast(`${count(refused.length)} left out: ${refused[0].error.detail}`, taken > 0 ? "waiting" : "bad");
}

/** Calls the API once for each tenant of the selected rows, since an operation belongs to one tenant. */
async function callForSelected(request, body) {
  const [method, path] = request.split(" ", 2);
  const tenants = new Set(selected.values());
  const responses = [];
  for (const tenant of tenants) {
    const ids = [...selected].filter(([, owner]) => owner === tenant).map(([id]) => id);
    responses.push(await call(method, `${path}?tenant_id=${encodeURIComponent(tenant)}`, { ...body, delivery_ids: ids }));
  }
  return responses;
}

async function run(request, body, what) {
  report(await callForSelected(request, body), what);
  clear();
}

/** Runs an action of the bar, and reports its error. */
async function act(button, action) {
  button.setAttribute("aria-busy", "true");
  try {
    await action();
  } catch (problem) {
    toast(problem.message ?? problem.detail, "bad");
  } finally {
    button.removeAttribute("aria-busy");
  }
}

/** Asks whether deliveries that were delivered are resent too. Returns null if nothing is to be resent. */
function askAboutDelivered(delivered, total) {
  const dialog = document.getElementById("selected-retry");
  const [include, go] = [dialog.querySelector("[data-include]"), dialog.querySelector("[data-go]")];
  const left = total - delivered;
  dialog.querySelector("[data-text]").textContent = `${count(delivered)} of ${count(total)} were already delivered. They are left out.`;
  dialog.querySelector("[data-include-text]").textContent = `Also resend ${count(delivered)} that ${delivered === 1 ? "was" : "were"} already delivered`;
  include.checked = false;
  const update = () => {
    const sent = include.checked ? total : left;
    go.disabled = sent === 0;
    go.textContent = `Resend ${count(sent)}`;
  };
  include.onchange = update;
  update();
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes" ? include.checked : null), { once: true });
  });
}

async function resend() {
  if (isAll) return document.querySelector('[data-opens="bulk-retry"]').click();
  const found = await callForSelected(bar.dataset.retry, { include_delivered: true, dry_run: true });
  const sum = (field) => found.reduce((all, one) => all + one[field], 0);
  const delivered = sum("already_delivered");
  const include = delivered > 0 && (await askAboutDelivered(delivered, sum("total")));
  if (include !== null) await run(bar.dataset.retry, { include_delivered: include }, "Resend");
}

async function cancel() {
  if (isAll) return document.querySelector('[data-opens="bulk-cancel"]').click();
  const question = `Cancel the pending ones of ${count(selected.size)} selected deliveries? No further attempts are sent; they can be resent later.`;
  if (await askForConfirmation(question, "Cancel deliveries")) await run(bar.dataset.cancel, {}, "Cancellation");
}

if (bar) {
  // Without this script the boxes would do nothing, so they are hidden.
  document.documentElement.classList.add("selectable");
  document.addEventListener("click", (event) => {
    const box = event.target.closest("input[data-pick]");
    if (box) pick(box, event.shiftKey);
  });
  document.addEventListener("change", (event) => {
    if (!event.target.matches("input[data-pick-all]")) return;
    isAll = false;
    for (const box of boxes()) setRow(box, event.target.checked);
    show();
  });
  // A click with Shift on a label would select text instead.
  document.addEventListener("mousedown", (event) => {
    if (event.shiftKey && event.target.closest(".pick")) event.preventDefault();
  });
  document.addEventListener("redrive:part", show);
  bar.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if ("selectAll" in button.dataset) {
      isAll = true;
      show();
    } else if ("clear" in button.dataset) clear();
    else if ("resendSelected" in button.dataset) act(button, resend);
    else if ("cancelSelected" in button.dataset) act(button, cancel);
  });
  show();
}
