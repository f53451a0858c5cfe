// Makes what is on the page equal to what has come, and touches nothing that is equal already: a field that somebody
// types into, an opened detail, a selection and the focus all stay.

const KEPT = new Set(["open", "title", "data-kept", "aria-busy"]);

/** Whether two nodes can become one another. */
function alike(a, b) {
  if (a.nodeType !== b.nodeType || a.nodeName !== b.nodeName) return false;
  return a.nodeType !== Node.ELEMENT_NODE || a.id === b.id;
}

function become(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  // Whoever types is not interrupted; what a script has put there stays.
  if (old.hasAttribute("data-kept") || old === document.activeElement && old.matches("input, select, textarea")) return;
  // What is wrong with a form stays beside its field until it is sent again.
  if (old.nodeName === "FORM" && old.querySelector("[aria-invalid]")) return;
  // A time is in words already: only another time is news.
  if (old.nodeName === "TIME" && old.dateTime === fresh.dateTime && old.title) return;
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !KEPT.has(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value && name !== "open") old.setAttribute(name, value);
  }
  if (old.nodeName === "TIME") old.removeAttribute("title");
  children(old, old.firstChild, null, fresh);
}

/** Makes the nodes of `parent` from `old` up to `end` equal to those of `fresh`. */
function children(parent, old, end, fresh) {
  for (let next = fresh.firstChild; next; ) {
    const following = next.nextSibling;
    if (next.nodeType === Node.ELEMENT_NODE && next.id) {
      // Something with a name may have moved: it is looked for further on.
      let found = old;
      while (found && found !== end && !alike(found, next)) found = found.nextSibling;
      if (found && found !== end && found !== old) {
        parent.insertBefore(found, old);
        become(found, next);
        next = following;
        continue;
      }
    }
    if (old && old !== end && alike(old, next)) {
      const after = old.nextSibling;
      become(old, next);
      old = after;
    } else {
      parent.insertBefore(next, old ?? end);
    }
    next = following;
  }
  while (old && old !== end) {
    const after = old.nextSibling;
    old.remove();
    old = after;
  }
}

/** Replaces what lies between two nodes. */
export function morph(begin, end, fresh) {
  children(begin.parentNode, begin.nextSibling, end, fresh);
}
