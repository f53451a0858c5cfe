// Form that resends an event with an edited payload: its webhooks are sent only if some are selected.

const form = document.querySelector("form[data-edited]");
const choices = form.querySelector("[data-chosen]");

function update() {
  const isChosen = form.querySelector('[data-to="chosen"]').checked;
  choices.hidden = !isChosen;
  for (const box of choices.querySelectorAll("input")) box.disabled = !isChosen;
}

form.addEventListener("change", update);
addEventListener("pageshow", update);
update();
