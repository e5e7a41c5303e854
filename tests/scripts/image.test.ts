import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { globSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { state } from "../../scripts/lib/paths.ts";
import { attempt, type Outcome, Service } from "../../scripts/lib/process.ts";
import { untilOk } from "../../scripts/lib/ready.ts";
import { type Database, freshDatabase } from "../harness/database.ts";
import { freshSecrets } from "../harness/identity.ts";
import { type Lifetime, whenOver } from "../harness/lifetime.ts";
import { showOnFailure } from "../harness/logs.ts";
import { freePort } from "../harness/ports.ts";
import { descendants } from "../harness/processes.ts";
import { until } from "../harness/until.ts";

// The image needs the binary for musl, which takes minutes to build. So this tests an image that a release has built.
const [archive] = globSync(join(state, "release", "weir-v*-image.tar"));
const program = "/usr/local/bin/weir";

function skipReason(): string | false {
  if (!archive) return "no image: npm run release -- v0.1.0 x86_64-unknown-linux-musl image";
  if (process.getuid?.() !== 0) return "needs root, for a container with the loopback interface of this machine";
  try {
    execFileSync("buildah", ["--version"], { stdio: "ignore" });
  } catch {
    return "buildah is not installed";
  }
  return false;
}

/** The process of the image, below the one that entered the image's file system. */
function inside(service: Service): number {
  const isIt = (pid: number): boolean => {
    try {
      return readFileSync(`/proc/${pid}/cmdline`, "utf8").startsWith(`${program}\0`);
    } catch {
      return false;
    }
  };
  const [pid, ...others] = descendants(service.pid ?? 0).filter(isIt);
  assert.ok(pid && others.length === 0, `${pid} and ${others}`);
  return pid;
}

describe("the image", { skip: skipReason() }, () => {
  const lifetime: Lifetime = { after };
  // Inside `before`, `after` runs at the end of that hook, so the first clean-up is registered here.
  whenOver(lifetime, () => {});
  let container: string;
  let database: Database;

  const command = (env: Record<string, string>, args: string[]): string[] => [
    "run",
    "--isolation=chroot",
    ...Object.entries(env).map(([name, value]) => `--env=${name}=${value}`),
    container,
    "--",
    program,
    ...args,
  ];
  const weir = (env: Record<string, string>, ...args: string[]): Promise<Outcome> =>
    attempt("buildah", command(env, args));

  before(async () => {
    database = await freshDatabase(lifetime);
    const made = await attempt("buildah", ["from", "--quiet", `oci-archive:${archive}`]);
    assert.equal(made.code, 0, made.output);
    container = made.stdout.trim();
    const image = await attempt("buildah", ["inspect", "--format={{.FromImageID}}", container]);
    whenOver(lifetime, async () => {
      await attempt("buildah", ["rm", container]);
      await attempt("buildah", ["rmi", image.stdout.trim()]);
    });
  });

  it("starts the binary as an unprivileged user", async () => {
    const inspected = await attempt("buildah", ["inspect", container]);
    const { OCIv1 } = JSON.parse(inspected.stdout) as { OCIv1: { config: Record<string, unknown> } };
    const { User, Entrypoint, StopSignal } = OCIv1.config;
    assert.deepEqual([User, Entrypoint, StopSignal], ["65534:65534", [program], "SIGTERM"]);
    const version = /weir-v(.+)-image\.tar$/.exec(archive ?? "")?.[1];
    const ran = await weir({}, "--version");
    assert.equal(ran.stdout, `weir ${version}\n`, ran.output);
  });

  it("has the name that podman loads it with", () => {
    const text = execFileSync("tar", ["-xOf", archive ?? "", "index.json"], { encoding: "utf8" });
    const { manifests } = JSON.parse(text) as { manifests: { annotations?: Record<string, string> }[] };
    const names = manifests.map(({ annotations }) => annotations?.["org.opencontainers.image.ref.name"]);
    assert.deepEqual(names, [`weir:${/weir-(v.+)-image\.tar$/.exec(archive ?? "")?.[1]}`]);
  });

  it("finds its services file, and reports missing settings", async () => {
    const ran = await weir({}, "migrate");
    assert.equal(ran.code, 2, ran.output);
    assert.match(ran.output, /the configuration has an error:\s+- DATABASE_URL is not set/);
  });

  it("migrates, serves, runs a job, and ends at SIGTERM", { timeout: 600_000 }, async () => {
    const port = await freePort();
    const env = {
      DATABASE_URL: database.url,
      EDGE_SECRET: freshSecrets().edge,
      WEIR_ORIGIN_PORT: String(port),
    };
    const migrated = await weir(env, "migrate");
    assert.equal(migrated.code, 0, migrated.output);

    const up = new Service("image", "buildah", command(env, ["up"]), { grace: 15_000 });
    showOnFailure("the image", () => up.recent.join("\n"));
    whenOver(lifetime, () => up.stop());
    await untilOk(`http://127.0.0.1:${port}/readyz`, 30_000);
    const pid = inside(up);
    assert.match(readFileSync(`/proc/${pid}/status`, "utf8"), /^Uid:\s+65534\s+65534\s+65534\s+65534$/m);
    const unknown = await fetch(`http://127.0.0.1:${port}/api/jobs/1`);
    assert.equal(unknown.status, 401, await unknown.text());

    const files = [{ path: "a_test.go", content: "func TestAdd(t *testing.T) {}" }];
    const [submitted] = await database.sql`
      SELECT outcome, job_id FROM weir_submit('anne', 'analysis', ${database.sql.json({ files })})`;
    assert.equal(submitted?.outcome, "admitted");
    // The image's services file has an external service, so this program works the job.
    const claim = () => database.sql`SELECT job_id FROM weir_claim('analysis_default', 'test')`;
    const [claimed] = await until("the job to be claimed", async () => {
      const rows = await claim();
      return rows.length > 0 && rows;
    });
    assert.equal(claimed?.job_id, submitted?.job_id);
    const [ended] = await database.sql`SELECT outcome, charged FROM weir_complete(${claimed?.job_id}, 1, '{}')`;
    assert.deepEqual([ended?.outcome, Number(ended?.charged)], ["done", 1]);
    const audit = await weir(env, "audit");
    assert.equal(audit.code, 0, audit.output);

    // Signals the program alone: its parent would kill it and not report its exit code.
    process.kill(pid, "SIGTERM");
    assert.equal(await up.ended, "ended with code 0");
    assert.match(up.recent.join("\n"), /"message":"stopping"/);
  });
});
