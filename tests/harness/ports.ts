import { closeSync, mkdirSync, openSync } from "node:fs";
import { join } from "node:path";
import { isFree } from "../../scripts/lib/ports.ts";
import { required } from "./lifetime.ts";

// Below the system's range of ports for outgoing connections.
const first = 15_000;
const count = 15_000;

/**
 * A free port that no other test of this run gets. Creating a file claims the port. Otherwise another test could find
 * the same free port before a server listens on it.
 */
export async function freePort(): Promise<number> {
  const claims = join(required("WEIR_TEST_FOLDER"), "ports");
  mkdirSync(claims, { recursive: true });
  for (let tries = 0; tries < 1000; tries++) {
    const port = first + Math.floor(Math.random() * count);
    try {
      closeSync(openSync(join(claims, String(port)), "wx"));
    } catch {
      continue;
    }
    if (await isFree(port)) return port;
  }
  throw new Error("found no free port");
}
