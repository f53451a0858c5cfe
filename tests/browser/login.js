// Logging in with a key or a link, logging out, and the theme that the user has chosen.
"use strict";
const { assert, story } = require("./lib");

story(async (stage) => {
  const visitor = await stage.visitor({ colorScheme: "light" });
  const page = await visitor.tab();
  const logIn = async (key) => {
    await page.getByLabel("API key").fill(key);
    await page.getByRole("button", { name: "Log in" }).click();
  };

  await stage.scene("a wrong key shows an error", async () => {
    visitor.allow(/status of 401/);
    await page.goto("/dashboard");
    await logIn("rdk_wrong");
    await page.getByRole("alert").getByText("invalid, revoked or expired").waitFor();
    assert.match(page.url(), /\/dashboard\/login/);
  });

  await stage.scene("whoever is asked for a key goes on where they wanted", async () => {
    await page.goto(`${stage.home}/deliveries?status=dead`);
    await logIn(stage.key);
    await page.getByRole("heading", { name: "Deliveries" }).waitFor();
    assert.equal(page.url(), `${stage.url}${stage.home}/deliveries?status=dead`);
    assert.equal(await page.getByRole("combobox", { name: "Status" }).inputValue(), "dead");
  });

  await stage.scene("no script can read the session", async () => {
    assert.equal(await page.evaluate(() => document.cookie), "");
    assert.ok(!(await page.content()).includes(stage.key));
  });

  await stage.scene("the theme that was chosen stays", async () => {
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

  await stage.scene("whoever has logged out is asked again, also when going back", async () => {
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByLabel("API key").waitFor();
    await page.goto(`${stage.home}/deliveries`);
    await page.getByLabel("API key").waitFor();
    await page.goBack();
    await page.getByLabel("API key").waitFor();
  });

  await stage.scene("a link logs in, and its key is neither in the address nor sent in one", async () => {
    const seen = [];
    page.on("request", (request) => seen.push(request.url()));
    await page.goto(`/dashboard/login#${stage.key}`);
    await page.getByRole("navigation", { name: "Main navigation" }).waitFor();
    assert.ok(!page.url().includes(stage.key), page.url());
    assert.ok(seen.length > 3 && seen.every((url) => !url.split("#")[0].includes(stage.key)), seen.join(" "));
    // The key is not in the browser history either.
    await page.goBack();
    assert.ok(!page.url().includes(stage.key), page.url());
  });

  await stage.scene("a link of another user asks before it replaces the session", async () => {
    const other = await stage.api("POST", "/v1/admin-keys", { name: "another user" });
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
    await page.getByRole("link", { name: "Session" }).click();
    await page.getByText("logged in as another user").waitFor();
    await page.getByRole("button", { name: "Log out everywhere" }).click();
    await page.getByLabel("API key").waitFor();
  });

  await stage.scene("a link that is not good any more says so", async () => {
    await page.goto("/portal#rdp_over");
    await page.getByRole("alert").getByText("invalid, revoked or expired").waitFor();
    assert.ok(!page.url().includes("rdp_over"), page.url());
  });
});
