// An endpoint fails: its circuit opens, the pages show the reason, and an operator who fixed it resets the
// circuit.
"use strict";
const { assert, follow, scenario } = require("./lib");

scenario(async (fixture) => {
  const receiver = await fixture.receiver(() => ({ status: 503, body: "down for maintenance" }));
  const webhook = await fixture.webhook(receiver.url, {
    description: "Billing",
    retry_config: { schedule: [0, 3600] },
    circuit_breaker_config: { minimum_throughput: 5, sleep_window_ms: 600_000 },
  });
  const { page } = await fixture.loggedIn(`${fixture.home}/webhooks/${webhook.id}`);
  const circuit = page.getByRole("region", { name: "Circuit breaker" });

  await fixture.step("the page shows that the circuit opened, why, and what to do", async () => {
    await circuit.getByText("closed", { exact: true }).waitFor();
    for (let n = 0; n < 5; n += 1) await fixture.publish("invoice.paid", { n });
    await circuit.getByText("open", { exact: true }).waitFor();
    await page.getByText("Circuit breaker open.").waitFor();
    await page.getByText(/5 of 5 attempts had failed, mostly with server error/).first().waitFor();
    await page.getByText(/Fix the endpoint, then reset the circuit or wait for the next probe/).waitFor();
  });

  await fixture.step("an event published while the circuit is open waits, and its page shows why", async () => {
    await fixture.publish("invoice.late");
    const row = page.getByRole("row").filter({ hasText: "invoice.late" });
    await row.getByText("pending").waitFor();
    await follow(page, row.getByRole("link", { name: "invoice.late" }));
    await page.getByText(/Waiting: .*circuit/).waitFor();
    assert.equal(receiver.arrivals.length, 5, "an open circuit sends nothing");
  });

  await fixture.step("the list of webhooks and the overview show the open circuit", async () => {
    await page.goto(`${fixture.home}/webhooks?circuit=open`);
    await page.getByRole("row").filter({ hasText: "Billing" }).getByText("open", { exact: true }).waitFor();
    await page.goto(fixture.home);
    const stat = page.locator(".stat", { hasText: "Open circuits" });
    await stat.getByText("1", { exact: true }).waitFor();
    await page.locator("#incidents").getByText("5 of 5 attempts failed").waitFor();
    await page.locator("#worst").getByText("Billing").waitFor();
  });

  await fixture.step("the dialog that recovers failed deliveries offers to reset the circuit", async () => {
    await page.goto(`${fixture.home}/webhooks/${webhook.id}`);
    await page.getByRole("button", { name: /^Recover failed/ }).click();
    const dialog = page.getByRole("dialog", { name: "Recover failed deliveries" });
    await dialog.getByText(/The circuit is not closed: unless it is reset/).waitFor();
    assert.ok(await dialog.getByLabel(/Reset the circuit/).isChecked());
    await dialog.getByRole("button", { name: "Cancel" }).click();
  });

  await fixture.step("a reset releases the waiting deliveries", async () => {
    await page.goto(`${fixture.home}/webhooks/${webhook.id}`);
    receiver.respond = () => ({ status: 200 });
    await circuit.getByRole("button", { name: "Reset" }).click();
    await page.getByText("The circuit is closed, and its counts are reset.").waitFor();
    await circuit.getByText("closed", { exact: true }).waitFor();
    await page.getByRole("row").filter({ hasText: "invoice.late" }).getByText("delivered").waitFor();
  });

  await fixture.step("the page counts status codes, and a code leads to its attempts", async () => {
    const codes = page.getByRole("list", { name: "Attempts by status code" });
    await codes.getByRole("listitem").filter({ hasText: "503" }).getByText("5", { exact: true }).waitFor();
    await codes.getByRole("listitem").filter({ hasText: "success" }).getByText("1", { exact: true }).waitFor();
    await follow(page, codes.getByRole("link", { name: "503" }));
    assert.equal(await page.locator("tbody tr").count(), 5);
    await page.goBack();
  });

  await fixture.step("the circuit can be forced open and reset", async () => {
    await circuit.getByRole("button", { name: "Force open or closed" }).click();
    const dialog = page.getByRole("dialog", { name: "Force the circuit" });
    await dialog.getByLabel(/Open: nothing is sent/).check();
    await dialog.getByRole("button", { name: "Force" }).click();
    await page.getByText("Circuit breaker forced open.").waitFor();
    await circuit.getByRole("button", { name: "Reset" }).click();
    await circuit.getByText("closed", { exact: true }).waitFor();
  });
});
