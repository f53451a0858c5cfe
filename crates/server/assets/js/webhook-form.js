// Form to create and change webhooks: input is validated while typing, and only changed fields are sent.
import { bodyOf } from "./actions.js";
import { call, toast } from "./api.js";
import { clearFaults, showFaults } from "./faults.js";
import { testSend } from "./test-send.js";
import { visible } from "./visible.js";
import { fromField, toField } from "./zone.js";

const form = document.getElementById("webhook");
const { base, id, redacted } = form.dataset;
const checked = document.getElementById("checked");

// --- lists of event types --------------------------------------------------------------------------

for (const box of form.querySelectorAll("[data-chips]")) {
  const [hidden, list, input] = ["input[type=hidden]", ".chips", ".row input"].map((what) => box.querySelector(what));
  let values = hidden.value.split(",").filter(Boolean);
  const show = () => {
    hidden.value = values.join(",");
    list.replaceChildren(...values.map((value) => {
      const chip = document.createElement("li");
      const remove = document.createElement("button");
      remove.type = "button";
      remove.textContent = "✕";
      remove.setAttribute("aria-label", `Remove ${visible(value)}`);
      remove.addEventListener("click", () => {
        values = values.filter((other) => other !== value);
        show();
        changed(hidden);
        input.focus();
      });
      chip.append(visible(value), remove);
      return chip;
    }));
  };
  const add = () => {
    const fresh = input.value.split(/[\s,]+/).filter((value) => value && !values.includes(value));
    input.value = "";
    if (fresh.length === 0) return;
    values.push(...new Set(fresh));
    show();
    changed(hidden);
  };
  box.querySelector("[data-add]").addEventListener("click", () => { add(); input.focus(); });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === ",") {
      event.preventDefault();
      add();
    } else if (event.key === "Backspace" && input.value === "" && values.length > 0) {
      input.value = values.pop();
      show();
      event.preventDefault();
    }
  });
  // A chosen suggestion is added immediately, text left in the field when the form is submitted. Adding it on blur
  // would move the submit button away from under the pointer.
  input.addEventListener("input", ({ inputType }) => {
    if (!inputType || inputType === "insertReplacementText") add();
  });
  form.addEventListener("submit", add, { capture: true });
  show();
}

// --- names with values: headers and metadata -------------------------------------------------------

for (const box of form.querySelectorAll("[data-pairs]")) {
  const what = box.dataset.pairs === "headers" ? "Header" : "Name";
  box.querySelector("[data-more]").addEventListener("click", () => {
    const row = document.createElement("div");
    row.className = "row tight";
    for (const [label, part] of [[what, "name"], ["Value", "value"]]) {
      const input = document.createElement("input");
      input.setAttribute("aria-label", label);
      input.placeholder = label;
      input.autocomplete = "off";
      input.spellcheck = false;
      input.dataset[part] = "";
      row.append(input);
    }
    const remove = document.createElement("button");
    remove.type = "button";
    remove.dataset.remove = "";
    remove.textContent = "✕";
    remove.setAttribute("aria-label", "Remove");
    row.append(remove);
    box.querySelector(".pairs").append(row);
    row.firstChild.focus();
  });
  box.addEventListener("click", (event) => {
    const remove = event.target.closest("[data-remove]");
    if (!remove) return;
    remove.closest(".row").remove();
    changed(box.querySelector("input[type=hidden]"));
  });
}

/** Returns the value of a JSON text with its numbers as written if the browser can keep them; other text stays text. */
function jsonOf(text) {
  const keepNumber = (_, value, context) =>
    typeof value === "number" && context?.source && JSON.rawJSON ? JSON.rawJSON(context.source) : value;
  try {
    return JSON.parse(text, keepNumber);
  } catch {
    return text;
  }
}

/** Returns the names and values in a box. An existing value left empty stays unchanged. */
function pairsOf(box) {
  const pairs = {};
  for (const row of box.querySelectorAll(".pairs .row")) {
    const [name, value] = [row.querySelector("[data-name]"), row.querySelector("[data-value]")];
    if (name.value.trim() === "") continue;
    const kept = "known" in value.dataset && value.value === "";
    const given = "json" in value.dataset ? jsonOf(value.value) : value.value;
    pairs[name.value.trim()] = kept ? redacted : given;
  }
  return pairs;
}

// --- fields that depend on a choice ----------------------------------------------------------------

function showModes() {
  for (const box of form.querySelectorAll("[data-when]")) {
    const [mode, value] = box.dataset.when.split("=");
    const here = form.querySelector(`[data-mode="${mode}"]`).value === value;
    box.hidden = !here;
    for (const field of box.querySelectorAll("input, select, textarea")) field.disabled = !here;
  }
}

// --- times, entered in the chosen time zone --------------------------------------------------------

const expires = form.elements.expires_at;
if (expires.dataset.time) expires.value = toField(new Date(expires.dataset.time), 19);

// --- values of the form ----------------------------------------------------------------------------

const numbers = (values) => values.map((value) => (/^[0-9.]+$/.test(value) ? Number(value) : value));
const isNothing = (value) => value === null || value === undefined;

function authOf(auth) {
  const known = form.querySelector("[data-mode=auth]").dataset.known;
  const kept = (value) => value ?? (known === auth.type ? redacted : "");
  if (auth.type === "basic") return { type: "basic", username: auth.username ?? "", password: kept(auth.password) };
  if (auth.type === "bearer") return { type: "bearer", token: kept(auth.token) };
  return null;
}

/** Returns all values of the form in the format of the API. */
function formValues() {
  const body = bodyOf(form);
  for (const box of form.querySelectorAll("[data-pairs]")) body[box.dataset.pairs] = pairsOf(box);
  body.auth = authOf(body.auth ?? {});
  if (body.owner?.muted_kinds?.length === 0) delete body.owner.muted_kinds;
  for (const name of ["retry_config", "circuit_breaker_config", "rate_limit", "owner"]) {
    const given = Object.entries(body[name] ?? {}).filter(([, value]) => !isNothing(value));
    body[name] = given.length > 0 ? Object.fromEntries(given) : null;
  }
  const retry = body.retry_config;
  if (retry?.schedule) retry.schedule = numbers(retry.schedule);
  if (retry?.permanent_status_codes) retry.permanent_status_codes = numbers(retry.permanent_status_codes);
  if (body.expires_at) body.expires_at = fromField(body.expires_at).toISOString();
  return body;
}

const isEmpty = (value) => isNothing(value) || (typeof value === "object" && Object.keys(value).length === 0);

/** Returns what to send: all values of a new webhook, only the changed ones of an existing webhook. */
function changedValues() {
  const now = formValues();
  const isIncluded = id
    ? ([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name])
    : ([, value]) => !isEmpty(value) && value !== false;
  return Object.fromEntries(Object.entries(now).filter(isIncluded));
}

// --- validation ------------------------------------------------------------------------------------

const touched = new Set();
/** Placeholders for required fields that are still empty, so that they do not hide errors of other fields. */
const PLACEHOLDERS = { url: "https://example.com/", events: ["*"] };

/** Returns whether the user has changed the field that an error names, or a part of it. */
function isTouched(named) {
  const field = named.replace(/\[.*$/, "");
  return [...touched].some((name) => field === name || field.startsWith(`${name}.`) || name.startsWith(`${field}.`));
}

let timer, lastCheck = 0;
async function check() {
  const number = ++lastCheck;
  let problem = null;
  let missing = [];
  try {
    // Throws if a field cannot be parsed, such as invalid JSON.
    const body = changedValues();
    missing = id ? [] : Object.keys(PLACEHOLDERS).filter((name) => !(name in body) && !touched.has(name));
    for (const name of missing) body[name] = PLACEHOLDERS[name];
    // Null, or the error.
    problem = await call("POST", `${base}/check${id ? `?id=${id}` : ""}`, body);
  } catch (found) {
    problem = found;
  }
  if (number !== lastCheck) return;
  clearFaults(form);
  const named = problem?.errors?.length ? problem.errors : problem?.field ? [{ field: problem.field, message: problem.detail ?? problem.message }] : [];
  // While typing, only errors of fields that were changed are shown.
  const errors = named.filter(({ field }) => isTouched(field));
  if (errors.length > 0) showFaults(form, { errors }, { focus: false, summary: false });
  const good = missing.length === 0 ? "All fields are valid." : "";
  checked.textContent = problem ? (named.length > 0 ? "" : visible(problem.detail)) : good;
}

/** Records a changed field, and validates all fields after a pause in typing. */
function changed(field) {
  if (field?.name) touched.add(field.name);
  checked.textContent = "";
  clearTimeout(timer);
  timer = setTimeout(check, 350);
}

form.addEventListener("input", (event) => {
  if (event.target.dataset.mode) showModes();
  const pairs = event.target.closest("[data-pairs]");
  if (event.target.id !== "add-event") changed(pairs ? pairs.querySelector("input[type=hidden]") : event.target);
});

showModes();
const before = formValues();

// --- submission ------------------------------------------------------------------------------------

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  clearTimeout(timer);
  lastCheck++;
  clearFaults(form);
  const button = event.submitter;
  try {
    const body = changedValues();
    if (id && Object.keys(body).length === 0) return void toast("No changes.");
    button?.setAttribute("aria-busy", "true");
    const webhook = id
      ? await call("PATCH", `/v1/webhooks/${id}`, body)
      : await call("POST", "/v1/webhooks", body);
    if (id) location.assign(`${base}/${id}`);
    else showCreated(webhook);
  } catch (problem) {
    showFaults(form, problem);
  } finally {
    button?.removeAttribute("aria-busy");
  }
});

/** Shows the secret of a new webhook once, and offers to send a test event. */
function showCreated(webhook) {
  const box = document.getElementById("created");
  // Portal sessions without the capability `secrets` do not receive it.
  if (webhook.secret) {
    box.querySelector("[data-secret]").textContent = webhook.secret;
    box.querySelector("[data-copy]").dataset.copy = webhook.secret;
  }
  box.querySelector("[data-link]").href = `${base}/${webhook.id}`;
  const send = box.querySelector("[data-send-test]");
  send.hidden = webhook.state !== "active";
  send.addEventListener("click", async () => {
    send.setAttribute("aria-busy", "true");
    try {
      await testSend(box.querySelector(".result"), webhook.id);
    } catch (problem) {
      toast(problem.message, "bad");
    } finally {
      send.removeAttribute("aria-busy");
    }
  });
  form.hidden = true;
  box.hidden = false;
  box.focus();
}
