// Tables: sorting that says what it covers, column widths that are remembered, full text of cells that are cut off,
// and rows as cards on a phone.
"use strict";
const { accessibilityViolations, assert, overflowingElements, scenario, PHONE } = require("./lib");

scenario(async (fixture) => {
  const statuses = { "order.a": 200, "order.b": 500, "order.c": 404 };
  const receiver = await fixture.receiver(({ body }) => ({ status: statuses[JSON.parse(body).type] ?? 200 }));
  await fixture.webhook(receiver.url, { retry_config: { schedule: [0, 3600] } });
  const subject = `customer-${"long-".repeat(40)}end`;
  for (const type of Object.keys(statuses)) await fixture.api("POST", "/v1/events", { event_type: type, subject, data: {} });
  const isAttempted = (page) => page.data.length === 3 && page.data.every((one) => one.attempt_count === 1);
  await fixture.eventually("one attempt of each delivery", "/v1/deliveries", isAttempted);
  const { page } = await fixture.loggedIn();
  const column = (name) => page.getByRole("columnheader", { name: new RegExp(`^${name}`) });
  const sort = (name) => column(name).getByRole("button", { name, exact: true });
  const types = () => page.locator("tbody td:nth-child(3)").evaluateAll((cells) => cells.map((cell) => cell.textContent.trim()));
  const note = page.locator(".sort-note");

  await fixture.step("a header sorts the rows in both directions and says so", async () => {
    await sort("Event").click();
    assert.deepEqual(await types(), ["order.a", "order.b", "order.c"]);
    assert.equal(await column("Event").getAttribute("aria-sort"), "ascending");
    await note.getByText("Sorted by Event, ascending.").waitFor();
    await sort("Event").click();
    assert.deepEqual(await types(), ["order.c", "order.b", "order.a"]);
    assert.deepEqual(await accessibilityViolations(page), []);
  });

  await fixture.step("live updates keep the order, and the original order can be restored", async () => {
    await page.mouse.move(0, 0);
    await page.evaluate(() => document.activeElement.blur());
    await fixture.publish("order.bb");
    await page.getByRole("row").filter({ hasText: "order.bb" }).waitFor();
    assert.deepEqual(await types(), ["order.c", "order.bb", "order.b", "order.a"]);
    await note.getByRole("button", { name: "Original order" }).click();
    assert.equal(await note.count(), 0);
    assert.deepEqual(await types(), ["order.bb", "order.c", "order.b", "order.a"]);
  });

  await fixture.step("a listing with more pages says that only this page is sorted", async () => {
    const events = Array.from({ length: 30 }, (_, n) => ({ event_type: `more.n${n}`, data: {} }));
    await fixture.api("POST", "/v1/events/batch", { events });
    await page.getByRole("link", { name: "Older" }).waitFor();
    await sort("Created").click();
    await note.getByText("Only the rows of this page are sorted by Created, descending.").waitFor();
  });

  await fixture.step("a column is resized by keyboard and pointer, and its width is remembered", async () => {
    await page.goto(`${fixture.home}/events`);
    const width = async () => Math.round((await column("Subject").boundingBox()).width);
    const handle = column("Subject").getByRole("separator", { name: "Column width" });
    const before = await width();
    await handle.focus();
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("ArrowRight");
    assert.equal(await width(), before + 32);
    const box = await handle.boundingBox();
    await page.mouse.move(box.x + 4, box.y + 8);
    await page.mouse.down();
    await page.mouse.move(box.x + 4 - 100, box.y + 8, { steps: 4 });
    await page.mouse.up();
    const narrow = await width();
    assert.ok(Math.abs(narrow - (before + 32 - 100)) <= 2, `${narrow} from ${before}`);
    await page.reload();
    assert.equal(await width(), narrow);
    assert.deepEqual(await overflowingElements(page), []);
    await column("Subject").getByRole("separator", { name: "Column width" }).dblclick();
    assert.equal(await width(), before, "a double click restores the width");
  });

  await fixture.step("a text that is cut off is shown in full under the pointer and with the focus", async () => {
    await page.goto(`${fixture.home}/events?event_type=order.a`);
    const text = page.getByRole("row").filter({ hasText: "order.a" }).getByText(subject);
    const tip = page.locator("#tip", { hasText: subject });
    await text.hover();
    await tip.waitFor();
    await page.mouse.move(0, 0);
    await tip.waitFor({ state: "hidden" });
    await text.focus();
    await tip.waitFor();
  });

  await fixture.step("rows are cards on a phone, and no page scrolls to the side", async () => {
    await page.setViewportSize(PHONE);
    for (const section of ["", "/webhooks", "/deliveries", "/events", "/dead", "/operations", "/event-types", "/notifications"]) {
      await page.goto(fixture.home + section);
      assert.deepEqual(await overflowingElements(page), [], section);
      const wide = await page.locator(".scroll").evaluateAll((boxes) => boxes.filter((box) => box.scrollWidth > box.clientWidth + 1).map((box) => box.outerHTML.slice(0, 200)));
      assert.deepEqual(wide, [], `${section} has a table that scrolls to the side`);
    }
    await page.goto(`${fixture.home}/deliveries?event_type=order.b`);
    const row = page.getByRole("row").filter({ hasText: "order.b" }).first();
    const label = await row.locator("td[data-label=Response]").evaluate((cell) => getComputedStyle(cell, "::before").content);
    assert.equal(label, '"Response"');
    assert.deepEqual(await accessibilityViolations(page), []);
    for (const section of ["tenants", "keys?tenant=default", "audit", "settings"]) {
      await page.goto(`/dashboard/admin/${section}`);
      assert.deepEqual(await overflowingElements(page), [], section);
    }
  });
});
