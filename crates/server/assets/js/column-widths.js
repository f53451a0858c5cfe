// Widths of table columns: changed with the pointer or the arrow keys, and remembered per table in this browser.
import { headersOf, keyOf, nameOf } from "./table-parts.js";

const STORED = "redrive-column-widths";
const MIN_WIDTH = 56;
const MAX_WIDTH = 1200;
/** Change of a width by an arrow key, in pixels. */
const KEY_STEP = 16;
/** Maximum number of tables whose widths are remembered. */
const MAX_TABLES = 60;

function load() {
  try {
    return JSON.parse(localStorage.getItem(STORED)) ?? {};
  } catch {
    return {};
  }
}

/** Stores the widths of a table, by the names of its columns; null forgets them. */
function store(table, widths) {
  const { [keyOf(table)]: _, ...others } = load();
  const entries = Object.entries(others).slice(-MAX_TABLES + 1);
  if (widths) entries.push([keyOf(table), widths]);
  try {
    localStorage.setItem(STORED, JSON.stringify(Object.fromEntries(entries)));
  } catch {
    // A browser without storage, or with a full one, forgets the widths.
  }
}

/** Applies the remembered widths to a table, or the automatic ones. */
export function showWidths(table) {
  const widths = load()[keyOf(table)];
  table.classList.toggle("sized", Boolean(widths));
  let sum = 0;
  for (const header of headersOf(table)) {
    const width = widths?.[nameOf(header)];
    header.style.width = width ? `${width}px` : "";
    sum += width ?? 0;
    header.querySelector(".resizer")?.setAttribute("aria-valuenow", String(width ?? 0));
  }
  table.style.width = widths ? `${sum}px` : "";
}

/** Changes the width of one column; the others keep theirs. */
function setWidth(header, width) {
  const table = header.closest("table");
  const measured = headersOf(table).map((one) => [nameOf(one), Math.round(one.getBoundingClientRect().width)]);
  const widths = { ...Object.fromEntries(measured), [nameOf(header)]: Math.round(Math.min(MAX_WIDTH, Math.max(MIN_WIDTH, width))) };
  store(table, widths);
  showWidths(table);
  document.dispatchEvent(new CustomEvent("redrive:widths"));
}

/** Follows the pointer while a handle is dragged. */
function drag(handle, event) {
  const header = handle.closest("th");
  const [from, before] = [event.clientX, header.getBoundingClientRect().width];
  const move = ({ clientX }) => setWidth(header, before + clientX - from);
  const end = () => {
    handle.removeEventListener("pointermove", move);
    handle.removeEventListener("pointerup", end);
    handle.removeEventListener("pointercancel", end);
  };
  handle.setPointerCapture(event.pointerId);
  handle.addEventListener("pointermove", move);
  handle.addEventListener("pointerup", end);
  handle.addEventListener("pointercancel", end);
  event.preventDefault();
}

/** Changes widths with the handles of all tables. */
export function resizing() {
  document.addEventListener("pointerdown", (event) => {
    const handle = event.target.closest?.(".resizer");
    if (handle) drag(handle, event);
  });
  document.addEventListener("dblclick", (event) => {
    const table = event.target.closest(".resizer")?.closest("table");
    if (!table) return;
    store(table, null);
    showWidths(table);
  });
  document.addEventListener("keydown", (event) => {
    const header = event.target.closest?.(".resizer")?.closest("th");
    const step = { ArrowLeft: -KEY_STEP, ArrowRight: KEY_STEP }[event.key];
    if (!header || !step) return;
    event.preventDefault();
    setWidth(header, header.getBoundingClientRect().width + step);
  });
}
