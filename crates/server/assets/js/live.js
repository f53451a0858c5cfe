// Updates the part of a page between <!--live--> and <!--/live-->: the server sends it again when it has changed.
// Rows that the user is reading stay in place (held-rows.js).
import { toast } from "./api.js";
import { findMarkers, showPart } from "./live-part.js";

const state = document.getElementById("live-state");
/** Silence after which the server counts as unreachable, in milliseconds: it sends something every two seconds. */
const SILENCE_TIMEOUT_MS = 4000;
/** Delay before the next connection attempt, in milliseconds. */
const RECONNECT_DELAY_MS = 2000;
/** Delay before the next attempt after the server has refused a live page, in milliseconds. */
const REFUSED_DELAY_MS = 30_000;
/** How long a lost connection is not reported in a message, in milliseconds: leaving a page also closes it. */
const NOTICE_DELAY_MS = 400;

/** Shows the state of the connection: `on` or `off`, with a text. */
function showState(kind, text) {
  if (!state.hidden && state.textContent === text) return;
  state.hidden = false;
  state.className = `live-state ${kind}`;
  state.textContent = text;
}

/** Reports in a message that the server does not respond, once per lost connection. */
class OutageNotice {
  #timer = 0;
  #note = null;

  show() {
    if (this.#timer) return;
    this.#timer = setTimeout(() => {
      this.#note = toast("The server does not respond. This page is not updated until it does.", "bad");
    }, NOTICE_DELAY_MS);
  }

  clear() {
    clearTimeout(this.#timer);
    this.#note?.remove();
    this.#timer = 0;
    this.#note = null;
  }
}

export function live() {
  const main = document.getElementById("main");
  if (!main || !findMarkers(main)) return;
  const notice = new OutageNotice();
  let source = null;
  let silenceTimer = 0;
  let reconnectTimer = 0;
  let isStale = false;
  let gone = false;

  const address = () => `/dashboard/live?page=${encodeURIComponent(location.pathname + location.search)}`;
  const close = () => {
    clearTimeout(silenceTimer);
    clearTimeout(reconnectTimer);
    source?.close();
    source = null;
  };
  const awaitMessage = () => {
    clearTimeout(silenceTimer);
    silenceTimer = setTimeout(disconnected, SILENCE_TIMEOUT_MS);
  };
  const disconnected = () => {
    close();
    showState("off", "Disconnected");
    notice.show();
    reconnectTimer = setTimeout(follow, RECONNECT_DELAY_MS);
  };
  const connected = () => {
    awaitMessage();
    notice.clear();
    if (!isStale) showState("on", "Live");
  };
  const handleRefusal = async () => {
    close();
    const signal = AbortSignal.timeout(SILENCE_TIMEOUT_MS);
    const response = await fetch(address(), { redirect: "manual", signal }).catch(() => null);
    response?.body?.cancel();
    if (response?.type === "opaqueredirect") {
      notice.clear();
      showState("off", "Logged out. Reload to log in.");
    } else if (response?.status === 409 || response?.status === 429) {
      notice.clear();
      showState("off", "Not live: too many pages are open");
      reconnectTimer = setTimeout(follow, REFUSED_DELAY_MS);
    } else disconnected();
  };
  const open = () => {
    if (source || gone) return;
    source = new EventSource(address());
    awaitMessage();
    source.addEventListener("open", connected);
    source.addEventListener("beat", connected);
    // Browsers reconnect to an unavailable server, but not to one that refused the request.
    source.addEventListener("error", () => {
      if (source?.readyState === EventSource.CLOSED) handleRefusal();
      else disconnected();
    });
    source.addEventListener("gone", () => {
      close();
      gone = true;
      showState("off", "This page no longer exists. Reload it.");
    });
    source.addEventListener("stale", () => {
      isStale = true;
      awaitMessage();
      showState("off", "Not up to date");
    });
    source.addEventListener("part", (event) => {
      isStale = false;
      connected();
      showPart(main, event.data);
    });
  };

  // Hidden pages are disconnected to save resources.
  const follow = () => (document.visibilityState === "visible" ? open() : close());
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", () => {
    close();
    notice.clear();
  });
  addEventListener("pageshow", follow);
  follow();
}
