// The harness itself: it must detect faults, otherwise the other scenarios prove nothing.
"use strict";
const { assert, accessibilityViolations, overflowingElements, scenario } = require("./lib");

scenario(async (fixture) => {
  const visitor = await fixture.visitor();
  const page = await visitor.tab();
  const faults = () => visitor.faults.splice(0).map((fault) => fault.split(":")[0]);

  await fixture.step("a correct page has no faults", async () => {
    await page.goto("/dashboard/login");
    assert.deepEqual(await accessibilityViolations(page), []);
    assert.deepEqual(await overflowingElements(page), []);
  });

  await fixture.step("script errors and content security policy violations are faults", async () => {
    await page.evaluate(() => console.error("reported"));
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

  await fixture.step("dialogs and missing files are faults unless they are allowed", async () => {
    await page.evaluate(() => alert("boo"));
    assert.deepEqual(faults(), ["dialog"]);
    const load = () => page.evaluate(() => fetch("/dashboard/assets/nothing.js").then((response) => response.status));
    const logged = page.waitForEvent("console");
    assert.equal(await load(), 404);
    await logged;
    assert.deepEqual(faults(), ["console"]);
    visitor.allow(/status of 404/);
    const loggedAgain = page.waitForEvent("console");
    await load();
    await loggedAgain;
    assert.deepEqual(faults(), []);
  });

  await fixture.step("accessibility violations and overflowing elements are found", async () => {
    await page.evaluate(() => {
      const field = document.createElement("input");
      const wide = document.createElement("p");
      wide.textContent = "wide".repeat(2000);
      document.body.append(field, wide);
    });
    assert.match((await accessibilityViolations(page)).join(), /label/);
    assert.match((await overflowingElements(page)).join(), /wide/);
  });
});
