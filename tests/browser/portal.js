// A tenant's user logs in by portal link, sees and changes the tenant's own objects, and reaches nothing else.
"use strict";
const { assert, follow, scenario } = require("./lib");

scenario(async (fixture) => {
  // Portal sessions must verify their webhooks, so the receiver echoes challenges.
  const receiver = await fixture.receiver(({ body }) => ({ status: 200, body: JSON.parse(body).challenge ?? "" }));
  const webhooks = {};
  for (const tenant of ["acme", "globex"]) {
    await fixture.api("POST", "/v1/tenants", { id: tenant });
    const fields = { url: receiver.url, events: ["*"], description: `Webhook of ${tenant}` };
    webhooks[tenant] = await fixture.api("POST", `/v1/webhooks?tenant_id=${tenant}`, fields);
    await fixture.api("POST", `/v1/events?tenant_id=${tenant}`, { event_type: `${tenant}.created`, data: {} });
  }
  await receiver.wait(2);
  const { page: admin } = await fixture.loggedIn("/dashboard/admin/tenants/acme");
  const visitor = await fixture.visitor();
  const page = await visitor.tab();
  const menu = page.getByRole("navigation", { name: "Main navigation" });

  await fixture.step("an admin creates a link, which is shown once", async () => {
    await admin.getByLabel("User").fill("jane@acme.example");
    await admin.getByRole("button", { name: "Create link" }).click();
    const link = await admin.getByRole("dialog").locator("code").innerText();
    assert.ok(link.startsWith(`${fixture.url}/portal#rdp_`), link);
    await admin.getByRole("dialog").getByRole("button", { name: "Done" }).click();
    await page.goto(link);
    await menu.waitFor();
    assert.ok(!page.url().includes("rdp_"), page.url());
  });

  await fixture.step("a portal user sees the tenant's webhooks and deliveries, and no admin pages", async () => {
    assert.equal(await menu.getByRole("link", { name: /Tenants|API keys|Audit log|Settings/ }).count(), 0);
    await follow(page, menu.getByRole("link", { name: "Webhooks" }));
    await page.getByRole("row").filter({ hasText: "Webhook of acme" }).waitFor();
    assert.equal(await page.getByText("Webhook of globex").count(), 0);
    await follow(page, menu.getByRole("link", { name: "Deliveries" }));
    await page.getByRole("row").filter({ hasText: "acme.created" }).waitFor();
    assert.equal(await page.getByText("globex.created").count(), 0);
  });

  await fixture.step("objects of other tenants are not found", async () => {
    visitor.allow(/status of 40[34]/);
    const statusOf = async (where) => (await page.goto(where)).status();
    for (const where of [
      "/dashboard/t/globex", "/dashboard/t/globex/webhooks", "/dashboard/t/default/deliveries",
      `/dashboard/t/acme/webhooks/${webhooks.globex.id}`, `/dashboard/t/globex/webhooks/${webhooks.globex.id}`,
    ]) assert.equal(await statusOf(where), 404, where);
    for (const section of ["tenants", "keys", "audit", "settings"]) {
      assert.equal(await statusOf(`/dashboard/admin/${section}`), 403, section);
    }
    await page.goto("/dashboard/t/acme/webhooks");
    const other = await page.evaluate(async (id) => {
      const token = document.querySelector("meta[name=redrive-token]").content;
      const statusOf = (path) => fetch(path, { headers: { "x-redrive-token": token } }).then((response) => response.status);
      return [await statusOf(`/v1/webhooks/${id}`), await statusOf("/v1/webhooks?tenant_id=globex")];
    }, webhooks.globex.id);
    assert.equal(other[0], 404);
    assert.ok(other[1] >= 400, `${other[1]}`);
  });

  await fixture.step("a portal user may create and test a webhook, but not publish", async () => {
    await follow(page, page.getByRole("link", { name: "New webhook" }));
    await page.getByLabel("URL", { exact: true }).fill(receiver.url);
    await page.getByLabel("Event types", { exact: true }).fill("acme.*");
    await page.getByRole("button", { name: "Create webhook" }).click();
    await follow(page, page.getByRole("link", { name: "View webhook" }));
    await page.getByRole("button", { name: "Send a test" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Send", exact: true }).click();
    await page.getByText(/Delivered: the endpoint returned 200/).waitFor();
    await page.getByRole("dialog").getByRole("button", { name: "Close" }).click();
    await follow(page, menu.getByRole("link", { name: "Event types" }));
    await page.getByRole("heading", { name: "Event types" }).waitFor();
    assert.equal(await page.getByRole("link", { name: /Publish|Register/ }).count(), 0);
  });

  await fixture.step("an ended session is rejected immediately", async () => {
    const created = await fixture.api("POST", "/v1/portal-sessions", { tenant_id: "acme" });
    const guest = await fixture.visitor();
    const tab = await guest.tab();
    await tab.goto(`/portal#${created.token}`);
    await tab.getByRole("navigation", { name: "Main navigation" }).waitFor();
    await fixture.api("DELETE", `/v1/portal-sessions/${created.id}?tenant_id=acme`);
    await tab.goto("/dashboard/t/acme/webhooks");
    await tab.getByRole("button", { name: "Log in" }).waitFor();
  });

  await fixture.step("the audit log names the portal user", async () => {
    await admin.goto("/dashboard/admin/audit?tenant_id=acme&action=webhook.create");
    await admin.getByRole("row").filter({ hasText: "jane@acme.example" }).first().waitFor();
    await follow(admin, admin.getByRole("link", { name: "Clear" }));
  });
});
