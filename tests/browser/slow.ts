import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { root } from "../../scripts/lib/paths.ts";
import { required } from "../harness/lifetime.ts";

/**
 * The default configuration with a slow program as the handler of the analysis, so that jobs queue up. Real analyses of
 * small files end before the page can show them.
 */
export function slowAnalysis(seconds: number): string {
  const output = JSON.stringify({ tests: [], count: 0, frameworks: [] });
  return analysisBy(`slow-${seconds}`, `cat > /dev/null; sleep ${seconds}; echo '${output}'`);
}

/** The default configuration with a shell script of this name as the handler of the analysis. */
export function analysisBy(name: string, script: string): string {
  const text = readFileSync(join(root, "weir.toml"), "utf8");
  const command = ["sh", "-c", script];
  const changed = text.replace(
    /^handler = .*name = "analyze".*$/m,
    () => `handler = { type = "exec", command = ${JSON.stringify(command)}, amount = 1 }`,
  );
  if (changed === text) throw new Error("weir.toml has no builtin handler for the analysis any more");
  const path = join(required("WEIR_TEST_FOLDER"), `${name}-${process.pid}.toml`);
  writeFileSync(path, changed);
  return path;
}
