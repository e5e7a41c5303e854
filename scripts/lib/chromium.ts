import { existsSync } from "node:fs";
import { homedir } from "node:os";
import { delimiter, join } from "node:path";
import { aptUpdate, hasApt, isRoot } from "./apt.ts";
import { Failure } from "./failure.ts";
import { attempt } from "./process.ts";
import { step } from "./progress.ts";

const names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge"];
const places = [
  "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
  "/Applications/Chromium.app/Contents/MacOS/Chromium",
  join(homedir(), "Applications/Google Chrome.app/Contents/MacOS/Google Chrome"),
];

/** A Chromium for the browser tests: one that is there, or Debian's package. */
export async function chromium(): Promise<string> {
  const named = process.env.WEIR_CHROMIUM;
  if (named) {
    if (existsSync(named)) return named;
    throw new Failure(`WEIR_CHROMIUM is ${named}, and there is no such program`, "correct WEIR_CHROMIUM, or unset it");
  }
  const found = find();
  if (found) return found;
  if (isRoot() && (await hasApt())) {
    await step("installing Chromium for the browser tests by apt", async (pulse) => {
      const install = () =>
        attempt("apt-get", ["install", "-y", "--no-install-recommends", "chromium"], {
          pulse,
          log: "chromium",
          env: { ...process.env, DEBIAN_FRONTEND: "noninteractive" },
        });
      // The lists may be missing or name versions that are gone.
      if ((await install()).code !== 0) {
        await aptUpdate(pulse);
        await install();
      }
    });
  }
  const installed = find();
  if (installed) return installed;
  throw new Failure(
    "there is no Chromium or Chrome for the browser tests",
    "install one (Debian: apt-get install chromium), or set WEIR_CHROMIUM to the program, or leave them out: npm test -- unit edge whole",
  );
}

function find(): string | undefined {
  const onPath = (process.env.PATH ?? "").split(delimiter).flatMap((folder) => names.map((name) => join(folder, name)));
  return [...onPath, ...places].find((file) => existsSync(file));
}
