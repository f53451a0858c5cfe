// The list of deliveries updates live, without a reload.
"use strict";
const { assert, scenario } = require("./lib");

scenario(async (fixture) => {
  const { visitor, page } = await fixture.loggedIn();
  const receiver = await fixture.receiver();
  const rows = (tab, type) => tab.getByRole("row").filter({ hasText: type });
  const showsState = (tab, text) => tab.locator("#live-state", { hasText: text }).waitFor();
  const mark = (tab) => tab.evaluate(() => void (globalThis.sameDocument = true));
  const isSame = (tab) => tab.evaluate(() => globalThis.sameDocument === true);

  await fixture.step("a published event appears and is delivered", async () => {
    await page.getByText("There are no deliveries yet.").waitFor();
    await showsState(page, "Live");
    await mark(page);
    await fixture.webhook(receiver.url);
    await fixture.publish("order.created", { total: 1 });
    await rows(page, "order.created").getByText("delivered").waitFor();
    assert.ok(await isSame(page), "the page was not reloaded");
  });

  await fixture.step("focus and input of the user survive an update", async () => {
    const link = rows(page, "order.created").getByRole("link", { name: "order.created" });
    await link.focus();
    await page.getByLabel("Event type").evaluate((field) => (field.value = "half a wo"));
    await fixture.publish("order.paid");
    await page.getByRole("button", { name: "1 new" }).waitFor();
    assert.ok(await link.evaluate((element) => element === document.activeElement), "the link keeps the focus");
    assert.equal(await page.getByLabel("Event type").inputValue(), "half a wo");
    await page.getByRole("button", { name: "1 new" }).click();
    await rows(page, "order.paid").getByText("delivered").waitFor();
    assert.match(await page.getByRole("row").nth(1).innerText(), /order\.paid/, "the newest is first");
    await page.mouse.move(0, 0);
  });

  await fixture.step("a second tab shows the same, and a hidden tab disconnects", async () => {
    const second = await visitor.tab();
    await second.goto(`${fixture.home}/deliveries`);
    await showsState(second, "Live");
    const setVisibility = (state) => second.evaluate((state) => {
      Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }, state);
    await fixture.publish("order.shipped");
    for (const tab of [page, second]) await rows(tab, "order.shipped").getByText("delivered").waitFor();
    await setVisibility("hidden");
    await fixture.publish("order.returned");
    await rows(page, "order.returned").getByText("delivered").waitFor();
    assert.equal(await rows(second, "order.returned").count(), 0);
    await setVisibility("visible");
    await rows(second, "order.returned").getByText("delivered").waitFor();
    await second.close();
  });

  await fixture.step("the page reports an unavailable server and reconnects when it is available again", async () => {
    visitor.allow(/ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE/);
    await fixture.controlServer("stop");
    await showsState(page, "Disconnected");
    await fixture.controlServer("start");
    await showsState(page, "Live");
    await fixture.publish("order.refunded");
    await rows(page, "order.refunded").getByText("delivered").waitFor();
    assert.ok(await isSame(page), "the page was not reloaded");
  });

  await fixture.step("a revoked key is reported, and the page stays", async () => {
    const created = await fixture.api("POST", "/v1/tenants/default/api-keys", { name: "guest", scopes: ["read"] });
    const guest = await fixture.loggedIn(undefined, { key: created.key });
    guest.visitor.allow(/EventSource's response has a MIME type/);
    await showsState(guest.page, "Live");
    await fixture.api("DELETE", `/v1/tenants/default/api-keys/${created.id}`);
    await showsState(guest.page, "Logged out");
    await rows(guest.page, "order.refunded").waitFor();
    await guest.visitor.context.close();
  });

  await fixture.step("a filter applies to later updates", async () => {
    await page.getByLabel("Event type").fill("");
    await page.getByRole("combobox", { name: "Status" }).selectOption("delivered");
    await page.waitForURL(/status=delivered/);
    await showsState(page, "Live");
    receiver.respond = () => ({ status: 400 });
    await fixture.publish("order.bad");
    await fixture.eventually("a dead letter", "/v1/dlq", (dead) => dead.data.length === 1);
    receiver.respond = () => ({ status: 200 });
    await fixture.publish("order.good");
    await rows(page, "order.good").waitFor();
    assert.equal(await rows(page, "order.bad").count(), 0);
  });
});
