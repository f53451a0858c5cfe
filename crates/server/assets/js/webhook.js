// Page of one webhook: its dialogs and their results.
import { bodyOf } from "./actions.js";
import { call } from "./api.js";
import { clearFaults, showFaults } from "./faults.js";
import { showResult, testSend } from "./test-send.js";
import { fromField } from "./zone.js";

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
      showFaults(form, problem);
    } finally {
      button?.removeAttribute("aria-busy");
    }
  });
}

const test = document.querySelector("form[data-test]");
onSubmit(test, (body, box) => testSend(box, test.dataset.test, body.data));

const filter = document.querySelector("form[data-test-filter]");
onSubmit(filter, async (body, box) => {
  const result = await call("POST", `/v1/webhooks/${filter.dataset.testFilter}/filter/test`, body);
  showResult(box, result.matches ? "good" : "waiting", `${result.matches ? "Match" : "No match"}: ${result.why}.`);
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
let isDryRun = false;
backfill?.querySelector("[data-dry-run]").addEventListener("click", () => {
  isDryRun = true;
  backfill.requestSubmit();
});
onSubmit(backfill, async (body, box) => {
  const dry_run = isDryRun;
  isDryRun = false;
  for (const name of ["from", "to"]) if (body[name]) body[name] = fromField(body[name]).toISOString();
  const started = await call("POST", `/v1/webhooks/${backfill.dataset.backfill}/backfill`, { ...body, dry_run });
  if (dry_run) {
    showResult(box, "", `${started.count_complete ? "" : "At least "}${started.total.toLocaleString("en")} events in this time range match the subscription of the webhook. Events that the webhook already received are skipped.`);
    return;
  }
  for (let operation = started; ; ) {
    const { total, done, skipped, delivered, dead_again } = operation.progress;
    const parts = [`${(done + skipped).toLocaleString("en")} of ${total?.toLocaleString("en") ?? "…"} scanned`,
      `${done.toLocaleString("en")} queued`, `${delivered.toLocaleString("en")} delivered`];
    if (dead_again) parts.push(`${dead_again.toLocaleString("en")} dead`);
    const isFinished = ["completed", "cancelled"].includes(operation.status);
    const link = `${location.pathname.split("/").slice(0, 4).join("/")}/operations/${operation.id}`;
    showResult(box, isFinished ? "good" : "", `${isFinished ? (operation.status === "completed" ? "Completed" : "Cancelled") : "In progress"}: ${parts.join(", ")}.`, link, "View operation");
    if (isFinished || !backfill.closest("dialog").open) return;
    await new Promise((resolve) => setTimeout(resolve, 1000));
    operation = await call("GET", `/v1/dlq/batch-operations/${operation.id}`);
  }
});
