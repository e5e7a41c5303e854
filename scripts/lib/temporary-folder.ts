import { chmodSync, mkdtempSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { onExit } from "./lifecycle.ts";

/** A folder that is gone when the process ends. Others can enter it: PostgreSQL runs as another user than root. */
export function temporaryFolder(prefix: string): string {
  const folder = mkdtempSync(join(tmpdir(), prefix));
  chmodSync(folder, 0o711);
  onExit(() => rm(folder, { recursive: true, force: true }));
  return folder;
}
