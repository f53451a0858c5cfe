// Deliveries, events and dead letters: bulk operations with a count first, copying, searching.
import { bodyOf } from "./actions.js";
import { call, toast } from "./api.js";
import { clearFaults, showFaults } from "./faults.js";
import { visible } from "./visible.js";
import { fromField } from "./zone.js";

/** Creates an element with a text. Untrusted text goes through here and is never parsed as HTML. */
function createElement(tag, text = "", className = "") {
  const element = document.createElement(tag);
  element.textContent = visible(text);
  element.className = className;
  return element;
}

// --- bulk operations ---------------------------------------------------------------------------------

/** Sends the API call of a form, or its dry run. */
function callBulk(form, dryRun) {
  const [method, path] = form.dataset.bulk.split(" ", 2);
  if (method === "DELETE") {
    const url = new URL(path, location.origin);
    if (dryRun) url.searchParams.set("dry_run", "true");
    return call(method, url.pathname + url.search);
  }
  const body = { ...bodyOf(form), filter: JSON.parse(form.dataset.filter) };
  for (const field of form.querySelectorAll("[data-moment]")) {
    if (field.value) body[field.name] = fromField(field.value).toISOString();
    else delete body[field.name];
  }
  return call(method, path, dryRun ? { filter: body.filter, dry_run: true, ...("include_delivered" in body && { include_delivered: false }) } : body);
}

/** Shows the number of selected deliveries and the oldest of them. */
function showDryRun(box, dryRun) {
  box.replaceChildren();
  const count = dryRun.total.toLocaleString("en");
  const many = dryRun.total === 1 ? "delivery" : "deliveries";
  box.append(createElement("p", dryRun.total === 0 ? "No delivery matches." : `${dryRun.count_complete ? "" : "At least "}${count} ${many}${dryRun.sample.length ? ". The oldest:" : "."}`, "found"));
  if (!dryRun.sample.length) return;
  const list = createElement("ul", "", "sample-list");
  for (const one of dryRun.sample.slice(0, 5)) {
    const item = createElement("li");
    item.append(createElement("b", one.event_type), createElement("span", ` ${one.last_error ?? one.status}`, "muted"));
    list.append(item);
  }
  box.append(list);
}

/** Offers to resend also what was already delivered, which is left out otherwise. */
function showDelivered(form, dryRun, go) {
  const label = form.querySelector("[data-delivered]");
  const box = label?.querySelector("input");
  const update = () => { go.disabled = dryRun.total + (box?.checked ? dryRun.already_delivered : 0) === 0; };
  if (label) {
    const [count, one] = [dryRun.already_delivered.toLocaleString("en"), dryRun.already_delivered === 1];
    label.hidden = dryRun.already_delivered === 0;
    label.querySelector("span").textContent = `Also resend ${count} that ${one ? "was" : "were"} already delivered (left out otherwise)`;
    box.checked = false;
    box.onchange = update;
  }
  update();
}

async function openDialog(dialog) {
  const form = dialog.querySelector("form");
  const [box, go] = [form.querySelector("[data-found]"), form.querySelector("[data-go]")];
  go.disabled = true;
  form.querySelector("[data-delivered]")?.setAttribute("hidden", "");
  box.replaceChildren(createElement("p", "Counting…", "muted"));
  dialog.showModal();
  try {
    const dryRun = await callBulk(form, true);
    showDryRun(box, dryRun);
    showDelivered(form, dryRun, go);
  } catch (problem) {
    box.replaceChildren(createElement("p", problem.message, "alert bad"));
  }
}

async function startOperation(form) {
  const go = form.querySelector("[data-go]");
  clearFaults(form);
  go.setAttribute("aria-busy", "true");
  try {
    const operation = await callBulk(form, false);
    location.assign(form.dataset.next.replace("{id}", encodeURIComponent(operation.id)));
  } catch (problem) {
    showFaults(form, problem);
  } finally {
    go.removeAttribute("aria-busy");
  }
}

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-opens]");
  if (opener) openDialog(document.getElementById(opener.dataset.opens));
  event.target.closest("[data-close]")?.closest("dialog").close();
});
document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-bulk]")) return;
  event.preventDefault();
  startOperation(event.target);
});

// --- forms that need a choice --------------------------------------------------------------------------

for (const form of document.querySelectorAll("form[data-needs]")) {
  const boxes = [...form.querySelectorAll(`input[name="${form.dataset.needs}"]`)];
  const button = form.querySelector("button:not([type=button])");
  const update = () => { button.disabled = !boxes.some((box) => box.checked); };
  form.addEventListener("change", update);
  // An empty choice would select all.
  form.addEventListener("submit", (event) => {
    if (boxes.some((box) => box.checked)) return;
    event.preventDefault();
    event.stopPropagation();
  });
  update();
}

// --- copying the target of a link ----------------------------------------------------------------------

document.addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-copy-from]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  try {
    const response = await fetch(link.href);
    if (!response.ok || response.redirected) throw new Error();
    await navigator.clipboard.writeText(await response.text());
    toast(link.dataset.copied ?? "Copied. The signature and secrets are redacted: fill them in, or the endpoint may reject the request.");
  } catch {
    location.assign(link.href);
  }
});

// --- searching in a text --------------------------------------------------------------------------------

/** Maximum number of highlighted matches. */
const MAX_MATCHES = 500;

for (const input of document.querySelectorAll("input[data-search]")) {
  const pre = document.getElementById(input.dataset.search);
  const counter = document.getElementById(`${input.dataset.search}-found`);
  const text = pre.textContent;
  // Matches may cross the elements that colour the text, so the text is plain while it is searched.
  const coloured = [...pre.childNodes];
  const lower = text.toLowerCase();
  let marks = [];
  let at = -1;
  const go = (step) => {
    if (!marks.length) return;
    marks[at]?.classList.remove("current");
    at = (at + step + marks.length) % marks.length;
    marks[at].classList.add("current");
    marks[at].scrollIntoView({ block: "nearest" });
    counter.textContent = `${at + 1} of ${marks.length}${marks.length === MAX_MATCHES ? " or more" : ""}`;
  };
  const search = () => {
    const wanted = input.value.toLowerCase();
    marks = [];
    at = -1;
    const parts = [];
    let from = 0;
    // Lower-casing can change the length, which would shift positions.
    if (wanted && lower.length === text.length) {
      for (let found = lower.indexOf(wanted); found >= 0 && marks.length < MAX_MATCHES; found = lower.indexOf(wanted, from)) {
        const mark = createElement("mark", text.slice(found, found + wanted.length));
        parts.push(text.slice(from, found), mark);
        marks.push(mark);
        from = found + wanted.length;
      }
    }
    if (marks.length > 0) pre.replaceChildren(...parts, text.slice(from));
    else pre.replaceChildren(...coloured);
    counter.textContent = wanted && !marks.length ? "not found" : "";
    go(1);
  };
  input.hidden = false;
  input.addEventListener("input", search);
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    go(event.shiftKey ? -1 : 1);
  });
}
