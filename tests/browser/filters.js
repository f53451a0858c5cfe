// Finding objects: combined filters, pagination, URLs that can be shared, and links between objects.
"use strict";
const { assert, follow, scenario } = require("./lib");

scenario(async (fixture) => {
  const receiver = await fixture.receiver(({ body }) => ({ status: JSON.parse(body).data.status ?? 200 }));
  const webhook = await fixture.webhook(receiver.url, { description: "Everything", retry_config: { schedule: [0, 3600] } });
  const second = await fixture.webhook(receiver.url.replace("/webhook", "/second"), { description: "Only users", events: ["user.*"] });
  const events = Array.from({ length: 60 }, (_, n) => ({
    event_type: n % 3 ? "order.created" : "user.created",
    subject: `customer-${n}`,
    data: { status: n % 10 ? 200 : 500, n },
  }));
  await fixture.api("POST", "/v1/events/batch", { events });
  const allAttempted = (page) => page.data.length === 80 && page.data.every((one) => one.attempt_count === 1);
  await fixture.eventually("one attempt of each delivery", "/v1/deliveries?limit=100", allAttempted);
  const { page, visitor } = await fixture.loggedIn();
  const rows = () => page.locator("tbody tr");

  await fixture.step("a choice from a list applies immediately, and empty fields are left out of the URL", async () => {
    await page.getByRole("combobox", { name: "Status" }).selectOption("pending");
    await page.waitForURL(/\?status=pending$/);
    assert.equal(await rows().count(), 8);
    await rows().first().getByText("next attempt").waitFor();
  });

  await fixture.step("filters combine", async () => {
    await page.getByLabel("Event type").fill("user.created");
    await follow(page, page.getByRole("button", { name: "Apply" }));
    assert.equal(await rows().count(), 4);
    await page.getByRole("combobox", { name: "Webhook" }).selectOption(second.id);
    await page.waitForURL(/webhook_id=/);
    assert.equal(await rows().count(), 2);
    await follow(page, page.getByRole("link", { name: "Clear" }));
    assert.equal(await rows().count(), 25);
  });

  await fixture.step("pages continue after the last row, back navigation works, and URLs can be shared", async () => {
    const listed = [];
    const ids = () => rows().evaluateAll((found) => found.map((row) => row.id));
    listed.push(...(await ids()));
    while (await page.getByRole("link", { name: "Older" }).count()) {
      await follow(page, page.getByRole("link", { name: "Older" }));
      listed.push(...(await ids()));
    }
    assert.equal(listed.length, 80);
    assert.equal(new Set(listed).size, 80);
    const last = await ids();
    const shared = await visitor.tab();
    await shared.goto(page.url());
    assert.deepEqual(await shared.locator("tbody tr").evaluateAll((found) => found.map((row) => row.id)), last);
    await shared.close();
    await page.goBack();
    assert.deepEqual(await ids(), listed.slice(50, 75));
  });

  await fixture.step("a delivery shows why it waits, and can be retried and cancelled", async () => {
    await page.goto(`${fixture.home}/deliveries?status=pending&webhook_id=${webhook.id}&event_type=order.created`);
    await follow(page, rows().first().getByRole("link").first());
    await page.getByText(/Waiting for the next attempt, due in (1 h|\d+ min)/).waitFor();
    await page.getByText("Attempt 1", { exact: true }).waitFor();
    await page.getByRole("img", { name: /in total/ }).first().waitFor();
    await page.getByRole("button", { name: "Retry now" }).click();
    await page.getByText("Attempt 2", { exact: true }).waitFor();
    await page.goto(`${fixture.home}/deliveries?status=pending&webhook_id=${webhook.id}`);
    await follow(page, rows().first().getByRole("link").first());
    await page.getByRole("button", { name: "Cancel delivery" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Cancel delivery" }).click();
    await page.locator(".head .badge", { hasText: "cancelled" }).waitFor();
  });

  await fixture.step("values of the address that the form does not list are kept", async () => {
    await page.goto(`${fixture.home}/deliveries?status=exhausted&failure_category=dns,tls&from=2024-01-01`);
    assert.equal(await page.getByRole("combobox", { name: "Status" }).inputValue(), "exhausted");
    assert.equal(await page.getByRole("combobox", { name: "Failure", exact: true }).inputValue(), "dns,tls");
    assert.equal(await page.locator(".moment", { hasText: "Events from" }).locator("input[type=datetime-local]").inputValue(), "2024-01-01T00:00");
    await page.getByLabel("Event type").fill("order.created");
    await follow(page, page.getByRole("button", { name: "Apply" }));
    const query = new URL(page.url()).searchParams;
    assert.deepEqual([query.get("status"), query.get("failure_category"), query.get("event_type")], ["exhausted", "dns,tls", "order.created"]);
    await page.goto(`${fixture.home}/deliveries?webhook_id=${webhook.id}`);
    await follow(page, rows().first().getByRole("link").first());
  });

  await fixture.step("a request can be copied as curl, without its secrets", async () => {
    await visitor.context.grantPermissions(["clipboard-read", "clipboard-write"]);
    await page.locator(".head").getByRole("link", { name: "Copy as curl" }).click();
    await page.getByText(/Copied\./).waitFor();
    const copied = await page.evaluate(() => navigator.clipboard.readText());
    assert.match(copied, /^curl /);
    assert.ok(copied.includes(receiver.url.replace("/webhook", "")), copied);
    assert.ok(!/v1,[A-Za-z0-9+/=]{20}/.test(copied), "the signature is redacted");
  });

  await fixture.step("an event is found by its subject, its payload is searched, and it is resent to one webhook", async () => {
    await follow(page, page.getByRole("navigation", { name: "Main navigation" }).getByRole("link", { name: "Events", exact: true }));
    await page.getByLabel("Subject").fill("customer-3");
    await follow(page, page.getByRole("button", { name: "Apply" }));
    assert.equal(await rows().count(), 1);
    await follow(page, rows().first().getByRole("link"));
    await page.getByLabel("Search in the payload").fill("status");
    await page.getByText("1 of 1", { exact: true }).waitFor();
    const before = receiver.arrivals.length;
    const choice = page.getByRole("group", { name: "Webhooks" });
    const resend = page.locator("section.card", { hasText: "Resend to selected webhooks" }).getByRole("button", { name: "Resend" });
    assert.ok(await resend.isDisabled(), "no webhook is selected");
    await choice.getByLabel(/second/).check();
    await resend.click();
    await receiver.wait(before + 1);
    await page.getByRole("row").filter({ hasText: "/second" }).filter({ hasText: "2" }).first().waitFor();
  });
});
