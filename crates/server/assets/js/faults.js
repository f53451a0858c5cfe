// Errors of a form: each beside its field, with a summary at the top of the form when there are several, or when one
// belongs to no field.
//
// A response of the API has `field` and `detail`, and `errors: [{field, message}]` when there are several.
import { visible } from "./visible.js";

/** Returns the errors of a problem as `{ field, message }`. */
function errorsOf(problem) {
  const several = Array.isArray(problem.errors) ? problem.errors : [];
  if (several.length > 0) return several.map(({ field, message, detail }) => ({ field: field ?? "", message: message ?? detail ?? "" }));
  return [{ field: problem.field ?? "", message: problem.detail ?? problem.message ?? "" }];
}

/** Returns the field of a form that an error is about, or that contains the value that it is about. */
function fieldOf(form, name) {
  const named = name.replace(/\[\d+\].*$/, "");
  const matches = (element) => element.name === named || named.startsWith(`${element.name}.`) || named.startsWith(`${element.name}/`);
  return [...form.elements].find((element) => element.name && matches(element));
}

/** Returns the visible control of a field: a hidden field has its control beside it. */
const controlOf = (field) => (field.type === "hidden" ? (field.closest(".field")?.querySelector("input:not([type=hidden]), select, textarea") ?? field) : field);

/** Returns the text of an error without the name of its field. */
const textOf = ({ field, message }) => visible(String(message).replace(`${field}: `, ""));

/** Adds an error beside its field, and returns the control that it describes. */
function showBesideField(form, field, error) {
  const control = controlOf(field);
  const note = document.createElement("p");
  note.className = "error";
  note.id = `${field.id || field.name}-fault`;
  note.textContent = textOf(error);
  const described = control.getAttribute("aria-describedby");
  if (described) control.dataset.describedBefore = described;
  control.setAttribute("aria-describedby", [described, note.id].filter(Boolean).join(" "));
  for (const one of new Set([field, control])) one.setAttribute("aria-invalid", "true");
  (field.closest(".field") ?? field.closest("fieldset") ?? field.parentNode).append(note);
  for (let box = note.closest("details"); box && form.contains(box); box = box.parentNode.closest("details")) box.open = true;
  return control;
}

/** Adds the summary: the errors without a field, and links to the fields with one. */
function showSummary(form, placed, others) {
  const box = document.createElement("div");
  box.className = "alert bad fault-summary";
  box.setAttribute("role", "alert");
  box.tabIndex = -1;
  const count = placed.length + others.length;
  const title = document.createElement("b");
  title.textContent = count === 1 ? textOf(others[0] ?? placed[0].error) : `${count} values are not valid:`;
  box.append(title);
  if (count > 1) {
    const list = document.createElement("ul");
    for (const { control, error } of placed) {
      const [item, link] = [document.createElement("li"), document.createElement("a")];
      link.href = `#${control.id}`;
      link.textContent = `${visible(error.field)}: ${textOf(error)}`;
      link.addEventListener("click", (event) => {
        event.preventDefault();
        control.focus();
      });
      item.append(link);
      list.append(item);
    }
    for (const error of others) {
      const item = document.createElement("li");
      item.textContent = error.field ? `${visible(error.field)}: ${textOf(error)}` : textOf(error);
      list.append(item);
    }
    box.append(list);
  }
  const heading = form.querySelector(":scope > h2");
  if (heading) heading.after(box);
  else form.prepend(box);
  return box;
}

/** Shows the errors of a problem in a form, with a summary, and moves the focus to the first. */
export function showFaults(form, problem, { focus = true, summary: wantsSummary = true } = {}) {
  clearFaults(form);
  const [placed, others] = [[], []];
  const taken = new Set();
  for (const error of errorsOf(problem)) {
    const field = error.field ? fieldOf(form, error.field) : undefined;
    if (!field || taken.has(field)) {
      others.push(error);
      continue;
    }
    taken.add(field);
    placed.push({ control: showBesideField(form, field, error), error });
  }
  const summary = !wantsSummary || (placed.length === 1 && others.length === 0) ? null : showSummary(form, placed, others);
  if (focus) (placed[0]?.control ?? summary)?.focus();
}

/** Removes all errors from a form. */
export function clearFaults(form) {
  for (const note of form.querySelectorAll("p.error, .fault-summary")) note.remove();
  for (const field of form.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    const before = field.dataset.describedBefore;
    delete field.dataset.describedBefore;
    if (before) field.setAttribute("aria-describedby", before);
    else field.removeAttribute("aria-describedby");
  }
}
