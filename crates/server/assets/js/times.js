// Relative times: "3 min ago", "in 20 s". The exact time is in the title.

const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

/** Formats a time relative to now. */
export function formatRelative(then, now) {
  const seconds = Math.round((then - now) / 1000);
  const distance = Math.abs(seconds);
  if (distance < 2) return "now";
  const [unit, size] = UNITS.find(([, size]) => distance >= size);
  const amount = `${Math.floor(distance / size)} ${unit}`;
  return seconds < 0 ? `${amount} ago` : `in ${amount}`;
}

export function showTimes(root = document) {
  const now = Date.now();
  for (const element of (root.querySelectorAll ? root : document).querySelectorAll("time[datetime]:not([data-exact])")) {
    const then = Date.parse(element.dateTime);
    if (Number.isNaN(then)) continue;
    if (!element.title) element.title = element.textContent;
    const text = formatRelative(then, now);
    if (element.textContent !== text) element.textContent = text;
  }
}
