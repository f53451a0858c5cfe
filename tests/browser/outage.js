// A server that does not respond, although it closes no connection: the page reports it within five seconds, and an
// action reports it in a message.
"use strict";
const { assert, scenario } = require("./lib");

/** Time within which a dead connection is reported, in milliseconds. */
const MAX_SILENCE_MS = 5_000;

scenario(async (fixture) => {
  const receiver = await fixture.receiver();
  const webhook = await fixture.webhook(receiver.url);
  const { visitor, page } = await fixture.loggedIn(`${fixture.home}/webhooks/${webhook.id}`);
  const showsState = (text) => page.locator("#live-state", { hasText: text }).waitFor();
  visitor.allow(/ERR_CONNECTION|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_EMPTY_RESPONSE|ERR_NETWORK/);

  await fixture.step("a page without changes stays live", async () => {
    await showsState("Live");
    // Records every later state.
    await page.evaluate(() => {
      globalThis.states = [];
      const state = document.getElementById("live-state");
      new MutationObserver(() => globalThis.states.push(state.textContent)).observe(state, { childList: true, characterData: true, subtree: true });
    });
    await page.evaluate(() => new Promise((done) => {
      const beats = new EventSource(`/dashboard/live?page=${encodeURIComponent(location.pathname)}`);
      let count = 0;
      beats.addEventListener("beat", () => {
        count += 1;
        if (count < 3) return;
        beats.close();
        done();
      });
    }));
    assert.deepEqual(await page.evaluate(() => globalThis.states), [], "heartbeats keep it live");
  });

  await fixture.step("a frozen server is reported within five seconds, in the header and in a message", async () => {
    await fixture.controlServer("freeze");
    const frozenAt = Date.now();
    await showsState("Disconnected");
    const took = Date.now() - frozenAt;
    assert.ok(took <= MAX_SILENCE_MS, `it took ${took} ms`);
    await page.locator("#toasts").getByText("The server does not respond. This page is not updated until it does.").waitFor();
  });

  await fixture.step("an action reports that the server does not respond, and ends once it does", async () => {
    await page.getByRole("button", { name: "Pause" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Pause" }).click();
    await page.locator("#toasts").getByText("The server does not respond. Waiting for it").waitFor();
    await fixture.controlServer("thaw");
    await page.locator("#toasts").getByText("Webhook paused.").waitFor();
    await showsState("Live");
    await page.getByRole("button", { name: "Resume" }).waitFor();
    assert.equal(await page.getByText("This page is not updated").count(), 0, "the message is gone");
  });

  await fixture.step("a message is above an open dialog", async () => {
    await page.getByRole("button", { name: "Resume" }).click();
    await page.getByRole("button", { name: "Send a test" }).click();
    await fixture.controlServer("freeze");
    await page.getByRole("dialog").getByRole("button", { name: "Send" }).click();
    const note = page.locator("#toasts").getByText("Waiting for it");
    await note.waitFor();
    const isOnTop = await note.evaluate((element) => element.closest("#toasts").matches(":popover-open"));
    assert.ok(isOnTop, "the message is visible");
    await fixture.controlServer("thaw");
    await page.getByText(/Delivered: the endpoint returned 200/).waitFor();
  });
});
