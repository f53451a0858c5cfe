// Patches the page to match a new version and leaves equal nodes untouched: a field being edited, an open detail,
// a selection and the focus stay.

/** Attributes that are kept even if the new version lacks them. */
const KEPT_ATTRIBUTES = new Set(["open", "title", "data-kept", "aria-busy", "style", "tabindex"]);
/** Attributes that are not copied: what the user has opened stays open, and pages may not set styles in attributes. */
const NOT_COPIED = new Set(["open", "style"]);

/** Returns the node, or the next one that the server sent: scripts mark their own elements with `data-local`. */
function skipLocal(node) {
  while (node?.nodeType === Node.ELEMENT_NODE && node.hasAttribute("data-local")) node = node.nextSibling;
  return node;
}

/** Returns whether one node can be patched into the other. */
function isSameNode(a, b) {
  if (a.nodeType !== b.nodeType || a.nodeName !== b.nodeName) return false;
  return a.nodeType !== Node.ELEMENT_NODE || a.id === b.id;
}

/** Removes the white space between rows: rows would be moved around it, and a row that is moved loses the focus. */
function removeText(body) {
  for (const node of [...body.childNodes]) if (node.nodeType === Node.TEXT_NODE) node.remove();
}

/** Patches one node to match the new version. */
function patchNode(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  // A focused field is not changed, nor are nodes that a script filled.
  if (old.hasAttribute("data-kept") || old === document.activeElement && old.matches("input, select, textarea")) return;
  // The error of a form stays beside its field until it is submitted again.
  if (old.nodeName === "FORM" && old.querySelector("[aria-invalid], .fault-summary")) return;
  // A time is already displayed as relative text; only a different time changes it.
  if (old.nodeName === "TIME" && old.dateTime === fresh.dateTime && old.title) return;
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !KEPT_ATTRIBUTES.has(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value && !NOT_COPIED.has(name)) old.setAttribute(name, value);
  }
  if (old.nodeName === "TIME") old.removeAttribute("title");
  if (old.nodeName === "TBODY") for (const body of [old, fresh]) removeText(body);
  patchChildren(old, old.firstChild, null, fresh);
}

/** Patches the children of `parent` from `old` up to `end` to match those of `fresh`. */
function patchChildren(parent, old, end, fresh) {
  for (let next = fresh.firstChild; next; ) {
    const following = next.nextSibling;
    old = skipLocal(old);
    if (next.nodeType === Node.ELEMENT_NODE && next.id) {
      // An element with an id may have moved: search further on.
      let found = old;
      while (found && found !== end && !isSameNode(found, next)) found = found.nextSibling;
      if (found && found !== end && found !== old) {
        parent.insertBefore(found, old);
        patchNode(found, next);
        next = following;
        continue;
      }
    }
    if (old && old !== end && isSameNode(old, next)) {
      const after = old.nextSibling;
      patchNode(old, next);
      old = after;
    } else {
      parent.insertBefore(next, old ?? end);
    }
    next = following;
  }
  for (old = skipLocal(old); old && old !== end; ) {
    const after = skipLocal(old.nextSibling);
    old.remove();
    old = after;
  }
}

/** Patches the nodes between two markers. */
export function morph(begin, end, fresh) {
  patchChildren(begin.parentNode, begin.nextSibling, end, fresh);
}
