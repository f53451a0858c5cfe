// From an empty installation to the first event: create a webhook, send a test event, see it delivered.
"use strict";
const { assert, follow, story } = require("./lib");

story(async (stage) => {
  const receiver = await stage.receiver();
  const { page } = await stage.loggedIn(stage.home);

  await stage.scene("an empty overview leads through the first steps, and shows each as done by itself", async () => {
    const steps = page.locator("#first-run");
    await steps.getByLabel("URL").fill(receiver.url);
    await steps.getByRole("button", { name: "Create" }).click();
    const once = page.getByRole("dialog");
    assert.match(await once.locator("code").innerText(), /^whsec_/);
    await once.getByRole("button", { name: "Done, I have it" }).click();
    await steps.getByRole("button", { name: "Send a test event" }).click();
    await steps.getByText("Done: events arrive").waitFor();
    await steps.locator("#step-arrival").getByText("delivered").waitFor();
    const [arrival] = await receiver.wait(1);
    assert.equal(arrival.headers["content-type"], "application/json");
  });

  await stage.scene("the form tells what is wrong while it is written", async () => {
    await follow(page, page.getByRole("link", { name: "Webhooks", exact: true }));
    await follow(page, page.getByRole("link", { name: "New webhook" }));
    await page.getByLabel("URL", { exact: true }).fill("ftp://example.com");
    await page.locator("#f-url-fault").waitFor();
    await page.getByLabel("URL", { exact: true }).fill(receiver.url);
    await page.locator("#f-url-fault").waitFor({ state: "detached" });
    await page.getByLabel("Event types", { exact: true }).fill("order.*");
    await page.getByRole("button", { name: "Add", exact: true }).click();
    await page.getByText("Looks good.").waitFor();
  });

  await stage.scene("a webhook is created, and its secret is shown only once", async () => {
    await page.getByLabel("Description").fill("Orders to the warehouse");
    await page.getByRole("button", { name: "Create webhook" }).click();
    await page.getByRole("heading", { name: "The webhook is there" }).waitFor();
    const secret = await page.locator("[data-secret]").innerText();
    assert.match(secret, /^whsec_/);
    await page.getByRole("button", { name: "Send a test event" }).click();
    await page.getByText(/Delivered: it answered 200/).waitFor();
    await receiver.wait(2);
    await follow(page, page.getByRole("link", { name: "To the webhook" }));
    await page.getByRole("heading", { name: "Orders to the warehouse" }).waitFor();
    assert.ok(!(await page.content()).includes(secret), "never again");
  });

  await stage.scene("its page shows what arrives, live", async () => {
    const recent = page.getByRole("region", { name: "Recent deliveries" });
    await recent.getByRole("row").filter({ hasText: "redrive.test" }).getByText("delivered").waitFor();
    await stage.publish("order.created", { total: 42 });
    await recent.getByRole("row").filter({ hasText: "order.created" }).getByText("delivered").waitFor();
  });

  await stage.scene("a test can be sent from there, and its delivery can be looked at", async () => {
    await page.getByRole("button", { name: "Send a test" }).click();
    const dialog = page.getByRole("dialog", { name: "Send a test event" });
    await dialog.getByLabel("Payload (JSON)").fill('{"hello": "there"}');
    await dialog.getByRole("button", { name: "Send", exact: true }).click();
    await dialog.getByText(/Delivered: it answered 200/).waitFor();
    const came = await receiver.wait(5);
    assert.deepEqual(JSON.parse(came.at(-1).body).data, { hello: "there" });
    await follow(page, dialog.getByRole("link", { name: "See the delivery" }));
    await page.getByRole("heading", { name: "redrive.test" }).waitFor();
    await page.getByText("hello").first().waitFor();
  });

  await stage.scene("it can be changed, paused, resumed and deleted", async () => {
    await follow(page, page.getByRole("link", { name: "Webhooks", exact: true }));
    await follow(page, page.getByRole("link", { name: "Orders to the warehouse" }));
    await follow(page, page.getByRole("link", { name: "Edit" }));
    await page.getByLabel("Description").fill("Orders to nobody");
    await follow(page, page.getByRole("button", { name: "Save" }));
    await page.getByRole("heading", { name: "Orders to nobody" }).waitFor();
    const badge = (state) => page.locator(".head .badge", { hasText: state }).first().waitFor();
    await page.getByRole("button", { name: "Pause" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Pause" }).click();
    await badge("paused");
    await page.getByRole("button", { name: "Resume" }).click();
    await badge("active");
    await page.getByRole("button", { name: "Delete" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Not now" }).click();
    await page.getByRole("button", { name: "Delete" }).click();
    await follow(page, page.getByRole("dialog").getByRole("button", { name: "Delete" }));
    await page.getByRole("heading", { name: "Webhooks" }).waitFor();
    assert.equal(await page.getByText("Orders to nobody").count(), 0);
  });
});
