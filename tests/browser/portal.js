// A tenant's user logs in by portal link, sees and changes the tenant's own objects, and reaches nothing else.
"use strict";
const { assert, follow, story } = require("./lib");

story(async (stage) => {
  // Portal sessions must verify their webhooks, so the receiver echoes challenges.
  const receiver = await stage.receiver(({ body }) => ({ status: 200, body: JSON.parse(body).challenge ?? "" }));
  const webhooks = {};
  for (const tenant of ["acme", "globex"]) {
    await stage.api("POST", "/v1/tenants", { id: tenant });
    const made = { url: receiver.url, events: ["*"], description: `Webhook of ${tenant}` };
    webhooks[tenant] = await stage.api("POST", `/v1/webhooks?tenant_id=${tenant}`, made);
    await stage.api("POST", `/v1/events?tenant_id=${tenant}`, { event_type: `${tenant}.created`, data: {} });
  }
  await receiver.wait(2);
  const { page: admin } = await stage.loggedIn("/dashboard/admin/tenants/acme");
  const visitor = await stage.visitor();
  const page = await visitor.tab();
  const rooms = page.getByRole("navigation", { name: "Main navigation" });

  await stage.scene("an admin makes a link, which is shown once", async () => {
    await admin.getByLabel("Who it is for").fill("jane@acme.example");
    await admin.getByRole("button", { name: "Create link" }).click();
    const link = await admin.getByRole("dialog").locator("code").innerText();
    assert.ok(link.startsWith(`${stage.url}/portal#rdp_`), link);
    await admin.getByRole("dialog").getByRole("button", { name: "Done, I have it" }).click();
    await page.goto(link);
    await rooms.waitFor();
    assert.ok(!page.url().includes("rdp_"), page.url());
  });

  await stage.scene("they see their own webhooks and deliveries, and no rooms of admins", async () => {
    assert.equal(await rooms.getByRole("link", { name: /Tenants|API keys|Audit log|Settings/ }).count(), 0);
    await follow(page, rooms.getByRole("link", { name: "Webhooks" }));
    await page.getByRole("row").filter({ hasText: "Webhook of acme" }).waitFor();
    assert.equal(await page.getByText("Webhook of globex").count(), 0);
    await follow(page, rooms.getByRole("link", { name: "Deliveries" }));
    await page.getByRole("row").filter({ hasText: "acme.created" }).waitFor();
    assert.equal(await page.getByText("globex.created").count(), 0);
  });

  await stage.scene("what is somebody else's is not there", async () => {
    visitor.allow(/status of 40[34]/);
    const statusOf = async (where) => (await page.goto(where)).status();
    for (const where of [
      "/dashboard/t/globex", "/dashboard/t/globex/webhooks", "/dashboard/t/default/deliveries",
      `/dashboard/t/acme/webhooks/${webhooks.globex.id}`, `/dashboard/t/globex/webhooks/${webhooks.globex.id}`,
    ]) assert.equal(await statusOf(where), 404, where);
    for (const room of ["tenants", "keys", "audit", "settings"]) {
      assert.equal(await statusOf(`/dashboard/admin/${room}`), 403, room);
    }
    await page.goto("/dashboard/t/acme/webhooks");
    const other = await page.evaluate(async (id) => {
      const token = document.querySelector("meta[name=redrive-token]").content;
      const ask = (where) => fetch(where, { headers: { "x-redrive-token": token } }).then((answer) => answer.status);
      return [await ask(`/v1/webhooks/${id}`), await ask("/v1/webhooks?tenant_id=globex")];
    }, webhooks.globex.id);
    assert.equal(other[0], 404);
    assert.ok(other[1] >= 400, `${other[1]}`);
  });

  await stage.scene("they may make a webhook of their own and try it, but publish nothing", async () => {
    await follow(page, page.getByRole("link", { name: "New webhook" }));
    await page.getByLabel("URL", { exact: true }).fill(receiver.url);
    await page.getByLabel("Event types", { exact: true }).fill("acme.*");
    await page.getByRole("button", { name: "Create webhook" }).click();
    await follow(page, page.getByRole("link", { name: "To the webhook" }));
    await page.getByRole("button", { name: "Send a test" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Send", exact: true }).click();
    await page.getByText(/Delivered: it answered 200/).waitFor();
    await page.getByRole("dialog").getByRole("button", { name: "Close" }).click();
    await follow(page, rooms.getByRole("link", { name: "Event types" }));
    await page.getByRole("heading", { name: "Event types" }).waitFor();
    assert.equal(await page.getByRole("link", { name: /Publish|Register/ }).count(), 0);
  });

  await stage.scene("a session that is ended is over at once", async () => {
    const made = await stage.api("POST", "/v1/portal-sessions", { tenant_id: "acme" });
    const guest = await stage.visitor();
    const tab = await guest.tab();
    await tab.goto(`/portal#${made.token}`);
    await tab.getByRole("navigation", { name: "Main navigation" }).waitFor();
    await stage.api("DELETE", `/v1/portal-sessions/${made.id}?tenant_id=acme`);
    await tab.goto("/dashboard/t/acme/webhooks");
    await tab.getByRole("button", { name: "Log in" }).waitFor();
  });

  await stage.scene("the audit log knows who did what", async () => {
    await admin.goto("/dashboard/admin/audit?tenant_id=acme&action=webhook.create");
    await admin.getByRole("row").filter({ hasText: "jane@acme.example" }).first().waitFor();
    await follow(admin, admin.getByRole("link", { name: "Clear" }));
  });
});
