// Sends a test event to a webhook and shows its progress.
import { call } from "./api.js";
import { visible } from "./visible.js";

const PATIENCE = 90_000;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Shows a result in a box of the page: text, color, and optionally a link. */
export function tell(box, kind, words, link, says = "See the delivery") {
  box.hidden = false;
  box.className = `result notice ${kind}`;
  box.textContent = visible(words);
  if (!link) return;
  const anchor = document.createElement("a");
  anchor.href = link;
  anchor.textContent = says;
  box.append(" ", anchor);
}

const took = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`);

/** Describes the result of a delivery. Returns null before the first attempt has ended. */
async function outcome(delivery) {
  if (delivery.attempt_count === 0 && delivery.status !== "cancelled") return null;
  const { data } = await call("GET", `/v1/deliveries/${delivery.id}/attempts`);
  const last = data.filter((attempt) => attempt.number).at(-1);
  const answer = last?.http_status_code ? `it answered ${last.http_status_code}` : last?.error_message ?? "no answer came";
  const time = last?.duration_ms ? ` after ${took(last.duration_ms)}` : "";
  switch (delivery.status) {
    case "delivered": return ["good", `Delivered: ${answer}${time}.`, true];
    case "dead": return ["bad", `It failed for good: ${answer}${time}.`, true];
    case "cancelled": return ["waiting", "It was cancelled.", true];
    default: return ["bad", `It failed: ${answer}${time}. It is tried again by itself.`, false];
  }
}

/** Sends a test event with this payload, and updates the box until the delivery has ended. */
export async function testSend(box, id, data) {
  tell(box, "", "Sending …");
  const { id: event } = await call("POST", `/v1/webhooks/${id}/test`, data === undefined ? undefined : { data });
  const base = location.pathname.split("/").slice(0, 4).join("/");
  for (const began = Date.now(); Date.now() - began < PATIENCE; await pause(400)) {
    const { data: [delivery] } = await call("GET", `/v1/deliveries?event_id=${event}&limit=1`);
    if (!delivery) continue;
    const link = `${base}/deliveries/${delivery.id}`;
    const came = await outcome(delivery);
    if (came) tell(box, came[0], came[1], link);
    else if (delivery.waiting_explanation) tell(box, "waiting", `It waits: ${delivery.waiting_explanation}.`, link);
    if (came?.[2]) return;
  }
}
