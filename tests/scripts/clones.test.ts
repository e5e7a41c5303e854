import assert from "node:assert/strict";
import { existsSync, globSync, mkdirSync, readFileSync, rmSync, utimesSync } from "node:fs";
import { dirname, join } from "node:path";
import { after, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { run } from "../../scripts/lib/process.ts";
import { type Built, build, type Clone, clean, cloneFolder } from "./clones.ts";

const { cache, clone } = cloneFolder({ after });

function isOwn(built: Built, { marker }: Clone): void {
  assert.equal(built.code, 0, built.stderr);
  assert.ok(readFileSync(built.library).includes(marker), `${built.library} is of another clone`);
}

function edit(clone: Clone): void {
  utimesSync(join(clone.folder, "policy", "src", "lib.rs"), new Date(), new Date());
}

/** Waits until a build has compiled a few libraries, or has ended. */
async function halfway(building: Promise<Built>): Promise<void> {
  const libraries = (): string[] => globSync(join(cache, "**", "debug", "deps", "*.rlib"));
  let ended = false;
  void building.finally(() => (ended = true));
  while (!ended && libraries().length < 3) await sleep(20);
}

it("every crate of the workspace is named weir-…", async () => {
  const metadata = await run("cargo", ["metadata", "--no-deps", "--format-version", "1"]);
  const { packages } = JSON.parse(metadata) as { packages: { name: string }[] };
  assert.deepEqual(
    packages.map(({ name }) => name).filter((name) => !name.startsWith("weir-")),
    [],
  );
});

describe("clones that share a cache", () => {
  const first = clone("first");

  it("a clone seeded during another's build works and builds its sources", async () => {
    const building = build(first, cache);
    await halfway(building);
    const early = clone("early");
    const [one, two] = await Promise.all([building, build(early, cache)]);
    isOwn(one, first);
    isOwn(two, early);
    assert.ok(one.compiled.length > two.compiled.length, `${one.compiled.length} and ${two.compiled.length}`);
  });

  it("shared builds are removed only when no clone builds", async () => {
    const cleaner = clone("cleaner");
    assert.match(await clean(cleaner, cache, "--all"), /weir: removed .*cache\/weir$/m);
    const building = build(first, cache);
    await halfway(building);
    const cleaning = clean(cleaner, cache, "--all");
    const built = await building;
    assert.equal(built.code, 0, built.stderr);
    assert.ok(built.compiled.includes("weir_policy"), `${built.compiled}`);
    assert.match(await cleaning, /weir: removed .*cache\/weir$/m);
    assert.ok(!existsSync(join(cache, "weir")));
    isOwn(await build(first, cache), first);
  });

  it("a fresh clone does not compile dependencies again", async () => {
    const fresh = clone("fresh");
    const built = await build(fresh, cache);
    isOwn(built, fresh);
    assert.deepEqual(built.compiled, ["weir_policy"]);
  });

  it("two clones that build at once both build their own sources", async () => {
    const second = clone("second");
    for (let round = 0; round < 4; round++) {
      edit(first);
      edit(second);
      const [one, two] = await Promise.all([build(first, cache), build(second, cache)]);
      isOwn(one, first);
      isOwn(two, second);
      assert.deepEqual([...new Set([...one.compiled, ...two.compiled])], ["weir_policy"]);
    }
  });

  it("build folders of deleted clones are removed, except the last used", async () => {
    const builds = (): number => globSync(join(cache, "weir", "builds", "*", "clone.json")).length;
    const before = builds();
    const last = clone("last");
    await build(last, cache);
    assert.equal(builds(), before + 1);
    for (const folder of globSync(join(dirname(cache), "*"))) {
      if (folder !== cache && folder !== first.folder) rmSync(folder, { recursive: true });
    }
    const next = clone("next");
    assert.deepEqual((await build(next, cache)).compiled, ["weir_policy"]);
    assert.equal(builds(), 3, "those of the first, the last and the next clone");

    const [target, data] = [join(next.folder, "target"), join(next.folder, ".weir", "postgres")];
    mkdirSync(data, { recursive: true });
    assert.match(await clean(next, cache, "--data"), /weir: the database is gone/);
    assert.ok(!existsSync(data));
    assert.equal(builds(), 3, "an empty database costs no build");
    assert.ok(existsSync(target));

    mkdirSync(data);
    const cleaned = await clean(next, cache);
    assert.match(cleaned, /weir: what was built is gone/);
    assert.ok(existsSync(data));
    assert.ok(!existsSync(target));
    assert.equal(builds(), 1, "that of the first clone, which still exists");
    assert.deepEqual((await build(first, cache)).compiled, []);
    assert.match(await clean(next, cache, "--all"), /weir: removed .*cache\/weir$/m);
    assert.ok(!existsSync(join(cache, "weir")));
  });
});
