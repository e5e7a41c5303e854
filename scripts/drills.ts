import { chmodSync, mkdtempSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { requireCargo } from "./lib/cargo.ts";
import { buildEdge } from "./lib/edge.ts";
import { wranglerEnvironment } from "./lib/edge-server.ts";
import { onExit, runMain } from "./lib/lifecycle.ts";
import { buildNative } from "./lib/native.ts";
import { makeStateFolder } from "./lib/paths.ts";

await runMain(async () => {
  const { values, positionals } = parseArgs({ options: { quick: { type: "boolean" } }, allowPositionals: true });
  await requireCargo();
  makeStateFolder();
  const folder = mkdtempSync(join(tmpdir(), "weir-drills-"));
  chmodSync(folder, 0o711);
  onExit(() => rm(folder, { recursive: true, force: true }));
  Object.assign(process.env, wranglerEnvironment(), {
    WEIR_TEST_FOLDER: folder,
    WEIR_TEST_BINARY: await buildNative(),
    WRANGLER_REGISTRY_PATH: join(folder, "registry"),
  });
  await buildEdge();
  const { run } = await import("../tests/drills/run.ts");
  return (await run({ quick: values.quick ?? false, only: positionals })) > 0 ? 1 : 0;
});
