// Buttons and forms that change something; their attributes say which API call to make.
//
//   data-call="POST /v1/webhooks/…/pause"   API call
//   data-body='{"action": "reset"}'         request body; a form sends its fields instead
//   data-confirm="Really?"                  question to confirm first
//   data-confirm-by="acme"                  text that the user must type to confirm
//   data-success="Paused."                  message afterwards
//   data-copy="text", data-copy-text="id"   text to copy, or the element whose text to copy
//   data-next="reload" | "/a/page/{id}"     page to open afterwards; {…} is filled from the response
//
// Fields of a form become a JSON object: `name="a.b"` is nested; data-type is the type of the value: number,
// boolean, list (lines or commas), json (sent unchanged), from-now (seconds until a time). Empty fields are left
// out, or null with data-empty="null". A fieldset with data-whole="a" and data-empty="null" makes `a` null if it
// has no values.
import { Raw, call, toast } from "./api.js";
import { clearFaults, showFaults } from "./faults.js";
import { visible } from "./visible.js";

/** Reads one field. Returns undefined if the field is left out. */
function valueOf(field) {
  const text = field.value.trim();
  if (field.type === "checkbox") return field.dataset.type === "boolean" ? field.checked : field.checked ? text : undefined;
  if (text === "") return field.dataset.empty === "null" ? null : field.dataset.empty === "list" ? [] : undefined;
  switch (field.dataset.type) {
    case "number": return Number(text);
    case "list": return text.split(/[\n,]/).map((part) => part.trim()).filter(Boolean);
    case "json":
      try { JSON.parse(text); } catch (error) { throw { field: field.name, detail: `is not JSON: ${error.message}` }; }
      return new Raw(text);
    case "from-now": return new Date(Date.now() + Number(text) * 1000).toISOString();
    default: return text;
  }
}

/** Returns the fields of a form as an object. */
export function bodyOf(form) {
  const body = {};
  for (const field of form.elements) {
    if (!field.name || field.disabled || (field.type === "radio" && !field.checked)) continue;
    const value = valueOf(field);
    const isGroup = field.type === "checkbox" && field.dataset.type !== "boolean";
    if (value === undefined && !isGroup) continue;
    const path = field.name.split(".");
    let target = body;
    for (const part of path.slice(0, -1)) target = target[part] ??= {};
    const last = path.at(-1);
    if (!isGroup) target[last] = value;
    else {
      // No box ticked is an empty list, which differs from an absent field.
      target[last] ??= [];
      if (value !== undefined) target[last].push(value);
    }
  }
  for (const { dataset } of form.querySelectorAll("fieldset[data-whole][data-empty]")) body[dataset.whole] ??= null;
  return body;
}

/** Asks for confirmation in a dialog; with `by`, the user must type that text. */
export function askForConfirmation(question, yes = "Yes", by = "") {
  const dialog = document.createElement("dialog");
  const text = document.createElement("p");
  text.textContent = visible(question);
  const buttons = document.createElement("div");
  buttons.className = "actions";
  const addButton = (label, value, className) => {
    const button = document.createElement("button");
    button.textContent = label;
    button.className = className;
    button.addEventListener("click", () => dialog.close(value));
    buttons.append(button);
    return button;
  };
  addButton("Cancel", "no", "");
  const confirm = addButton(yes, "yes", "primary");
  dialog.append(text);
  if (by) {
    const label = document.createElement("label");
    label.textContent = `Type ${visible(by)} to confirm `;
    const typed = document.createElement("input");
    typed.autocomplete = "off";
    typed.spellcheck = false;
    confirm.disabled = true;
    typed.addEventListener("input", () => (confirm.disabled = typed.value !== by));
    typed.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && typed.value === by) confirm.click();
    });
    label.append(typed);
    dialog.append(label);
  }
  dialog.append(buttons);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => {
    dialog.remove();
    resolve(dialog.returnValue === "yes");
  }));
}

async function runAction(element, body) {
  const { call: request, confirm, confirmBy, success, next } = element.dataset;
  if (confirm && !(await askForConfirmation(confirm, element.dataset.yes ?? "Yes", confirmBy))) return;
  const [method, path] = request.split(" ", 2);
  const button = element.tagName === "FORM" ? element.querySelector("button:not([type=button])") : element;
  button?.setAttribute("aria-busy", "true");
  try {
    const response = await call(method, path, body);
    element.dispatchEvent(new CustomEvent("redrive:done", { detail: response, bubbles: true }));
    if (success) toast(success);
    // A row under the pointer stays in place, with its button, until the pointer leaves the table.
    if (element.closest(".row-action")) element.disabled = true;
    if (next === "reload") location.reload();
    else if (next) location.assign(next.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(response?.[name] ?? "")));
    return response;
  } catch (problem) {
    if (element.tagName === "FORM") showFaults(element, problem);
    else toast(problem.message ?? problem.detail, "bad");
  } finally {
    button?.removeAttribute("aria-busy");
  }
}

/** Copies the text of a button, and confirms on the button itself, since a dialog may cover the toasts. */
async function copyText(button) {
  const label = button.textContent;
  const showBriefly = (text) => {
    button.textContent = text;
    setTimeout(() => (button.textContent = label), 2000);
  };
  try {
    // Browsers offer no clipboard without TLS.
    const source = button.dataset.copyText;
    await navigator.clipboard.writeText(source ? document.getElementById(source).textContent : button.dataset.copy);
    showBriefly("Copied ✓");
  } catch {
    showBriefly("Copy manually");
  }
}

export function actions() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-call]");
    if (button) runAction(button, button.dataset.body ? JSON.parse(button.dataset.body) : undefined);
    const copy = event.target.closest("button[data-copy], button[data-copy-text]");
    if (copy) copyText(copy);
  });
  document.addEventListener("submit", (event) => {
    const form = event.target.closest("form[data-call]");
    if (!form) return;
    event.preventDefault();
    clearFaults(form);
    try {
      runAction(form, bodyOf(form));
    } catch (problem) {
      showFaults(form, problem);
    }
  });
}
