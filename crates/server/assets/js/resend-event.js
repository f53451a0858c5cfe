// Resends an event to the webhooks that it was sent to. They are counted first; those that have received it are left out
// unless they are included.
import { call, toast } from "./api.js";
import { clearFaults, showFaults } from "./faults.js";

const dialog = document.getElementById("resend-all");
const form = dialog?.querySelector("form");
const part = (name) => form.querySelector(`[data-${name}]`);
const box = form?.querySelector("input");
const webhooks = (number) => `${number.toLocaleString("en")} ${number === 1 ? "webhook" : "webhooks"}`;

/** Calls the API with the choice of the dialog. */
function replay(fields) {
  const [method, path] = form.dataset.replay.split(" ", 2);
  return call(method, path, { include_delivered: box.checked, ...fields });
}

/** Shows how many webhooks receive the event, with those that have received it and without. */
function showCounts({ total, already_delivered: delivered }) {
  const update = () => {
    const sent = box.checked ? total + delivered : total;
    part("go").disabled = sent === 0;
    part("go").textContent = `Resend to ${webhooks(sent)}`;
  };
  part("found").textContent = delivered === 0
    ? `${webhooks(total)} will receive the event again.`
    : `${webhooks(delivered)} of ${total + delivered} received the event already and ${delivered === 1 ? "is" : "are"} left out.`;
  part("delivered").hidden = delivered === 0;
  part("delivered").querySelector("span").textContent = `Also resend to ${webhooks(delivered)} that received the event already`;
  box.onchange = update;
  update();
}

async function open() {
  form.reset();
  clearFaults(form);
  part("delivered").hidden = true;
  part("go").disabled = true;
  part("go").textContent = "Resend";
  part("found").textContent = "Counting…";
  dialog.showModal();
  try {
    showCounts(await replay({ include_delivered: false, dry_run: true }));
  } catch (problem) {
    part("found").textContent = problem.message;
  }
}

document.addEventListener("click", (event) => {
  if (form && event.target.closest("[data-resend-all]")) open();
});

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  clearFaults(form);
  part("go").setAttribute("aria-busy", "true");
  try {
    const { total } = await replay({});
    dialog.close();
    toast(`Resend to ${webhooks(total)} queued.`);
  } catch (problem) {
    showFaults(form, problem);
  } finally {
    part("go").removeAttribute("aria-busy");
  }
});
