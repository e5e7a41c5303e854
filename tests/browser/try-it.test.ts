import assert from "node:assert/strict";
import { after, describe, it } from "node:test";
import { someAddress, startStack } from "../harness/stack.ts";
import { openPage, picture } from "./browser.ts";

const stack = await startStack({ after });

describe("the page for an anonymous visitor", () => {
  it("analyses a sample and lists the tests found", async (t) => {
    const { page, complaints } = await openPage(t, { address: someAddress() });
    await page.goto(stack.edge.url);
    await page.getByLabel("Or use a sample").selectOption("Go");
    assert.equal(await page.getByLabel("File name").inputValue(), "limiter_test.go");
    await page.getByRole("button", { name: "Analyse" }).click();
    await page.getByText("3 tests found").waitFor();
    for (const name of ["TestAllowsUpToTheLimit", "TestRefusesPastTheLimit", "TestCountsEachKeyByItself"]) {
      assert.ok(await page.getByRole("listitem").filter({ hasText: name }).isVisible(), name);
    }
    await page.getByText(/^9 of 10 left, resets in \d+ s$/).waitFor();
    await picture(page, "try-it");
    assert.deepEqual(complaints, [], "no error on the console, no violation of the content policy");
  });

  it("reports a reached limit and counts down to the next try", async (t) => {
    const address = someAddress();
    const { page } = await openPage(t, { address, width: 360, height: 740, colorScheme: "dark" });
    await page.goto(stack.edge.url);
    await page.getByLabel("Or use a sample").selectOption("Rust");
    const send = stack.edge.from(address);
    for (let n = 0; n < 10; n++) {
      const body = JSON.stringify({ files: [{ path: "a_test.go", content: "package a" }] });
      const response = await send("/api/jobs/analysis", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body,
      });
      assert.equal(response.status, 202, await response.text());
    }
    await page.getByRole("button", { name: "Analyse" }).click();
    const alert = page.getByRole("alert");
    await alert.getByText("Rate limit exceeded. Please sign in for higher limits or try again later.").waitFor();
    await alert.getByText(/You can try again in \d+ s\./).waitFor();
    await page.getByText(/^0 of 10 left/).waitFor();
    const box = await alert.boundingBox();
    assert.ok(box && box.y >= 0 && box.y + box.height <= 740, "it is on the screen, wherever the button is");
    const overflow = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth");
    assert.equal(overflow, 0, "nothing sticks out at 360 px");
    await picture(page, "rate-limit-small-dark");
  });

  it("detects invalid files without sending a request", async (t) => {
    const { page } = await openPage(t, { address: someAddress() });
    await page.goto(stack.edge.url);
    const submitted: string[] = [];
    page.on("request", (request) => {
      if (request.method() === "POST") submitted.push(request.url());
    });
    const alert = page.getByRole("alert");
    const choose = (name: string, bytes: Buffer): Promise<void> =>
      page.locator("#picker").setInputFiles({ name, mimeType: "application/octet-stream", buffer: bytes });

    await choose("large_test.go", Buffer.alloc(300 * 1024, "a"));
    await alert.getByText("The submission is too large").waitFor();
    await alert.getByText("The limit is 256 KiB per submission; this one has 300 KiB.").waitFor();
    await choose("logo_test.go", Buffer.from([0x89, 0x50, 0x4e, 0x47]));
    await alert.getByText("logo_test.go is not text").waitFor();
    await choose("nul_test.go", Buffer.from("package a\0"));
    await page.getByRole("button", { name: "Analyse" }).click();
    await alert.getByText("It contains the character NUL").waitFor();
    await page.getByLabel("Language").selectOption("ko");
    await alert.getByText("NUL 문자가 들어 있습니다").waitFor();
    assert.deepEqual(submitted, []);

    // A notice disappears with its cause.
    await choose("empty_test.go", Buffer.from("package a\n"));
    await alert.waitFor({ state: "hidden" });
    await page.getByLabel("언어").selectOption("en");
    await page.getByRole("button", { name: "Analyse" }).click();
    await page.getByText("no tests found. Supported languages: Rust, Go, Python").waitFor();
    assert.equal(submitted.length, 1);
  });
});
