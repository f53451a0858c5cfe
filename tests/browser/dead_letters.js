// Dead letters: found by cause, counted, resent with a rate limit, watched, paused, and delivered.
"use strict";
const { assert, follow, scenario } = require("./lib");

scenario(async (fixture) => {
  const broken = await fixture.receiver(() => ({ status: 400, body: "no" }));
  const other = await fixture.receiver(() => ({ status: 404, body: "who?" }));
  const webhook = await fixture.webhook(broken.url, { description: "Warehouse", events: ["order.*"], circuit_breaker_config: { enabled: false } });
  await fixture.webhook(other.url, { description: "Old shop", events: ["shop.*"] });
  const events = Array.from({ length: 30 }, (_, n) => ({ event_type: `order.n${n}`, data: { n } }));
  await fixture.api("POST", "/v1/events/batch", { events });
  await fixture.publish("shop.closed");
  await fixture.eventually("31 dead letters", "/v1/dlq?limit=100", (dead) => dead.data.length === 31);

  const { page } = await fixture.loggedIn(`${fixture.home}/dead`);
  const stat = (name) => page.locator(".stat", { has: page.getByText(name, { exact: true }) }).locator(".value");

  await fixture.step("dead letters are grouped by cause and by webhook, and a group links to its dead letters", async () => {
    assert.equal(await stat("Dead letters").innerText(), "31");
    const groups = page.locator("section.card", { hasText: "By webhook" });
    await follow(page, groups.getByRole("link").filter({ hasText: new URL(broken.url).host }));
    assert.match(page.url(), new RegExp(`webhook_id=${webhook.id}`));
    assert.equal(await stat("Dead letters").innerText(), "30");
    assert.equal(await page.getByText("shop.closed").count(), 0);
  });

  await fixture.step("a bulk resend is counted first, and counting sends nothing", async () => {
    await page.getByRole("button", { name: /Resend these/ }).click();
    const dialog = page.getByRole("dialog", { name: "Resend dead letters" });
    await dialog.getByText(/30 deliveries/).waitFor();
    await dialog.getByRole("button", { name: "Cancel" }).click();
    assert.equal(broken.arrivals.length, 30);
  });

  await fixture.step("the operation keeps the requested rate, and can be paused and resumed", async () => {
    broken.respond = () => ({ status: 200 });
    await page.getByRole("button", { name: /Resend these/ }).click();
    const dialog = page.getByRole("dialog", { name: "Resend dead letters" });
    await dialog.getByText(/30 deliveries/).waitFor();
    await dialog.getByLabel("Deliveries per second").fill("2");
    await follow(page, dialog.getByRole("button", { name: "Resend" }));
    await page.getByRole("heading", { name: "Resend of dead letters" }).waitFor();
    await page.getByText("at most 2").waitFor();
    await page.getByRole("button", { name: "Pause" }).click();
    await page.getByText("paused; the operation continues when it is resumed").waitFor();
    const queued = Number(await stat("Queued").innerText());
    assert.ok(queued < 30, `${queued} were queued`);
    await page.getByRole("button", { name: "Resume" }).click();
    await page.locator(".badge", { hasText: "running" }).waitFor();
  });

  await fixture.step("progress is shown until all dead letters are delivered", async () => {
    await page.evaluate(() => void (globalThis.sameDocument = true));
    await page.locator(".badge", { hasText: "completed" }).waitFor({ timeout: 60_000 });
    assert.ok(await page.evaluate(() => globalThis.sameDocument === true), "the page was not reloaded");
    assert.equal(await stat("Delivered").innerText(), "30");
    await page.getByRole("img", { name: /30 delivered/ }).waitFor();
    assert.equal(broken.arrivals.length, 60);
  });

  await fixture.step("only dead letters that were not selected are left", async () => {
    await follow(page, page.getByRole("navigation", { name: "Main navigation" }).getByRole("link", { name: "Dead letters" }));
    await page.getByRole("row").filter({ hasText: "shop.closed" }).waitFor();
    assert.equal(await stat("Dead letters").innerText(), "1");
    await follow(page, page.getByRole("link", { name: "Bulk operations" }));
    await page.getByRole("row").filter({ hasText: "Resend of dead letters" }).getByText("completed").waitFor();
  });

  await fixture.step("a running operation can be cancelled", async () => {
    broken.respond = () => ({ status: 400 });
    await fixture.api("POST", "/v1/events/batch", { events });
    await fixture.eventually("31 dead letters", "/v1/dlq?limit=100", (dead) => dead.data.length === 31);
    await page.goto(`${fixture.home}/dead?webhook_id=${webhook.id}`);
    await page.getByRole("button", { name: /Resend these/ }).click();
    const dialog = page.getByRole("dialog", { name: "Resend dead letters" });
    await dialog.getByLabel("Deliveries per second").fill("1");
    await dialog.getByText(/30 deliveries/).waitFor();
    await follow(page, dialog.getByRole("button", { name: "Resend" }));
    await page.getByRole("button", { name: "Cancel operation" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Cancel operation" }).click();
    await page.locator(".badge", { hasText: "cancelled" }).waitFor();
    assert.equal(await page.getByRole("button", { name: "Pause" }).count(), 0);
  });
});
