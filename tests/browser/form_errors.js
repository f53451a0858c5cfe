// Errors of forms: beside their fields, described for screen readers, with the focus on the first, and with a summary
// if there are several. Not under the header of the page.
"use strict";
const { accessibilityViolations, assert, pageViolations, scenario } = require("./lib");

scenario(async (fixture) => {
  const { visitor, page } = await fixture.loggedIn(`${fixture.home}/webhooks/new`);
  visitor.allow(/status of (400|422|409)/);
  /** Returns the texts that describe a field. */
  const description = (field) => field.evaluate((element) =>
    (element.getAttribute("aria-describedby") ?? "").split(" ").filter(Boolean).map((id) => document.getElementById(id)?.textContent).join(" "));
  const isFocused = (field) => field.evaluate((element) => element === document.activeElement);

  await fixture.step("an error is beside its field, which gets the focus", async () => {
    await page.getByLabel("URL").fill("ftp://example.com");
    await page.locator("#add-event").fill("order.*");
    await page.getByRole("button", { name: "Create webhook" }).click();
    const field = page.getByLabel("URL");
    await page.locator(".field", { has: field }).locator("p.error").waitFor();
    assert.notEqual(await description(field), "");
    assert.equal(await field.getAttribute("aria-invalid"), "true");
    assert.ok(await isFocused(field));
    assert.equal(await page.locator("#toasts .alert").count(), 0, "no message elsewhere");
    assert.deepEqual(await pageViolations(page), []);
  });

  await fixture.step("several errors of one response are beside their fields, with a summary that links to them", async () => {
    const errors = [{ field: "url", message: "url: must use https" }, { field: "rate_limit.burst", message: "must be at least 1" }, { field: "", message: "the quota is reached" }];
    const problem = { status: 400, code: "invalid", detail: "3 fields are invalid", errors };
    await page.route("**/v1/webhooks**", (route) => route.fulfill({ status: 400, contentType: "application/problem+json", body: JSON.stringify(problem) }));
    await page.getByRole("button", { name: "Create webhook" }).click();
    const summary = page.locator(".fault-summary");
    await summary.getByText("3 values are not valid:").waitFor();
    await summary.getByText("the quota is reached").waitFor();
    assert.ok(await summary.evaluate((element) => element.closest("form") !== null), "the summary is in the form");
    assert.ok(await isFocused(page.getByLabel("URL")), "the first field has the focus");
    const burst = page.getByLabel("Burst");
    assert.match(await description(burst), /must be at least 1/);
    assert.ok(await burst.isVisible(), "its section was opened");
    await summary.getByRole("link", { name: /rate_limit.burst/ }).click();
    assert.ok(await isFocused(burst));
    assert.deepEqual(await accessibilityViolations(page), []);
    await page.unroute("**/v1/webhooks**");
  });

  await fixture.step("the errors disappear when the form is valid", async () => {
    await page.getByLabel("URL").fill("http://127.0.0.1:9000/webhook");
    await page.getByRole("button", { name: "Create webhook" }).click();
    await page.getByText("Webhook created").waitFor();
    assert.equal(await page.locator("p.error, .fault-summary").count(), 0);
  });

  await fixture.step("a form in a dialog shows an error without a field in itself", async () => {
    await page.goto("/dashboard/admin/keys?tenant=default");
    await page.getByRole("button", { name: /New key/ }).first().click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Purpose").fill("checkout");
    await dialog.getByLabel("Allowed networks").fill("300.1.2.3/99");
    await dialog.getByRole("button", { name: "Create key" }).click();
    const networks = dialog.getByLabel("Allowed networks");
    await dialog.locator("p.error").waitFor();
    assert.notEqual(await description(networks), "");
    assert.ok(await isFocused(networks));
  });

  await fixture.step("an invalid filter is reported beside its field, and the listing stays", async () => {
    await page.goto(`${fixture.home}/deliveries`);
    await page.locator(".more-filters > summary").click();
    const code = page.getByLabel("Status code");
    await code.fill("often");
    await page.getByRole("button", { name: "Apply" }).click();
    await page.locator("form.filters p.error").waitFor();
    assert.match(await description(code), /status_code|503|5xx|code/);
    assert.ok(await isFocused(code));
    assert.equal(new URL(page.url()).search, "");
    await code.fill("5xx");
    await page.getByRole("button", { name: "Apply" }).click();
    await page.waitForURL(/status_code=5xx/);
  });

  await fixture.step("a wrong key is reported beside its field", async () => {
    const guest = await fixture.visitor();
    guest.allow(/status of 401/);
    const tab = await guest.tab();
    await tab.goto("/dashboard/login");
    await tab.getByLabel("API key").fill("rdk_wrong");
    await tab.getByRole("button", { name: "Log in" }).click();
    await tab.getByRole("alert").waitFor();
    assert.notEqual(await description(tab.getByLabel("API key")), "");
    await guest.context.close();
  });
});
