// Every page, in both themes, on a desk and on a phone: no hurdle that axe finds serious, and nothing sticks out.
"use strict";
const { assert, looksRight, story } = require("./lib");

const LONG = `https://very-long-name.example/${"segment".repeat(40)}`;

story(async (stage) => {
  const visitor = await stage.visitor();
  const door = await visitor.tab();

  await stage.scene("the doors", async () => {
    visitor.allow(/status of 401/);
    await door.goto("/dashboard/login");
    await looksRight(door);
    await door.getByLabel("API key").fill("rdk_wrong");
    await door.getByRole("button", { name: "Log in" }).click();
    await door.getByRole("alert").waitFor();
    await looksRight(door);
    await door.goto("/portal");
    await looksRight(door);
  });

  const { visitor: inside, page } = await stage.loggedIn();

  await stage.scene("before anything has happened", async () => {
    await looksRight(page);
  });

  await stage.scene("with deliveries of every kind", async () => {
    const receiver = await stage.receiver(({ body }) => ({ status: JSON.parse(body).data.status, body: "x".repeat(5000) }));
    await stage.webhook(receiver.url, { description: LONG });
    for (const status of [200, 400, 500]) await stage.publish(`order.${"long".repeat(20)}`, { status });
    await stage.eventually("a dead letter", "/v1/deliveries?status=dead", (dead) => dead.data.length === 1);
    await page.goto(`${stage.home}/deliveries?event_type=order.*`);
    await page.goto(`${stage.home}/deliveries`);
    await page.getByRole("row").nth(3).waitFor();
    await looksRight(page);
  });

  await stage.scene("a page that is not there", async () => {
    inside.allow(/status of 404/);
    await page.goto("/dashboard/nothing/here");
    await looksRight(page);
  });

  await stage.scene("the keyboard alone reaches the page and its parts", async () => {
    await page.goto(`${stage.home}/deliveries`);
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to the page");
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "main");
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.name), "status");
  });
});
