// Selection of rows: by checkbox, by range with Shift, all on the page, all that match. It survives live updates, which
// replace the table, because the selected ids are kept here.
import { askForConfirmation } from "./actions.js";
import { call, toast } from "./api.js";

const bar = document.querySelector(".selection-bar");
const selected = new Set();
/** Id of the row that was clicked last; a click with Shift selects the rows up to it. */
let anchor = "";
/** Whether everything that matches the filter is selected. */
let isAll = false;
/** Number of rows that match the filter, as a number and as text; empty until they are counted. */
let matchingCount = Infinity;
let matching = "";

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
  bar.querySelector("[data-selected]").textContent = isAll ? `All ${matching} that match are selected`.replace("  ", " ") : `${count(selected.size)} selected${note}`;
  const all = bar.querySelector("[data-select-all]");
  if (!all) return;
  // A page with everything that matches needs no further selection.
  all.hidden = isAll || rows.length === 0 || checked < rows.length || matchingCount <= rows.length;
  all.textContent = matching ? `Select all ${matching} that match` : "Select all that match";
  if (!all.hidden && !matching) countMatching();
}

/** Counts what matches the filter, once the whole page is selected. */
let isCounting = false;
async function countMatching() {
  if (isCounting) return;
  isCounting = true;
  try {
    const [method, path] = bar.dataset.retry.split(" ", 2);
    const found = await call(method, path, { filter: JSON.parse(bar.dataset.filter), include_delivered: true, dry_run: true });
    matchingCount = found.total;
    matching = `${count(found.total)}${found.count_complete ? "" : "+"}`;
    show();
  } catch {
    // The button works without the number: the dialog counts too.
  } finally {
    isCounting = false;
  }
}

function clear() {
  selected.clear();
  isAll = false;
  anchor = "";
  show();
}

function setRow(box, isChecked) {
  if (isChecked) selected.add(box.value);
  else selected.delete(box.value);
}

function pick(box, isRange) {
  if (isAll) {
    isAll = false;
    for (const row of boxes()) selected.add(row.value);
  }
  const rows = boxes();
  const [from, to] = [rows.findIndex((row) => row.value === anchor), rows.indexOf(box)];
  if (isRange && from >= 0) for (const row of rows.slice(Math.min(from, to), Math.max(from, to) + 1)) setRow(row, box.checked);
  else setRow(box, box.checked);
  anchor = box.value;
  show();
}

/** Reports what an operation took, and why it refused the rest. */
function report(operation, what) {
  const refused = (operation.results ?? []).filter((one) => one.error);
  const taken = (operation.results ?? []).length - refused.length;
  if (taken > 0) toast(`${what} of ${count(taken)} queued.`);
  if (refused.length > 0) toast(`${count(refused.length)} left out: ${refused[0].error.detail}`, taken > 0 ? "waiting" : "bad");
}

async function run(request, body, what) {
  const [method, path] = request.split(" ", 2);
  try {
    report(await call(method, path, body), what);
    clear();
  } catch (problem) {
    toast(problem.message ?? problem.detail, "bad");
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

async function resend(button) {
  if (isAll) return document.querySelector('[data-opens="bulk-retry"]').click();
  const body = { delivery_ids: [...selected], include_delivered: false };
  const [method, path] = bar.dataset.retry.split(" ", 2);
  button.setAttribute("aria-busy", "true");
  try {
    const found = await call(method, path, { ...body, include_delivered: true, dry_run: true });
    if (found.already_delivered > 0) {
      const include = await askAboutDelivered(found.already_delivered, found.total);
      if (include === null) return;
      body.include_delivered = include;
    }
    await run(bar.dataset.retry, body, "Resend");
  } catch (problem) {
    toast(problem.message ?? problem.detail, "bad");
  } finally {
    button.removeAttribute("aria-busy");
  }
}

async function cancel() {
  if (isAll) return document.querySelector('[data-opens="bulk-cancel"]').click();
  const question = `Cancel the pending ones of ${count(selected.size)} selected deliveries? No further attempts are sent; they can be resent later.`;
  if (await askForConfirmation(question, "Cancel deliveries")) await run(bar.dataset.cancel, { delivery_ids: [...selected] }, "Cancellation");
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
    else if ("resendSelected" in button.dataset) resend(button);
    else if ("cancelSelected" in button.dataset) cancel();
  });
  show();
}
