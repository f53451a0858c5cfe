// Calls the API as the logged-in user.
import { visible } from "./visible.js";

const meta = (name) => document.querySelector(`meta[name="${name}"]`)?.content ?? "";

/** Error with the API's problem details. */
export class Problem extends Error {
  constructor(problem) {
    super(problem.detail ?? "the server did not answer");
    Object.assign(this, problem);
  }
}

/** JSON that is sent as written: parsing it would round its numbers. */
export class Raw {
  constructor(text) {
    this.text = text;
  }
}

function written(value) {
  if (value instanceof Raw) return value.text;
  if (Array.isArray(value)) return `[${value.map(written)}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const parts = Object.entries(value).filter(([, part]) => part !== undefined);
  return `{${parts.map(([name, part]) => `${JSON.stringify(name)}:${written(part)}`)}}`;
}

/** Changes that are in flight or just finished; a second click does not repeat them. */
const underWay = new Set();
/** Time during which a finished change is not repeated, in milliseconds. */
const PAUSE = 700;

/** Calls the API. Identical concurrent changes are sent once. */
export async function call(method, path, body) {
  const asksOnly = method === "GET" || path.startsWith("/dashboard/") || body?.dry_run || path.includes("dry_run=true");
  if (asksOnly) return send(method, path, body);
  const change = `${method} ${path} ${body === undefined ? "" : written(body)}`;
  // A duplicate never resolves: the first call reports the result.
  if (underWay.has(change)) return new Promise(() => {});
  underWay.add(change);
  try {
    const answer = await send(method, path, body);
    setTimeout(() => underWay.delete(change), PAUSE);
    return answer;
  } catch (problem) {
    underWay.delete(change);
    throw problem;
  }
}

/** Calls `method path` with a JSON body, for the tenant of the page unless the path names one. */
async function send(method, path, body) {
  const url = new URL(path, location.origin);
  const tenant = meta("redrive-tenant");
  if (tenant && !url.searchParams.has("tenant_id") && url.pathname.startsWith("/v1/") && !path.includes("/v1/tenants")) {
    url.searchParams.set("tenant_id", tenant);
  }
  const headers = { "x-redrive-token": meta("redrive-token") };
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(url, { method, headers, body: body === undefined ? undefined : written(body) });
  } catch {
    throw new Problem({ detail: "The server cannot be reached. Check the connection and try again." });
  }
  const text = await answer.text();
  const json = text && answer.headers.get("content-type")?.includes("json") ? JSON.parse(text) : null;
  if (answer.status === 401) {
    location.assign(`/dashboard/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  }
  if (!answer.ok) throw new Problem(json ?? { detail: `The server answered ${answer.status}.` });
  return json;
}

/** Shows a message in a corner of the page for a while. */
export function toast(words, kind = "good") {
  const note = document.createElement("p");
  note.className = `notice ${kind}`;
  note.textContent = visible(words);
  document.getElementById("toasts").append(note);
  setTimeout(() => note.remove(), kind === "bad" ? 12000 : 5000);
}
