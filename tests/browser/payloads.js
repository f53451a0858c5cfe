// Payloads: JSON in colours, copied as it was published, and compared between two events and two attempts.
"use strict";
const { assert, follow, pageViolations, scenario } = require("./lib");

scenario(async (fixture) => {
  let attempt = 0;
  const receiver = await fixture.receiver(() => {
    attempt += 1;
    if (attempt > 2) return { status: 200 };
    return { status: attempt === 1 ? 500 : 503, headers: { "content-type": "application/json", "x-attempt": `${attempt}` }, body: JSON.stringify({ error: attempt === 1 ? "broken" : "overloaded", code: 7 }) };
  });
  await fixture.webhook(receiver.url, { retry_config: { schedule: [0, 0, 3600] } });
  const publish = async (data, type = "order.paid") => (await fixture.api("POST", "/v1/events", { event_type: type, data })).id;
  const first = await publish({ amount: 100, currency: "EUR", note: "<b>bold</b>", lines: [1, 2, 3] });
  await fixture.eventually("two attempts", "/v1/deliveries", (page) => page.data.some((one) => one.attempt_count >= 2));
  const second = await publish({ amount: 250, currency: "EUR", note: "<b>bold</b>", lines: [1, 2, 3], paid: true });
  const other = await publish({}, "order.other");
  const { visitor, page } = await fixture.loggedIn(`${fixture.home}/events/${second}`);
  await visitor.context.grantPermissions(["clipboard-read", "clipboard-write"]);
  const clipboard = () => page.evaluate(() => navigator.clipboard.readText());
  const changed = (kind) => page.locator(`.diff .${kind}`).allTextContents();

  await fixture.step("a payload is shown in colours, and its markup stays text", async () => {
    const payload = page.locator("#payload");
    assert.equal(await payload.locator(".name", { hasText: '"amount"' }).count(), 1);
    assert.equal(await payload.locator(".number", { hasText: "250" }).count(), 1);
    assert.equal(await payload.locator(".word", { hasText: "true" }).count(), 1);
    assert.equal(await payload.locator(".text", { hasText: "<b>bold</b>" }).count(), 1);
    assert.equal(await payload.locator("b").count(), 0);
    const colours = await payload.locator("span").evaluateAll((spans) => new Set(spans.map((one) => getComputedStyle(one).color)).size);
    assert.ok(colours >= 4, `${colours} colours`);
    assert.deepEqual(await pageViolations(page), []);
  });

  await fixture.step("a search highlights matches across colours, and the colours return", async () => {
    const search = page.getByLabel("Search in the payload");
    await search.fill('amount": 250');
    await page.getByText("1 of 1", { exact: true }).waitFor();
    await search.fill("");
    assert.equal(await page.locator("#payload .name").first().isVisible(), true);
  });

  await fixture.step("the payload is copied as it was published", async () => {
    await page.getByRole("link", { name: "Copy", exact: true }).click();
    await page.getByText("Copied as published.").waitFor();
    assert.deepEqual(JSON.parse(await clipboard()), { amount: 250, currency: "EUR", note: "<b>bold</b>", lines: [1, 2, 3], paid: true });
  });

  await fixture.step("an event is compared with the previous one of its type", async () => {
    await follow(page, page.getByRole("link", { name: "With the previous one" }));
    assert.deepEqual((await changed("removed")).map((line) => line.trim()), ['"amount": 100,', "]"]);
    assert.deepEqual((await changed("added")).map((line) => line.trim()), ['"amount": 250,', "],", '"paid": true']);
    await page.locator(".diff-legend").getByText(first).waitFor();
    assert.deepEqual(await pageViolations(page), []);
  });

  await fixture.step("an event that cannot be compared is reported beside the field", async () => {
    const field = page.getByLabel("Another order.paid event");
    for (const [id, reason] of [[other, "is an event of the type order.other"], ["order-5", "is not an event id"], [`${first.slice(0, -1)}${first.endsWith("0") ? "1" : "0"}`, "there is no event with this id"]]) {
      await field.fill(id);
      await page.getByRole("button", { name: "Compare" }).click();
      await page.locator("#compare-error", { hasText: reason }).waitFor();
      assert.equal(await field.getAttribute("aria-describedby"), "compare-error");
    }
  });

  await fixture.step("two attempts are compared: outcome, headers and body", async () => {
    const [delivery] = (await fixture.api("GET", `/v1/deliveries?event_id=${first}`)).data;
    await page.goto(`${fixture.home}/deliveries/${delivery.id}`);
    await page.locator("pre.json .text", { hasText: '"overloaded"' }).first().waitFor();
    await page.getByRole("button", { name: "Compare" }).click();
    await page.waitForURL(/first=1&second=2/);
    const [removed, added] = [(await changed("removed")).join("\n"), (await changed("added")).join("\n")];
    assert.match(removed, /500 · server error/);
    assert.match(added, /503 · server error/);
    assert.match(removed, /x-attempt: 1/);
    assert.match(added, /x-attempt: 2/);
    assert.match(removed, /"error": "broken"/);
    assert.match(added, /"error": "overloaded"/);
    assert.ok(!added.includes('"code": 7'), "equal lines are not marked");
    assert.deepEqual(await pageViolations(page), []);
    await page.locator(".code-head").getByRole("button", { name: "Copy" }).click();
    await page.getByRole("button", { name: "Copied ✓" }).waitFor();
    assert.equal(JSON.parse(await clipboard()).data.amount, 100);
  });
});
