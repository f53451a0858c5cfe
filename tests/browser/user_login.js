// A user logs in with the identity provider, sees the own name, acts, and logs out; a viewer sees nothing to change.
"use strict";
const { assert, pageViolations, scenario } = require("./lib");

scenario(async (fixture) => {
  const logIn = async (page, account, next = "/dashboard") => {
    await page.goto(next);
    await page.getByRole("link", { name: "Log in with Example ID" }).click();
    await page.getByLabel("Account").fill(account);
    await page.getByRole("button", { name: "Sign in" }).click();
  };
  const open = async () => {
    const visitor = await fixture.visitor();
    // The login form of the provider is on another origin.
    visitor.allow(/request elsewhere: http:\/\/127\.0\.0\.1:/);
    return { visitor, page: await visitor.tab() };
  };
  const { page } = await open();

  await fixture.step("the login page offers the provider and an API key", async () => {
    await page.goto("/dashboard");
    await page.getByRole("link", { name: "Log in with Example ID" }).waitFor();
    await page.getByLabel("API key").waitFor();
    assert.deepEqual(await pageViolations(page), []);
  });

  await fixture.step("a user logs in and continues at the requested page", async () => {
    await logIn(page, "jane", "/dashboard/admin/tenants");
    await page.getByRole("heading", { name: "Tenants" }).waitFor();
    await page.getByRole("link", { name: "Jane Doe · admin" }).waitFor();
    assert.equal(page.url(), `${fixture.url}/dashboard/admin/tenants`);
    assert.equal(await page.evaluate(() => document.cookie), "");
    assert.deepEqual(await pageViolations(page), []);
  });

  await fixture.step("what the user changes has the user's name in the audit log", async () => {
    await page.goto("/dashboard/admin/new-tenant");
    await page.getByLabel("ID", { exact: true }).fill("acme");
    await page.getByRole("button", { name: "Create tenant" }).click();
    await page.getByRole("heading", { name: "acme" }).waitFor();
    await page.getByRole("link", { name: "Audit log" }).first().click();
    const row = page.getByRole("row").filter({ hasText: "tenant.create" });
    await row.getByText("Jane Doe").waitFor();
    await row.getByText("oidc:jane").waitFor();
  });

  await fixture.step("an admin sees the sessions of users and ends one", async () => {
    const { visitor, page: other } = await open();
    await logIn(other, "vera");
    await other.getByRole("heading", { name: "Overview" }).waitFor();
    await page.getByRole("link", { name: "User sessions" }).click();
    const row = page.getByRole("row").filter({ hasText: "Vera View" });
    await row.getByText("viewer", { exact: true }).waitFor();
    await page.getByRole("row").filter({ hasText: "Jane Doe" }).getByText("admin", { exact: true }).waitFor();
    assert.deepEqual(await pageViolations(page), []);
    await row.getByRole("button", { name: "End this session of Vera View" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "End session" }).click();
    await page.getByText("Session ended.").waitFor();
    await row.waitFor({ state: "hidden" });
    await other.goto("/dashboard");
    await other.getByRole("link", { name: "Log in with Example ID" }).waitFor();
    await visitor.context.close();
  });

  await fixture.step("a login with another key asks before it replaces the session", async () => {
    const { visitor, page } = await open();
    visitor.allow(/status of 409/);
    await logIn(page, "vera");
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    await page.goto("/dashboard/session");
    await page.getByText("This browser is logged in as").waitFor();
    assert.deepEqual(await pageViolations(page), []);
    await page.goto(`/dashboard/login#${fixture.key}`);
    await page.getByRole("heading", { name: "Switch sessions?" }).waitFor();
    assert.deepEqual(await pageViolations(page), []);
    await visitor.context.close();
  });

  await fixture.step("after logout every page requires a login", async () => {
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByLabel("API key").waitFor();
    await page.goto("/dashboard/admin/tenants");
    await page.getByRole("link", { name: "Log in with Example ID" }).waitFor();
  });

  await fixture.step("a viewer sees everything and nothing to change", async () => {
    const webhook = await fixture.webhook("https://example.com/webhook", { tenant_id: "acme" });
    const { visitor, page } = await open();
    await logIn(page, "vera", "/dashboard/admin/tenants");
    await page.getByRole("link", { name: "Vera View · viewer" }).waitFor();
    await page.getByRole("link", { name: "acme" }).first().click();
    await page.getByRole("navigation", { name: "Main navigation" }).getByRole("link", { name: "Webhooks" }).click();
    await page.getByText("https://example.com/webhook").first().waitFor();
    assert.equal(await page.getByRole("link", { name: "New webhook" }).count(), 0);
    await page.goto(`/dashboard/t/acme/webhooks/${webhook.id}`);
    await page.getByRole("heading").first().waitFor();
    assert.equal(await page.locator("[data-call]:visible").count(), 0, "a viewer is offered a change");
    for (const name of ["API keys", "Audit log", "Settings"]) {
      assert.equal(await page.getByRole("link", { name, exact: true }).count(), 0, name);
    }
    visitor.allow(/status of 403/);
    await page.goto("/dashboard/admin/keys");
    await page.getByText("the role admin is required").waitFor();
  });

  await fixture.step("a user without a role sees what to do", async () => {
    const { visitor, page } = await open();
    visitor.allow(/status of 403/);
    await logIn(page, "eve");
    await page.getByRole("heading", { name: "Not allowed" }).waitFor();
    await page.getByText("the account Eve Else is in no group that may use this server").waitFor();
    await page.getByText("Ask an administrator to add you to one of the groups").waitFor();
    assert.deepEqual(await pageViolations(page), []);
    await page.getByRole("link", { name: "Other ways to log in" }).click();
    await page.getByLabel("API key").waitFor();
  });
});
