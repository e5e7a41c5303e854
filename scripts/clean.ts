import { existsSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join, relative } from "node:path";
import { Failure } from "./lib/failure.ts";
import { runMain } from "./lib/lifecycle.ts";
import { cache, root, state } from "./lib/paths.ts";
import { say } from "./lib/progress.ts";
import { liveRun } from "./lib/run-file.ts";

/**
 * Removes what was built into this clone; with --all, also the tools and cargo's intermediate files of all this user's
 * clones. Data is kept. --data removes only the development database; --all --data removes both.
 */
await runMain(async () => {
  const args = process.argv.slice(2);
  const unknown = args.find((arg) => arg !== "--all" && arg !== "--data");
  if (unknown) throw new Failure(`unknown option ${unknown}`, "npm run clean, with -- --all or -- --data or both");
  const all = args.includes("--all");
  const data = args.includes("--data");
  const built = all || !data;
  const stack = await liveRun();
  if (stack)
    throw new Failure(
      "the stack of this clone is running and uses the files to remove",
      `stop it first: kill ${stack.pid}`,
    );
  const made = ["target", "build", "dist", ".wrangler"].map((name) => join(root, name));
  for (const folder of [
    ...(built ? [...made, join(state, "bin"), join(state, "docs")] : []),
    ...(data ? [join(state, "postgres")] : []),
    ...(all ? [cache] : []),
  ]) {
    if (!existsSync(folder)) continue;
    await rm(folder, { recursive: true });
    say(`removed ${relative(root, folder)}`);
  }
  const gone = [...(built ? ["what was built"] : []), ...(data ? ["the database"] : [])].join(" and ");
  const kept = [...(built ? [] : ["what was built"]), ...(data ? [] : ["data"]), "logs"].join(" and ");
  say(`${gone} ${built && data ? "are" : "is"} gone; ${kept} stay`);
});
