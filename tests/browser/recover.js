// A repaired endpoint: what failed is recovered with two clicks, and what was delivered is not sent again.
"use strict";
const { assert, accessibilityViolations, Clicks, follow, scenario } = require("./lib");

scenario(async (fixture) => {
  const endpoint = await fixture.receiver(() => ({ status: 200 }));
  const webhook = await fixture.webhook(endpoint.url, {
    description: "Warehouse", events: ["order.*"], circuit_breaker_config: { enabled: false }, retry_config: { schedule: [0, 3600] },
  });
  const publish = (type, count) => fixture.api("POST", "/v1/events/batch", { events: Array.from({ length: count }, () => ({ event_type: type, data: {} })) });
  const listed = (query, count) => fixture.eventually(`${count} with ${query}`, `/v1/deliveries?limit=100&${query}`, (page) => page.data.length === count);

  await publish("order.paid", 20);
  await listed("status=delivered", 20);
  endpoint.respond = () => ({ status: 400, body: "no" });
  await publish("order.rejected", 10);
  await listed("status=dead", 10);
  endpoint.respond = () => ({ status: 503 });
  await publish("order.delayed", 3);
  await listed("status=pending&failure_category=server_error", 3);
  endpoint.respond = () => ({ status: 200 });

  const { page } = await fixture.loggedIn(`${fixture.home}/webhooks/${webhook.id}`);
  const recover = page.getByRole("button", { name: /^Recover failed/ });
  const dialog = page.getByRole("dialog", { name: "Recover failed deliveries" });
  const clicks = new Clicks();

  await fixture.step("the button has the number of failed deliveries, and the dialog opens with it", async () => {
    await page.getByRole("button", { name: /^Recover failed \(13\) since \d{4}-/ }).waitFor();
    await clicks.on(recover);
    assert.equal(await dialog.locator("[data-found]").innerText(), "13 deliveries will be resent.");
    await dialog.getByRole("option", { name: /^the failures began, / }).waitFor({ state: "attached" });
    assert.deepEqual(await accessibilityViolations(page), []);
    assert.equal(endpoint.arrivals.length, 33, "nothing was sent");
  });

  await fixture.step("the second click sends what failed, and nothing that was delivered", async () => {
    await clicks.on(dialog.getByRole("button", { name: "Recover" }));
    assert.equal(clicks.count, 2);
    await page.getByRole("heading", { name: "Resend of deliveries" }).waitFor();
    await page.locator(".badge", { hasText: "completed" }).waitFor();
    const delivered = page.locator(".stat", { has: page.getByText("Delivered", { exact: true }) }).locator(".value");
    assert.equal(await delivered.innerText(), "13");
    await listed("status=delivered", 33);
    assert.equal(endpoint.arrivals.length, 46);
    const types = endpoint.arrivals.slice(33).map(({ body }) => JSON.parse(body).type);
    assert.ok(!types.includes("order.paid"), types.join());
  });

  await fixture.step("another window is counted again", async () => {
    await page.goto(`${fixture.home}/webhooks/${webhook.id}`);
    await page.getByRole("button", { name: /^Recover failed \(0\)/ }).click();
    await dialog.getByText("Nothing failed in this time.").waitFor();
    assert.ok(await dialog.getByRole("button", { name: "Recover" }).isDisabled());
    await dialog.getByLabel("Failed since").selectOption("the last 7 days");
    await dialog.getByText("Nothing failed in this time.").waitFor();
    await dialog.getByLabel("Failed since").selectOption("another time");
    await dialog.getByText("Enter the time").waitFor();
    await dialog.getByLabel(/^Time \(UTC\)/).fill("2026-01-01T00:00");
    await dialog.getByText("Nothing failed in this time.").waitFor();
    await dialog.getByRole("button", { name: "Cancel" }).click();
  });

  await fixture.step("the bulk action of the deliveries page leaves out what was delivered unless it is ticked", async () => {
    await follow(page, page.getByRole("navigation", { name: "Main navigation" }).getByRole("link", { name: "Deliveries" }));
    await page.goto(`${fixture.home}/deliveries?webhook_id=${webhook.id}&event_type=order.paid`);
    await page.getByRole("button", { name: /Resend these/ }).click();
    const bulk = page.getByRole("dialog", { name: "Resend these deliveries" });
    await bulk.getByText("No delivery matches.").waitFor();
    const go = bulk.getByRole("button", { name: "Resend" });
    assert.ok(await go.isDisabled());
    await bulk.getByLabel(/Also resend 20 that were already delivered/).check();
    await follow(page, go);
    await page.getByText("20 already delivered included").waitFor();
    await page.locator(".badge", { hasText: "completed" }).waitFor();
    assert.equal(endpoint.arrivals.length, 66);
  });
});
