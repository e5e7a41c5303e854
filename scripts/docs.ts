import { statSync } from "node:fs";
import { join } from "node:path";
import { Failure } from "./lib/failure.ts";
import { runMain } from "./lib/lifecycle.ts";
import { deadLinks, filesIn } from "./lib/links.ts";
import { nodeBin, root, state } from "./lib/paths.ts";
import { run } from "./lib/process.ts";
import { say, step } from "./lib/progress.ts";

const docs = join(root, "docs");
const site = join(state, "docs");

/** Builds the documentation as a site in .weir/docs, and checks all of its links. */
await runMain(async () => {
  // Separate packages, so that running or testing Weir does not install them. Rollup is the wasm version, because the
  // lock file has its native programs only for the platform that created it.
  if (!isInstalled())
    await step("installing the generator of the site", (pulse) =>
      run("npm", ["ci", "--no-audit", "--no-fund"], { cwd: docs, pulse, remedy: "check the network" }),
    );
  await run(join(nodeBin, "tsc"), ["--noEmit", "--project", docs], { remedy: "correct the types reported above" });
  const vitepress = join(docs, "node_modules", "vitepress", "bin", "vitepress.js");
  await step("building the documentation", (pulse) =>
    run(process.execPath, [vitepress, "build", docs, "--outDir", site], {
      pulse,
      log: "docs",
      remedy: "correct what it reports above",
    }),
  );
  // With another base address, the links do not match the paths of the files.
  const dead = process.env.WEIR_DOCS_BASE ? [] : await deadLinks(site, filesIn(site, ".html"));
  if (dead.length > 0) throw new Failure(`the site has dead links:\n${dead.join("\n")}`, "correct the links");
  say(`the documentation is in ${site}`);
});

/** npm writes this file last. */
function isInstalled(): boolean {
  const changed = (...path: string[]): number => statSync(join(docs, ...path), { throwIfNoEntry: false })?.mtimeMs ?? 0;
  return changed("node_modules", ".package-lock.json") > changed("package-lock.json");
}
