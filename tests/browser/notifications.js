// The notifications of a tenant: what was sent and why, and who is notified; changed by the tenant's own users as the
// API allows.
"use strict";
const { assert, pageViolations, scenario } = require("./lib");

scenario(async (fixture) => {
  const receiver = await fixture.receiver(() => ({ status: 400 }));
  const webhook = await fixture.webhook(receiver.url, { description: "Orders", owner: { id: "7", email: "owner@example.com" }, circuit_breaker_config: { minimum_throughput: 5 } });
  for (let n = 0; n < 6; n += 1) await fixture.publish("order.created", { n });
  await fixture.eventually("a notification", "/v1/notifications", (page) => page.data.some((one) => one.webhook_id === webhook.id));
  const { page } = await fixture.loggedIn(`${fixture.home}/notifications`);
  const menu = (tab) => tab.getByRole("navigation", { name: "Main navigation" });
  const preferences = () => fixture.api("GET", "/v1/notification-preferences");

  await fixture.step("the list shows what was sent, about which webhook, to whom and its status", async () => {
    const { data } = await fixture.api("GET", "/v1/notifications");
    const row = page.locator(`#${data.find((one) => one.webhook_id === webhook.id).id}`);
    await row.getByRole("link", { name: new RegExp(receiver.url.replace(/^http:\/\//, "").split("/")[0]) }).waitFor();
    assert.match(await row.locator("td").first().innerText(), /^(open circuits|dead deliveries|failing webhooks)\n.+/, "the kind and the message");
    assert.equal(await row.locator("td .badge.good, td .badge.off, td .badge.busy, td .badge.waiting, td .badge.bad").count() >= 2, true, "each channel has a status");
    assert.deepEqual(await pageViolations(page), []);
  });

  await fixture.step("addresses and muted kinds are changed", async () => {
    await page.getByLabel("Email addresses").fill("ops@example.com\nteam@example.com");
    const mute = page.getByRole("group", { name: "Mute" });
    const kinds = mute.getByRole("checkbox");
    assert.ok(await kinds.count() >= 7, "every kind can be muted");
    await kinds.first().check();
    const value = await kinds.first().getAttribute("value");
    await Promise.all([page.waitForEvent("load"), page.getByRole("button", { name: "Save" }).click()]);
    await page.getByRole("region", { name: "Addresses" }).or(page.locator("section", { hasText: "Addresses" })).getByText("ops@example.com").first().waitFor();
    const saved = await preferences();
    assert.deepEqual([saved.emails, saved.muted_kinds], [["ops@example.com", "team@example.com"], [value]]);
    assert.equal(await mute.getByRole("checkbox").first().isChecked(), true);
  });

  await fixture.step("an invalid address is reported beside its field", async () => {
    await page.getByLabel("Email addresses").fill("not-an-address");
    const refused = page.waitForResponse((response) => response.request().method() === "PATCH");
    fixture.visitors[0].allow(/status of 400/);
    await page.getByRole("button", { name: "Save" }).click();
    assert.equal((await refused).status(), 400);
    await page.locator(".field p.error").waitFor();
    assert.deepEqual((await preferences()).emails, ["ops@example.com", "team@example.com"]);
  });

  await fixture.step("a key that only reads sees the settings without a form", async () => {
    const key = await fixture.api("POST", "/v1/tenants/default/api-keys", { name: "reader", scopes: ["read"] });
    const reader = await fixture.loggedIn(`${fixture.home}/notifications`, { key: key.key });
    await reader.page.getByText("ops@example.com, team@example.com").waitFor();
    assert.equal(await reader.page.getByRole("button", { name: "Save" }).count(), 0);
    await reader.visitor.context.close();
  });

  await fixture.step("a portal session opens the page from its menu and changes what its capabilities allow", async () => {
    const session = await fixture.api("POST", "/v1/portal-sessions", { tenant_id: "default", capabilities: ["manage_endpoints"], expires_in: 3600 });
    const guest = await fixture.visitor();
    const tab = await guest.tab();
    await tab.goto(session.url);
    await tab.waitForURL(/\/dashboard\/t\/default/);
    await menu(tab).getByRole("link", { name: "Notifications" }).click();
    await tab.getByRole("heading", { name: "Notifications" }).waitFor();
    await tab.getByLabel("Email addresses").fill("guest@example.com");
    await Promise.all([tab.waitForEvent("load"), tab.getByRole("button", { name: "Save" }).click()]);
    await tab.getByText("guest@example.com").first().waitFor();
    assert.deepEqual((await preferences()).emails, ["guest@example.com"]);
    await guest.context.close();
  });
});
