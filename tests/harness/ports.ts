import { closeSync, mkdirSync, openSync } from "node:fs";
import { join } from "node:path";
import { isFree } from "../../scripts/lib/ports.ts";
import { required } from "./lifetime.ts";

// Below the range from which the system takes ports for outgoing connections, so none of those gets in between.
const first = 15_000;
const count = 15_000;

/**
 * A free port that no other test of this run will be given: each is claimed by a file that only one can make, since
 * between finding a port free and a server taking it there is time for somebody else to find it free, too.
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
