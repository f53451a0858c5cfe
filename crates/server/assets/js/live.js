// Updates the part of a page between <!--live--> and <!--/live-->: the server sends it again when it has changed.
import { showTimes } from "./times.js";
import { morph } from "./morph.js";

const state = document.getElementById("live-state");
/** Delay before reconnecting when the browser itself has given up, in milliseconds. */
const AGAIN = 5000;

function say(kind, words) {
  state.hidden = false;
  state.className = `live-state ${kind}`;
  state.textContent = words;
}

/** Returns the two marks around the live part. */
function marks(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_COMMENT);
  let begin = null;
  while (walker.nextNode()) {
    const text = walker.currentNode.data;
    if (text === "live") begin = walker.currentNode;
    if (text === "/live" && begin) return [begin, walker.currentNode];
  }
  return null;
}

export function live() {
  const main = document.getElementById("main");
  if (!main || !marks(main)) return;
  let source = null;
  let again = 0;
  let gone = false;

  const open = () => {
    if (source || gone) return;
    source = new EventSource(`/dashboard/live?page=${encodeURIComponent(location.pathname + location.search)}`);
    source.addEventListener("open", () => say("on", "Live"));
    source.addEventListener("error", () => {
      say("off", "Reconnecting");
      // Browsers reconnect to an unavailable server, but not to one that refused the request.
      if (source?.readyState === EventSource.CLOSED) refused();
    });
    source.addEventListener("gone", () => {
      close();
      gone = true;
      say("off", "No longer there. Reload to see.");
    });
    source.addEventListener("stale", () => say("off", "Not up to date"));
    source.addEventListener("part", (event) => {
      say("on", "Live");
      const found = marks(main);
      if (!found) return;
      const fresh = document.createElement("template");
      fresh.innerHTML = event.data;
      morph(found[0], found[1], fresh.content);
      showTimes(main);
      document.dispatchEvent(new CustomEvent("redrive:part"));
    });
  };
  const close = () => {
    clearTimeout(again);
    source?.close();
    source = null;
  };
  const refused = async () => {
    close();
    const page = await fetch(location.href, { redirect: "manual" }).catch(() => null);
    if (page?.type === "opaqueredirect") say("off", "Logged out. Reload to log in.");
    else again = setTimeout(follow, AGAIN);
  };

  // Hidden pages are disconnected to save resources.
  const follow = () => (document.visibilityState === "visible" ? open() : close());
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", close);
  addEventListener("pageshow", follow);
  follow();
}
