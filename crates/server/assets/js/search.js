// The search box in the header: `/` or Ctrl+K focuses it, and results appear while typing. Without scripts it is a form.
import { call } from "./api.js";
import { visible } from "./visible.js";

/** Time without typing after which a search is sent, in milliseconds. */
const DEBOUNCE_MS = 180;
/** Shortest text that is searched for while typing. */
const MIN_LENGTH = 2;
const KINDS = { event_type: "event type" };

/** Sets up the search box. */
export function search() {
  const input = document.getElementById("find");
  if (!input) return;
  const list = document.createElement("ul");
  Object.assign(list, { id: "find-results", className: "find-results", hidden: true });
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Found");
  const state = document.createElement("p");
  state.className = "visually-hidden";
  state.setAttribute("role", "status");
  input.after(list, state);
  input.setAttribute("role", "combobox");
  input.setAttribute("aria-autocomplete", "list");
  input.setAttribute("aria-controls", list.id);
  input.setAttribute("aria-expanded", "false");

  let timer;
  let current = "";
  let active = -1;
  let running = new AbortController();

  const options = () => [...list.querySelectorAll('[role="option"]')];
  const close = () => {
    list.hidden = true;
    active = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const activate = (index) => {
    const all = options();
    if (all.length === 0) return;
    active = (index + all.length) % all.length;
    for (const [at, option] of all.entries()) option.setAttribute("aria-selected", String(at === active));
    input.setAttribute("aria-activedescendant", all[active].id);
    all[active].scrollIntoView({ block: "nearest" });
  };
  const show = (found) => {
    list.replaceChildren(...found.data.map(toOption));
    active = -1;
    input.removeAttribute("aria-activedescendant");
    list.hidden = found.data.length === 0;
    input.setAttribute("aria-expanded", String(!list.hidden));
    state.textContent = found.data.length === 0 ? `Nothing was found. Events were searched in the tenant ${found.tenant_id}.` : `${found.data.length} found.`;
  };
  const query = async () => {
    const text = input.value.trim();
    current = text;
    running.abort();
    if (text.length < MIN_LENGTH) return close();
    running = new AbortController();
    try {
      const found = await call("GET", `/v1/search?q=${encodeURIComponent(text)}`, undefined, running.signal);
      // A later text has been typed since, or the box was left.
      if (current === text && document.activeElement === input) show(found);
    } catch {
      // The form still works, and its page explains the error.
      if (current === text) close();
    }
  };

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(query, DEBOUNCE_MS);
  });
  input.addEventListener("focus", () => {
    if (options().length > 0 && input.value.trim() === current) {
      list.hidden = false;
      input.setAttribute("aria-expanded", "true");
    }
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (list.hidden) return;
      event.preventDefault();
      activate(event.key === "ArrowDown" ? active + 1 : active < 0 ? -1 : active - 1);
    } else if (event.key === "Enter" && active >= 0 && !list.hidden) {
      event.preventDefault();
      location.assign(options()[active].dataset.url);
    } else if (event.key === "Escape") {
      if (list.hidden) input.blur();
      else close();
      event.preventDefault();
    }
  });
  // A click on a result must not take the focus first, which would hide the list.
  list.addEventListener("mousedown", (event) => event.preventDefault());
  list.addEventListener("click", (event) => {
    const option = event.target.closest('[role="option"]');
    if (option) location.assign(option.dataset.url);
  });
  input.addEventListener("blur", () => {
    clearTimeout(timer);
    close();
  });
  addEventListener("keydown", (event) => {
    const isShortcut = event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey;
    const isCommand = event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey;
    const isTyping = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (document.querySelector("dialog[open]") || !(isCommand || isShortcut && !isTyping)) return;
    event.preventDefault();
    input.focus();
    input.select();
  });
}

/** Creates the list entry of a hit. */
function toOption(hit, index) {
  const option = document.createElement("li");
  option.id = `find-result-${index}`;
  option.setAttribute("role", "option");
  option.setAttribute("aria-selected", "false");
  option.dataset.url = hit.url;
  const kind = document.createElement("span");
  kind.className = "badge off";
  kind.textContent = KINDS[hit.type] ?? hit.type;
  const title = document.createElement("span");
  title.className = "title";
  title.textContent = visible(hit.title);
  const matched = document.createElement("span");
  matched.className = "small muted";
  matched.textContent = hit.matched.replaceAll("_", " ");
  option.append(kind, title, matched);
  return option;
}
