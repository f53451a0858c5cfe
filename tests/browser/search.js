// Finding anything: from a pasted id to its page, results while typing, the form without scripts, and payload search.
"use strict";
const { assert, PHONE, follow, overflowingElements, pageViolations, scenario } = require("./lib");

/** Fails if a page is not accessible, or too wide, in a theme or on a phone. */
async function checkPage(page) {
  assert.deepEqual(await pageViolations(page), []);
}

scenario(async (fixture) => {
  const receiver = await fixture.receiver(() => ({ status: 200 }));
  const webhook = await fixture.webhook(receiver.url.replace("/webhook", "/orders/incoming"), { description: "Shop orders" });
  const event = await fixture.api("POST", "/v1/events", {
    event_type: "order.created",
    subject: "customer-7",
    data: { order: { id: "ord_7" } },
  });
  const path = `/v1/deliveries?event_id=${event.id}`;
  const listed = await fixture.eventually("a delivery", path, (page) => page.data[0]?.status === "delivered");
  const delivery = listed.data[0];
  const { page } = await fixture.loggedIn(fixture.home);
  const box = () => page.getByRole("combobox", { name: "Find anything" });
  const results = () => page.getByRole("listbox", { name: "Found" }).getByRole("option");

  await fixture.step("a pasted delivery id opens its page without a click", async () => {
    let clicks = 0;
    await page.exposeFunction("countClick", () => void (clicks += 1));
    await page.addInitScript(() => addEventListener("pointerdown", () => window.countClick(), true));
    await page.reload();
    await page.keyboard.press("/");
    await page.keyboard.insertText(` "${delivery.id}" `);
    await page.keyboard.press("Enter");
    await page.waitForURL(`**/deliveries/${delivery.id}`);
    assert.ok(clicks <= 1, `${clicks} clicks`);
    await page.getByText("Attempt 1", { exact: true }).waitFor();
  });

  await fixture.step("results appear while typing, and the keyboard selects one", async () => {
    await page.keyboard.press("Control+k");
    await page.keyboard.type("INCOMING");
    await results().first().waitFor();
    assert.equal(await box().getAttribute("aria-expanded"), "true");
    await page.keyboard.press("ArrowDown");
    assert.equal(await box().getAttribute("aria-activedescendant"), await results().first().getAttribute("id"));
    await checkPage(page);
    await page.keyboard.press("Enter");
    await page.waitForURL(`**/webhooks/${webhook.id}`);
  });

  await fixture.step("Escape closes the results, and a field that is typed into keeps its slash", async () => {
    await box().fill("customer-7");
    await results().first().waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("listbox", { name: "Found" }).waitFor({ state: "hidden" });
    await page.goto(`${fixture.home}/events`);
    const subject = page.getByLabel("Subject");
    await subject.focus();
    await page.keyboard.type("a/b");
    assert.equal(await subject.inputValue(), "a/b");
  });

  await fixture.step("an event is found by its subject, and by a value in its payload", async () => {
    await page.goto(`${fixture.home}/search?q=customer-7`);
    await page.getByRole("link", { name: /order\.created · customer-7/ }).waitFor();
    await checkPage(page);
    await follow(page, page.getByRole("link", { name: "Search payloads" }));
    await page.getByLabel("Path").fill("order.id");
    await page.getByLabel("Value").fill("ord_7");
    await follow(page, page.locator("main").getByRole("button", { name: "Search" }));
    await page.getByText("Searched 100 %").waitFor();
    await checkPage(page);
    await follow(page, page.locator("tbody").getByRole("link", { name: "order.created" }));
    assert.ok(page.url().endsWith(event.id), page.url());
  });

  await fixture.step("the attempts to a webhook are listed, and lead to their deliveries", async () => {
    await page.goto(`${fixture.home}/webhooks/${webhook.id}`);
    await follow(page, page.getByRole("link", { name: "Attempts" }));
    await checkPage(page);
    await page.getByRole("combobox", { name: "Result" }).selectOption("failed");
    await page.getByText("No matches").waitFor();
    await follow(page, page.getByRole("link", { name: "Clear" }));
    await follow(page, page.locator("tbody").getByRole("link").first());
    assert.ok(page.url().includes(delivery.id), page.url());
  });

  await fixture.step("the box works on a phone and without scripts", async () => {
    const phone = await fixture.loggedIn(fixture.home, { viewport: PHONE });
    await phone.page.getByRole("combobox", { name: "Find anything" }).fill("incoming");
    await phone.page.getByRole("option").first().waitFor();
    assert.deepEqual(await overflowingElements(phone.page), []);
    const cookies = await phone.visitor.context.cookies();
    const plain = await fixture.visitor({ javaScriptEnabled: false });
    await plain.context.addCookies(cookies);
    const tab = await plain.tab();
    await tab.goto(fixture.home);
    await tab.getByRole("searchbox", { name: "Find anything" }).fill(delivery.id);
    await tab.keyboard.press("Enter");
    await tab.waitForURL(`**/deliveries/${delivery.id}`);
  });
});
