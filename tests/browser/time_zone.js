// One time zone for charts, tables and filters, chosen by the user and correct across changes to summer time.
"use strict";
const { assert, pageViolations, scenario } = require("./lib");

scenario(async (fixture) => {
  const receiver = await fixture.receiver();
  const webhook = await fixture.webhook(receiver.url, { expires_at: "2100-07-01T12:00:00Z" });
  await fixture.publish("order.created");
  await fixture.eventually("a delivery", "/v1/deliveries?status=delivered", (page) => page.data.length === 1);
  const show = { timezoneId: "Europe/Berlin" };
  const { visitor, page } = await fixture.loggedIn(undefined, show);
  const choice = page.getByLabel("Time zone");
  const titles = () => page.locator("tbody time").evaluateAll((times) => times.map((time) => time.title));
  const filter = async (name) => {
    const more = page.locator(".more-filters:not([open]) > summary");
    if (await more.count()) await more.click();
    return page.getByLabel(name);
  };

  await fixture.step("times are in UTC until the user chooses, and say so", async () => {
    await page.locator(".paging").getByText("Times in UTC", { exact: true }).waitFor();
    await page.locator("tbody time[title$=' UTC']").first().waitFor();
    assert.match(await (await filter("Events from (UTC)")).getAttribute("type"), /datetime-local/);
  });

  await fixture.step("the choice of local time applies to tables, charts, tooltips and filters", async () => {
    const [utc] = await titles();
    await Promise.all([page.waitForEvent("load"), choice.selectOption("local")]);
    await page.locator(".paging").getByText(/^Times in Europe\/Berlin \(UTC\+[12]\)$/).waitFor();
    await page.locator("tbody time[title*=' UTC+']").first().waitFor();
    const [local] = await titles();
    const shown = (title) => Date.parse(`${title.slice(0, 19).replace(" ", "T")}Z`);
    const offset = Number(/UTC\+(\d)$/.exec(local)[1]);
    assert.equal(shown(local) - shown(utc), offset * 3_600_000, `${utc} and ${local}`);
    await fixture.publish("order.later");
    await page.getByRole("row").filter({ hasText: "order.later" }).locator("time[title*=' UTC+']").waitFor();
    await page.locator(".paging").getByText(/Europe\/Berlin/).waitFor();
    await page.goto(`${fixture.home}/webhooks/${webhook.id}`);
    await page.locator(".legend .zone").getByText(/Europe\/Berlin/).first().waitFor();
    const tip = await page.locator(".chart .hit").first().getAttribute("data-tip");
    assert.match(tip, /^\d+ \w+, \d\d:\d\d UTC\+[12]\n/);
    // The clock of the browser agrees with the last label of the chart's axis.
    const labels = await page.locator(".chart text:not(.level)").allTextContents();
    const nowLabels = await page.evaluate(() => [0, 1, 2].map((hours) => new Date(Date.now() - hours * 3_600_000).toLocaleTimeString("en-GB").slice(0, 2)));
    assert.ok(labels.some((label) => nowLabels.includes(label.slice(0, 2))), `${labels} and ${nowLabels}`);
  });

  await fixture.step("a filter is entered in local time, and its address is in UTC, in winter and summer", async () => {
    for (const [local, utc] of [["2026-01-15T12:30", "2026-01-15T11:30:00.000Z"], ["2026-07-15T12:30", "2026-07-15T10:30:00.000Z"]]) {
      await page.goto(`${fixture.home}/deliveries`);
      await (await filter("Events from (Europe/Berlin)")).fill(local);
      await page.getByRole("button", { name: "Apply" }).click();
      await page.waitForURL((url) => url.searchParams.get("from") === utc);
      assert.equal(await (await filter("Events from (Europe/Berlin)")).inputValue(), local);
    }
  });

  await fixture.step("hours around a change to summer time are correct", async () => {
    for (const [utc, local] of [
      ["2026-03-29T00:59:00Z", "2026-03-29T01:59"],
      ["2026-03-29T01:00:00Z", "2026-03-29T03:00"],
      ["2026-10-25T00:59:00Z", "2026-10-25T02:59"],
      ["2026-10-25T01:30:00Z", "2026-10-25T02:30"],
    ]) {
      await page.goto(`${fixture.home}/events?from=${utc}`);
      assert.equal(await page.getByLabel("Events from (Europe/Berlin)").inputValue(), local, utc);
    }
    const dates = ["2027-01-15T12:00:00Z", "2027-07-15T12:00:00Z"];
    const shown = [];
    for (const expires_at of dates) {
      await fixture.api("PATCH", `/v1/webhooks/${webhook.id}`, { expires_at });
      await page.goto(`${fixture.home}/webhooks/${webhook.id}`);
      shown.push(await page.locator(`time[datetime^="${expires_at.slice(0, 10)}"]`).first().getAttribute("title"));
    }
    assert.deepEqual(shown, ["2027-01-15 13:00:00 UTC+1", "2027-07-15 14:00:00 UTC+2"], "the server uses the offset of the date");
  });

  await fixture.step("the choice is kept, and works without scripts", async () => {
    const cookies = await visitor.context.cookies();
    const plain = await fixture.visitor({ javaScriptEnabled: false, timezoneId: "Asia/Tokyo" });
    await plain.context.addCookies(cookies);
    const tab = await plain.tab();
    await tab.goto(`${fixture.home}/deliveries`);
    assert.match(await tab.locator("tbody time").first().innerText(), /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\+[12]$/);
    await plain.context.close();
  });

  await fixture.step("pages in local time are accessible, and UTC can be chosen again", async () => {
    await page.goto(`${fixture.home}/deliveries`);
    assert.deepEqual(await pageViolations(page), []);
    await Promise.all([page.waitForEvent("load"), choice.selectOption("utc")]);
    await page.locator(".paging").getByText("Times in UTC", { exact: true }).waitFor();
  });

  await fixture.step("zones with half hours are correct", async () => {
    const india = await fixture.loggedIn(`${fixture.home}/webhooks/${webhook.id}`, { timezoneId: "Asia/Kolkata" });
    await Promise.all([india.page.waitForEvent("load"), india.page.getByLabel("Time zone").selectOption("local")]);
    await india.page.getByText(/Times in Asia\/(Kolkata|Calcutta) \(UTC\+5:30\)/).first().waitFor();
    const labels = await india.page.locator(".chart.scaled").first().locator("text:not(.level)").allTextContents();
    assert.ok(labels.filter((label) => label.includes(":")).every((label) => /:[0-5]0$/.test(label)), `${labels} are round`);
    await india.visitor.context.close();
  });
});
