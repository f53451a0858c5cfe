// Untrusted text stays text wherever it is shown. A script that ran would be reported as a fault anyway, because
// the content security policy blocks it and the browser logs that; here the text must not even become an element.
"use strict";
const { assert, story } = require("./lib");

const MARKUP = `"'><img src=x onerror=alert(1)><script>alert(2)</script><!--/live--><svg onload=alert(3)>`;
const HUGE = "<b>huge</b>".repeat(20_000);
const BINARY = Buffer.from([0, 255, 1, 2, 60, 115, 99, 114, 105, 112, 116, 62, 0x1b, 91, 51, 49, 109]);

/** The endpoint's response, by event type. */
function answer({ body }) {
  const headers = { "x-note": MARKUP, "content-type": "text/html" };
  const kind = JSON.parse(body).type.split(".")[1];
  return { status: 400, headers, body: { markup: MARKUP, huge: HUGE, binary: BINARY }[kind] ?? "" };
}

story(async (stage) => {
  const receiver = await stage.receiver(answer);
  const webhook = await stage.webhook(`${receiver.url}?q=%3Cscript%3E&x='"`, {
    description: MARKUP, metadata: { note: MARKUP }, owner: { id: MARKUP }, headers: { "x-own": "<b>" },
  });
  await stage.api("POST", "/v1/event-types", { name: "hostile.markup", description: MARKUP, example: { [MARKUP]: MARKUP } });
  for (const kind of ["markup", "huge", "binary"]) {
    const data = kind === "huge" ? { big: HUGE } : { [MARKUP]: MARKUP, turned: "a\u202eb" };
    const event = { event_type: `hostile.${kind}`, subject: MARKUP, source: MARKUP, metadata: { note: MARKUP }, data };
    await stage.api("POST", "/v1/events", event);
  }
  const all = (dead) => dead.data.length === 3;
  const dead = (await stage.eventually("three dead letters", "/v1/dlq", all)).data;
  await stage.api("POST", "/v1/tenants", { id: "acme", name: MARKUP });
  const made = await stage.api("POST", "/v1/admin-keys", { name: MARKUP });
  const { visitor, page } = await stage.loggedIn(undefined, { key: made.key });

  /** `isInert` asserts that untrusted text created no element of the page, and is shown if expected. */
  // Pages dispatch this event when their live part was replaced.
  await page.addInitScript(() => document.addEventListener("redrive:part", () => (window.partsSeen = (window.partsSeen ?? 0) + 1)));
  const alien = page.locator("img[src=x], svg[onload], script:not([src]), [onerror], [onload], main b:text-is('huge'), iframe");

  async function isInert(where, shown = "<script>alert(2)</script>") {
    const answered = await page.goto(where);
    assert.equal(answered.status(), 200, where);
    assert.equal(await alien.count(), 0, `${where}: text became an element`);
    const text = await page.locator("body").evaluate((body) => body.textContent);
    if (shown) assert.ok(text.includes(shown), `${where}: it is shown as it is`);
    // The text must not become an element either when the live part is replaced, which happens at least once.
    if ((await answered.text()).includes("<!--live-->")) {
      await page.waitForFunction(() => window.partsSeen > 0);
      assert.equal(await alien.count(), 0, `${where}: text became an element when it was sent again`);
    }
    return answered;
  }

  await stage.scene("the name of a key, and what was asked for", async () => {
    await isInert(`${stage.home}/deliveries?event_type=${encodeURIComponent(MARKUP)}`, null);
    assert.equal(await page.getByRole("button", { name: "Log out" }).getAttribute("title"), `Logged in as ${MARKUP}`);
    assert.equal(await page.getByLabel("Event type").inputValue(), MARKUP);
    visitor.allow(/status of 404/);
    for (const where of ["/dashboard/", `${stage.home}/deliveries/`, `${stage.home}/webhooks/`, "/dashboard/t/"]) {
      await page.goto(where + encodeURIComponent(MARKUP));
      assert.equal(await page.locator("img[src=x], svg[onload], script:not([src])").count(), 0, where);
    }
    await isInert(`/dashboard/login?next=${encodeURIComponent(`/dashboard/${MARKUP}`)}`, null);
  });

  await stage.scene("webhooks", async () => {
    await isInert(`${stage.home}/webhooks`);
    await isInert(`${stage.home}/webhooks/${webhook.id}`);
    await isInert(`${stage.home}/webhooks/${webhook.id}/edit`, null);
    assert.equal(await page.getByLabel("Description").inputValue(), MARKUP);
    await isInert(stage.home);
  });

  await stage.scene("what was published, and what endpoints answered", async () => {
    for (const { id, event_id: event, event_type: type } of dead) {
      const delivery = await isInert(`${stage.home}/deliveries/${id}`);
      assert.ok((await delivery.body()).length < 100_000, `the page of ${type} stays small`);
      await isInert(`${stage.home}/events/${event}`);
    }
    const of = (kind) => `${stage.home}/deliveries/${dead.find(({ event_type: type }) => type === `hostile.${kind}`).id}`;
    await page.goto(of("binary"));
    await page.getByText(/Binary: the first of/).waitFor();
    await page.goto(of("markup"));
    assert.equal(await page.getByLabel("Body of the response").first().innerText(), MARKUP);
    await page.getByText("a\\u{202e}b").first().waitFor();
    for (const where of ["events", "dead", "deliveries", `events?subject=${encodeURIComponent(MARKUP)}`]) {
      await isInert(`${stage.home}/${where}`, null);
    }
  });

  await stage.scene("text that scripts insert shows what would turn or hide it", async () => {
    await page.goto(`${stage.home}/deliveries`);
    const shown = await page.evaluate(async () => {
      const { toast } = await import("/dashboard/assets/js/api.js");
      const { visible } = await import("/dashboard/assets/js/visible.js");
      toast("a\u202eb\u2066c\u0000");
      return [document.querySelector("#toasts p").textContent, visible("\u{1f468}\u200d\u{1f469} \u05e9\n\t")];
    });
    assert.deepEqual(shown, ["a\\u{202e}b\\u{2066}c\\u{0}", "\u{1f468}\u200d\u{1f469} \u05e9\n\t"]);
  });

  await stage.scene("what is downloaded is never shown as a page of ours", async () => {
    const [{ event_id: event, id }] = dead;
    for (const where of [`${stage.home}/events/${event}/payload`, `${stage.home}/deliveries/${id}/curl`]) {
      const answered = await page.request.get(where);
      assert.equal(answered.status(), 200, where);
      assert.ok(!answered.headers()["content-type"].includes("html"), where);
      assert.equal(answered.headers()["x-content-type-options"], "nosniff", where);
    }
  });

  await stage.scene("the rooms of admins and the catalogue", async () => {
    await isInert("/dashboard/admin/tenants");
    await isInert("/dashboard/admin/tenants/acme");
    await isInert("/dashboard/admin/keys");
    await isInert("/dashboard/admin/audit");
    await isInert(`${stage.home}/event-types`);
    await isInert(`${stage.home}/event-types/hostile.markup`);
    await isInert(`${stage.home}/event-types/hostile.markup/edit`, null);
    await isInert(`${stage.home}/publish?type=hostile.markup`, null);
  });
});
