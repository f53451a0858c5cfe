// A secret is rotated: the new one is shown once, and both sign until the old one expires.
"use strict";
const { createHmac } = require("node:crypto");
const { assert, story } = require("./lib");

/** Returns the number of a request's signatures that were computed with this secret. */
function signedWith(secret, { headers, body }) {
  const key = Buffer.from(secret.replace("whsec_", ""), "base64");
  const signed = `${headers["webhook-id"]}.${headers["webhook-timestamp"]}.${body}`;
  const wanted = `v1,${createHmac("sha256", key).update(signed).digest("base64")}`;
  return headers["webhook-signature"].split(" ").filter((one) => one === wanted).length;
}

story(async (stage) => {
  const receiver = await stage.receiver();
  const webhook = await stage.webhook(receiver.url);
  const { page } = await stage.loggedIn(`${stage.home}/webhooks/${webhook.id}`);
  const secrets = page.getByRole("region", { name: "Signing secrets" });
  let fresh;

  await stage.scene("the new secret is shown only once", async () => {
    await secrets.getByRole("button", { name: "Rotate" }).click();
    const dialog = page.getByRole("dialog", { name: "Rotate the secret" });
    await dialog.getByLabel("Old secret stays valid for").selectOption("1h");
    await dialog.getByRole("button", { name: "Rotate" }).click();
    await dialog.getByText("It is shown only once").waitFor();
    fresh = await dialog.locator("code").innerText();
    assert.match(fresh, /^whsec_/);
    assert.notEqual(fresh, webhook.secret);
    await dialog.getByRole("button", { name: "Done" }).click();
    await page.waitForFunction((secret) => !document.documentElement.outerHTML.includes(secret), fresh);
    await secrets.getByText("old, still active").waitFor();
  });

  await stage.scene("requests carry the signatures of both", async () => {
    await stage.publish("order.created");
    const [arrival] = await receiver.wait(1);
    assert.equal(signedWith(fresh, arrival), 1);
    assert.equal(signedWith(webhook.secret, arrival), 1);
  });

  await stage.scene("one that others know ends at once", async () => {
    await secrets.getByRole("button", { name: "Rotate" }).click();
    const dialog = page.getByRole("dialog", { name: "Rotate the secret" });
    await dialog.getByLabel("Old secret stays valid for").selectOption("0s");
    await dialog.getByRole("button", { name: "Rotate" }).click();
    await dialog.getByText("It is shown only once").waitFor();
    const newest = await dialog.locator("code").innerText();
    await dialog.getByRole("button", { name: "Done" }).click();
    await stage.publish("order.created");
    const arrival = (await receiver.wait(2))[1];
    assert.equal(signedWith(newest, arrival), 1);
    assert.equal(signedWith(fresh, arrival), 0);
  });
});
