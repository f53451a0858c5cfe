// Time zone of this browser's pages: UTC, or local time. The server renders times in it: a cookie has the name of the
// zone and its changes of offset, so that the server needs no database of time zones.

const CHOICE = "redrive-zone";
const COOKIE = "redrive_zone";
const YEAR_S = 31_536_000;
const DAY_MS = 86_400_000;
const MINUTE_MS = 60_000;
/** Range for which the cookie has the changes of offset, in days before and after now. */
const DAYS_BEFORE = 400;
const DAYS_AFTER = 1100;

/** Returns whether local time is chosen. A browser without storage shows UTC. */
export function isLocal() {
  try {
    return localStorage.getItem(CHOICE) === "local";
  } catch {
    return false;
  }
}

const localName = () => Intl.DateTimeFormat().resolvedOptions().timeZone || "local";
/** Returns the offset of local time from UTC, in minutes. */
const offsetAt = (time) => -new Date(time).getTimezoneOffset();

/** Finds the minute at which the offset changes between two times. */
function findChange(from, to) {
  let [low, high] = [Math.floor(from / MINUTE_MS), Math.floor(to / MINUTE_MS)];
  const before = offsetAt(low * MINUTE_MS);
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (offsetAt(middle * MINUTE_MS) === before) low = middle;
    else high = middle;
  }
  return high;
}

/** Describes local time for the server: `Europe/Berlin~60~29579220:120~…`, with times in minutes since 1970. */
function describeZone(now) {
  const begin = Math.floor(now / DAY_MS - DAYS_BEFORE) * DAY_MS;
  const parts = [localName(), offsetAt(begin)];
  for (let day = begin; day < begin + (DAYS_BEFORE + DAYS_AFTER) * DAY_MS; day += DAY_MS) {
    if (offsetAt(day) === offsetAt(day + DAY_MS)) continue;
    const change = findChange(day, day + DAY_MS);
    parts.push(`${change}:${offsetAt(change * MINUTE_MS)}`);
  }
  return parts.join("~");
}

const readCookie = () => document.cookie.split("; ").find((pair) => pair.startsWith(`${COOKIE}=`))?.slice(COOKIE.length + 1) ?? "";

/** Stores the zone for the server. Returns whether the page was rendered in another one. */
function storeZone() {
  const wanted = isLocal() ? describeZone(Date.now()) : "";
  const now = readCookie();
  if (now === wanted) return false;
  const secure = location.protocol === "https:" ? "; Secure" : "";
  document.cookie = `${COOKIE}=${wanted}; Path=/; Max-Age=${wanted ? YEAR_S : 0}; SameSite=Lax${secure}`;
  // The range of the cookie moves by a day each day, which changes nothing on the page.
  const isRefresh = wanted !== "" && now.split("~")[0] === wanted.split("~")[0];
  return !isRefresh && readCookie() === wanted;
}

/** Returns the name of the chosen zone. */
export const zoneName = () => (isLocal() ? localName() : "UTC");

/** Returns a time as the value of a date-time field, in the chosen zone. */
export function toField(date, length = 16) {
  const offset = isLocal() ? date.getTimezoneOffset() * MINUTE_MS : 0;
  return new Date(date.getTime() - offset).toISOString().slice(0, length);
}

/** Returns the time in a date-time field, which is in the chosen zone. */
export const fromField = (value) => new Date(isLocal() ? value : `${value}Z`);

/** Fills the list to choose the zone, and names the zone beside the fields of the page. */
export function zoneChoice() {
  for (const label of document.querySelectorAll("[data-zone-name]")) label.textContent = `(${zoneName()})`;
  const choice = document.getElementById("zone-choice");
  if (!choice) return;
  choice.querySelector("option[value=local]").textContent = `Local (${localName()})`;
  choice.value = isLocal() ? "local" : "utc";
  choice.closest("[hidden]")?.removeAttribute("hidden");
  choice.addEventListener("change", () => {
    localStorage.setItem(CHOICE, choice.value);
    storeZone();
    location.reload();
  });
}

// Another tab may have chosen another zone, the device may have moved, and the cookie may have expired.
if (storeZone()) location.reload();
