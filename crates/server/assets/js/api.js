// Calls the API as whoever is logged in.
import { visible } from "./visible.js";

const meta = (name) => document.querySelector(`meta[name="${name}"]`)?.content ?? "";

/** What went wrong, in the API's words. */
export class Problem extends Error {
  constructor(problem) {
    super(problem.detail ?? "the server did not answer");
    Object.assign(this, problem);
  }
}

/** JSON that goes out as somebody wrote it: reading it would round its numbers. */
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

/** Changes that are under way, or were just made: a second click is not a second wish. */
const underWay = new Set();
/** How long a change that was made is not made again, in milliseconds. */
const PAUSE = 700;

/** Calls the API. The same change is made once, however often it is asked for at the same time. */
export async function call(method, path, body) {
  const asksOnly = method === "GET" || path.startsWith("/dashboard/") || body?.dry_run || path.includes("dry_run=true");
  if (asksOnly) return send(method, path, body);
  const change = `${method} ${path} ${body === undefined ? "" : written(body)}`;
  // Whoever asks again is never answered: the first one tells what came of it.
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

/** Calls `method path` with a JSON body. The tenant of the page is acted for, unless the path names one. */
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

/** Tells something in a corner of the page, for a while. */
export function toast(words, kind = "good") {
  const note = document.createElement("p");
  note.className = `notice ${kind}`;
  note.textContent = visible(words);
  document.getElementById("toasts").append(note);
  setTimeout(() => note.remove(), kind === "bad" ? 12000 : 5000);
}
