// Keeps the rows of a live table in place while the user reads it: under the pointer, with the keyboard focus in it,
// or after a touch. Values in these rows still change; new rows are counted on a button that shows them.

/** Maximum number of new rows that are remembered to count them. */
const MAX_COUNTED_ROWS = 1000;

/** Tables that are being read, by cause. */
const reading = { pointer: null, touch: null };
/** New rows per table since it was held: their ids, and whether there may be more. */
const unseen = new WeakMap();
/** Table whose newest rows are being shown although it is being read. */
let releasing = null;
let showNewest = () => {};

/** Returns the table that an element belongs to: it contains the element, or the element is its button. */
function tableOf(element) {
  const bar = element?.closest?.("[data-held]");
  if (bar) return bar.nextElementSibling?.querySelector("table") ?? null;
  return element?.closest?.("table") ?? null;
}

/** Returns the table with the keyboard focus. A click with the mouse also focuses, but does not hold. */
function focusedTable() {
  const focused = document.activeElement;
  return focused?.matches(":focus-visible") ? tableOf(focused) : null;
}

const isRead = (table) => table !== releasing && [reading.pointer, reading.touch, focusedTable()].includes(table);

const rowsOf = (table) => [...(table.tBodies[0]?.rows ?? [])];

/** Returns the tables of the page and their new versions in pairs. */
function pairTables(main, fresh) {
  const [now, next] = [[...main.querySelectorAll(".scroll > table")], [...fresh.querySelectorAll(".scroll > table")]];
  return now.length === next.length ? now.map((table, index) => [table, next[index]]) : [];
}

/** Gives the new version of a table the rows that are on the page, in their order, and returns the ids of its new rows. */
function keepRows(table, next) {
  const shown = rowsOf(table);
  const fresh = new Map(rowsOf(next).map((row) => [row.id, row]));
  if (shown.some((row) => !row.id) || fresh.has("")) return [];
  const known = new Set(shown.map((row) => row.id));
  const added = [...fresh.keys()].filter((id) => !known.has(id));
  next.tBodies[0]?.replaceChildren(...shown.map((row) => fresh.get(row.id) ?? row.cloneNode(true)));
  return added;
}

/** Counts new rows of a held table. */
function countUnseen(table, added, isWholePage) {
  const counted = unseen.get(table) ?? { ids: new Set(), more: false };
  for (const id of added) if (counted.ids.size < MAX_COUNTED_ROWS) counted.ids.add(id);
  counted.more ||= isWholePage || counted.ids.size >= MAX_COUNTED_ROWS;
  unseen.set(table, counted);
  return counted;
}

/** Shows, updates or removes the button above a table that shows its new rows. */
function showBar(table) {
  const box = table.closest(".scroll");
  let bar = box.previousElementSibling?.matches("[data-held]") ? box.previousElementSibling : null;
  const counted = unseen.get(table);
  if (!counted?.ids.size) return void bar?.remove();
  if (!bar) {
    bar = document.createElement("div");
    bar.className = "held";
    bar.dataset.held = "";
    bar.dataset.local = "";
    bar.setAttribute("role", "status");
    const button = document.createElement("button");
    button.type = "button";
    button.addEventListener("click", (event) => release(table, event.detail === 0));
    bar.append(button);
    box.before(bar);
  }
  const text = `${counted.ids.size}${counted.more ? "+" : ""} new`;
  const button = bar.firstChild;
  if (button.textContent !== text) button.textContent = text;
  button.title = "Show the new rows";
}

/** Shows the newest rows of a table. After a key press the first of them gets the focus. */
function release(table, byKeyboard) {
  releasing = table;
  reading.touch = null;
  unseen.delete(table);
  showNewest();
  releasing = null;
  rowsOf(table)[0]?.scrollIntoView({ block: "nearest" });
  if (byKeyboard) rowsOf(table)[0]?.querySelector("a, button, input")?.focus();
}

/** Applies the waiting changes once a table is not read any more. */
function releaseUnread() {
  const waiting = [...document.querySelectorAll("#main .scroll > table")].filter((table) => unseen.has(table));
  if (waiting.some((table) => !isRead(table))) showNewest();
}

/**
 * Changes a new version of the live part so that tables that are being read keep their rows. Returns a function that
 * is called once that version is on the page: it shows the buttons and keeps the row that is read in its position.
 */
export function holdRows(main, fresh, show) {
  showNewest = show;
  const held = [];
  for (const [table, next] of pairTables(main, fresh)) {
    if (!isRead(table)) {
      unseen.delete(table);
      continue;
    }
    const total = rowsOf(next).length;
    const added = keepRows(table, next);
    countUnseen(table, added, total > 0 && added.length === total);
    held.push(table);
  }
  const anchor = held.length > 0 ? (main.querySelector("tr:hover") ?? document.activeElement?.closest("tr") ?? held[0]) : null;
  const before = anchor?.getBoundingClientRect().top;
  return () => {
    for (const table of main.querySelectorAll(".scroll > table")) showBar(table);
    if (!anchor?.isConnected) return;
    const moved = anchor.getBoundingClientRect().top - before;
    if (moved) scrollBy({ top: moved, behavior: "instant" });
  };
}

/** Follows which table is being read. */
export function trackReading() {
  const setPointer = (table) => {
    if (reading.pointer === table) return;
    reading.pointer = table;
    releaseUnread();
  };
  document.addEventListener("pointerover", (event) => {
    if (event.pointerType !== "touch") setPointer(tableOf(event.target));
  });
  document.documentElement.addEventListener("pointerleave", () => setPointer(null));
  document.addEventListener("pointerdown", (event) => {
    const table = event.pointerType === "touch" ? tableOf(event.target) : null;
    if (table && !event.target.closest("[data-held]")) reading.touch = table;
  });
  // The focus has moved only after this event.
  document.addEventListener("focusout", () => setTimeout(releaseUnread));
}
