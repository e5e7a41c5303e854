import assert from "node:assert/strict";
import { existsSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, describe, it } from "node:test";
import { required } from "../harness/lifetime.ts";
import { someAddress, startStack } from "../harness/stack.ts";
import { requireAccessible } from "./axe.ts";
import { openPage, picture } from "./browser.ts";
import { analysisBy } from "./slow.ts";

/** The job ends when this file exists. */
const signal = join(required("WEIR_TEST_FOLDER"), `progress-${process.pid}`);
const program = `cat > /dev/null
echo 'weir:progress 0.4 file 2 of 5 <b>' >&2
until [ -e '${signal}' ]; do sleep 0.1; done
echo '${JSON.stringify({ tests: [], count: 0, frameworks: [] })}'`;
const stack = await startStack({ after }, { env: { WEIR_CONFIG: analysisBy("progress", program) } });
after(() => rmSync(signal, { force: true }));

describe("the progress of a job", () => {
  it("is a labelled bar while the job runs", async (t) => {
    assert.equal(existsSync(signal), false);
    const { page, complaints } = await openPage(t, { address: someAddress(), width: 1200, height: 1000 });
    await page.goto(stack.edge.url);
    await page.getByRole("tab", { name: "Your jobs" }).click();
    await page.getByRole("button", { name: "Free", exact: true }).click();
    await page.getByRole("button", { name: "Submit one" }).click();
    const row = page.locator("#jobs tr").first();
    const id = await row.locator("td").first().textContent();
    const bar = page.getByRole("progressbar", { name: `Progress of job ${id}` });
    await bar.waitFor();
    assert.deepEqual([await bar.getAttribute("value"), await bar.getAttribute("max")], ["0.4", "1"]);
    await row.getByText("40 % · file 2 of 5 <b>").waitFor();
    await requireAccessible(page);
    await picture(page, "progress");

    writeFileSync(signal, "");
    await row.getByText("done").waitFor();
    assert.equal(await page.getByRole("progressbar").count(), 0);
    assert.deepEqual(complaints, []);
  });
});
