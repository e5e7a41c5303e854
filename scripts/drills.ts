import { join } from "node:path";
import { requireCargo } from "./lib/cargo.ts";
import { buildEdge } from "./lib/edge.ts";
import { wranglerEnvironment } from "./lib/edge-server.ts";
import { runMain } from "./lib/lifecycle.ts";
import { buildNative } from "./lib/native.ts";
import { buildOlder } from "./lib/older.ts";
import { options } from "./lib/options.ts";
import { makeStateFolder } from "./lib/paths.ts";
import { temporaryFolder } from "./lib/temporary-folder.ts";

await runMain(async () => {
  const { values, positionals } = options({
    options: { quick: { type: "boolean" }, from: { type: "string" } },
    allowPositionals: true,
  });
  await requireCargo();
  makeStateFolder();
  const folder = temporaryFolder("weir-drills-");
  Object.assign(process.env, wranglerEnvironment(), {
    WEIR_TEST_FOLDER: folder,
    WEIR_TEST_BINARY: await buildNative(),
    WRANGLER_REGISTRY_PATH: join(folder, "registry"),
  });
  await buildEdge();
  const from = values.from === undefined ? {} : { from: { name: values.from, binary: await buildOlder(values.from) } };
  const { run } = await import("../tests/drills/run.ts");
  return (await run({ quick: values.quick ?? false, only: positionals, ...from })) > 0 ? 1 : 0;
});
