import { existsSync } from "node:fs";
import { homedir } from "node:os";
import { delimiter, join } from "node:path";
import { aptUpdate, hasApt, isRoot } from "./apt.ts";
import { Failure } from "./failure.ts";
import { attempt } from "./process.ts";
import { step } from "./progress.ts";

const names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge"];
const otherPaths = [
  "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
  "/Applications/Chromium.app/Contents/MacOS/Chromium",
  join(homedir(), "Applications/Google Chrome.app/Contents/MacOS/Google Chrome"),
];

/** The path of a Chromium for the browser tests: an installed one, or Debian's package. */
export async function chromium(): Promise<string> {
  const named = process.env.WEIR_CHROMIUM;
  if (named) {
    if (existsSync(named)) return named;
    throw new Failure(`WEIR_CHROMIUM is ${named}, which does not exist`, "correct WEIR_CHROMIUM or unset it");
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
      // The package lists may be missing or out of date.
      if ((await install()).code !== 0) {
        await aptUpdate(pulse);
        await install();
      }
    });
  }
  const installed = find();
  if (installed) return installed;
  throw new Failure(
    "the browser tests need Chromium or Chrome",
    "install one (Debian: apt-get install chromium), or set WEIR_CHROMIUM to its path, or run only the other tests: " +
      "npm test -- unit scripts edge whole",
  );
}

function find(): string | undefined {
  const onPath = (process.env.PATH ?? "").split(delimiter).flatMap((folder) => names.map((name) => join(folder, name)));
  return [...onPath, ...otherPaths].find((file) => existsSync(file));
}
