// Resending one event: to all its webhooks without those that have received it, and by the buttons of rows.
"use strict";
const { assert, accessibilityViolations, pageViolations, scenario } = require("./lib");

scenario(async (fixture) => {
  const [healthy, failing] = [await fixture.receiver(), await fixture.receiver(() => ({ status: 400 }))];
  await fixture.webhook(healthy.url, { description: "Shop" });
  const webhook = await fixture.webhook(failing.url, { description: "Warehouse", circuit_breaker_config: { enabled: false } });
  const event = await fixture.publish("order.created", { order: 1 });
  const where = `/v1/deliveries?event_id=${event.id}`;
  const statuses = (count, status) => fixture.eventually(`${count} ${status}`, where, (page) => page.data.filter((one) => one.status === status).length === count);
  await statuses(1, "delivered");
  await statuses(1, "dead");
  const { page } = await fixture.loggedIn(`${fixture.home}/events/${event.id}`);
  const dialog = page.getByRole("dialog", { name: /Resend to all webhooks/ });
  const open = () => page.getByRole("button", { name: "Resend to all…" }).click();
  const go = dialog.getByRole("button", { name: /^Resend to/ });

  await fixture.step("a webhook that received the event is left out unless it is ticked", async () => {
    failing.respond = () => ({ status: 200 });
    await open();
    await dialog.getByText("1 webhook of 2 received the event already and is left out.").waitFor();
    assert.equal(await go.innerText(), "Resend to 1 webhook");
    assert.deepEqual(await accessibilityViolations(page), []);
    await go.click();
    await page.getByText("Resend to 1 webhook queued.").waitFor();
    await failing.wait(2);
    await statuses(2, "delivered");
    assert.equal(healthy.arrivals.length, 1);
  });

  await fixture.step("all of them receive it again once that is ticked", async () => {
    await open();
    await dialog.getByText("2 webhooks of 2 received the event already and are left out.").waitFor();
    assert.ok(await go.isDisabled());
    await dialog.getByLabel(/Also resend to 2 webhooks that received the event already/).check();
    await dialog.getByRole("button", { name: "Resend to 2 webhooks" }).click();
    await page.getByText("Resend to 2 webhooks queued.").waitFor();
    await healthy.wait(2);
    await failing.wait(3);
    await statuses(4, "delivered");
  });

  await fixture.step("the button of a row on the event's page asks before it repeats a delivery", async () => {
    await page.goto(`${fixture.home}/events/${event.id}`);
    assert.deepEqual(await pageViolations(page), []);
    await page.getByRole("row").filter({ hasText: new URL(healthy.url).host }).getByRole("button", { name: "Resend" }).first().click();
    const question = page.getByRole("dialog").filter({ hasText: "already delivered" });
    await question.getByRole("button", { name: "Cancel" }).click();
    assert.equal(healthy.arrivals.length, 2, "nothing was sent");
    await page.getByRole("row").filter({ hasText: new URL(healthy.url).host }).getByRole("button", { name: "Resend" }).first().click();
    await question.getByRole("button", { name: "Resend" }).click();
    await healthy.wait(3);
  });

  await fixture.step("the button of a row on the webhook's page resends a dead letter", async () => {
    failing.respond = () => ({ status: 400 });
    await fixture.publish("order.cancelled");
    await fixture.eventually("a dead letter", "/v1/dlq", (found) => found.data.length === 1);
    failing.respond = () => ({ status: 200 });
    await page.goto(`${fixture.home}/webhooks/${webhook.id}`);
    const row = page.getByRole("row").filter({ hasText: "order.cancelled" }).filter({ hasText: "dead" });
    await row.getByRole("button", { name: "Resend" }).click();
    await page.getByText("Resend queued.").waitFor();
    assert.ok(await row.getByRole("button", { name: "Resend" }).isDisabled(), "a row that stays under the pointer cannot be resent twice");
    await fixture.eventually("no dead letter", "/v1/dlq", (found) => found.data.length === 0);
    await page.mouse.move(0, 0);
    await page.getByRole("row").filter({ hasText: "order.cancelled" }).filter({ hasText: "delivered" }).waitFor();
  });
});
