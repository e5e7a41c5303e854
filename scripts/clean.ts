import { existsSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join, relative } from "node:path";
import { removeBuildFolder } from "./lib/build-folder.ts";
import { removeCache } from "./lib/cache.ts";
import { Failure } from "./lib/failure.ts";
import { runMain } from "./lib/lifecycle.ts";
import { withLock } from "./lib/lock.ts";
import { buildLock, cache, root, state } from "./lib/paths.ts";
import { say } from "./lib/progress.ts";
import { liveRun } from "./lib/run-file.ts";

/**
 * Removes what was built: of this clone and of clones that are gone, or with --all everything that this user's clones
 * have built. Data stay, unless --data removes the development database.
 */
await runMain(async () => {
  const args = process.argv.slice(2);
  const unknown = args.find((arg) => arg !== "--all" && arg !== "--data");
  if (unknown) throw new Failure(`there is no option ${unknown}`, "npm run clean, with -- --all or -- --data or both");
  const data = args.includes("--data");
  const stack = await liveRun();
  if (stack)
    throw new Failure("this clone's stack is running on what would be removed", `stop it first: kill ${stack.pid}`);
  await withLock(buildLock, "building in this clone", async () => {
    for (const folder of [
      join(root, "build"),
      join(root, "dist"),
      join(state, "bin"),
      join(state, "docs"),
      join(root, ".wrangler"),
      ...(data ? [join(state, "postgres")] : []),
    ]) {
      if (!existsSync(folder)) continue;
      await rm(folder, { recursive: true });
      say(`removed ${relative(root, folder)}`);
    }
    for (const folder of await removeBuildFolder()) say(`removed ${folder}`);
    if (args.includes("--all")) {
      await removeCache();
      say(`removed ${cache}`);
    }
  });
  say(
    `what was built is gone${data ? ", and so is the database" : ""}; ${data ? "" : "data and "}logs are still in .weir`,
  );
});
