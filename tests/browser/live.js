// The list of deliveries updates live, without a reload.
"use strict";
const { assert, story } = require("./lib");

story(async (stage) => {
  const { visitor, page } = await stage.loggedIn();
  const receiver = await stage.receiver();
  const rows = (tab, type) => tab.getByRole("row").filter({ hasText: type });
  const says = (tab, words) => tab.locator("#live-state", { hasText: words }).waitFor();
  const mark = (tab) => tab.evaluate(() => void (globalThis.sameDocument = true));
  const isSame = (tab) => tab.evaluate(() => globalThis.sameDocument === true);

  await stage.scene("an event that is published appears, and is delivered", async () => {
    await page.getByText("There are no deliveries yet.").waitFor();
    await says(page, "Live");
    await mark(page);
    await stage.webhook(receiver.url);
    await stage.publish("order.created", { total: 1 });
    await rows(page, "order.created").getByText("delivered").waitFor();
    assert.ok(await isSame(page), "the page was not loaded anew");
  });

  await stage.scene("what somebody does on the page is not disturbed", async () => {
    const link = rows(page, "order.created").getByRole("link", { name: "order.created" });
    await link.focus();
    await page.getByLabel("Event type").evaluate((field) => (field.value = "half a wo"));
    await stage.publish("order.paid");
    await rows(page, "order.paid").getByText("delivered").waitFor();
    assert.ok(await link.evaluate((element) => element === document.activeElement), "the focus stays");
    assert.equal(await page.getByLabel("Event type").inputValue(), "half a wo");
    assert.match(await page.getByRole("row").nth(1).innerText(), /order\.paid/, "the newest is first");
  });

  await stage.scene("a second tab shows the same, and one that nobody sees does not listen", async () => {
    const second = await visitor.tab();
    await second.goto(`${stage.home}/deliveries`);
    await says(second, "Live");
    const beSeen = (state) => second.evaluate((state) => {
      Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }, state);
    await stage.publish("order.shipped");
    for (const tab of [page, second]) await rows(tab, "order.shipped").getByText("delivered").waitFor();
    await beSeen("hidden");
    await stage.publish("order.returned");
    await rows(page, "order.returned").getByText("delivered").waitFor();
    assert.equal(await rows(second, "order.returned").count(), 0);
    await beSeen("visible");
    await rows(second, "order.returned").getByText("delivered").waitFor();
    await second.close();
  });

  await stage.scene("a server that is away is told, and the page goes on when it is back", async () => {
    visitor.allow(/ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE/);
    await stage.have("stop");
    await says(page, "Reconnecting");
    await stage.have("start");
    await says(page, "Live");
    await stage.publish("order.refunded");
    await rows(page, "order.refunded").getByText("delivered").waitFor();
    assert.ok(await isSame(page), "the page was not loaded anew");
  });

  await stage.scene("whoever is not allowed any more is told, and stays on the page", async () => {
    const made = await stage.api("POST", "/v1/tenants/default/api-keys", { name: "guest", scopes: ["read"] });
    const guest = await stage.loggedIn(undefined, { key: made.key });
    guest.visitor.allow(/EventSource's response has a MIME type/);
    await says(guest.page, "Live");
    await stage.api("DELETE", `/v1/tenants/default/api-keys/${made.id}`);
    await says(guest.page, "Logged out");
    await rows(guest.page, "order.refunded").waitFor();
    await guest.visitor.context.close();
  });

  await stage.scene("a filter holds for what comes later", async () => {
    await page.getByLabel("Event type").fill("");
    await page.getByRole("combobox", { name: "Status" }).selectOption("delivered");
    await page.waitForURL(/status=delivered/);
    await says(page, "Live");
    receiver.answer = () => ({ status: 400 });
    await stage.publish("order.bad");
    await stage.eventually("a dead letter", "/v1/dlq", (dead) => dead.data.length === 1);
    receiver.answer = () => ({ status: 200 });
    await stage.publish("order.good");
    await rows(page, "order.good").waitFor();
    assert.equal(await rows(page, "order.bad").count(), 0);
  });
});
