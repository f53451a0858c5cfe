// Dialogs, and secrets that are shown once.
//
//   <button data-opens="id">, <button data-closes>   open and close a <dialog> of the page
//   data-reveal="key"            field of the response that is shown once, with a button to copy it
//   data-reveal-title, -note     its title and explanation
//   data-reveal-then="reload"    action after the dialog is closed
//   data-reveal-undo="DELETE …/{id}", -undo-words, -undone   call that reverts it; {…} is from the response
import { call, toast } from "./api.js";
import { visible } from "./visible.js";

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text) made.textContent = visible(text);
  if (kind) made.className = kind;
  return made;
}

function undo(dialog, words, answer) {
  const button = element("button", words.showsUndoWords, "danger");
  button.type = "button";
  button.addEventListener("click", async () => {
    const [method, path] = words.showsUndo.split(" ", 2);
    try {
      await call(method, path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(answer[name] ?? "")));
      dialog.close();
      toast(words.showsUndone);
    } catch (problem) {
      dialog.close();
      toast(problem.message, "bad");
    }
  });
  return button;
}

/** Shows a value that is never shown again. */
function show(words, answer) {
  const value = answer[words.shows];
  if (!value) return;
  const dialog = element("dialog", "", "once");
  const title = element("h2", words.showsTitle);
  title.id = "once-title";
  dialog.setAttribute("aria-labelledby", title.id);
  const secret = element("div", "", "secret");
  const code = element("code", value);
  const copy = element("button", "Copy");
  copy.type = "button";
  copy.dataset.copy = value;
  secret.append(code, copy);
  const actions = element("div", "", "actions");
  if (words.showsUndo) actions.append(undo(dialog, words, answer));
  const done = element("button", "Done, I have it", "primary");
  done.type = "button";
  done.addEventListener("click", () => dialog.close());
  actions.append(done);
  dialog.append(title, element("p", words.showsNote, "muted"), secret, actions);
  document.body.append(dialog);
  // Only the button closes the dialog, since the value cannot be shown again.
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (words.showsThen === "reload") location.reload();
  });
  dialog.showModal();
}

document.addEventListener("redrive:done", (event) => {
  const words = event.target.dataset;
  if (!words.shows || !event.detail) return;
  event.target.closest("dialog")?.close();
  if (event.target.tagName === "FORM") event.target.reset();
  show(words, event.detail);
});

document.addEventListener("click", (event) => {
  const opens = event.target.closest("[data-opens]");
  if (opens) document.getElementById(opens.dataset.opens)?.showModal();
  if (event.target.closest("[data-closes]")) event.target.closest("dialog")?.close();
});
