import { randomBytes } from "node:crypto";
import { chmod, readFile, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { Failure } from "./failure.ts";
import { makeStateFolder, state } from "./paths.ts";

/** The secrets of a development stack. Created once per clone, never committed. */
export interface Secrets {
  /** Signs the tokens of users. */
  jwt: string;
  /** Signs the edge's assertions to the origin. */
  edge: string;
  /** The password of the embedded PostgreSQL's only role. */
  postgres: string;
}

const file = join(state, "secrets.json");

/** Read by `wrangler dev`, so that no command line contains the secrets. */
export const edgeEnvFile = join(state, "edge.env");

export async function developmentSecrets(): Promise<Secrets> {
  makeStateFolder();
  const secrets = (await readSecrets()) ?? { jwt: random(), edge: random(), postgres: random() };
  await writePrivately(file, `${JSON.stringify(secrets, null, 2)}\n`);
  await writePrivately(edgeEnvFile, `JWT_SECRET=${secrets.jwt}\nEDGE_SECRET=${secrets.edge}\n`);
  return secrets;
}

export async function readSecrets(): Promise<Secrets | undefined> {
  let text: string;
  try {
    text = await readFile(file, "utf8");
  } catch {
    return undefined;
  }
  try {
    const secrets = JSON.parse(text) as Secrets;
    if (secrets.jwt && secrets.edge && secrets.postgres) return secrets;
  } catch {
    // Reported below.
  }
  throw new Failure(`${file} is damaged`, `restore it, or start over with an empty database: rm -rf ${state}`);
}

function random(): string {
  return randomBytes(32).toString("hex");
}

async function writePrivately(path: string, text: string): Promise<void> {
  const beside = `${path}.${process.pid}`;
  await writeFile(beside, text, { mode: 0o600 });
  await chmod(beside, 0o600);
  await rename(beside, path);
}
