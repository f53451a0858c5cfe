// Updates the part of a page between <!--live--> and <!--/live-->: the server sends it again when it has changed.
import { showTimes } from "./times.js";
import { morph } from "./morph.js";

const state = document.getElementById("live-state");
/** Delay before reconnecting to a server that refused the connection, in milliseconds. */
const RECONNECT_DELAY_MS = 5000;

/** Shows the state of the connection: `on` or `off`, with a text. */
function showState(kind, text) {
  state.hidden = false;
  state.className = `live-state ${kind}`;
  state.textContent = text;
}

/** Returns the two markers around the live part. */
function findMarkers(root) {
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
  if (!main || !findMarkers(main)) return;
  let source = null;
  let reconnectTimer = 0;
  let gone = false;

  const open = () => {
    if (source || gone) return;
    source = new EventSource(`/dashboard/live?page=${encodeURIComponent(location.pathname + location.search)}`);
    source.addEventListener("open", () => showState("on", "Live"));
    source.addEventListener("error", () => {
      showState("off", "Reconnecting");
      // Browsers reconnect to an unavailable server, but not to one that refused the request.
      if (source?.readyState === EventSource.CLOSED) handleRefusal();
    });
    source.addEventListener("gone", () => {
      close();
      gone = true;
      showState("off", "This page no longer exists. Reload it.");
    });
    source.addEventListener("stale", () => showState("off", "Not up to date"));
    source.addEventListener("part", (event) => {
      showState("on", "Live");
      const found = findMarkers(main);
      if (!found) return;
      const fresh = document.createElement("template");
      fresh.innerHTML = event.data;
      morph(found[0], found[1], fresh.content);
      showTimes(main);
      document.dispatchEvent(new CustomEvent("redrive:part"));
    });
  };
  const close = () => {
    clearTimeout(reconnectTimer);
    source?.close();
    source = null;
  };
  const handleRefusal = async () => {
    close();
    const page = await fetch(location.href, { redirect: "manual" }).catch(() => null);
    if (page?.type === "opaqueredirect") showState("off", "Logged out. Reload to log in.");
    else reconnectTimer = setTimeout(follow, RECONNECT_DELAY_MS);
  };

  // Hidden pages are disconnected to save resources.
  const follow = () => (document.visibilityState === "visible" ? open() : close());
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", close);
  addEventListener("pageshow", follow);
  follow();
}
