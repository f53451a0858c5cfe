// A browser without JavaScript: all pages can be read, filtered and paged through.
"use strict";
const { assert, follow, scenario } = require("./lib");

scenario(async (fixture) => {
  const receiver = await fixture.receiver(({ body }) => ({ status: JSON.parse(body).data.fails ? 400 : 200 }));
  await fixture.webhook(receiver.url);
  const events = Array.from({ length: 60 }, (_, n) => ({ event_type: `order.n${n}`, data: { fails: n % 20 === 0 } }));
  await fixture.api("POST", "/v1/events/batch", { events });
  const dead = (page) => page.data.length === 3;
  await fixture.eventually("three dead letters", "/v1/deliveries?status=dead", dead);
  const all = (page) => page.data.length === 57;
  await fixture.eventually("all others delivered", "/v1/deliveries?status=delivered&limit=100", all);

  const visitor = await fixture.visitor({ javaScriptEnabled: false });
  const page = await visitor.tab();
  const types = () => page.getByRole("row").locator("td:nth-child(3)").allInnerTexts();

  await fixture.step("the form logs in", async () => {
    await page.goto(`${fixture.home}/deliveries`);
    await page.getByLabel("API key").fill(fixture.key);
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByRole("heading", { name: "Deliveries" }).waitFor();
  });

  await fixture.step("times are absolute without scripts", async () => {
    const time = await page.locator("time").first().innerText();
    assert.match(time, /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$/);
  });

  await fixture.step("pages link to older ones and back, and every row is shown once", async () => {
    const listed = await types();
    for (let pages = 1; pages < 3; pages += 1) {
      await follow(page, page.getByRole("link", { name: "Older" }));
      listed.push(...(await types()));
    }
    assert.equal(await page.getByRole("link", { name: "Older" }).count(), 0);
    assert.equal(listed.length, 60);
    assert.equal(new Set(listed).size, 60);
    await follow(page, page.getByRole("link", { name: "Newest" }));
    assert.deepEqual(await types(), listed.slice(0, 25));
  });

  await fixture.step("the filter works by its button, and its URL can be shared", async () => {
    await page.getByRole("combobox", { name: "Status" }).selectOption("dead");
    await page.getByRole("button", { name: "Apply" }).click();
    await page.waitForURL(/status=dead/);
    assert.deepEqual((await types()).sort(), ["order.n0", "order.n20", "order.n40"]);
    const other = await visitor.tab();
    await other.goto(page.url());
    assert.equal(await other.getByRole("combobox", { name: "Status" }).inputValue(), "dead");
    assert.equal(await other.getByRole("row").count(), 4);
    await follow(page, page.getByRole("link", { name: "Clear" }));
    assert.equal((await types()).length, 25);
  });

  await fixture.step("every section and every object can be read", async () => {
    const [delivery] = (await fixture.api("GET", "/v1/dlq")).data;
    const pages = {
      "": "Overview",
      "/webhooks": receiver.url,
      [`/webhooks/${delivery.webhook_id}`]: "Recent deliveries",
      [`/deliveries/${delivery.id}`]: "the endpoint returned 400",
      "/events": /order\.n\d+/,
      [`/events/${delivery.event_id}`]: '"fails": true',
      "/dead": "By failure",
      "/event-types": "No event types are registered.",
    };
    for (const [where, shown] of Object.entries(pages)) {
      await page.goto(fixture.home + where);
      await page.getByRole("main").getByText(shown).first().waitFor();
    }
    await page.goto(`${fixture.home}/deliveries`);
  });

  await fixture.step("logout works", async () => {
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByLabel("API key").waitFor();
  });
});
