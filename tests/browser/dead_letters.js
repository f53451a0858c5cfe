// Dead letters: found by cause, counted, resent with a rate limit, watched, paused, and delivered.
"use strict";
const { assert, follow, story } = require("./lib");

story(async (stage) => {
  const broken = await stage.receiver(() => ({ status: 400, body: "no" }));
  const other = await stage.receiver(() => ({ status: 404, body: "who?" }));
  const webhook = await stage.webhook(broken.url, { description: "Warehouse", events: ["order.*"], circuit_breaker_config: { enabled: false } });
  await stage.webhook(other.url, { description: "Old shop", events: ["shop.*"] });
  const events = Array.from({ length: 30 }, (_, n) => ({ event_type: `order.n${n}`, data: { n } }));
  await stage.api("POST", "/v1/events/batch", { events });
  await stage.publish("shop.closed");
  await stage.eventually("31 dead letters", "/v1/dlq?limit=100", (dead) => dead.data.length === 31);

  const { page } = await stage.loggedIn(`${stage.home}/dead`);
  const figure = (name) => page.locator(".figure", { has: page.getByText(name, { exact: true }) }).locator(".value");

  await stage.scene("they are grouped by cause and by webhook, and a group leads to its letters", async () => {
    assert.equal(await figure("Dead letters").innerText(), "31");
    const groups = page.locator("section.card", { hasText: "By webhook" });
    await follow(page, groups.getByRole("link").filter({ hasText: new URL(broken.url).host }));
    assert.match(page.url(), new RegExp(`webhook_id=${webhook.id}`));
    assert.equal(await figure("Dead letters").innerText(), "30");
    assert.equal(await page.getByText("shop.closed").count(), 0);
  });

  await stage.scene("what a bulk retry would take on is counted first, and nothing is sent by that", async () => {
    await page.getByRole("button", { name: /Resend these/ }).click();
    const dialog = page.getByRole("dialog", { name: "Resend dead letters" });
    await dialog.getByText(/30 deliveries/).waitFor();
    await dialog.getByRole("button", { name: "Not now" }).click();
    assert.equal(broken.arrivals.length, 30);
  });

  await stage.scene("it goes at the rate that was asked for, can be held, and goes on", async () => {
    broken.answer = () => ({ status: 200 });
    await page.getByRole("button", { name: /Resend these/ }).click();
    const dialog = page.getByRole("dialog", { name: "Resend dead letters" });
    await dialog.getByText(/30 deliveries/).waitFor();
    await dialog.getByLabel("Requests per second").fill("2");
    await follow(page, dialog.getByRole("button", { name: "Resend" }));
    await page.getByRole("heading", { name: "Resend of dead letters" }).waitFor();
    await page.getByText("2 at the most").waitFor();
    await page.getByRole("button", { name: "Pause" }).click();
    await page.getByText("paused; it continues when it is resumed").waitFor();
    const held = Number(await figure("Queued").innerText());
    assert.ok(held < 30, `${held} were queued`);
    await page.getByRole("button", { name: "Resume" }).click();
    await page.locator(".badge", { hasText: "running" }).waitFor();
  });

  await stage.scene("its progress is shown until all is delivered", async () => {
    await page.evaluate(() => void (globalThis.sameDocument = true));
    await page.locator(".badge", { hasText: "completed" }).waitFor({ timeout: 60_000 });
    assert.ok(await page.evaluate(() => globalThis.sameDocument === true), "nothing was loaded anew");
    assert.equal(await figure("Delivered").innerText(), "30");
    await page.getByRole("img", { name: /30 delivered/ }).waitFor();
    assert.equal(broken.arrivals.length, 60);
  });

  await stage.scene("only what was not asked for is left", async () => {
    await follow(page, page.getByRole("navigation", { name: "Main navigation" }).getByRole("link", { name: "Dead letters" }));
    await page.getByRole("row").filter({ hasText: "shop.closed" }).waitFor();
    assert.equal(await figure("Dead letters").innerText(), "1");
    await follow(page, page.getByRole("link", { name: "Bulk operations" }));
    await page.getByRole("row").filter({ hasText: "Resend of dead letters" }).getByText("completed").waitFor();
  });

  await stage.scene("a running operation can be stopped", async () => {
    broken.answer = () => ({ status: 400 });
    await stage.api("POST", "/v1/events/batch", { events });
    await stage.eventually("31 dead letters", "/v1/dlq?limit=100", (dead) => dead.data.length === 31);
    await page.goto(`${stage.home}/dead?webhook_id=${webhook.id}`);
    await page.getByRole("button", { name: /Resend these/ }).click();
    const dialog = page.getByRole("dialog", { name: "Resend dead letters" });
    await dialog.getByLabel("Requests per second").fill("1");
    await dialog.getByText(/30 deliveries/).waitFor();
    await follow(page, dialog.getByRole("button", { name: "Resend" }));
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "End it" }).click();
    await page.locator(".badge", { hasText: "cancelled" }).waitFor();
    assert.equal(await page.getByRole("button", { name: "Pause" }).count(), 0);
  });
});
