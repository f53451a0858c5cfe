// An endpoint fails: its circuit opens, the pages show the reason, and an operator who fixed it resets the
// circuit.
"use strict";
const { assert, follow, story } = require("./lib");

story(async (stage) => {
  const receiver = await stage.receiver(() => ({ status: 503, body: "down for maintenance" }));
  const webhook = await stage.webhook(receiver.url, {
    description: "Billing",
    retry_config: { schedule: [0, 3600] },
    circuit_breaker_config: { minimum_throughput: 5, sleep_window_ms: 600_000 },
  });
  const { page } = await stage.loggedIn(`${stage.home}/webhooks/${webhook.id}`);
  const circuit = page.getByRole("region", { name: "Circuit" });

  await stage.scene("the page says that the circuit opened, why, and what to do", async () => {
    await circuit.getByText("closed", { exact: true }).waitFor();
    for (let n = 0; n < 5; n += 1) await stage.publish("invoice.paid", { n });
    await circuit.getByText("open", { exact: true }).waitFor();
    await page.getByText("Its circuit is open.").waitFor();
    await page.getByText(/5 of 5 calls had failed, mostly with server error/).first().waitFor();
    await page.getByText(/Fix the endpoint, then reset the circuit or wait for the next probe/).waitFor();
  });

  await stage.scene("what is published meanwhile waits, and says for what", async () => {
    await stage.publish("invoice.late");
    const row = page.getByRole("row").filter({ hasText: "invoice.late" });
    await row.getByText("pending").waitFor();
    await follow(page, row.getByRole("link", { name: "invoice.late" }));
    await page.getByText(/It waits: .*circuit/).waitFor();
    assert.equal(receiver.arrivals.length, 5, "nothing was sent");
  });

  await stage.scene("the list of webhooks and the overview show it", async () => {
    await page.goto(`${stage.home}/webhooks?circuit=open`);
    await page.getByRole("row").filter({ hasText: "Billing" }).getByText("open", { exact: true }).waitFor();
    await page.goto(stage.home);
    const figure = page.locator(".figure", { hasText: "Open circuits" });
    await figure.getByText("1", { exact: true }).waitFor();
    await page.locator("#incidents").getByText("5 of 5 attempts failed").waitFor();
    await page.locator("#worst").getByText("Billing").waitFor();
  });

  await stage.scene("a reset lets everything go that waited for it", async () => {
    await page.goto(`${stage.home}/webhooks/${webhook.id}`);
    receiver.answer = () => ({ status: 200 });
    await circuit.getByRole("button", { name: "Reset" }).click();
    await page.getByText("The circuit is closed, and its counts are reset.").waitFor();
    await circuit.getByText("closed", { exact: true }).waitFor();
    await page.getByRole("row").filter({ hasText: "invoice.late" }).getByText("delivered").waitFor();
  });

  await stage.scene("it can be forced open and closed", async () => {
    await circuit.getByRole("button", { name: "Force open or closed" }).click();
    const dialog = page.getByRole("dialog", { name: "Force the circuit" });
    await dialog.getByLabel(/Open: nothing is sent/).check();
    await dialog.getByRole("button", { name: "Force" }).click();
    await page.getByText("Its circuit is forced open.").waitFor();
    await circuit.getByRole("button", { name: "Reset" }).click();
    await circuit.getByText("closed", { exact: true }).waitFor();
  });
});
