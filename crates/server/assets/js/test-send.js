// Sends a test event to a webhook and shows its progress.
import { call } from "./api.js";
import { visible } from "./visible.js";

/** How long the delivery is polled, in milliseconds. */
const TIMEOUT_MS = 90_000;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Shows a result in a box of the page: text, color, and optionally a link. */
export function showResult(box, kind, text, link, linkText = "View delivery") {
  box.hidden = false;
  box.className = `result alert ${kind}`;
  box.textContent = visible(text);
  if (!link) return;
  const anchor = document.createElement("a");
  anchor.href = link;
  anchor.textContent = linkText;
  box.append(" ", anchor);
}

const formatDuration = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`);

/** Describes the result of a delivery. Returns null before the first attempt has ended. */
async function describeOutcome(delivery) {
  if (delivery.attempt_count === 0 && delivery.status !== "cancelled") return null;
  const { data } = await call("GET", `/v1/deliveries/${delivery.id}/attempts`);
  const last = data.filter((attempt) => attempt.number).at(-1);
  const response = last?.http_status_code ? `the endpoint returned ${last.http_status_code}` : last?.error_message ?? "the endpoint did not respond";
  const time = last?.duration_ms ? ` after ${formatDuration(last.duration_ms)}` : "";
  switch (delivery.status) {
    case "delivered": return ["good", `Delivered: ${response}${time}.`, true];
    case "dead": return ["bad", `Dead (no more retries): ${response}${time}.`, true];
    case "cancelled": return ["waiting", "Cancelled.", true];
    default: return ["bad", `Attempt failed: ${response}${time}. The delivery is retried automatically.`, false];
  }
}

/** Sends a test event with this payload, and updates the box until the delivery has ended. */
export async function testSend(box, id, data) {
  showResult(box, "", "Sending …");
  const { id: event } = await call("POST", `/v1/webhooks/${id}/test`, data === undefined ? undefined : { data });
  const base = location.pathname.split("/").slice(0, 4).join("/");
  for (const startedAt = Date.now(); Date.now() - startedAt < TIMEOUT_MS; await pause(400)) {
    const { data: [delivery] } = await call("GET", `/v1/deliveries?event_id=${event}&limit=1`);
    if (!delivery) continue;
    const link = `${base}/deliveries/${delivery.id}`;
    const outcome = await describeOutcome(delivery);
    if (outcome) showResult(box, outcome[0], outcome[1], link);
    else if (delivery.waiting_explanation) showResult(box, "waiting", `Waiting: ${delivery.waiting_explanation}.`, link);
    if (outcome?.[2]) return;
  }
}
