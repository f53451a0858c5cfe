// Calls the API as the logged-in user.
import { visible } from "./visible.js";

const meta = (name) => document.querySelector(`meta[name="${name}"]`)?.content ?? "";

/** Error with the API's problem details. */
export class Problem extends Error {
  constructor(problem) {
    super(problem.detail ?? "the server did not respond");
    Object.assign(this, problem);
  }
}

/** JSON that is sent as written: parsing it would round its numbers. */
export class Raw {
  constructor(text) {
    this.text = text;
  }
}

function toJson(value) {
  if (value instanceof Raw) return value.text;
  if (Array.isArray(value)) return `[${value.map(toJson)}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const parts = Object.entries(value).filter(([, part]) => part !== undefined);
  return `{${parts.map(([name, part]) => `${JSON.stringify(name)}:${toJson(part)}`)}}`;
}

/** Changes that are in flight or just finished; a second click does not repeat them. */
const recentChanges = new Set();
/** Time during which a finished change is not repeated, in milliseconds. */
const REPEAT_GUARD_MS = 700;

/** Calls the API. Identical concurrent changes are sent once. A call that only reads ends when `cancelled` is aborted. */
export async function call(method, path, body, cancelled) {
  const isReadOnly = method === "GET" || path.startsWith("/dashboard/") || body?.dry_run || path.includes("dry_run=true");
  if (isReadOnly) return send(method, path, body, cancelled);
  const change = `${method} ${path} ${body === undefined ? "" : toJson(body)}`;
  // A duplicate never resolves: the first call reports the result.
  if (recentChanges.has(change)) return new Promise(() => {});
  recentChanges.add(change);
  try {
    const result = await send(method, path, body);
    setTimeout(() => recentChanges.delete(change), REPEAT_GUARD_MS);
    return result;
  } catch (problem) {
    recentChanges.delete(change);
    throw problem;
  }
}

/** Time after which a missing response is reported, and time after which the call fails, in milliseconds. */
const SLOW_RESPONSE_MS = 4000;
const RESPONSE_TIMEOUT_MS = 30_000;

/** Returns the error for a call without a response. A change may have been made nevertheless. */
function noResponse(method, timedOut) {
  if (!timedOut) return new Problem({ detail: "The server cannot be reached. Check the connection and try again." });
  const unsure = method === "GET" ? "Try again." : "The change may have been made: reload the page before you repeat it.";
  return new Problem({ detail: `The server did not respond within ${RESPONSE_TIMEOUT_MS / 1000} s. ${unsure}` });
}

/** Fetches a URL with its body as text, and reports a server that does not respond. */
async function fetchText(url, options, cancelled) {
  let note = null;
  const slow = setTimeout(() => {
    note = toast("The server does not respond. Waiting for it …", "waiting");
  }, SLOW_RESPONSE_MS);
  const timeout = AbortSignal.timeout(RESPONSE_TIMEOUT_MS);
  try {
    const signal = cancelled ? AbortSignal.any([timeout, cancelled]) : timeout;
    const response = await fetch(url, { ...options, signal });
    return [response, await response.text()];
  } catch {
    throw noResponse(options.method, timeout.aborted);
  } finally {
    clearTimeout(slow);
    note?.remove();
  }
}

/** Calls `method path` with a JSON body, for the tenant of the page unless the path names one. */
async function send(method, path, body, cancelled) {
  const url = new URL(path, location.origin);
  const tenant = meta("redrive-tenant");
  if (tenant && !url.searchParams.has("tenant_id") && url.pathname.startsWith("/v1/") && !path.includes("/v1/tenants")) {
    url.searchParams.set("tenant_id", tenant);
  }
  const headers = { "x-redrive-token": meta("redrive-token") };
  if (body !== undefined) headers["content-type"] = "application/json";
  const [response, text] = await fetchText(url, { method, headers, body: body === undefined ? undefined : toJson(body) }, cancelled);
  const json = text && response.headers.get("content-type")?.includes("json") ? JSON.parse(text) : null;
  if (response.status === 401) {
    location.assign(`/dashboard/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  }
  if (!response.ok) throw new Problem(json ?? { detail: `The server returned ${response.status}.` });
  return json;
}

/** Shows a message in a corner of the page for a while, and returns its element. */
export function toast(text, kind = "good") {
  const note = document.createElement("p");
  note.className = `alert ${kind}`;
  note.textContent = visible(text);
  const box = document.getElementById("toasts");
  box.append(note);
  // The last element to be shown is on top, also of an open dialog.
  if (box.matches(":popover-open")) box.hidePopover();
  box.showPopover?.();
  setTimeout(() => note.remove(), kind === "good" ? 5000 : 12000);
  return note;
}
