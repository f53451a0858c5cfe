// Chosen dead letters and deliveries: selected by box, by range, by page and by filter, and resent with three clicks.
"use strict";
const { assert, accessibilityViolations, Clicks, overflowingElements, scenario, PHONE } = require("./lib");

scenario(async (fixture) => {
  const endpoint = await fixture.receiver(() => ({ status: 400, body: "no" }));
  await fixture.webhook(endpoint.url, { events: ["order.*"], circuit_breaker_config: { enabled: false } });
  const publish = (from, count) => fixture.api("POST", "/v1/events/batch", { events: Array.from({ length: count }, (_, n) => ({ event_type: `order.n${from + n}`, data: {} })) });
  const dead = (count) => fixture.eventually(`${count} dead letters`, "/v1/dlq?limit=100", (page) => page.data.length === count);
  await publish(0, 40);
  await dead(40);
  const { page } = await fixture.loggedIn(`${fixture.home}/dead`);
  const bar = page.getByRole("region", { name: "Selection" });
  const box = (row) => page.locator("tbody input[data-pick]").nth(row);
  const header = page.getByRole("checkbox", { name: "Select all on this page" });
  const resend = bar.getByRole("button", { name: "Resend", exact: true });
  const arrived = () => endpoint.arrivals.slice(40).map(({ body }) => JSON.parse(body).type).sort();
  endpoint.respond = () => ({ status: 200 });

  // Events of one batch are listed in any order.
  let types = [];
  await fixture.step("chosen dead letters are resent with three clicks", async () => {
    const clicks = new Clicks();
    types = await page.locator("tbody tr td:nth-child(2) a").allInnerTexts();
    await clicks.on(box(1));
    await bar.getByText("1 selected").waitFor();
    await clicks.on(box(4), { modifiers: ["Shift"] });
    await bar.getByText("4 selected").waitFor();
    await clicks.on(resend);
    assert.equal(clicks.count, 3);
    await page.getByText("Resend of 4 queued.").waitFor();
    await endpoint.wait(44);
    assert.deepEqual(arrived(), types.slice(1, 5).sort());
    await dead(36);
    await bar.waitFor({ state: "hidden" });
  });

  await fixture.step("a selection survives a live update of the table", async () => {
    await page.evaluate(() => void (globalThis.sameDocument = true));
    await page.getByRole("table").getByRole("link", { name: types[1], exact: true }).waitFor({ state: "hidden" });
    await box(0).check();
    await box(2).check();
    const ids = await page.locator("tbody input[data-pick]:checked").evaluateAll((boxes) => boxes.map((one) => one.value));
    endpoint.respond = () => ({ status: 400 });
    await publish(100, 2);
    await page.getByRole("row").filter({ hasText: "order.n101" }).waitFor();
    const after = await page.locator("tbody input[data-pick]:checked").evaluateAll((boxes) => boxes.map((one) => one.value));
    assert.deepEqual(after.sort(), ids.sort());
    await bar.getByText("2 selected").waitFor();
    assert.ok(await page.evaluate(() => globalThis.sameDocument === true), "the page was not reloaded");
    await bar.getByRole("button", { name: "Clear" }).click();
    assert.equal(await page.locator("tbody input[data-pick]:checked").count(), 0);
  });

  await fixture.step("rows are selected with the keyboard", async () => {
    await box(0).focus();
    await page.keyboard.press("Space");
    await bar.getByText("1 selected").waitFor();
    await box(3).focus();
    await page.keyboard.press("Shift+Space");
    await bar.getByText("4 selected").waitFor();
    await bar.getByRole("button", { name: "Clear" }).press("Enter");
    await bar.waitFor({ state: "hidden" });
  });

  await fixture.step("the header selects the page, and then everything that matches", async () => {
    await header.check();
    await bar.getByText("25 selected").waitFor();
    assert.deepEqual(await accessibilityViolations(page), []);
    await bar.getByRole("button", { name: "Select all 38 that match" }).click();
    await bar.getByText("All 38 that match are selected").waitFor();
    await resend.click();
    const dialog = page.getByRole("dialog", { name: "Resend dead letters" });
    await dialog.getByText(/38 deliveries/).waitFor();
    await dialog.getByRole("button", { name: "Cancel" }).click();
    await box(0).uncheck();
    await bar.getByText("24 selected").waitFor();
    await bar.getByRole("button", { name: "Clear" }).click();
  });

  await fixture.step("the table can be selected from on a phone", async () => {
    await page.setViewportSize(PHONE);
    await box(0).check();
    await bar.getByText("1 selected").waitFor();
    assert.deepEqual(await overflowingElements(page), []);
    assert.ok(await resend.isVisible());
    await bar.getByRole("button", { name: "Clear" }).click();
    await page.setViewportSize({ width: 1280, height: 800 });
  });

  await fixture.step("one row is resent by its button", async () => {
    endpoint.respond = () => ({ status: 200 });
    const row = page.getByRole("row").filter({ has: page.getByRole("link", { name: "order.n101", exact: true }) });
    await row.getByRole("button", { name: "Resend" }).click();
    await page.getByText("Resend queued.").waitFor();
    await row.waitFor({ state: "hidden" });
    await dead(37);
  });

  await fixture.step("selected deliveries that were delivered are left out unless they are ticked", async () => {
    const before = endpoint.arrivals.length;
    await page.goto(`${fixture.home}/deliveries?status=delivered`);
    await box(0).check();
    await box(1).check();
    await resend.click();
    const dialog = page.getByRole("dialog", { name: "Resend the selected deliveries" });
    await dialog.getByText("2 of 2 were already delivered.").waitFor();
    const go = dialog.getByRole("button", { name: /^Resend \d/ });
    assert.ok(await go.isDisabled());
    await dialog.getByLabel(/Also resend 2/).check();
    await go.click();
    await page.getByText("Resend of 2 queued.").waitFor();
    await endpoint.wait(before + 2);
  });

  await fixture.step("pending deliveries are cancelled by selection", async () => {
    endpoint.respond = () => ({ status: 503 });
    await publish(200, 2);
    await fixture.eventually("2 that are retried", "/v1/deliveries?status=pending&failure_category=server_error", (found) => found.data.length === 2);
    await page.goto(`${fixture.home}/deliveries?status=pending`);
    await header.check();
    await bar.getByRole("button", { name: "Cancel pending" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Cancel deliveries" }).click();
    await page.getByText("Cancellation of 2 queued.").waitFor();
    await fixture.eventually("2 cancelled", "/v1/deliveries?status=cancelled", (found) => found.data.length === 2);
  });

  await fixture.step("dead letters are grouped by age, and a group sets the filter", async () => {
    await page.goto(`${fixture.home}/dead`);
    const ages = page.locator("section.card", { hasText: "By age" });
    await ages.getByRole("listitem").filter({ hasText: "under 1 h" }).getByText("37").waitFor();
    await ages.getByRole("link", { name: "over 24 h" }).click();
    await page.getByText("Nothing matches.").waitFor();
    assert.match(page.url(), /failed_to=/);
  });

  await fixture.step("each dead letter shows what its endpoint did since it failed", async () => {
    await page.goto(`${fixture.home}/dead`);
    await page.getByText("not retryable as is: rejected with 400").first().waitFor();
  });
});
