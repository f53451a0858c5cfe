// Untrusted text stays text wherever it is shown. A script that ran would be reported as a fault anyway, because
// the content security policy blocks it and the browser logs that; here the text must not even become an element.
"use strict";
const { assert, scenario } = require("./lib");

const MARKUP = `"'><img src=x onerror=alert(1)><script>alert(2)</script><!--/live--><svg onload=alert(3)>`;
const HUGE = "<b>huge</b>".repeat(20_000);
const BINARY = Buffer.from([0, 255, 1, 2, 60, 115, 99, 114, 105, 112, 116, 62, 0x1b, 91, 51, 49, 109]);

/** The endpoint's response, by event type. */
function respond({ body }) {
  const headers = { "x-note": MARKUP, "content-type": "text/html" };
  const kind = JSON.parse(body).type.split(".")[1];
  return { status: 400, headers, body: { markup: MARKUP, huge: HUGE, binary: BINARY }[kind] ?? "" };
}

scenario(async (fixture) => {
  const receiver = await fixture.receiver(respond);
  const webhook = await fixture.webhook(`${receiver.url}?q=%3Cscript%3E&x='"`, {
    description: MARKUP, metadata: { note: MARKUP }, owner: { id: MARKUP }, headers: { "x-own": "<b>" },
  });
  await fixture.api("POST", "/v1/event-types", { name: "hostile.markup", description: MARKUP, example: { [MARKUP]: MARKUP } });
  for (const kind of ["markup", "huge", "binary"]) {
    const data = kind === "huge" ? { big: HUGE } : { [MARKUP]: MARKUP, turned: "a\u202eb" };
    const event = { event_type: `hostile.${kind}`, subject: MARKUP, source: MARKUP, metadata: { note: MARKUP }, data };
    await fixture.api("POST", "/v1/events", event);
  }
  const all = (dead) => dead.data.length === 3;
  const dead = (await fixture.eventually("three dead letters", "/v1/dlq", all)).data;
  await fixture.api("POST", "/v1/tenants", { id: "acme", name: MARKUP });
  const created = await fixture.api("POST", "/v1/admin-keys", { name: MARKUP });
  const { visitor, page } = await fixture.loggedIn(undefined, { key: created.key });

  /** `isInert` asserts that untrusted text created no element of the page, and is shown if expected. */
  // Pages dispatch this event when their live part was replaced.
  await page.addInitScript(() => document.addEventListener("redrive:part", () => (window.partsSeen = (window.partsSeen ?? 0) + 1)));
  const injected = page.locator("img[src=x], svg[onload], script:not([src]), [onerror], [onload], main b:text-is('huge'), iframe");

  async function isInert(where, shown = "<script>alert(2)</script>") {
    const response = await page.goto(where);
    assert.equal(response.status(), 200, where);
    assert.equal(await injected.count(), 0, `${where}: text became an element`);
    const text = await page.locator("body").evaluate((body) => body.textContent);
    if (shown) assert.ok(text.includes(shown), `${where}: the text is shown unchanged`);
    // The text must not become an element either when the live part is replaced, which happens at least once.
    if ((await response.text()).includes("<!--live-->")) {
      await page.waitForFunction(() => window.partsSeen > 0);
      assert.equal(await injected.count(), 0, `${where}: text became an element in a live update`);
    }
    return response;
  }

  await fixture.step("names of keys, and query parameters", async () => {
    await isInert(`${fixture.home}/deliveries?event_type=${encodeURIComponent(MARKUP)}`, null);
    assert.equal(await page.getByRole("button", { name: "Log out" }).getAttribute("title"), `Logged in as ${MARKUP}`);
    assert.equal(await page.getByLabel("Event type").inputValue(), MARKUP);
    visitor.allow(/status of 404/);
    for (const where of ["/dashboard/", `${fixture.home}/deliveries/`, `${fixture.home}/webhooks/`, "/dashboard/t/"]) {
      await page.goto(where + encodeURIComponent(MARKUP));
      assert.equal(await page.locator("img[src=x], svg[onload], script:not([src])").count(), 0, where);
    }
    await isInert(`/dashboard/login?next=${encodeURIComponent(`/dashboard/${MARKUP}`)}`, null);
  });

  await fixture.step("webhooks", async () => {
    await isInert(`${fixture.home}/webhooks`);
    await isInert(`${fixture.home}/webhooks/${webhook.id}`);
    await isInert(`${fixture.home}/webhooks/${webhook.id}/edit`, null);
    assert.equal(await page.getByLabel("Description").inputValue(), MARKUP);
    await isInert(fixture.home);
  });

  await fixture.step("payloads and responses", async () => {
    for (const { id, event_id: event, event_type: type } of dead) {
      const delivery = await isInert(`${fixture.home}/deliveries/${id}`);
      assert.ok((await delivery.body()).length < 100_000, `the page of ${type} stays small`);
      await isInert(`${fixture.home}/events/${event}`);
    }
    const pageOf = (kind) => `${fixture.home}/deliveries/${dead.find(({ event_type: type }) => type === `hostile.${kind}`).id}`;
    await page.goto(pageOf("binary"));
    await page.getByText(/Binary: the first bytes of/).waitFor();
    await page.goto(pageOf("markup"));
    assert.equal(await page.getByLabel("Body of the response").first().innerText(), MARKUP);
    await page.getByText("a\\u{202e}b").first().waitFor();
    for (const where of ["events", "dead", "deliveries", `events?subject=${encodeURIComponent(MARKUP)}`]) {
      await isInert(`${fixture.home}/${where}`, null);
    }
  });

  await fixture.step("text inserted by scripts has its deceptive characters escaped", async () => {
    await page.goto(`${fixture.home}/deliveries`);
    const shown = await page.evaluate(async () => {
      const { toast } = await import("/dashboard/assets/js/api.js");
      const { visible } = await import("/dashboard/assets/js/visible.js");
      toast("a\u202eb\u2066c\u0000");
      return [document.querySelector("#toasts p").textContent, visible("\u{1f468}\u200d\u{1f469} \u05e9\n\t")];
    });
    assert.deepEqual(shown, ["a\\u{202e}b\\u{2066}c\\u{0}", "\u{1f468}\u200d\u{1f469} \u05e9\n\t"]);
  });

  await fixture.step("downloads are never rendered as pages", async () => {
    const [{ event_id: event, id }] = dead;
    for (const where of [`${fixture.home}/events/${event}/payload`, `${fixture.home}/deliveries/${id}/curl`]) {
      const response = await page.request.get(where);
      assert.equal(response.status(), 200, where);
      assert.ok(!response.headers()["content-type"].includes("html"), where);
      assert.equal(response.headers()["x-content-type-options"], "nosniff", where);
    }
  });

  await fixture.step("admin pages and the catalogue", async () => {
    await isInert("/dashboard/admin/tenants");
    await isInert("/dashboard/admin/tenants/acme");
    await isInert("/dashboard/admin/keys");
    await isInert("/dashboard/admin/audit");
    await isInert(`${fixture.home}/event-types`);
    await isInert(`${fixture.home}/event-types/hostile.markup`);
    await isInert(`${fixture.home}/event-types/hostile.markup/edit`, null);
    await isInert(`${fixture.home}/publish?type=hostile.markup`, null);
  });
});
