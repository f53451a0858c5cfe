// Screenshots of the dashboard for the documentation: node screenshots.js BINARY FOLDER MINUTES
"use strict";
const assert = require("node:assert/strict");
const { spawn } = require("node:child_process");
const { once } = require("node:events");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const readline = require("node:readline");

// Users see the dashboard in their system font. Screenshots prefer a font that reads well, if it is installed.
const FONTS = `<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>
<include ignore_missing="yes">/etc/fonts/fonts.conf</include>
${["system-ui", "sans", "sans-serif"].map((family) => `<match target="pattern">
<test name="family"><string>${family}</string></test>
<edit name="family" mode="prepend" binding="strong"><string>Inter</string></edit></match>`).join("\n")}
</fontconfig>`;
/** The maximum size of a screenshot, in bytes. */
const MAX_BYTES = 150_000;
const DESKTOP = { width: 1280, height: 860 };
const PHONE = { width: 375, height: 812 };

/** Starts the demo, and returns its process and its login link. */
async function demo(binary) {
  const child = spawn(binary, ["demo", "--listen", "127.0.0.1:0"], { stdio: ["ignore", "pipe", "inherit"] });
  for await (const line of readline.createInterface({ input: child.stdout })) {
    const link = line.match(/Dashboard: (\S+)/)?.[1];
    if (link) return { child, link: new URL(link) };
  }
  throw new Error("the demo ended before it printed its URL");
}

/** Finds the pages for screenshots through the API, and returns their paths by name. */
async function subjects({ origin, hash }) {
  const get = async (where) => {
    const response = await fetch(origin + where, { headers: { authorization: `Bearer ${hash.slice(1)}` } });
    assert.ok(response.ok, `${where} returned ${response.status}`);
    return (await response.json()).data;
  };
  const flaky = (await get("/v1/webhooks")).find((webhook) => webhook.metadata.demo === "crm");
  const delivered = await get(`/v1/deliveries?webhook_id=${flaky.id}&status=delivered&limit=200`);
  const slowest = delivered.reduce((one, other) => (other.attempt_count > one.attempt_count ? other : one));
  const home = "/dashboard/t/default";
  return {
    overview: home,
    webhooks: `${home}/webhooks`,
    webhook: `${home}/webhooks/${flaky.id}`,
    delivery: `${home}/deliveries/${slowest.id}`,
    "dead-letters": "/dashboard/t/acme/dead",
    "all-tenants": "/dashboard/all",
  };
}

/** Takes one screenshot, with the best quality that fits the maximum size. */
async function picture(page, file) {
  const session = await page.context().newCDPSession(page);
  for (let quality = 90; quality > 30; quality -= 10) {
    const { data } = await session.send("Page.captureScreenshot", { format: "webp", quality });
    const bytes = Buffer.from(data, "base64");
    if (bytes.length > MAX_BYTES) continue;
    fs.writeFileSync(file, bytes);
    console.log(`${file}: ${bytes.length} bytes, quality ${quality}`);
    return;
  }
  throw new Error(`${file} does not fit into ${MAX_BYTES} bytes`);
}

/** Takes all screenshots with one set of browser options. */
async function pictures(browser, link, wanted, folder, kind, options) {
  const context = await browser.newContext({ baseURL: link.origin, reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  await page.goto(link.href);
  await page.getByRole("navigation", { name: "Main navigation" }).waitFor();
  for (const [name, where] of Object.entries(wanted)) {
    await page.goto(where);
    await page.locator("#live-state", { hasText: "Live" }).waitFor();
    await picture(page, path.join(folder, `${name}-${kind}.webp`));
  }
  await context.close();
}

async function main([binary, folder, minutes]) {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "redrive-pictures-"));
  process.env.FONTCONFIG_FILE = path.join(scratch, "fonts.conf");
  fs.writeFileSync(process.env.FONTCONFIG_FILE, FONTS);
  const { launch } = require("./lib");
  const { child, link } = await demo(binary);
  const ended = once(child, "exit");
  const browser = await launch();
  try {
    console.log(`the demo runs for ${minutes} minutes`);
    await Promise.race([ended, new Promise((done) => setTimeout(done, minutes * 60_000))]);
    assert.equal(child.exitCode, null, "the demo ended unexpectedly");
    fs.mkdirSync(folder, { recursive: true });
    const wanted = await subjects(link);
    for (const colorScheme of ["light", "dark"]) {
      await pictures(browser, link, wanted, folder, colorScheme, { colorScheme, viewport: DESKTOP, deviceScaleFactor: 2 });
    }
    const phone = { colorScheme: "light", viewport: PHONE, deviceScaleFactor: 2 };
    await pictures(browser, link, wanted, folder, "phone", phone);
  } finally {
    await browser.close();
    child.kill("SIGINT");
    await ended;
    fs.rmSync(scratch, { recursive: true });
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
