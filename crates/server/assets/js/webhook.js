// Page of one webhook: its dialogs and their results.
import { bodyOf, clearFaults, showFault } from "./actions.js";
import { call, toast } from "./api.js";
import { tell, testSend } from "./test-send.js";

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-dialog]");
  if (opener) {
    const dialog = document.getElementById(opener.dataset.dialog);
    for (const result of dialog.querySelectorAll(".result")) result.hidden = true;
    dialog.showModal();
  }
  event.target.closest("[data-close]")?.closest("dialog").close();
});

/** Runs `work` when a form is submitted, and shows errors beside their fields. */
function onSubmit(form, work) {
  form?.addEventListener("submit", async (event) => {
    event.preventDefault();
    clearFaults(form);
    const button = event.submitter;
    button?.setAttribute("aria-busy", "true");
    try {
      await work(bodyOf(form), form.querySelector(".result"));
    } catch (problem) {
      form.querySelector(".result").hidden = true;
      if (!showFault(form, problem)) toast(problem.message ?? problem.detail, "bad");
    } finally {
      button?.removeAttribute("aria-busy");
    }
  });
}

const test = document.querySelector("form[data-test]");
onSubmit(test, (body, box) => testSend(box, test.dataset.test, body.data));

const filter = document.querySelector("form[data-try-filter]");
onSubmit(filter, async (body, box) => {
  const answer = await call("POST", `/v1/webhooks/${filter.dataset.tryFilter}/filter/test`, body);
  tell(box, answer.matches ? "good" : "waiting", `${answer.matches ? "It passes" : "It does not pass"}: ${answer.why}.`);
});

// A new secret is shown once, in place of the form.
const rotate = document.querySelector("form[data-rotate]");
rotate?.addEventListener("redrive:done", (event) => {
  const result = rotate.parentNode.querySelector("[data-result]");
  result.querySelector("code").textContent = event.detail.secret;
  result.querySelector("[data-copy]").dataset.copy = event.detail.secret;
  rotate.hidden = true;
  result.hidden = false;
  rotate.closest("dialog").addEventListener("close", () => {
    result.querySelector("code").textContent = "";
    result.querySelector("[data-copy]").dataset.copy = "";
    rotate.hidden = false;
    result.hidden = true;
  }, { once: true });
});

for (const form of document.querySelectorAll("form[data-closes]")) {
  form.addEventListener("redrive:done", () => form.closest("dialog").close());
}

const backfill = document.querySelector("form[data-backfill]");
let counts = false;
backfill?.querySelector("[data-dry-run]").addEventListener("click", () => {
  counts = true;
  backfill.requestSubmit();
});
onSubmit(backfill, async (body, box) => {
  const dry_run = counts;
  counts = false;
  for (const name of ["from", "to"]) if (body[name]) body[name] = new Date(body[name]).toISOString();
  const begun = await call("POST", `/v1/webhooks/${backfill.dataset.backfill}/backfill`, { ...body, dry_run });
  if (dry_run) {
    tell(box, "", `${begun.count_complete ? "" : "At least "}${begun.total.toLocaleString("en")} events of that time are of its types. Those that it has had are left out.`);
    return;
  }
  for (let operation = begun; ; ) {
    const { total, done, skipped, delivered, dead_again } = operation.progress;
    const parts = [`${(done + skipped).toLocaleString("en")} of ${total?.toLocaleString("en") ?? "…"} looked at`,
      `${done.toLocaleString("en")} queued`, `${delivered.toLocaleString("en")} delivered`];
    if (dead_again) parts.push(`${dead_again.toLocaleString("en")} failed`);
    const over = ["completed", "cancelled"].includes(operation.status);
    const link = `${location.pathname.split("/").slice(0, 4).join("/")}/operations/${operation.id}`;
    tell(box, over ? "good" : "", `${over ? `It is ${operation.status}` : "Under way"}: ${parts.join(", ")}.`, link, "See the operation");
    if (over || !backfill.closest("dialog").open) return;
    await new Promise((resolve) => setTimeout(resolve, 1000));
    operation = await call("GET", `/v1/dlq/batch-operations/${operation.id}`);
  }
});
