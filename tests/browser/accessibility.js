// Every page, in both themes, on desktop and phone: no serious accessibility violation, and no overflowing
// element.
"use strict";
const { assert, pageViolations, scenario } = require("./lib");

const LONG = `Orders to the warehouse, ${"and to all other places ".repeat(8)}`;
const KILOBYTE = 1024;

scenario(async (fixture) => {
  const found = [];
  // All pages are checked before anything is reported.
  const checkPage = async (page) => found.push(...(await pageViolations(page)));
  const visitor = await fixture.visitor();
  const loginPage = await visitor.tab();

  await fixture.step("login pages", async () => {
    visitor.allow(/status of 401/);
    await loginPage.goto("/dashboard/login");
    await checkPage(loginPage);
    await loginPage.getByLabel("API key").fill("rdk_wrong");
    await loginPage.getByRole("button", { name: "Log in" }).click();
    await loginPage.getByRole("alert").waitFor();
    await checkPage(loginPage);
    await loginPage.goto("/portal");
    await checkPage(loginPage);
  });

  const { visitor: inside, page } = await fixture.loggedIn();

  /** Loads a page, checks its transfer size, and checks its accessibility and layout. */
  async function visit(where) {
    const requests = [];
    const record = (request) => requests.push(request);
    page.on("requestfinished", record);
    assert.equal((await page.goto(where)).status(), 200, where);
    page.off("requestfinished", record);
    let bytes = 0;
    for (const request of requests) bytes += (await request.sizes()).responseBodySize;
    if (bytes > 100 * KILOBYTE) found.push(`${where} takes ${bytes} bytes`);
    await checkPage(page);
  }

  await fixture.step("pages without data", async () => {
    for (const section of ["", "/webhooks", "/deliveries", "/events", "/dead", "/event-types", "/operations", "/notifications"]) {
      await visit(fixture.home + section);
    }
  });

  const receiver = await fixture.receiver(({ body }) => ({ status: JSON.parse(body).data.status, body: `{"x": "${"x".repeat(5000)}"}` }));
  const circuit = { minimum_throughput: 5 };
  const webhook = await fixture.webhook(receiver.url, { description: LONG, circuit_breaker_config: circuit, filter: { path: "/status", gte: 0 } });
  await fixture.webhook(`${receiver.url}/${"long".repeat(60)}`, { state: "paused", events: ["paused.*"] });
  await fixture.api("POST", "/v1/event-types", { name: "order.created", description: LONG, example: { status: 200 }, schema: { type: "object" } });
  const dead = await fixture.publish(`order.${"long".repeat(20)}`, { status: 400, text: "long".repeat(500) });
  for (const status of [200, 200, 500, 500, 500, 500]) await fixture.publish("order.created", { status });
  await fixture.publish("paused.created", { status: 200 });
  await fixture.eventually("an open circuit", `/v1/webhooks/${webhook.id}/health`, (health) => health.circuit.state === "open");
  const deliveries = (await fixture.eventually("a dead letter", "/v1/dlq", (found) => found.data.length === 1)).data;
  const operation = await fixture.api("POST", "/v1/dlq/retry-batch", { start_at: "2100-01-01T00:00:00Z" });

  await fixture.step("webhooks", async () => {
    await visit(fixture.home);
    await visit(`${fixture.home}/webhooks`);
    await visit(`${fixture.home}/webhooks/${webhook.id}`);
    await visit(`${fixture.home}/webhooks/${webhook.id}/attempts`);
    await visit(`${fixture.home}/webhooks/${webhook.id}/edit`);
    await visit(`${fixture.home}/webhooks/new`);
  });

  await fixture.step("deliveries, events and dead letters", async () => {
    await visit(`${fixture.home}/deliveries`);
    await visit(`${fixture.home}/deliveries/${deliveries[0].id}`);
    await visit(`${fixture.home}/events`);
    await visit(`${fixture.home}/events/${dead.id}`);
    await visit(`${fixture.home}/dead`);
    await page.getByRole("button", { name: /Resend all/ }).click();
    await page.getByText(/1 delivery/).waitFor();
    await checkPage(page);
    await visit(`${fixture.home}/operations`);
    await visit(`${fixture.home}/operations/${operation.id}`);
  });

  await fixture.step("search", async () => {
    await visit(`${fixture.home}/search?q=order`);
    await visit(`${fixture.home}/search/payloads?path=status&value=200`);
  });

  await fixture.step("event types", async () => {
    await visit(`${fixture.home}/event-types`);
    await visit(`${fixture.home}/event-types/order.created`);
    await visit(`${fixture.home}/event-types/order.created/edit`);
    await visit(`${fixture.home}/publish?type=order.created`);
  });

  await fixture.step("pages of a session and its comparisons", async () => {
    await visit("/dashboard/session");
    await visit(`${fixture.home}/publish?edit=${dead.id}`);
    await visit(`${fixture.home}/events/${dead.id}?compare=${dead.id}`);
    await visit(`${fixture.home}/notifications`);
  });

  await fixture.step("admin pages", async () => {
    for (const section of ["tenants", "tenants/default", "new-tenant", "keys", "keys?tenant=default", "user-sessions", "audit", "settings"]) {
      await visit(`/dashboard/admin/${section}`);
    }
  });

  await fixture.step("a missing page", async () => {
    inside.allow(/status of 404/);
    await page.goto("/dashboard/nothing/here");
    await checkPage(page);
  });

  await fixture.step("the page is reachable by keyboard", async () => {
    await page.goto(`${fixture.home}/deliveries`);
    await page.keyboard.press("Tab");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to content");
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  });

  await fixture.step("no page has a violation", async () => assert.deepEqual(found, []));
});
