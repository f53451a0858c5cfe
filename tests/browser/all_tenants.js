// An operator of several tenants: from the overview of all tenants to a repaired endpoint, and resends across tenants.
"use strict";
const { assert, Clicks, follow, pageViolations, scenario } = require("./lib");

scenario(async (fixture) => {
  const endpoints = {};
  const publish = (tenant, type, count) => fixture.api("POST", "/v1/events/batch", {
    events: Array.from({ length: count }, (_, n) => ({ event_type: `${type}.n${n}`, data: {}, tenant_id: tenant })),
  });
  const dead = (tenant, count) => fixture.eventually(`${count} dead letters`, `/v1/dlq?limit=100&tenant_id=${tenant}`, (page) => page.data.length === count);
  for (const tenant of ["acme", "globex"]) {
    await fixture.api("POST", "/v1/tenants", { id: tenant, name: `${tenant} Corporation` });
    endpoints[tenant] = await fixture.receiver(() => ({ status: 400, body: "no" }));
    await fixture.webhook(endpoints[tenant].url, {
      tenant_id: tenant, description: `Orders of ${tenant}`, circuit_breaker_config: { enabled: false }, owner: { email: `ops@${tenant}.example` },
    });
  }
  await publish("acme", "order", 6);
  await publish("globex", "invoice", 4);
  await dead("acme", 6);
  await dead("globex", 4);
  const { page } = await fixture.loggedIn("/dashboard/all");
  const row = (text) => page.getByRole("row").filter({ hasText: text });

  await fixture.step("the overview names the failing tenants and endpoints", async () => {
    await page.getByRole("link", { name: "All tenants" }).first().waitFor();
    await page.locator("#worst").getByRole("link", { name: "acme", exact: true }).waitFor();
    await page.locator("#worst-tenants").getByRole("link", { name: "globex", exact: true }).waitFor();
    await page.getByTitle("Switch tenant").getByText("All tenants").waitFor();
    assert.deepEqual(await pageViolations(page), []);
  });

  await fixture.step("every page over all tenants is accessible and fits", async () => {
    const found = [];
    for (const where of ["all/webhooks", "all/webhooks?status=failing", "all/deliveries", "all/dead", "all/notifications", "admin/tenants", "admin/tenants?sort=dead_letters&search=corp", "admin/user-sessions"]) {
      await page.goto(`/dashboard/${where}`);
      await page.getByRole("heading", { level: 1 }).waitFor();
      found.push(...(await pageViolations(page)));
    }
    assert.deepEqual(found, []);
  });

  await fixture.step("tenants are sorted by the server and found by a part of the name", async () => {
    await page.goto("/dashboard/admin/tenants");
    await follow(page, page.getByRole("columnheader", { name: "Dead letters" }).getByRole("link"));
    const ids = () => page.locator("tbody tr td:first-child").allInnerTexts();
    assert.deepEqual((await ids()).slice(0, 2), ["acme", "globex"]);
    await follow(page, page.getByRole("columnheader", { name: "Dead letters" }).getByRole("link"));
    assert.deepEqual((await ids()).slice(-2), ["globex", "acme"]);
    await page.getByRole("searchbox", { name: "Search" }).fill("GLOBEX corp");
    await follow(page, page.locator("main").getByRole("button", { name: "Search" }));
    assert.deepEqual(await ids(), ["globex"]);
  });

  await fixture.step("an endpoint on the overview is recovered with two clicks", async () => {
    endpoints.acme.respond = () => ({ status: 200 });
    await page.goto("/dashboard/all");
    const clicks = new Clicks();
    await clicks.on(page.locator("#worst").getByRole("row").filter({ hasText: "acme" }).getByRole("link", { name: "Recover…" }));
    const dialog = page.getByRole("dialog", { name: "Recover failed deliveries" });
    await dialog.getByText("6 deliveries will be resent.").waitFor();
    assert.equal(new URL(page.url()).hash, "", "a reload opens the page without the dialog");
    await clicks.on(dialog.getByRole("button", { name: "Recover" }));
    assert.equal(clicks.count, 2);
    await page.locator(".badge", { hasText: "completed" }).waitFor();
    await endpoints.acme.wait(12);
    await dead("acme", 0);
  });

  await fixture.step("chosen dead letters of two tenants are resent with three clicks", async () => {
    endpoints.acme.respond = () => ({ status: 400 });
    await publish("acme", "refund", 2);
    await dead("acme", 2);
    await page.goto("/dashboard/all/dead");
    for (const endpoint of Object.values(endpoints)) endpoint.respond = () => ({ status: 200 });
    const [one, other] = [row("refund.n0"), row("invoice.n1")];
    const clicks = new Clicks();
    const bar = page.getByRole("region", { name: "Selection" });
    await clicks.on(one.getByRole("checkbox"));
    await clicks.on(other.getByRole("checkbox"));
    await clicks.on(bar.getByRole("button", { name: "Resend", exact: true }));
    assert.equal(clicks.count, 3);
    await page.getByText("Resend of 2 queued.").waitFor();
    await dead("acme", 1);
    await dead("globex", 3);
    await one.waitFor({ state: "hidden" });
    await other.waitFor({ state: "hidden" });
  });

  await fixture.step("one dead letter is resent by the button of its row", async () => {
    await row("invoice.n2").getByRole("button", { name: "Resend" }).click();
    await page.getByText("Resend queued.").waitFor();
    // The rows of a table stay in place under the pointer.
    await page.mouse.move(0, 0);
    await row("invoice.n2").waitFor({ state: "hidden" });
    await dead("globex", 2);
  });

  await fixture.step("a filter by tenant shows only its rows", async () => {
    await page.goto("/dashboard/all/deliveries");
    await page.getByLabel("Tenant", { exact: true }).fill("globex");
    await follow(page, page.getByRole("button", { name: "Apply" }));
    const tenants = await page.locator("tbody td.named").allInnerTexts();
    assert.ok(tenants.length > 0 && tenants.every((tenant) => tenant === "globex"), tenants.join());
    await follow(page, page.locator("tbody").getByRole("link", { name: /invoice\.n/ }).first());
    assert.match(page.url(), /\/dashboard\/t\/globex\/deliveries\/dlv_/);
  });
});
