// A payload is edited and resent: a new event, marked as an edited copy, that the original links to.
"use strict";
const { assert, follow, pageViolations, scenario } = require("./lib");

scenario(async (fixture) => {
  const [shop, audit] = [await fixture.receiver(), await fixture.receiver()];
  await fixture.webhook(shop.url, { events: ["order.*"] });
  await fixture.webhook(audit.url, { events: ["never.published"] });
  const original = await fixture.publish("order.paid", { amount: 1, big: 1 });
  await shop.wait(1);
  const { page } = await fixture.loggedIn(`${fixture.home}/events/${original.id}`);

  await fixture.step("the form has the payload of the original", async () => {
    await follow(page, page.getByRole("link", { name: "Edit and resend…" }));
    await page.getByRole("heading", { name: "Edit and resend" }).waitFor();
    assert.deepEqual(JSON.parse(await page.getByLabel("Data, as JSON").inputValue()), { amount: 1, big: 1 });
    assert.deepEqual(await pageViolations(page), []);
  });

  await fixture.step("the edited payload is sent to the subscribed webhooks as a new event", async () => {
    await page.getByLabel("Data, as JSON").fill('{"amount": 2, "big": 12345678901234567890}');
    await follow(page, page.getByRole("button", { name: "Publish the edited event" }));
    await page.getByText("edited copy", { exact: true }).waitFor();
    await page.getByRole("link", { name: original.id }).waitFor();
    const [, sent] = await shop.wait(2);
    assert.match(sent.body.toString(), /"amount": 2, "big": 12345678901234567890/);
    assert.notEqual(sent.headers["webhook-id"], original.id);
    assert.equal(audit.arrivals.length, 0);
  });

  await fixture.step("a copy can be sent to selected webhooks only", async () => {
    await page.goto(`${fixture.home}/publish?edit=${original.id}`);
    await page.getByLabel("Selected webhooks").check();
    await page.getByLabel(audit.url).check();
    await follow(page, page.getByRole("button", { name: "Publish the edited event" }));
    await audit.wait(1);
    assert.equal(shop.arrivals.length, 2);
  });

  await fixture.step("the original links to its edited copies", async () => {
    const copies = (await fixture.api("GET", `/v1/events/${original.id}`)).edited_as;
    assert.equal(copies.length, 2);
    await page.goto(`${fixture.home}/events/${original.id}`);
    for (const copy of copies) await page.getByRole("link", { name: copy }).waitFor();
    await follow(page, page.getByRole("link", { name: copies[1] }));
    await page.getByText("edited copy", { exact: true }).waitFor();
  });
});
