// Deliveries, events and dead letters: bulk operations with a count first, times in filters, copying, searching.
import { bodyOf, clearFaults, showFault } from "./actions.js";
import { call, toast } from "./api.js";
import { visible } from "./visible.js";

/** Creates an element with a text. Untrusted text goes through here and is never parsed as HTML. */
function made(tag, text = "", className = "") {
  const element = document.createElement(tag);
  element.textContent = visible(text);
  element.className = className;
  return element;
}

// --- bulk operations ---------------------------------------------------------------------------------

/** Makes the API call of a form, or its dry run. */
function bulk(form, dryRun) {
  const [method, path] = form.dataset.bulk.split(" ", 2);
  if (method === "DELETE") {
    const url = new URL(path, location.origin);
    if (dryRun) url.searchParams.set("dry_run", "true");
    return call(method, url.pathname + url.search);
  }
  const body = { ...bodyOf(form), filter: JSON.parse(form.dataset.filter) };
  for (const field of form.querySelectorAll("[data-moment]")) {
    if (field.value) body[field.name] = new Date(field.value).toISOString();
    else delete body[field.name];
  }
  return call(method, path, dryRun ? { filter: body.filter, dry_run: true } : body);
}

function showSurvey(place, survey) {
  place.replaceChildren();
  const count = survey.total.toLocaleString("en");
  const many = survey.total === 1 ? "delivery" : "deliveries";
  place.append(made("p", survey.total === 0 ? "There is nothing to do: no delivery fits." : `${survey.count_complete ? "" : "At least "}${count} ${many}${survey.sample.length ? ". The oldest:" : "."}`, "found"));
  if (!survey.sample.length) return;
  const list = made("ul", "", "survey");
  for (const one of survey.sample.slice(0, 5)) {
    const item = made("li");
    item.append(made("b", one.event_type), made("span", ` ${one.last_error ?? one.status}`, "muted"));
    list.append(item);
  }
  place.append(list);
}

async function open(dialog) {
  const form = dialog.querySelector("form");
  const [place, go] = [form.querySelector("[data-found]"), form.querySelector("[data-go]")];
  go.disabled = true;
  place.replaceChildren(made("p", "Counting…", "muted"));
  dialog.showModal();
  try {
    const survey = await bulk(form, true);
    showSurvey(place, survey);
    go.disabled = survey.total === 0;
  } catch (problem) {
    place.replaceChildren(made("p", problem.message, "notice bad"));
  }
}

async function start(form) {
  const go = form.querySelector("[data-go]");
  clearFaults(form);
  go.setAttribute("aria-busy", "true");
  try {
    const operation = await bulk(form, false);
    location.assign(form.dataset.then.replace("{id}", encodeURIComponent(operation.id)));
  } catch (problem) {
    if (!showFault(form, problem)) toast(problem.message ?? problem.detail, "bad");
  } finally {
    go.removeAttribute("aria-busy");
  }
}

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-opens]");
  if (opener) open(document.getElementById(opener.dataset.opens));
  event.target.closest("[data-close]")?.closest("dialog").close();
});
document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-bulk]")) return;
  event.preventDefault();
  start(event.target);
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

// --- times in filters, in the user's time zone ----------------------------------------------------------

const local = (date) => new Date(date.getTime() - date.getTimezoneOffset() * 60000).toISOString().slice(0, 16);

for (const field of document.querySelectorAll("input[data-time]")) {
  const calendar = document.createElement("input");
  calendar.type = "datetime-local";
  const known = new Date(field.value);
  if (field.value && !Number.isNaN(known.getTime())) calendar.value = local(known);
  calendar.addEventListener("change", () => {
    field.value = calendar.value ? new Date(calendar.value).toISOString() : "";
  });
  field.type = "hidden";
  field.after(calendar);
}

// --- copying the target of a link ----------------------------------------------------------------------

document.addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-copy-from]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  try {
    const answer = await fetch(link.href);
    if (!answer.ok || answer.redirected) throw new Error();
    await navigator.clipboard.writeText(await answer.text());
    toast("Copied. Signature and secrets are redacted: fill them in, or the endpoint may refuse it.");
  } catch {
    location.assign(link.href);
  }
});

// --- searching in a text --------------------------------------------------------------------------------

const MOST_MARKS = 500;

for (const input of document.querySelectorAll("input[data-search]")) {
  const pre = document.getElementById(input.dataset.search);
  const told = document.getElementById(`${input.dataset.search}-found`);
  const text = pre.textContent;
  const lower = text.toLowerCase();
  let marks = [];
  let at = -1;
  const go = (step) => {
    if (!marks.length) return;
    marks[at]?.classList.remove("current");
    at = (at + step + marks.length) % marks.length;
    marks[at].classList.add("current");
    marks[at].scrollIntoView({ block: "nearest" });
    told.textContent = `${at + 1} of ${marks.length}${marks.length === MOST_MARKS ? " or more" : ""}`;
  };
  const search = () => {
    const wanted = input.value.toLowerCase();
    marks = [];
    at = -1;
    const parts = [];
    let from = 0;
    // Lower-casing can change the length, which would shift positions.
    if (wanted && lower.length === text.length) {
      for (let found = lower.indexOf(wanted); found >= 0 && marks.length < MOST_MARKS; found = lower.indexOf(wanted, from)) {
        const mark = made("mark", text.slice(found, found + wanted.length));
        parts.push(text.slice(from, found), mark);
        marks.push(mark);
        from = found + wanted.length;
      }
    }
    pre.replaceChildren(...parts, text.slice(from));
    told.textContent = wanted && !marks.length ? "not found" : "";
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
