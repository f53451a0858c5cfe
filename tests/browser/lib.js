// Shared by all scenarios: a browser, visitors that record every fault, receivers, the API, and checks of a page's
// accessibility and layout. A scenario waits for signals, never for time, and finds elements by their visible
// text.
"use strict";

const assert = require("node:assert/strict");
const { once } = require("node:events");
const fs = require("node:fs");
const http = require("node:http");
const path = require("node:path");
const readline = require("node:readline");
const { chromium } = require("playwright-core");

/** Timeout of every wait, in milliseconds. */
const WAIT_TIMEOUT_MS = 20_000;
/** Timeout of a whole scenario, in milliseconds. */
const SCENARIO_TIMEOUT_MS = 200_000;
const DESKTOP = { width: 1280, height: 800 };
const PHONE = { width: 375, height: 812 };
const AXE = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const CHROMIUMS = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

/** Returns the path of Chromium: REDRIVE_CHROMIUM, or where Debian and others install it. */
function chromiumPath() {
  const known = [process.env.REDRIVE_CHROMIUM, ...CHROMIUMS].filter(Boolean);
  const found = known.find((file) => fs.existsSync(file));
  if (!found) throw new Error("Chromium was not found; on Debian: sudo apt-get install chromium (or set REDRIVE_CHROMIUM)");
  return found;
}

/** Starts a browser with the settings of all scenarios. */
function launch() {
  // Chromium's sandbox does not work for root.
  return chromium.launch({ executablePath: chromiumPath(), chromiumSandbox: process.getuid() !== 0 });
}

/** A user with a separate browser context. Every error in it is a fault, unless the scenario allowed it. */
class Visitor {
  constructor(fixture, context) {
    Object.assign(this, { fixture, context, faults: [], allowed: [] });
  }

  /** Allows errors in this scenario: texts that match one of the patterns are not faults. */
  allow(...patterns) {
    this.allowed.push(...patterns);
  }

  #fault(text) {
    if (!this.allowed.some((pattern) => pattern.test(text))) this.faults.push(text);
  }

  /** Opens another tab. */
  async tab() {
    const page = await this.context.newPage();
    page.setDefaultTimeout(WAIT_TIMEOUT_MS);
    page.on("console", (message) => {
      if (message.type() === "error") this.#fault(`console: ${message.text()} (${message.location().url})`);
    });
    page.on("pageerror", (error) => this.#fault(`script: ${error.stack || `${error.name}: ${error.message}`}`));
    page.on("dialog", (dialog) => {
      this.#fault(`dialog: ${dialog.message()}`);
      dialog.dismiss();
    });
    page.on("popup", (popup) => this.#fault(`popup: ${popup.url()}`));
    page.on("request", (request) => {
      const { protocol, origin } = new URL(request.url());
      if (protocol.startsWith("http") && origin !== this.fixture.url) this.#fault(`request elsewhere: ${request.url()}`);
    });
    page.on("requestfailed", (request) => {
      const why = request.failure()?.errorText ?? "";
      // Leaving a page aborts its pending requests.
      if (why !== "net::ERR_ABORTED") this.#fault(`request: ${request.method()} ${request.url()}: ${why}`);
    });
    return page;
  }

  /** Throws if there was a fault since the last check. */
  check() {
    const faults = this.faults.splice(0);
    assert.deepEqual(faults, [], "the browser recorded faults");
  }
}

/** An endpoint that records requests. `respond` may be changed at any time. */
class Receiver {
  constructor(respond) {
    Object.assign(this, { respond, arrivals: [], waiting: [] });
    this.server = http.createServer((request, response) => {
      const parts = [];
      request.on("data", (part) => parts.push(part));
      request.on("end", () => this.#arrived({ headers: request.headers, body: Buffer.concat(parts) }, response));
    });
  }

  #arrived(arrival, response) {
    this.arrivals.push(arrival);
    const { status = 200, headers = {}, body = "" } = this.respond(arrival);
    response.writeHead(status, headers).end(body);
    this.waiting = this.waiting.filter(([count, done]) => this.arrivals.length < count || done(this.arrivals));
  }

  /** Waits until this many requests were received. */
  async wait(count) {
    if (this.arrivals.length >= count) return this.arrivals;
    let timer;
    const late = new Promise((_, fail) => {
      const failLate = () => fail(new Error(`expected ${count} requests; ${this.arrivals.length} arrived within the timeout`));
      timer = setTimeout(failLate, WAIT_TIMEOUT_MS);
    });
    const arrived = new Promise((done) => this.waiting.push([count, (all) => void done(all)]));
    return Promise.race([arrived, late]).finally(() => clearTimeout(timer));
  }
}

/** The fixture of a scenario: its own server, and a browser. */
class Fixture {
  constructor(settings, browser) {
    Object.assign(this, settings, { browser, visitors: [], receivers: [], home: "/dashboard/t/default" });
    this.replies = readline.createInterface({ input: process.stdin });
  }

  /** Creates a visitor without cookies or stored data. Takes the options of a Playwright context. */
  async visitor(options = {}) {
    const context = await this.browser.newContext({ baseURL: this.url, viewport: DESKTOP, ...options });
    const visitor = new Visitor(this, context);
    this.visitors.push(visitor);
    return visitor;
  }

  /** Creates a visitor that is logged in by link, and returns it with its open tab. */
  async loggedIn(page = `${this.home}/deliveries`, { key = this.key, ...options } = {}) {
    const visitor = await this.visitor(options);
    const tab = await visitor.tab();
    await tab.goto(`/dashboard/login#${key}`);
    await tab.waitForURL((url) => !url.pathname.startsWith("/dashboard/login"));
    await tab.goto(page);
    return { visitor, page: tab };
  }

  /** Calls the API with the admin key, or with another key. */
  async api(method, where, body, key = this.key) {
    const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
    const response = await fetch(this.url + where, { method, headers, body: body && JSON.stringify(body) });
    const text = await response.text();
    assert.ok(response.ok, `${method} ${where} returned ${response.status}: ${text}`);
    return text && JSON.parse(text);
  }

  /** Creates a webhook for all events. */
  webhook(url, extra = {}) {
    return this.api("POST", "/v1/webhooks", { url, events: ["*"], ...extra });
  }

  /** Publishes an event. */
  publish(type, data = {}) {
    return this.api("POST", "/v1/events", { event_type: type, data });
  }

  /** Polls the API until `condition` holds for the response. */
  async eventually(what, where, condition) {
    const until = Date.now() + WAIT_TIMEOUT_MS;
    for (;;) {
      const body = await this.api("GET", where);
      if (condition(body)) return body;
      assert.ok(Date.now() < until, `timed out waiting for ${what}: ${JSON.stringify(body).slice(0, 1000)}`);
      await new Promise((done) => setTimeout(done, 20));
    }
  }

  /** Starts an endpoint that responds with the `{ status, headers, body }` that `respond` returns. */
  async receiver(respond = () => ({ status: 200 })) {
    const receiver = new Receiver(respond);
    await new Promise((done) => receiver.server.listen(0, "127.0.0.1", done));
    receiver.url = `http://127.0.0.1:${receiver.server.address().port}/webhook`;
    this.receivers.push(receiver);
    return receiver;
  }

  /** Asks the test process to control the server: "stop" or "start", or "freeze" or "thaw", which keep connections. */
  async controlServer(action) {
    const reply = once(this.replies, "line");
    process.stdout.write(`>> ${action}\n`);
    assert.deepEqual(await reply, ["done"]);
  }

  /** Runs one step. Afterwards no visitor may have recorded a fault. */
  async step(name, run) {
    const startedAt = Date.now();
    try {
      await run();
      for (const visitor of this.visitors) visitor.check();
    } catch (error) {
      throw new Error(`step failed: ${name}`, { cause: error });
    }
    console.log(`  ${name} (${Date.now() - startedAt} ms)`);
  }

  /** Saves screenshots of all open tabs, to diagnose a failure. */
  async saveScreenshots() {
    const pages = this.visitors.flatMap((visitor) => visitor.context.pages());
    fs.mkdirSync(this.pictures, { recursive: true });
    for (const [number, page] of pages.entries()) {
      const file = path.join(this.pictures, `${path.basename(process.argv[1], ".js")}-${number}.png`);
      const saved = await page.screenshot({ path: file, timeout: 5_000 }).catch(() => null);
      if (saved) console.log(`  final screenshot: ${file} (${page.url()})`);
    }
    for (const visitor of this.visitors) for (const fault of visitor.faults) console.log(`  fault: ${fault}`);
  }

  async close() {
    await this.browser.close();
    for (const { server } of this.receivers) {
      server.closeAllConnections();
      server.close();
    }
    this.replies.close();
    process.stdin.destroy();
  }
}

/** Clicks a link to another URL, and waits until its page and scripts are loaded. */
async function follow(page, link) {
  const before = page.url();
  await link.click();
  await page.waitForURL((url) => url.href !== before);
}

/** Counts the clicks of a flow. */
class Clicks {
  count = 0;

  async on(locator, options) {
    this.count += 1;
    await locator.click(options);
  }
}

/** Returns the serious and critical accessibility violations that axe finds on a page. */
async function accessibilityViolations(page) {
  // Injected through the browser's own interface, so the page's content security policy stays in force.
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const severe = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  return severe.flatMap(({ id, help, nodes }) => nodes.map((node) => `${id} (${help}): ${node.html}`));
}

/** Returns the elements that overflow the page to the side, so that the whole page scrolls. */
function overflowingElements(page) {
  return page.evaluate(() => {
    const { scrollWidth, clientWidth } = document.documentElement;
    if (scrollWidth <= clientWidth) return [];
    const wide = [...document.querySelectorAll("body *")].filter((one) => one.getBoundingClientRect().right > clientWidth + 1);
    return [`${scrollWidth} px on ${clientWidth} px`, ...wide.slice(0, 3).map((one) => one.outerHTML.slice(0, 200))];
  });
}

/** Returns accessibility violations and overflowing elements of a page, in both themes, on desktop and phone. */
async function pageViolations(page) {
  const found = new Set();
  // Colours are the same on a phone, so one theme is enough there.
  for (const [colorScheme, size] of [["light", DESKTOP], ["dark", DESKTOP], ["dark", PHONE]]) {
    await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
    await page.setViewportSize(size);
    const where = `${page.url()} in ${colorScheme} at ${size.width} px`;
    for (const violation of await accessibilityViolations(page)) found.add(`${where}: ${violation}`);
    for (const wide of await overflowingElements(page)) found.add(`${where}: too wide: ${wide}`);
  }
  await page.emulateMedia({ colorScheme: null, reducedMotion: null });
  await page.setViewportSize(DESKTOP);
  return [...found];
}

/** Runs a scenario, and ends the process with status 0 if it succeeded. */
async function scenario(run) {
  setTimeout(() => {
    console.log(`the scenario took longer than ${SCENARIO_TIMEOUT_MS / 1000} s`);
    process.exit(1);
  }, SCENARIO_TIMEOUT_MS).unref();
  const fixture = new Fixture(JSON.parse(process.env.REDRIVE_FIXTURE), await launch());
  try {
    await run(fixture);
  } catch (error) {
    console.log(error);
    await fixture.saveScreenshots();
    process.exitCode = 1;
  } finally {
    await fixture.close();
  }
}

module.exports = { assert, accessibilityViolations, Clicks, follow, launch, overflowingElements, pageViolations, scenario, DESKTOP, PHONE };
