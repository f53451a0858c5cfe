// Logging in with a key or a link, logging out, and the theme that the user has chosen.
"use strict";
const { assert, scenario } = require("./lib");

scenario(async (fixture) => {
  const visitor = await fixture.visitor({ colorScheme: "light" });
  const page = await visitor.tab();
  const logIn = async (key) => {
    await page.getByLabel("API key").fill(key);
    await page.getByRole("button", { name: "Log in" }).click();
  };

  await fixture.step("a wrong key shows an error", async () => {
    visitor.allow(/status of 401/);
    await page.goto("/dashboard");
    await logIn("rdk_wrong");
    await page.getByRole("alert").getByText("invalid, revoked or expired").waitFor();
    assert.match(page.url(), /\/dashboard\/login/);
  });

  await fixture.step("login continues to the requested page", async () => {
    await page.goto(`${fixture.home}/deliveries?status=dead`);
    await logIn(fixture.key);
    await page.getByRole("heading", { name: "Deliveries" }).waitFor();
    assert.equal(page.url(), `${fixture.url}${fixture.home}/deliveries?status=dead`);
    assert.equal(await page.getByRole("combobox", { name: "Status" }).inputValue(), "dead");
  });

  await fixture.step("no script can read the session", async () => {
    assert.equal(await page.evaluate(() => document.cookie), "");
    assert.ok(!(await page.content()).includes(fixture.key));
  });

  await fixture.step("the chosen theme is kept", async () => {
    const theme = () =>
      page.evaluate(() => {
        const [red, green, blue] = getComputedStyle(document.documentElement).backgroundColor.match(/\d+/g).map(Number);
        return red + green + blue > 3 * 128 ? "light" : "dark";
      });
    const toggle = page.getByRole("button", { name: "Switch between light and dark" });
    assert.equal(await theme(), "light");
    await toggle.click();
    assert.equal(await theme(), "dark");
    await page.reload();
    assert.equal(await theme(), "dark");
    await toggle.click();
    assert.equal(await theme(), "light");
  });

  await fixture.step("after logout every page requires a login, also on back navigation", async () => {
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByLabel("API key").waitFor();
    await page.goto(`${fixture.home}/deliveries`);
    await page.getByLabel("API key").waitFor();
    await page.goBack();
    await page.getByLabel("API key").waitFor();
  });

  await fixture.step("a link logs in, and its key is in no URL that is shown or sent", async () => {
    const urls = [];
    page.on("request", (request) => urls.push(request.url()));
    await page.goto(`/dashboard/login#${fixture.key}`);
    await page.getByRole("navigation", { name: "Main navigation" }).waitFor();
    assert.ok(!page.url().includes(fixture.key), page.url());
    assert.ok(urls.length > 3 && urls.every((url) => !url.split("#")[0].includes(fixture.key)), urls.join(" "));
    // The key is not in the browser history either.
    await page.goBack();
    assert.ok(!page.url().includes(fixture.key), page.url());
  });

  await fixture.step("a link of another user asks before it replaces the session", async () => {
    const other = await fixture.api("POST", "/v1/admin-keys", { name: "another user" });
    visitor.allow(/status of 409/);
    await page.goto(`/dashboard/login#${other.key}`);
    await page.getByRole("heading", { name: "Switch sessions?" }).waitFor();
    await page.getByText("This browser is logged in as").waitFor();
    assert.ok(!(await page.content()).includes(other.key));
    await page.getByRole("link", { name: "Stay logged in as admin" }).click();
    await page.goto("/dashboard/session");
    await page.getByText("This browser is logged in as").waitFor();
    await page.goto(`/dashboard/login#${other.key}`);
    await page.getByRole("button", { name: "Switch to another user" }).click();
    await page.getByRole("navigation", { name: "Main navigation" }).waitFor();
    await page.getByRole("link", { name: "Session", exact: true }).click();
    await page.getByText("logged in as another user").waitFor();
    await page.getByRole("button", { name: "Log out everywhere" }).click();
    await page.getByLabel("API key").waitFor();
  });

  await fixture.step("an expired link shows an error", async () => {
    await page.goto("/portal#rdp_expired");
    await page.getByRole("alert").getByText("invalid, revoked or expired").waitFor();
    assert.ok(!page.url().includes("rdp_expired"), page.url());
  });
});
