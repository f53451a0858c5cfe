// A secret is rotated: the new one is shown once, and both sign until the old one expires.
"use strict";
const { createHmac } = require("node:crypto");
const { assert, scenario } = require("./lib");

/** Returns the number of a request's signatures that were computed with this secret. */
function signedWith(secret, { headers, body }) {
  const key = Buffer.from(secret.replace("whsec_", ""), "base64");
  const signed = `${headers["webhook-id"]}.${headers["webhook-timestamp"]}.${body}`;
  const wanted = `v1,${createHmac("sha256", key).update(signed).digest("base64")}`;
  return headers["webhook-signature"].split(" ").filter((one) => one === wanted).length;
}

scenario(async (fixture) => {
  const receiver = await fixture.receiver();
  const webhook = await fixture.webhook(receiver.url);
  const { page } = await fixture.loggedIn(`${fixture.home}/webhooks/${webhook.id}`);
  const secrets = page.getByRole("region", { name: "Signing secrets" });
  let fresh;

  await fixture.step("the new secret is shown only once", async () => {
    await secrets.getByRole("button", { name: "Rotate" }).click();
    const dialog = page.getByRole("dialog", { name: "Rotate the secret" });
    await dialog.getByLabel("Previous secret stays valid for").selectOption("1h");
    await dialog.getByRole("button", { name: "Rotate" }).click();
    await dialog.getByText("It is shown only once").waitFor();
    fresh = await dialog.locator("code").innerText();
    assert.match(fresh, /^whsec_/);
    assert.notEqual(fresh, webhook.secret);
    await dialog.getByRole("button", { name: "Done" }).click();
    await page.waitForFunction((secret) => !document.documentElement.outerHTML.includes(secret), fresh);
    await secrets.getByText("previous, still active", { exact: true }).waitFor();
  });

  await fixture.step("requests carry the signatures of both secrets", async () => {
    await fixture.publish("order.created");
    const [arrival] = await receiver.wait(1);
    assert.equal(signedWith(fresh, arrival), 1);
    assert.equal(signedWith(webhook.secret, arrival), 1);
  });

  await fixture.step("a compromised secret expires immediately", async () => {
    await secrets.getByRole("button", { name: "Rotate" }).click();
    const dialog = page.getByRole("dialog", { name: "Rotate the secret" });
    await dialog.getByLabel("Previous secret stays valid for").selectOption("0s");
    await dialog.getByRole("button", { name: "Rotate" }).click();
    await dialog.getByText("It is shown only once").waitFor();
    const newest = await dialog.locator("code").innerText();
    await dialog.getByRole("button", { name: "Done" }).click();
    await fixture.publish("order.created");
    const arrival = (await receiver.wait(2))[1];
    assert.equal(signedWith(newest, arrival), 1);
    assert.equal(signedWith(fresh, arrival), 0);
  });
});
