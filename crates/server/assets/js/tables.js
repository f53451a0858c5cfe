// Tables: sorting of what is on the page, column widths, and labels for the cells of narrow screens.
import { showWidths } from "./column-widths.js";
import { headersOf, keyOf, nameOf } from "./table-parts.js";

/** Chosen order per table: the column, and whether it descends. */
const orders = new Map();
const UNITS = { ms: 1, s: 1e3, min: 6e4, h: 3.6e6, d: 8.64e7, B: 1, KiB: 1024, MiB: 1024 ** 2, "%": 1 };

/** Returns what a cell is sorted by: a number or a text, or null if it has no value. */
function sortValue(cell) {
  const time = cell?.querySelector("time[datetime]");
  if (time) return Date.parse(time.dateTime);
  const text = cell?.dataset.sort ?? cell?.textContent.trim() ?? "";
  if (text === "" || text === "–") return null;
  const [, number, unit] = /^([\d,]+(?:\.\d+)?)\+?\s*(\S*)/.exec(text) ?? [];
  if (number === undefined || !(unit === "" || unit in UNITS || cell.classList.contains("num"))) return text.toLowerCase();
  return Number(number.replaceAll(",", "")) * (UNITS[unit] ?? 1);
}

/** Compares two values. Cells without a value are last in both directions. */
function compare(a, b, descending) {
  if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return descending ? -order : order;
}

/** Sorts the rows of a table by its chosen order. */
function sortRows(table) {
  const order = orders.get(keyOf(table));
  const body = table.tBodies[0];
  if (!order || !body) return;
  const rows = [...body.rows].map((row) => [sortValue(row.cells[order.column]), row]);
  rows.sort(([a], [b]) => compare(a, b, order.descending));
  body.append(...rows.map(([, row]) => row));
}

/** Marks the column that a table is sorted by. */
function markOrder(table) {
  const order = orders.get(keyOf(table));
  for (const [column, header] of headersOf(table).entries()) {
    if (order?.column === column) header.setAttribute("aria-sort", order.descending ? "descending" : "ascending");
    else if (header.querySelector(".sort")) header.removeAttribute("aria-sort");
  }
}

/** Returns whether a table shows only a part of its listing, which continues on other pages. */
function hasOtherPages(table) {
  const box = table.closest(".scroll");
  return "partial" in box.dataset || Boolean(box.parentNode.querySelector(":scope > nav.paging a"));
}

/** Shows below a table what it is sorted by, and a button for the order of the server. */
function showNote(table) {
  const box = table.closest(".scroll");
  const old = box.nextElementSibling?.matches("[data-sort-note]") ? box.nextElementSibling : null;
  const order = orders.get(keyOf(table));
  if (!order) return void old?.remove();
  const note = old ?? document.createElement("p");
  note.className = "small muted sort-note";
  note.dataset.sortNote = "";
  note.dataset.local = "";
  note.setAttribute("role", "status");
  const name = nameOf(headersOf(table)[order.column]);
  const scope = hasOtherPages(table) ? "Only the rows of this page are sorted" : "Sorted";
  const reset = document.createElement("button");
  reset.type = "button";
  reset.className = "quiet small";
  reset.textContent = "Original order";
  reset.addEventListener("click", () => {
    orders.delete(keyOf(table));
    restoreOrder(table);
    update(table);
  });
  note.replaceChildren(`${scope} by ${name}, ${order.descending ? "descending" : "ascending"}. `, reset);
  if (!old) box.after(note);
}

function restoreOrder(table) {
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => a.dataset.position - b.dataset.position);
  table.tBodies[0].append(...rows);
}

function update(table) {
  sortRows(table);
  markOrder(table);
  showNote(table);
}

function sortBy(header) {
  const table = header.closest("table");
  const column = headersOf(table).indexOf(header);
  const now = orders.get(keyOf(table));
  // Numbers and times start with the largest and newest.
  const descends = header.classList.contains("num") || Boolean(table.tBodies[0]?.rows[0]?.cells[column]?.querySelector("time"));
  orders.set(keyOf(table), { column, descending: now?.column === column ? !now.descending : descends });
  update(table);
}

/** Gives a header a button to sort by it, and a handle for its width. */
function enhanceHeader(header) {
  if (header.hasAttribute("data-unsorted")) return;
  if (header.querySelector(".sort, a, button, input, .visually-hidden") || !header.textContent.trim()) return;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "sort";
  button.append(...header.childNodes);
  const handle = document.createElement("span");
  handle.className = "resizer";
  handle.tabIndex = 0;
  handle.setAttribute("role", "separator");
  handle.setAttribute("aria-orientation", "vertical");
  handle.setAttribute("aria-label", "Column width");
  handle.setAttribute("aria-valuenow", "0");
  header.append(button, handle);
}

/** Labels the cells of a table with the names of their columns. */
function labelCells(table) {
  const names = headersOf(table).map((header) => (header.querySelector(".visually-hidden") ? "" : nameOf(header)));
  for (const body of table.tBodies) {
    for (const row of body.rows) {
      for (const [column, cell] of [...row.cells].entries()) {
        if (cell.dataset.label === undefined && names[column]) cell.dataset.label = names[column];
      }
    }
  }
}

/** Adds to all tables in `root` what scripts offer. The same function prepares the new version of a live part. */
export function enhanceTables(root = document) {
  for (const table of root.querySelectorAll(".scroll > table")) {
    labelCells(table);
    if (!table.matches(".settings, .webhooks")) table.classList.add("stacked");
    if (table.hasAttribute("data-plain")) continue;
    for (const header of headersOf(table)) enhanceHeader(header);
    // The order of the server, to which the user can return.
    for (const [position, row] of [...(table.tBodies[0]?.rows ?? [])].entries()) row.dataset.position = position;
    sortRows(table);
    markOrder(table);
    showWidths(table);
  }
}

/** Sorts tables when their headers are clicked. */
export function sorting() {
  document.addEventListener("click", (event) => {
    const header = event.target.closest(".sort")?.closest("th");
    if (header) sortBy(header);
  });
}
