// The live part of a page, between two markers, and its replacement by a new version.
import { holdRows } from "./held-rows.js";
import { morph } from "./morph.js";
import { enhanceTables } from "./tables.js";
import { showTimes } from "./times.js";

/** Returns the two markers around the live part. */
export function findMarkers(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_COMMENT);
  let begin = null;
  while (walker.nextNode()) {
    const text = walker.currentNode.data;
    if (text === "live") begin = walker.currentNode;
    if (text === "/live" && begin) return [begin, walker.currentNode];
  }
  return null;
}

/** Newest version of the part, as the server sent it. */
let newest = "";

/** Shows a new version of the live part of `main`. Rows of a table that is being read stay in place. */
export function showPart(main, html = newest) {
  newest = html;
  const found = findMarkers(main);
  if (!found || !html) return;
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  enhanceTables(fresh.content);
  const settle = holdRows(main, fresh.content, () => showPart(main));
  morph(found[0], found[1], fresh.content);
  showTimes(main);
  settle();
  document.dispatchEvent(new CustomEvent("redrive:part"));
}
