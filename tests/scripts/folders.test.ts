import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { randomUUID } from "node:crypto";
import { existsSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { it } from "node:test";
import { folderInMemory } from "../../scripts/lib/temporary-folder.ts";

const memory = "/dev/shm";

it("files in memory are removed for killed processes only", {
  skip: !existsSync(memory) && "has no /dev/shm",
}, (t) => {
  const prefix = `weir-folders-${randomUUID()}-`;
  const folderOf = (pid: number | undefined): string => {
    const folder = join(memory, `${prefix}${pid}-abc`);
    mkdirSync(folder);
    t.after(() => rmSync(folder, { recursive: true, force: true }));
    writeFileSync(join(folder, "file"), "");
    return folder;
  };
  const [killed, running] = [folderOf(spawnSync(process.execPath, ["--version"]).pid), folderOf(process.ppid)];
  const own = folderInMemory(prefix, 1);
  t.after(() => rmSync(own, { recursive: true, force: true }));
  assert.ok(own.startsWith(memory), own);
  assert.ok(!existsSync(killed));
  assert.ok(existsSync(running));
  const large = folderInMemory(prefix, 2 ** 60);
  t.after(() => rmSync(large, { recursive: true, force: true }));
  assert.ok(!large.startsWith(memory), "the memory file system is too small");
});
