import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { copyFileSync, cpSync, existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import postgres from "postgres";
import { root } from "../../scripts/lib/paths.ts";
import { untilOk } from "../../scripts/lib/ready.ts";
import type { Accepted, Job } from "../../www/src/generated/api.d.ts";
import { freshSecrets } from "../harness/identity.ts";
import { required, whenOver } from "../harness/lifetime.ts";
import { Machine, skipWithoutMachine } from "../harness/machine.ts";
import { freePort } from "../harness/ports.ts";
import { until } from "../harness/until.ts";
import { weir, weirEnvironment } from "../harness/weir.ts";

const parts = ["serve", "work", "schedule"] as const;
type Part = (typeof parts)[number];
const unit = (part: Part): string => `weir-${part}.service`;
const secrets = freshSecrets();

/** The block of commands in docs/how-to/deploy.md that starts like this. */
function commands(start: string): string {
  const page = readFileSync(join(root, "docs/how-to/deploy.md"), "utf8");
  const blocks = [...page.matchAll(/^```sh\n(.*?)^```/gms)].map(([, code = ""]) => code);
  return (
    blocks.find((code) => code.startsWith(start)) ?? assert.fail(`deploy.md has no block that starts with ${start}`)
  );
}

/** The variables with which psql connects to this database. */
function libpq({ hostname, port, username, password, pathname }: URL): Record<string, string> {
  return { PGHOST: hostname, PGPORT: port, PGUSER: username, PGPASSWORD: password, PGDATABASE: pathname.slice(1) };
}

const withoutPsql = existsSync("/usr/bin/psql")
  ? false
  : "psql is not installed (Debian: apt install postgresql-client)";

/** The maximum time for systemd or Weir to react, in milliseconds. */
const soon = 60_000;

describe("the units under a systemd, installed as deploy.md says", {
  skip: skipWithoutMachine() || withoutPsql,
}, () => {
  let machine: Machine;
  let database: URL;
  let key: string;
  let operator: NodeJS.ProcessEnv;
  let ports: Record<Part, number>;
  const lifetime = { after };
  // Inside `before`, `after` runs at the end of that hook, so the first clean-up is registered here.
  whenOver(lifetime, () => {});

  const ready = (part: Part) => untilOk(`http://127.0.0.1:${ports[part]}/readyz`, 30_000);
  const mainPid = async (part: Part) => Number((await machine.unit(unit(part))).MainPID);
  const ask = async (path: string, args?: object): Promise<Response> =>
    fetch(`http://127.0.0.1:${ports.serve}/api/jobs/${path}`, {
      headers: { Authorization: `Bearer ${key}`, "Weir-On-Behalf-Of": "anne", "Content-Type": "application/json" },
      ...(args ? { method: "POST", body: JSON.stringify(args) } : {}),
    });
  const submit = async (service: string): Promise<number> => {
    const response = await ask(service, {});
    assert.equal(response.status, 202, await response.clone().text());
    return ((await response.json()) as Accepted).job.id;
  };
  const job = async (id: number): Promise<Job> => (await ask(String(id))).json() as Promise<Job>;

  before(async () => {
    const server = new URL(required("WEIR_TEST_DATABASE_URL"));
    const admin = postgres(server.href, { max: 1, onnotice: () => {} });
    const name = `weir_${randomBytes(6).toString("hex")}`;
    whenOver(lifetime, async () => {
      await admin`DROP DATABASE IF EXISTS ${admin(name)} WITH (FORCE)`;
      await admin`DROP ROLE IF EXISTS ${admin(name)}`;
      await admin.end({ timeout: 2 });
    });
    database = new URL(server);
    [database.username, database.password, database.pathname] = [name, "secret", `/${name}`];
    const config = join(root, "tests/whole/systemd.toml");
    operator = weirEnvironment({ url: database.href }, secrets, { WEIR_CONFIG: config });
    ports = { serve: await freePort(), work: await freePort(), schedule: await freePort() };

    machine = new Machine(lifetime);
    const archive = join(machine.root, "srv/archive");
    mkdirSync(archive);
    for (const name of ["deploy", "docs/operations.md"])
      cpSync(join(root, name), join(archive, name), { recursive: true });
    cpSync(required("WEIR_TEST_BINARY"), join(archive, "weir"));
    await machine.boot("/usr/local/bin", "/usr/share/doc");
    // The server may already have a role and a database of this name.
    const create = commands('psql --command "CREATE ROLE weir').replaceAll(/\bweir\b/g, name);
    const variables = Object.entries({ ...libpq(server), WEIR_PASSWORD: database.password });
    await machine.run(
      "env",
      ...variables.map(([name, value]) => `${name}=${value}`),
      "bash",
      "-euc",
      `cd /\n${create}`,
    );
    // The operator edits the files between the two parts.
    const [install = "", start = ""] = commands("install -m 0755 weir").split(/(?=^# systemd reads)/m);
    const here = "cd /srv/archive\n";
    await machine.run("sh", "-euc", here + install);
    const etc = (path: string) => join(machine.root, "etc", path);
    const edit = (name: string, from: RegExp, to: string) => {
      const text = readFileSync(etc(`weir/${name}`), "utf8");
      assert.match(text, from);
      writeFileSync(etc(`weir/${name}`), text.replace(from, to));
      assert.equal(statSync(etc(`weir/${name}`)).mode & 0o777, 0o600);
    };
    copyFileSync(config, etc("weir/weir.toml"));
    edit("weir.env", /^DATABASE_URL=.*$/m, `DATABASE_URL=${database.href}\nWEIR_ORIGIN_PORT=${ports.serve}`);
    edit("serve.env", /^EDGE_SECRET=.*$/m, `EDGE_SECRET=${secrets.edge}`);
    // This run's ports.
    for (const part of parts) {
      mkdirSync(etc(`systemd/system/${unit(part)}.d`));
      const dropIn = `[Service]\nEnvironment=WEIR_METRICS_PORT=${ports[part]}\n`;
      writeFileSync(etc(`systemd/system/${unit(part)}.d/port.conf`), dropIn);
    }
    await machine.run("bash", "-euc", here + start);
    const made = await weir(["key", "create", "--name", "units", "--scope", "submit,read"], operator);
    key = /weir_sk_[\w-]+/.exec(made.stdout)?.[0] ?? assert.fail(made.stderr);
  });

  it("become ready", async () => {
    for (const part of parts) {
      await ready(part);
      const { ActiveState, SubState, NRestarts } = await machine.unit(unit(part));
      assert.deepEqual([ActiveState, SubState, NRestarts], ["active", "running", "0"], part);
    }
  });

  it("run unprivileged as separate users, each with its own secrets", async () => {
    for (const part of parts) {
      const pid = await mainPid(part);
      const status = await machine.run("cat", `/proc/${pid}/status`);
      assert.match(status, /^Uid:\t(6[1-5]\d{3})(\t\1){3}$/m, `${part} runs as a dynamic user`);
      for (const set of ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"])
        assert.match(status, new RegExp(`^${set}:\t0+$`, "m"), part);
      assert.match(status, /^NoNewPrivs:\t1$/m, part);
      assert.match(status, /^Seccomp:\t2$/m, part);
      const environment = await machine.run("cat", `/proc/${pid}/environ`);
      assert.ok(environment.includes(database.href), part);
      assert.equal(environment.includes(secrets.edge), part === "serve", part);
      // The rating in docs/how-to/deploy.md. Other versions of systemd differ a little.
      const rating = await machine.run("systemd-analyze", "security", "--no-pager", unit(part));
      const exposure = Number(/Overall exposure level for \S+: ([\d.]+)/.exec(rating)?.[1]);
      assert.ok(exposure <= 1.5, `${part} is rated ${exposure}`);
    }
  });

  it("keep programs from secrets, privileges and files outside /tmp", async () => {
    const id = await submit("look");
    await until("the program has looked", async () => (await job(id)).finished_at !== null, soon);
    const done = await job(id);
    assert.equal(done.status, "completed", JSON.stringify(done));
    const report = Buffer.from((done.output as { report: string }).report, "base64").toString();
    assert.match(report, new RegExp(`^WEIR_JOB_ID=${id}$`, "m"));
    assert.doesNotMatch(report, /DATABASE_URL|EDGE_SECRET/, report);
    for (const secret of [secrets.edge, database.href]) assert.ok(!report.includes(secret), report);
    assert.deepEqual(report.match(/^(?:read|wrote|mounted|unshared).*/gm), ["wrote /tmp"], report);
    assert.match(report, /^Uid:\t6\d{4}\t/m);
    assert.match(report, /^CapEff:\t0+\nCapBnd:\t0+\nNoNewPrivs:\t1\nSeccomp:\t2$/m, report);
  });

  it("restart after kill -9, and become ready again", async () => {
    for (const part of parts) {
      const before = await mainPid(part);
      await machine.run("systemctl", "kill", "--signal=KILL", unit(part));
      await until(`${part} runs again`, async () => ![0, before].includes(await mainPid(part)), soon);
      await ready(part);
      const { ActiveState, NRestarts } = await machine.unit(unit(part));
      assert.deepEqual([ActiveState, NRestarts], ["active", "1"], part);
    }
  });

  it("take the password from a credential", async () => {
    const file = join(machine.root, "etc/weir/database-url");
    writeFileSync(file, database.href, { mode: 0o600 });
    await machine.run("sh", "-euc", commands("install -d /etc/systemd/system/weir-serve.service.d"));
    await machine.run("systemctl", "restart", unit("serve"));
    await ready("serve");
    const environment = await machine.run("cat", `/proc/${await mainPid("serve")}/environ`);
    assert.ok(!environment.includes(database.href));
    assert.equal((await ask("look", {})).status, 202);
  });

  it("let a running job end when they are stopped", async () => {
    const id = await submit("patient");
    await until("the job runs", async () => (await job(id)).status === "running", soon);
    await machine.run("systemctl", "stop", "--no-block", unit("work"));
    await until(
      "it is asked to stop",
      async () => (await machine.unit(unit("work"))).ActiveState === "deactivating",
      soon,
    );
    assert.equal((await job(id)).status, "running");
    writeFileSync(join(machine.root, "srv/go"), "");
    await until("it has stopped", async () => (await machine.unit(unit("work"))).ActiveState === "inactive", soon);
    const done = await job(id);
    assert.deepEqual([done.status, done.attempt], ["completed", 1]);
    await machine.run("systemctl", "stop", unit("serve"), unit("schedule"));
    for (const part of parts) {
      const { ActiveState, Result, ExecMainStatus } = await machine.unit(unit(part));
      assert.deepEqual([ActiveState, Result, ExecMainStatus], ["inactive", "success", "0"], part);
    }
    const audit = await weir(["audit"], operator);
    assert.equal(audit.code, 0, audit.stdout);
  });
});
