import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { root } from "../../scripts/lib/paths.ts";
import { required } from "../harness/lifetime.ts";

/**
 * The default configuration with a slow program as the handler of the analysis, so that jobs queue up: real analyses of
 * small files end before the page can show them.
 */
export function slowAnalysis(seconds: number): string {
  const text = readFileSync(join(root, "weir.toml"), "utf8");
  const output = JSON.stringify({ tests: [], count: 0, frameworks: [] });
  const command = ["sh", "-c", `cat > /dev/null; sleep ${seconds}; echo '${output}'`];
  const slow = text.replace(
    /^handler = .*name = "analyze".*$/m,
    () => `handler = { type = "exec", command = ${JSON.stringify(command)}, amount = 1 }`,
  );
  if (slow === text) throw new Error("weir.toml has no builtin handler for the analysis any more");
  const path = join(required("WEIR_TEST_FOLDER"), `slow-${seconds}-${process.pid}.toml`);
  writeFileSync(path, slow);
  return path;
}
