import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, rmSync, utimesSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";

it("setting up a tool removes tools unused for a month", (t) => {
  const home = mkdtempSync(join(tmpdir(), "weir-cache-"));
  t.after(() => rmSync(home, { recursive: true }));
  const cache = join(home, "weir");
  const long = new Date(Date.now() - 31 * 24 * 3600 * 1000);
  for (const name of ["tool-1", "tool-2", "build"]) {
    mkdirSync(join(cache, name), { recursive: true });
    utimesSync(join(cache, name), long, long);
  }
  const module = JSON.stringify(join(import.meta.dirname, "..", "..", "scripts", "lib", "cache.ts"));
  const program = `
    import { cached, makeCached } from ${module};
    cached("tool-2");
    await makeCached("tool-3", async () => {});`;
  const ran = spawnSync(process.execPath, ["--input-type=module", "-e", program], {
    env: { ...process.env, XDG_CACHE_HOME: home },
    encoding: "utf8",
  });
  assert.equal(ran.status, 0, ran.stderr);
  assert.deepEqual(readdirSync(cache).sort(), ["build", "tool-2", "tool-3"]);
});
