// The harness itself: it must detect faults, otherwise the other scenarios prove nothing.
"use strict";
const { assert, hurdles, sticksOut, story } = require("./lib");

story(async (stage) => {
  const visitor = await stage.visitor();
  const page = await visitor.tab();
  const faults = () => visitor.faults.splice(0).map((fault) => fault.split(":")[0]);

  await stage.scene("a page that does nothing wrong has no faults", async () => {
    await page.goto("/dashboard/login");
    assert.deepEqual(await hurdles(page), []);
    assert.deepEqual(await sticksOut(page), []);
  });

  await stage.scene("errors of scripts and of the policy against foreign ones are faults", async () => {
    await page.evaluate(() => console.error("told"));
    assert.deepEqual(faults(), ["console"]);
    const thrown = page.waitForEvent("pageerror");
    await page.evaluate(() => void setTimeout(() => { throw new Error("thrown"); }));
    await thrown;
    assert.deepEqual(faults(), ["script"]);
    const refused = page.waitForEvent("console");
    await page.evaluate(() => {
      const script = document.createElement("script");
      script.textContent = "globalThis.ran = true";
      document.body.append(script);
    });
    assert.match((await refused).text(), /Content Security Policy/);
    assert.equal(await page.evaluate(() => globalThis.ran), undefined);
    assert.deepEqual(faults(), ["console"]);
  });

  await stage.scene("dialogs and files that are not there are faults, unless they are allowed", async () => {
    await page.evaluate(() => alert("boo"));
    assert.deepEqual(faults(), ["dialog"]);
    const load = () => page.evaluate(() => fetch("/dashboard/assets/nothing.js").then((answer) => answer.status));
    const told = page.waitForEvent("console");
    assert.equal(await load(), 404);
    await told;
    assert.deepEqual(faults(), ["console"]);
    visitor.allow(/status of 404/);
    const toldAgain = page.waitForEvent("console");
    await load();
    await toldAgain;
    assert.deepEqual(faults(), []);
  });

  await stage.scene("hurdles and what sticks out are found", async () => {
    await page.evaluate(() => {
      const field = document.createElement("input");
      const wide = document.createElement("p");
      wide.textContent = "wide".repeat(2000);
      document.body.append(field, wide);
    });
    assert.match((await hurdles(page)).join(), /label/);
    assert.match((await sticksOut(page)).join(), /wide/);
  });
});
