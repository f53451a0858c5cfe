// From an empty installation to the first event: create a webhook, send a test event, see it delivered.
"use strict";
const { assert, follow, scenario } = require("./lib");

scenario(async (fixture) => {
  const receiver = await fixture.receiver();
  const { page } = await fixture.loggedIn(fixture.home);

  await fixture.step("an empty overview guides through the first steps, and marks each as done", async () => {
    const steps = page.locator("#first-run");
    await steps.getByLabel("URL").fill(receiver.url);
    await steps.getByRole("button", { name: "Create" }).click();
    const dialog = page.getByRole("dialog");
    assert.match(await dialog.locator("code").innerText(), /^whsec_/);
    await dialog.getByRole("button", { name: "Done" }).click();
    await steps.getByRole("button", { name: "Send a test event" }).click();
    await steps.getByText("Done: events arrive").waitFor();
    await steps.locator("#step-arrival").getByText("delivered").waitFor();
    const [arrival] = await receiver.wait(1);
    assert.equal(arrival.headers["content-type"], "application/json");
  });

  await fixture.step("the form shows errors while it is filled in", async () => {
    await follow(page, page.getByRole("link", { name: "Webhooks", exact: true }));
    await follow(page, page.getByRole("link", { name: "New webhook" }));
    await page.getByLabel("URL", { exact: true }).fill("ftp://example.com");
    await page.locator("#f-url-fault").waitFor();
    await page.getByLabel("URL", { exact: true }).fill(receiver.url);
    await page.locator("#f-url-fault").waitFor({ state: "detached" });
    await page.getByLabel("Event types", { exact: true }).fill("order.*");
    await page.getByRole("button", { name: "Add", exact: true }).click();
    await page.getByText("All fields are valid.").waitFor();
  });

  await fixture.step("a webhook is created, and its secret is shown only once", async () => {
    await page.getByLabel("Description").fill("Orders to the warehouse");
    await page.getByRole("button", { name: "Create webhook" }).click();
    await page.getByRole("heading", { name: "Webhook created" }).waitFor();
    const secret = await page.locator("[data-secret]").innerText();
    assert.match(secret, /^whsec_/);
    await page.getByRole("button", { name: "Send a test event" }).click();
    await page.getByText(/Delivered: the endpoint returned 200/).waitFor();
    await receiver.wait(2);
    await follow(page, page.getByRole("link", { name: "View webhook" }));
    await page.getByRole("heading", { name: "Orders to the warehouse" }).waitFor();
    assert.ok(!(await page.content()).includes(secret), "the secret is not shown again");
  });

  await fixture.step("the page of the webhook shows new deliveries live", async () => {
    const recent = page.getByRole("region", { name: "Recent deliveries" });
    await recent.getByRole("row").filter({ hasText: "redrive.test" }).getByText("delivered").waitFor();
    await fixture.publish("order.created", { total: 42 });
    await recent.getByRole("row").filter({ hasText: "order.created" }).getByText("delivered").waitFor();
  });

  await fixture.step("a test event can be sent from the page, and its delivery viewed", async () => {
    await page.getByRole("button", { name: "Send a test" }).click();
    const dialog = page.getByRole("dialog", { name: "Send a test event" });
    await dialog.getByLabel("Payload (JSON)").fill('{"hello": "there"}');
    await dialog.getByRole("button", { name: "Send", exact: true }).click();
    await dialog.getByText(/Delivered: the endpoint returned 200/).waitFor();
    const arrivals = await receiver.wait(5);
    assert.deepEqual(JSON.parse(arrivals.at(-1).body).data, { hello: "there" });
    await follow(page, dialog.getByRole("link", { name: "View delivery" }));
    await page.getByRole("heading", { name: "redrive.test" }).waitFor();
    await page.getByText("hello").first().waitFor();
  });

  await fixture.step("a webhook can be changed, paused, resumed and deleted", async () => {
    await follow(page, page.getByRole("link", { name: "Webhooks", exact: true }));
    await follow(page, page.getByRole("link", { name: "Orders to the warehouse" }));
    await follow(page, page.getByRole("link", { name: "Edit" }));
    await page.getByLabel("Description").fill("Orders without receiver");
    await follow(page, page.getByRole("button", { name: "Save" }));
    await page.getByRole("heading", { name: "Orders without receiver" }).waitFor();
    const badge = (state) => page.locator(".head .badge", { hasText: state }).first().waitFor();
    await page.getByRole("button", { name: "Pause" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Pause" }).click();
    await badge("Paused");
    await page.getByRole("button", { name: "Resume" }).click();
    await badge("Healthy");
    await page.getByRole("button", { name: "Delete" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
    await page.getByRole("button", { name: "Delete" }).click();
    await follow(page, page.getByRole("dialog").getByRole("button", { name: "Delete" }));
    await page.getByRole("heading", { name: "Webhooks" }).waitFor();
    assert.equal(await page.getByText("Orders without receiver").count(), 0);
  });
});
