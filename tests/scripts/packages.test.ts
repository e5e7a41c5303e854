import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { it } from "node:test";
import { root } from "../../scripts/lib/paths.ts";

it("every package with an install script may run it", () => {
  for (const folder of [".", "docs"]) {
    const read = (file: string): unknown => JSON.parse(readFileSync(join(root, folder, file), "utf8"));
    const { packages } = read("package-lock.json") as { packages: Record<string, { hasInstallScript?: boolean }> };
    const { allowScripts } = read("package.json") as { allowScripts: Record<string, boolean> };
    const needed = Object.entries(packages)
      .filter(([, { hasInstallScript }]) => hasInstallScript)
      .map(([path]) => path.replace(/^.*node_modules\//, ""));
    assert.deepEqual(Object.keys(allowScripts).sort(), needed.sort(), folder);
  }
});
