// Dialogs, and secrets that are shown once.
//
//   <button data-opens="id">, <button data-closes>   open and close a <dialog> of the page
//   data-reveal="key"            field of the response that is shown once, with a button to copy it
//   data-reveal-title, -note     its title and explanation
//   data-reveal-next="reload"    action after the dialog is closed
//   data-reveal-undo="DELETE …/{id}", -undo-words, -undone   call that reverts it; {…} is from the response
import { call, toast } from "./api.js";
import { visible } from "./visible.js";

function createElement(name, text, className) {
  const element = document.createElement(name);
  if (text) element.textContent = visible(text);
  if (className) element.className = className;
  return element;
}

/** Creates the button that reverts the call. */
function createUndoButton(dialog, settings, response) {
  const button = createElement("button", settings.revealUndoWords, "danger");
  button.type = "button";
  button.addEventListener("click", async () => {
    const [method, path] = settings.revealUndo.split(" ", 2);
    try {
      await call(method, path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(response[name] ?? "")));
      dialog.close();
      toast(settings.revealUndone);
    } catch (problem) {
      dialog.close();
      toast(problem.message, "bad");
    }
  });
  return button;
}

/** Shows a value that is never shown again. */
function reveal(settings, response) {
  const value = response[settings.reveal];
  if (!value) return;
  const dialog = createElement("dialog", "", "once");
  const title = createElement("h2", settings.revealTitle);
  title.id = "once-title";
  dialog.setAttribute("aria-labelledby", title.id);
  const secret = createElement("div", "", "secret");
  const code = createElement("code", value);
  const copy = createElement("button", "Copy");
  copy.type = "button";
  copy.dataset.copy = value;
  secret.append(code, copy);
  const actions = createElement("div", "", "actions");
  if (settings.revealUndo) actions.append(createUndoButton(dialog, settings, response));
  const done = createElement("button", "Done", "primary");
  done.type = "button";
  done.addEventListener("click", () => dialog.close());
  actions.append(done);
  dialog.append(title, createElement("p", settings.revealNote, "muted"), secret, actions);
  document.body.append(dialog);
  // Only the button closes the dialog, since the value cannot be shown again.
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (settings.revealNext === "reload") location.reload();
  });
  dialog.showModal();
}

document.addEventListener("redrive:done", (event) => {
  const settings = event.target.dataset;
  if (!settings.reveal || !event.detail) return;
  event.target.closest("dialog")?.close();
  if (event.target.tagName === "FORM") event.target.reset();
  reveal(settings, event.detail);
});

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-opens]");
  if (opener) document.getElementById(opener.dataset.opens)?.showModal();
  if (event.target.closest("[data-closes]")) event.target.closest("dialog")?.close();
});
