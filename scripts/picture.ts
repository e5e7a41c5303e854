import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { chromium as browsers } from "playwright-core";
import sharp from "sharp";
import { chromium } from "./lib/chromium.ts";
import { Failure } from "./lib/failure.ts";
import { onExit, runMain } from "./lib/lifecycle.ts";
import { root } from "./lib/paths.ts";
import { host, portFrom } from "./lib/ports.ts";
import { say } from "./lib/progress.ts";
import { liveRun } from "./lib/run-file.ts";

// Records the page of the running development stack as a picture for the README.

const size = { width: 1000, height: 860 };
const framesPerSecond = 6;
const seconds = 9;
/** When the newcomer joins: late enough that the queues are visible first. */
const joinAfter = 2.5;
/** The width of the picture in the README, in pixels. */
const shownWidth = 800;

await runMain(async () => {
  const folder = join(root, "docs", "images");
  await mkdir(folder, { recursive: true });
  const browser = await browsers.launch({ executablePath: await chromium(), args: ["--no-sandbox", "--disable-gpu"] });
  onExit(() => browser.close());
  const page = await browser.newPage({ viewport: size, deviceScaleFactor: 1 });
  const url = `http://${host}:${(await liveRun())?.edgePort ?? portFrom("WEIR_EDGE_PORT", 8787)}/`;
  await page.goto(url).catch(() => {
    throw new Failure(`no answer from ${url}`, "start the stack: npm start");
  });
  await page.getByText("live,").waitFor();
  await page.getByRole("button", { name: "Flood it" }).click();
  await page.getByText("104 jobs were submitted.").waitFor({ timeout: 60_000 });
  const section = await page.locator("section", { has: page.locator("#flood") }).boundingBox();
  if (!section) throw new Failure("the page has no picture", "look at it in a browser");

  const frames: Buffer[] = [];
  let joined = false;
  const start = performance.now();
  for (let frame = 0; frame < framesPerSecond * seconds; frame++) {
    await sleep(Math.max(0, start + (frame * 1000) / framesPerSecond - performance.now()));
    if (!joined && frame >= joinAfter * framesPerSecond) {
      joined = true;
      await page.getByRole("button", { name: "Join as a newcomer" }).click();
    }
    const shot = await page.screenshot({ clip: section });
    frames.push(await sharp(shot).resize({ width: shownWidth }).toBuffer());
  }
  await page.getByText(/In the shared queue: .* All 105 jobs are done\.$/).waitFor({ timeout: 60_000 });
  // The last dots are still moving.
  await sleep(500);
  const still = await page.screenshot({ clip: section });
  frames.push(await sharp(still).resize({ width: shownWidth }).toBuffer());

  const delay = frames.map((_, frame) => (frame === frames.length - 1 ? 4000 : Math.round(1000 / framesPerSecond)));
  const film = join(folder, "newcomer.webp");
  const written = await sharp(frames, { join: { animated: true } })
    .webp({ quality: 60, effort: 6, delay, loop: 0 })
    .toFile(film);
  await sharp(still).png({ palette: true }).toFile(join(folder, "newcomer.png"));
  say(`filmed ${frames.length} frames, ${Math.round(written.size / 1024)} KiB, in ${film}`);
  return 0;
});
