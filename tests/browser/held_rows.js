// Live tables: rows under the pointer, with the keyboard focus or after a touch stay in place, and a button shows the
// new ones.
"use strict";
const { accessibilityViolations, assert, scenario, PHONE } = require("./lib");

scenario(async (fixture) => {
  const receiver = await fixture.receiver();
  await fixture.webhook(receiver.url);
  const publishAll = async (prefix, count) => {
    const events = Array.from({ length: count }, (_, n) => ({ event_type: `${prefix}.n${n}`, data: {} }));
    await fixture.api("POST", "/v1/events/batch", { events });
    const isDone = (page) => page.data.filter((one) => one.event_type.startsWith(prefix)).length >= Math.min(count, 100);
    await fixture.eventually(`deliveries of ${prefix}`, "/v1/deliveries?limit=100&status=delivered", isDone);
  };
  await publishAll("first", 12);
  const { page } = await fixture.loggedIn();
  const bar = (tab) => tab.getByRole("button", { name: /^\d+\+? new$/ });
  const row = (tab, type) => tab.getByRole("row").filter({ hasText: type });
  const ids = (tab) => tab.locator("tbody tr").evaluateAll((rows) => rows.map((one) => one.id));
  const top = (tab, type) => row(tab, type).evaluate((one) => one.getBoundingClientRect().top);
  const isLive = (tab) => tab.locator("#live-state", { hasText: "Live" }).waitFor();
  await isLive(page);

  await fixture.step("the row under the pointer stays, and new rows are counted", async () => {
    await row(page, "first.n3").hover();
    const [before, position] = [await ids(page), await top(page, "first.n3")];
    await publishAll("second", 12);
    await bar(page).filter({ hasText: "12 new" }).waitFor();
    assert.deepEqual(await ids(page), before, "no row was added, removed or moved");
    assert.equal(await top(page, "first.n3"), position, "the row under the pointer did not move");
    assert.deepEqual(await accessibilityViolations(page), []);
  });

  await fixture.step("values of visible rows change while they are held", async () => {
    receiver.respond = () => ({ status: 500 });
    await fixture.publish("third.waiting");
    await page.mouse.move(0, 0);
    await row(page, "third.waiting").getByText(/pending|next attempt/).first().waitFor();
    await row(page, "third.waiting").hover();
    const [waiting] = (await fixture.api("GET", "/v1/deliveries?event_type=third.waiting")).data;
    await fixture.publish("third.later");
    await bar(page).waitFor();
    receiver.respond = () => ({ status: 200 });
    await fixture.api("POST", `/v1/deliveries/${waiting.id}/cancel`);
    await row(page, "third.waiting").getByText("cancelled").waitFor();
    assert.equal(await row(page, "third.later").count(), 0);
  });

  await fixture.step("the new rows appear when the pointer leaves, and when the button is clicked", async () => {
    await page.mouse.move(0, 0);
    await row(page, "third.later").waitFor();
    assert.equal(await bar(page).count(), 0);
    await row(page, "second.n2").first().hover();
    await fixture.publish("fourth.clicked");
    await bar(page).click();
    await row(page, "fourth.clicked").waitFor();
    assert.equal(await bar(page).count(), 0);
    await page.mouse.move(0, 0);
  });

  await fixture.step("rows stay while the keyboard focus is in the table, and Enter on the button shows the new ones", async () => {
    const link = row(page, "second.n2").getByRole("link").first();
    await page.keyboard.press("Tab");
    await link.focus();
    await fixture.publish("fifth.keyboard");
    await bar(page).waitFor();
    assert.equal(await row(page, "fifth.keyboard").count(), 0);
    assert.ok(await link.evaluate((element) => element === document.activeElement), "the link keeps the focus");
    await bar(page).focus();
    assert.equal(await row(page, "fifth.keyboard").count(), 0, "the focus on the button holds the rows too");
    await page.keyboard.press("Enter");
    await row(page, "fifth.keyboard").waitFor();
    const focused = await page.evaluate(() => document.activeElement.closest("tr")?.id);
    assert.equal(focused, (await ids(page))[0], "the first new row has the focus");
  });

  await fixture.step("without a pointer, rows stay after a touch until the button is used", async () => {
    const phone = await fixture.loggedIn(undefined, { viewport: PHONE, hasTouch: true, isMobile: true });
    await isLive(phone.page);
    await row(phone.page, "fifth.keyboard").locator("td.num").tap();
    await fixture.publish("sixth.touched");
    await bar(phone.page).filter({ hasText: "1 new" }).waitFor();
    assert.equal(await row(phone.page, "sixth.touched").count(), 0);
    await bar(phone.page).tap();
    await row(phone.page, "sixth.touched").waitFor();
    const isInView = await row(phone.page, "sixth.touched").evaluate((one) => one.getBoundingClientRect().top >= 0);
    assert.ok(isInView, "the page shows the new row");
    await phone.visitor.context.close();
  });
});
