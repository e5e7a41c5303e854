import { existsSync } from "node:fs";
import { homedir } from "node:os";
import { delimiter, join } from "node:path";
import { aptInstall } from "./apt.ts";
import { Failure } from "./failure.ts";

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
  await aptInstall("installing Chromium for the browser tests by apt", ["chromium"]);
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
