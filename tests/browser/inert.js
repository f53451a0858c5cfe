// Text of others, wherever it is shown: it stays text. Whatever ran would be a fault by itself, since the pages' policy
// refuses it and the browser says so; here nothing may even have become an element.
"use strict";
const { assert, story } = require("./lib");

const MARKUP = `"'><img src=x onerror=alert(1)><script>alert(2)</script><!--/live--><svg onload=alert(3)>`;

story(async (stage) => {
  const made = await stage.api("POST", "/v1/tenants/default/api-keys", { name: MARKUP, scopes: ["read"] });
  const { visitor, page } = await stage.loggedIn(undefined, { key: made.key });

  /** Nothing on the page came from somebody else's text, and the text is there if it should be. */
  async function isInert(where, shown = true) {
    const alien = await page.locator("img[src=x], svg[onload], script:not([src]), [onerror], iframe").count();
    assert.equal(alien, 0, `${where}: text became an element`);
    if (shown) assert.ok((await page.content()).includes("&lt;script&gt;alert(2)"), `${where}: it is shown`);
  }

  await stage.scene("the name of a key", async () => {
    assert.equal(await page.getByRole("button", { name: "Log out" }).getAttribute("title"), `Logged in as ${MARKUP}`);
  });

  await stage.scene("what was asked for", async () => {
    visitor.allow(/status of 40[04]/);
    await page.goto(`${stage.home}/deliveries?event_type=${encodeURIComponent(MARKUP)}`);
    await isInert("a filter", false);
    await page.goto(`/dashboard/${encodeURIComponent(MARKUP)}`);
    await isInert("a page that is not there", false);
    await page.goto(`${stage.home}/deliveries/${encodeURIComponent(MARKUP)}`);
    await isInert("a delivery that is not there", false);
    await page.goto(`/dashboard/login?next=${encodeURIComponent(`/dashboard/${MARKUP}`)}`);
    await isInert("where to go on", false);
  });
});
