// What all stories share: a browser, visitors whose every fault is noticed, receivers, the API, and a look at how a
// page looks. A story waits for signals, never for time, and does what a person would: it finds things by their words.
"use strict";

const assert = require("node:assert/strict");
const { once } = require("node:events");
const fs = require("node:fs");
const http = require("node:http");
const path = require("node:path");
const readline = require("node:readline");
const { chromium } = require("playwright-core");

/** How long anything is waited for, in milliseconds. */
const PATIENCE = 20_000;
/** How long a whole story may take. */
const LONGEST = 200_000;
const DESKTOP = { width: 1280, height: 800 };
const PHONE = { width: 375, height: 812 };
const AXE = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const CHROMIUMS = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

/** Where Chromium is: REDRIVE_CHROMIUM, or where Debian and others put it. */
function chromiumPath() {
  const known = [process.env.REDRIVE_CHROMIUM, ...CHROMIUMS].filter(Boolean);
  const found = known.find((file) => fs.existsSync(file));
  if (!found) throw new Error("there is no Chromium here; on Debian: sudo apt-get install chromium (or set REDRIVE_CHROMIUM)");
  return found;
}

/** A browser, as everything here uses it. */
function launch() {
  // Chromium refuses its sandbox to root.
  return chromium.launch({ executablePath: chromiumPath(), chromiumSandbox: process.getuid() !== 0 });
}

/** Somebody with a browser of their own. Whatever goes wrong in it is a fault, unless the story allowed it. */
class Visitor {
  constructor(stage, context) {
    Object.assign(this, { stage, context, faults: [], allowed: [] });
  }

  /** Things that may go wrong in this story: texts that match are no faults. */
  allow(...patterns) {
    this.allowed.push(...patterns);
  }

  #fault(text) {
    if (!this.allowed.some((pattern) => pattern.test(text))) this.faults.push(text);
  }

  /** Opens one more tab. */
  async tab() {
    const page = await this.context.newPage();
    page.setDefaultTimeout(PATIENCE);
    page.on("console", (message) => {
      if (message.type() === "error") this.#fault(`console: ${message.text()} (${message.location().url})`);
    });
    page.on("pageerror", (error) => this.#fault(`script: ${error.stack ?? error}`));
    page.on("dialog", (dialog) => {
      this.#fault(`dialog: ${dialog.message()}`);
      dialog.dismiss();
    });
    page.on("popup", (popup) => this.#fault(`popup: ${popup.url()}`));
    page.on("request", (request) => {
      const { protocol, origin } = new URL(request.url());
      if (protocol.startsWith("http") && origin !== this.stage.url) this.#fault(`request elsewhere: ${request.url()}`);
    });
    page.on("requestfailed", (request) => {
      const why = request.failure()?.errorText ?? "";
      // Leaving a page ends what it was still asking for.
      if (why !== "net::ERR_ABORTED") this.#fault(`request: ${request.method()} ${request.url()}: ${why}`);
    });
    return page;
  }

  /** Throws if something went wrong since the last look. */
  check() {
    const faults = this.faults.splice(0);
    assert.deepEqual(faults, [], "the browser noticed faults");
  }
}

/** An endpoint that keeps what arrives. `answer` may be changed at any time. */
class Receiver {
  constructor(answer) {
    Object.assign(this, { answer, arrivals: [], waiting: [] });
    this.server = http.createServer((request, response) => {
      const parts = [];
      request.on("data", (part) => parts.push(part));
      request.on("end", () => this.#arrived({ headers: request.headers, body: Buffer.concat(parts) }, response));
    });
  }

  #arrived(arrival, response) {
    this.arrivals.push(arrival);
    const { status = 200, headers = {}, body = "" } = this.answer(arrival);
    response.writeHead(status, headers).end(body);
    this.waiting = this.waiting.filter(([count, done]) => this.arrivals.length < count || done(this.arrivals));
  }

  /** Waits until this many requests have arrived. */
  async wait(count) {
    if (this.arrivals.length >= count) return this.arrivals;
    let timer;
    const late = new Promise((_, fail) => {
      const why = () => fail(new Error(`waited in vain for ${count} arrivals; there were ${this.arrivals.length}`));
      timer = setTimeout(why, PATIENCE);
    });
    const came = new Promise((done) => this.waiting.push([count, (all) => void done(all)]));
    return Promise.race([came, late]).finally(() => clearTimeout(timer));
  }
}

/** What a story is played on: a server of its own, and a browser. */
class Stage {
  constructor(settings, browser) {
    Object.assign(this, settings, { browser, visitors: [], receivers: [], home: "/dashboard/t/default" });
    this.answers = readline.createInterface({ input: process.stdin });
  }

  /** Somebody new: no cookies, no memory. Options as Playwright's contexts take them. */
  async visitor(options = {}) {
    const context = await this.browser.newContext({ baseURL: this.url, viewport: DESKTOP, ...options });
    const visitor = new Visitor(this, context);
    this.visitors.push(visitor);
    return visitor;
  }

  /** Somebody new who is logged in by link, and the tab that they look at. */
  async loggedIn(page = `${this.home}/deliveries`, { key = this.key, ...options } = {}) {
    const visitor = await this.visitor(options);
    const tab = await visitor.tab();
    await tab.goto(`/dashboard/login#${key}`);
    await tab.waitForURL((url) => !url.pathname.startsWith("/dashboard/login"));
    await tab.goto(page);
    return { visitor, page: tab };
  }

  /** Calls the API with the admin key, or with another. */
  async api(method, where, body, key = this.key) {
    const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
    const answer = await fetch(this.url + where, { method, headers, body: body && JSON.stringify(body) });
    const text = await answer.text();
    assert.ok(answer.ok, `${method} ${where} answered ${answer.status}: ${text}`);
    return text && JSON.parse(text);
  }

  /** Makes a webhook for all events. */
  webhook(url, extra = {}) {
    return this.api("POST", "/v1/webhooks", { url, events: ["*"], ...extra });
  }

  /** Publishes an event. */
  publish(type, data = {}) {
    return this.api("POST", "/v1/events", { event_type: type, data });
  }

  /** Asks the API until it answers as wanted. */
  async eventually(what, where, condition) {
    const until = Date.now() + PATIENCE;
    for (;;) {
      const answer = await this.api("GET", where);
      if (condition(answer)) return answer;
      assert.ok(Date.now() < until, `waited in vain for ${what}: ${JSON.stringify(answer).slice(0, 1000)}`);
      await new Promise((done) => setTimeout(done, 20));
    }
  }

  /** An endpoint; what it answers with is `{ status, headers, body }`. */
  async receiver(answer = () => ({ status: 200 })) {
    const receiver = new Receiver(answer);
    await new Promise((done) => receiver.server.listen(0, "127.0.0.1", done));
    receiver.url = `http://127.0.0.1:${receiver.server.address().port}/hook`;
    this.receivers.push(receiver);
    return receiver;
  }

  /** Has whoever started this do something with the server: "stop" or "start". */
  async have(what) {
    const answer = once(this.answers, "line");
    process.stdout.write(`>> ${what}\n`);
    assert.deepEqual(await answer, ["done"]);
  }

  /** One scene. Afterwards no visitor may have met a fault. */
  async scene(name, play) {
    const began = Date.now();
    try {
      await play();
      for (const visitor of this.visitors) visitor.check();
    } catch (error) {
      throw new Error(`it went wrong where ${name}`, { cause: error });
    }
    console.log(`  ${name} (${Date.now() - began} ms)`);
  }

  /** Keeps what can be seen at the moment, for whoever has to find out what went wrong. */
  async keepPictures() {
    const pages = this.visitors.flatMap((visitor) => visitor.context.pages());
    fs.mkdirSync(this.pictures, { recursive: true });
    for (const [number, page] of pages.entries()) {
      const file = path.join(this.pictures, `${path.basename(process.argv[1], ".js")}-${number}.png`);
      const kept = await page.screenshot({ path: file, timeout: 5_000 }).catch(() => null);
      if (kept) console.log(`  seen at the end: ${file} (${page.url()})`);
    }
    for (const visitor of this.visitors) for (const fault of visitor.faults) console.log(`  fault: ${fault}`);
  }

  async close() {
    await this.browser.close();
    for (const { server } of this.receivers) {
      server.closeAllConnections();
      server.close();
    }
    this.answers.close();
    process.stdin.destroy();
  }
}

/** Clicks what leads to another address, and waits until its page is there with its scripts. */
async function follow(page, link) {
  const before = page.url();
  await link.click();
  await page.waitForURL((url) => url.href !== before);
}

/** What axe finds on a page, as it is now, that would keep somebody from using it. */
async function hurdles(page) {
  // Through the browser's own door: the page's policy against foreign scripts stays in force.
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const grave = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  return grave.flatMap(({ id, help, nodes }) => nodes.map((node) => `${id} (${help}): ${node.html}`));
}

/** What sticks out of a page to the side, so that all of it scrolls. */
function sticksOut(page) {
  return page.evaluate(() => {
    const { scrollWidth, clientWidth } = document.documentElement;
    if (scrollWidth <= clientWidth) return [];
    const wide = [...document.querySelectorAll("body *")].filter((one) => one.getBoundingClientRect().right > clientWidth + 1);
    return [`${scrollWidth} px on ${clientWidth} px`, ...wide.slice(0, 3).map((one) => one.outerHTML.slice(0, 200))];
  });
}

/** What is wrong with a page in either theme, on a desk or on a phone: hurdles, and what sticks out. */
async function flaws(page) {
  const found = new Set();
  // Colours are the same on a phone: there, one theme tells as much as two.
  for (const [colorScheme, size] of [["light", DESKTOP], ["dark", DESKTOP], ["dark", PHONE]]) {
    await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
    await page.setViewportSize(size);
    const where = `${page.url()} in ${colorScheme} at ${size.width} px`;
    for (const hurdle of await hurdles(page)) found.add(`${where}: ${hurdle}`);
    for (const wide of await sticksOut(page)) found.add(`${where}: too wide: ${wide}`);
  }
  await page.emulateMedia({ colorScheme: null, reducedMotion: null });
  await page.setViewportSize(DESKTOP);
  return [...found];
}

/** Plays a story, and ends the process with 0 if all of it went well. */
async function story(play) {
  setTimeout(() => {
    console.log(`the story took longer than ${LONGEST / 1000} s`);
    process.exit(1);
  }, LONGEST).unref();
  const stage = new Stage(JSON.parse(process.env.REDRIVE_STAGE), await launch());
  try {
    await play(stage);
  } catch (error) {
    console.log(error);
    await stage.keepPictures();
    process.exitCode = 1;
  } finally {
    await stage.close();
  }
}

module.exports = { assert, flaws, follow, hurdles, launch, sticksOut, story, DESKTOP, PATIENCE, PHONE };
