// A browser without JavaScript: all pages can be read, filtered and paged through.
"use strict";
const { assert, follow, story } = require("./lib");

story(async (stage) => {
  const receiver = await stage.receiver(({ body }) => ({ status: JSON.parse(body).data.fails ? 400 : 200 }));
  await stage.webhook(receiver.url);
  const events = Array.from({ length: 60 }, (_, n) => ({ event_type: `order.n${n}`, data: { fails: n % 20 === 0 } }));
  await stage.api("POST", "/v1/events/batch", { events });
  const dead = (page) => page.data.length === 3;
  await stage.eventually("three dead letters", "/v1/deliveries?status=dead", dead);
  const all = (page) => page.data.length === 57;
  await stage.eventually("all others delivered", "/v1/deliveries?status=delivered&limit=100", all);

  const visitor = await stage.visitor({ javaScriptEnabled: false });
  const page = await visitor.tab();
  const types = () => page.getByRole("row").locator("td:nth-child(2)").allInnerTexts();

  await stage.scene("the form logs in", async () => {
    await page.goto(`${stage.home}/deliveries`);
    await page.getByLabel("API key").fill(stage.key);
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByRole("heading", { name: "Deliveries" }).waitFor();
  });

  await stage.scene("times are there without a script to put them into words", async () => {
    const time = await page.locator("time").first().innerText();
    assert.match(time, /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$/);
  });

  await stage.scene("pages lead to older ones and back, and nothing is shown twice or never", async () => {
    const seen = await types();
    for (let pages = 1; pages < 3; pages += 1) {
      await follow(page, page.getByRole("link", { name: "Older" }));
      seen.push(...(await types()));
    }
    assert.equal(await page.getByRole("link", { name: "Older" }).count(), 0);
    assert.equal(seen.length, 60);
    assert.equal(new Set(seen).size, 60);
    await follow(page, page.getByRole("link", { name: "Newest" }));
    assert.deepEqual(await types(), seen.slice(0, 25));
  });

  await stage.scene("the filter works by its button, and its address can be shared", async () => {
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

  await stage.scene("every room can be read, down to single things", async () => {
    const [delivery] = (await stage.api("GET", "/v1/dlq")).data;
    const pages = {
      "": "Overview",
      "/webhooks": receiver.url,
      [`/webhooks/${delivery.webhook_id}`]: "Recent deliveries",
      [`/deliveries/${delivery.id}`]: "the endpoint answered 400",
      "/events": /order\.n\d+/,
      [`/events/${delivery.event_id}`]: '"fails": true',
      "/dead": "By cause",
      "/event-types": "No event types are registered.",
    };
    for (const [where, shown] of Object.entries(pages)) {
      await page.goto(stage.home + where);
      await page.getByRole("main").getByText(shown).first().waitFor();
    }
    await page.goto(`${stage.home}/deliveries`);
  });

  await stage.scene("logging out works too", async () => {
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByLabel("API key").waitFor();
  });
});
