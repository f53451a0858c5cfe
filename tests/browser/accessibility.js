// Every page, in both themes, on desktop and phone: no serious accessibility violation, and no overflowing
// element.
"use strict";
const { assert, flaws, story } = require("./lib");

const LONG = `Orders to the warehouse, ${"and to everybody else ".repeat(8)}`;
const KILOBYTE = 1024;

story(async (stage) => {
  const found = [];
  // All pages are checked before anything is reported.
  const looksRight = async (page) => found.push(...(await flaws(page)));
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

  /** Loads a page, checks its transfer size, and checks its accessibility and layout. */
  async function look(where) {
    const asked = [];
    const keep = (request) => asked.push(request);
    page.on("requestfinished", keep);
    assert.equal((await page.goto(where)).status(), 200, where);
    page.off("requestfinished", keep);
    let bytes = 0;
    for (const request of asked) bytes += (await request.sizes()).responseBodySize;
    if (bytes > 100 * KILOBYTE) found.push(`${where} takes ${bytes} bytes`);
    await looksRight(page);
  }

  await stage.scene("before anything has happened", async () => {
    for (const room of ["", "/webhooks", "/deliveries", "/events", "/dead", "/event-types", "/operations"]) {
      await look(stage.home + room);
    }
  });

  const receiver = await stage.receiver(({ body }) => ({ status: JSON.parse(body).data.status, body: `{"x": "${"x".repeat(5000)}"}` }));
  const circuit = { minimum_throughput: 5 };
  const webhook = await stage.webhook(receiver.url, { description: LONG, circuit_breaker_config: circuit, filter: { path: "/status", gte: 0 } });
  await stage.webhook(`${receiver.url}/${"long".repeat(60)}`, { state: "paused", events: ["paused.*"] });
  await stage.api("POST", "/v1/event-types", { name: "order.created", description: LONG, example: { status: 200 }, schema: { type: "object" } });
  const dead = await stage.publish(`order.${"long".repeat(20)}`, { status: 400, text: "long".repeat(500) });
  for (const status of [200, 200, 500, 500, 500, 500]) await stage.publish("order.created", { status });
  await stage.publish("paused.created", { status: 200 });
  await stage.eventually("an open circuit", `/v1/webhooks/${webhook.id}/health`, (health) => health.circuit.state === "open");
  const deliveries = (await stage.eventually("a dead letter", "/v1/dlq", (found) => found.data.length === 1)).data;
  const operation = await stage.api("POST", "/v1/dlq/retry-batch", { start_at: "2100-01-01T00:00:00Z" });

  await stage.scene("webhooks", async () => {
    await look(stage.home);
    await look(`${stage.home}/webhooks`);
    await look(`${stage.home}/webhooks/${webhook.id}`);
    await look(`${stage.home}/webhooks/${webhook.id}/edit`);
    await look(`${stage.home}/webhooks/new`);
  });

  await stage.scene("deliveries, events and dead letters", async () => {
    await look(`${stage.home}/deliveries`);
    await look(`${stage.home}/deliveries/${deliveries[0].id}`);
    await look(`${stage.home}/events`);
    await look(`${stage.home}/events/${dead.id}`);
    await look(`${stage.home}/dead`);
    await page.getByRole("button", { name: /Resend all/ }).click();
    await page.getByText(/1 delivery/).waitFor();
    await looksRight(page);
    await look(`${stage.home}/operations`);
    await look(`${stage.home}/operations/${operation.id}`);
  });

  await stage.scene("event types", async () => {
    await look(`${stage.home}/event-types`);
    await look(`${stage.home}/event-types/order.created`);
    await look(`${stage.home}/event-types/order.created/edit`);
    await look(`${stage.home}/publish?type=order.created`);
  });

  await stage.scene("the rooms of admins", async () => {
    for (const room of ["tenants", "tenants/default", "new-tenant", "keys", "keys?tenant=default", "audit", "settings"]) {
      await look(`/dashboard/admin/${room}`);
    }
  });

  await stage.scene("a page that is not there", async () => {
    inside.allow(/status of 404/);
    await page.goto("/dashboard/nothing/here");
    await looksRight(page);
  });

  await stage.scene("the keyboard alone reaches the page and its parts", async () => {
    await page.goto(`${stage.home}/deliveries`);
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to content");
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  });

  await stage.scene("nothing was found on any of them", async () => assert.deepEqual(found, []));
});
