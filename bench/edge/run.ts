// Compares the edge with alternatives. See README.md in this folder.
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { cpus, loadavg, tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { gzipSync } from "node:zlib";
import { buildEdge } from "../../scripts/lib/edge.ts";
import { onExit, runMain } from "../../scripts/lib/lifecycle.ts";
import { options } from "../../scripts/lib/options.ts";
import { root } from "../../scripts/lib/paths.ts";
import { run } from "../../scripts/lib/process.ts";
import { tokenFor } from "../../tests/harness/identity.ts";

/** The results of each round, by contender: requests per second, and microseconds of CPU time per request. */
interface Race {
  rps: Record<string, number[]>;
  cpu: Record<string, number[]>;
}

/** One line of the results, as all of Weir's benchmarks print them with --json. */
interface Result {
  name: string;
  value: number;
  unit: string;
  baseline: number | null;
  ratio: number | null;
  target: string | null;
  holds: boolean | null;
}

const flags: { json?: boolean; quick?: boolean; forwarded?: boolean; before?: string; "in-memory"?: boolean } = {};
const say = (line = ""): void => void (flags.json ? console.error(line) : console.log(line));

await runMain(async () => {
  const flag = { type: "boolean" } as const;
  const { values } = options({
    options: { json: flag, quick: flag, forwarded: flag, "in-memory": flag, before: { type: "string" } },
  });
  Object.assign(flags, values);
  if (!existsSync(join(import.meta.dirname, "node_modules"))) {
    say("installing what the edge is measured against and with");
    await run("npm", ["ci", "--no-audit", "--no-fund"], { cwd: import.meta.dirname });
  }
  await buildEdge();
  const results = await measure();
  if (flags.json) console.log(JSON.stringify(results, null, 2));
  return results.some((result) => result.holds === false) ? 1 : 0;
});

async function measure(): Promise<Result[]> {
  const { quick, "in-memory": inMemory } = flags;
  const before = flags.before === undefined ? undefined : resolve(flags.before);
  const { algorithms, bundle, startField } = await import("./workers.ts");
  const { edgeModules } = await import("../../tests/edge/workerd.ts");
  const { startTimes } = await import("./start.ts");
  const { fresh, hundred, load, send } = await import("./load.ts");
  const { latencies, quantile } = await import("./latency.ts");

  // Storage is on disk, as is the runtime's default, or in memory. In memory, a write costs almost nothing, which no
  // real storage of objects can offer, so that only the code is measured.
  const storage = mkdtempSync(join(inMemory ? "/dev/shm" : tmpdir(), "weir-bench-"));
  // At a signal, Miniflare kills its runtime and ends this process immediately. Only an exit handler runs after that.
  process.once("exit", () => rmSync(storage, { recursive: true, force: true, maxRetries: 10, retryDelay: 20 }));
  const field = await startField(storage, before);
  onExit(() => field.close());
  const results: Result[] = [];
  const version = (name: string, from = root): string =>
    JSON.parse(readFileSync(join(from, "node_modules", name, "package.json"), "utf8")).version;
  const local = (name: string): string => version(name, import.meta.dirname);

  say(
    `machine     ${cpus().length} cores, ${cpus()[0]?.model.trim()}, load ${loadavg()[0]?.toFixed(2)} before; load generator, workerd and origin share them`,
  );
  say(
    `runtime     workerd ${version("workerd")}, a process for each Worker; objects store ${inMemory ? "in memory (/dev/shm)" : "on disk"}`,
  );
  say(
    `beside it   hono ${local("hono")} + hono-rate-limiter ${local("hono-rate-limiter")} + @hono-rate-limiter/cloudflare ${local("@hono-rate-limiter/cloudflare")}; see peers/`,
  );
  say(
    `load        autocannon ${local("autocannon")}, 16 connections, POST of 94 bytes, origin returns 202 immediately`,
  );

  const rounds = quick ? 3 : 7;
  const seconds = quick ? 1 : 3;
  const contenders = ["weir", "minimal", "hono", "memory", "binding"];
  const older = before ? ["before"] : [];
  const known = await tokenFor(field.secrets.jwt);
  const token = (): string => known;
  // Costs are measured first, while no cache is warm.
  const costs = flags.forwarded ? undefined : await measureCosts();
  const forwarded = await race("forwarded", ["weir", "signer", "forwarder", ...older], fresh, 202, token);
  if (!costs) {
    reportForwarded(forwarded);
    await measureAlgorithms();
    return finish();
  }
  const admitted = await race("admitted", [...contenders, ...older], fresh, 202);
  for (const name of contenders) await send(url(name), hundred(), 1100);
  const denied = await race("denied", contenders, hundred, 429);

  say();
  say(`requests per second, medians of ${rounds} interleaved rounds of ${seconds} s (lowest to highest)`);
  table(
    ["", "admitted", "denied"],
    [...contenders, ...older].map((name) => [
      title(name),
      spread(admitted.rps[name] ?? []),
      denied.rps[name] ? spread(denied.rps[name]) : "",
    ]),
  );
  reportForwarded(forwarded, admitted);
  for (const [phase, measured] of [
    ["admitted", admitted.rps],
    ["denied", denied.rps],
  ] as const) {
    for (const [name, isSame] of [
      ["minimal", true],
      ["hono", true],
      ["memory", false],
      ["binding", false],
    ] as const) {
      const ratio = median((measured.weir ?? []).map((rps, round) => rps / (measured[name]?.[round] ?? Number.NaN)));
      add({
        name: `edge/${phase}_rps_vs_${name}`,
        value: median(measured.weir ?? []),
        unit: "req/s",
        baseline: median(measured[name] ?? []),
        ratio,
        // Peers that do less are listed without a target, to show the cost of the rest.
        target: isSame ? "ratio >= 1.0" : null,
        holds: isSame ? ratio >= 1 : null,
      });
    }
  }

  costs();
  await measureLatency();
  await measureStart();
  return finish();

  /** Prints all results. */
  function finish(): Result[] {
    say();
    table(
      ["result", "value", "beside", "ratio", "target", ""],
      results.map((result) => [
        result.name,
        `${number(result.value)} ${result.unit}`,
        result.baseline === null ? "" : number(result.baseline),
        result.ratio === null ? "" : result.ratio.toFixed(3),
        result.target ?? "",
        result.holds === null ? "" : result.holds ? "holds" : "DOES NOT HOLD",
      ]),
    );
    say(`load ${loadavg()[0]?.toFixed(2)} after`);
    return results;
  }

  function url(name: string): string {
    const url = field.urls[name];
    if (!url) throw new Error(`unknown Worker ${name}`);
    return url;
  }

  function add(result: Result): void {
    results.push(result);
  }

  /** The cost of a user's request that is only verified, signed and forwarded, and of an admitted anonymous one. */
  function reportForwarded(forwarded: Race, admitted?: Race): void {
    say();
    say(
      "a user's request, verified, signed and forwarded: requests per second, and CPU time of workerd per request in µs",
    );
    table(
      ["", "requests", "µs", "anonymous: µs"],
      Object.keys(forwarded.rps).map((name) => [
        title(name),
        spread(forwarded.rps[name] ?? []),
        spread(forwarded.cpu[name] ?? []),
        admitted?.cpu[name] ? spread(admitted.cpu[name]) : "",
      ]),
    );
    const compared = (name: string, { cpu }: Race, other: string, target: string | null): void => {
      const [ours = [], theirs = []] = [cpu.weir, cpu[other]];
      if (ours.length === 0) return;
      const ratio = median(ours.map((value, round) => value / (theirs[round] ?? Number.NaN)));
      const holds = target === null ? null : ratio <= 1;
      add({ name, value: median(ours), unit: "µs", baseline: median(theirs), ratio, target, holds });
    };
    compared("edge/forwarded_cpu_vs_signer", forwarded, "signer", null);
    if (!before) return;
    compared("edge/forwarded_cpu_vs_before", forwarded, "before", "ratio <= 1.0");
    if (admitted) compared("edge/admitted_cpu_vs_before", admitted, "before", "ratio <= 1.0");
  }

  /** The cost of a user's request by the algorithm of its token, for tokens that are new and for one that was seen. */
  async function measureAlgorithms(): Promise<void> {
    say();
    say(
      "CPU time of workerd per forwarded request in µs, by the algorithm of the token: the edge, and minimal JavaScript",
    );
    const rows: string[][] = [];
    for (const algorithm of algorithms) {
      for (const kind of ["new", "seen"] as const) {
        // More than an isolate remembers.
        const tokens = Array.from({ length: kind === "new" ? 5000 : 1 }, (_, n) =>
          field.issuer.token(algorithm, { sub: `user-${n}` }),
        );
        let sent = 0;
        const next = (): string => tokens[sent++ % tokens.length] ?? "";
        const { cpu } = await race(`${algorithm}, ${kind}`, ["weir", "signer"], fresh, 202, next);
        const [ours = [], theirs = []] = [cpu.weir, cpu.signer];
        rows.push([`${algorithm}, ${kind}`, spread(ours), spread(theirs)]);
        if (ours.length === 0) continue;
        const ratio = median(ours.map((value, round) => value / (theirs[round] ?? Number.NaN)));
        const most = kind === "new" ? 1.2 : 1;
        add({
          name: `edge/forwarded_cpu_${algorithm.toLowerCase()}_${kind}`,
          value: median(ours),
          unit: "µs",
          baseline: median(theirs),
          ratio,
          target: `ratio <= ${most.toFixed(1)}`,
          holds: ratio <= most,
        });
      }
    }
    table(["", "weir", "signer"], rows);
  }

  /** Runs rounds of these contenders, in rotating order. */
  async function race(
    phase: string,
    contenders: string[],
    addresses: () => () => string,
    expected: number,
    token?: () => string,
  ): Promise<Race> {
    const measured: Race = { rps: {}, cpu: {} };
    // Each contender keeps its clients over all rounds.
    const clients = Object.fromEntries(contenders.map((name) => [name, addresses()]));
    for (let round = -1; round < rounds; round++) {
      for (let turn = 0; turn < contenders.length; turn++) {
        const name = contenders[(turn + round + 1) % contenders.length] ?? "";
        const cpuBefore = field.cpu(name);
        const outcome = await load(
          url(name),
          clients[name] ?? addresses(),
          round < 0 ? Math.min(1, seconds / 2) : seconds,
          token,
        );
        const cpu = field.cpu(name);
        const other = Object.keys(outcome.statuses).filter((status) => Number(status) !== expected);
        // A blocked address's window may end during a round. Then ten requests pass, and it is blocked again.
        const strays = other.reduce((sum, status) => sum + (outcome.statuses[status] ?? 0), 0);
        const all = Object.values(outcome.statuses).reduce((sum, count) => sum + count, 0);
        if (strays > Math.max(1000, all / 4) || (expected === 202 && strays > 0))
          throw new Error(`${name}, ${phase}: ${JSON.stringify(outcome.statuses)}`);
        if (round < 0) continue;
        measured.rps[name] ??= [];
        measured.rps[name].push(outcome.rps);
        if (cpu === undefined || cpuBefore === undefined) continue;
        measured.cpu[name] ??= [];
        measured.cpu[name].push((cpu - cpuBefore) / all);
      }
    }
    return measured;
  }

  /** Object calls and rows, as counted by the objects, and their cost at list prices. */
  async function measureCosts(): Promise<() => void> {
    const weir = async (): Promise<{ calls: number; rows: number }> => {
      const namespace = (await field.runtimes.weir?.getDurableObjectNamespace(
        "ADDRESS_COUNTERS",
        "weir-edge",
      )) as unknown as {
        getByName(name: string): { costs(): Promise<[number, number, number]> };
      };
      const [calls, rows] = await namespace.getByName("any-0").costs();
      return { calls: calls ?? 0, rows: rows ?? 0 };
    };
    const other = (name: string) => async (): Promise<{ calls: number; rows: number }> =>
      (await (await fetch(`${url(name)}/costs`)).json()) as { calls: number; rows: number };
    const designs = { weir, minimal: other("minimal"), "hono-counted": other("hono-counted") };
    const admitted: Record<string, { calls: number; rows: number }> = {};
    const denied: Record<string, { calls: number; rows: number }> = {};
    for (const [name, read] of Object.entries(designs)) {
      const before = await read();
      const statuses = await send(url(name), hundred(), 1000);
      if (statuses[202] !== 1000) throw new Error(`${name}: ${JSON.stringify(statuses)}`);
      const between = await read();
      admitted[name] = { calls: between.calls - before.calls, rows: between.rows - before.rows };
      // All are blocked. The first denial for each comes from the object.
      const times = 10;
      const all = await send(url(name), hundred(), 1000 * times);
      if (all[429] !== 1000 * times) throw new Error(`${name}: ${JSON.stringify(all)}`);
      const after = await read();
      denied[name] = { calls: (after.calls - between.calls) / times, rows: (after.rows - between.rows) / times };
    }
    // List prices of Cloudflare's paid plan, per million beyond the included amount. The base cost of a Worker is left
    // out.
    const dollars = (cost: { calls: number; rows: number }): number =>
      (cost.calls / 1000) * 0.15 + (cost.rows / 1000) * 1;
    return () => {
      say();
      say(
        "for each 1 000 requests of 100 addresses; dollars for each million at list prices ($0.15 / M calls, $1.00 / M rows), without the Worker's own price",
      );
      table(
        ["", "admitted: calls", "rows", "$ / M", "denied: calls", "rows", "$ / M"],
        Object.keys(designs).map((name) => {
          const [a, d] = [admitted[name] ?? { calls: 0, rows: 0 }, denied[name] ?? { calls: 0, rows: 0 }];
          return [
            title(name),
            number(a.calls),
            number(a.rows),
            dollars(a).toFixed(4),
            number(d.calls),
            number(d.rows),
            dollars(d).toFixed(4),
          ];
        }),
      );
      const [a, d, perA, perD] = [admitted.weir, denied.weir, admitted.minimal, denied.minimal];
      if (!a || !d || !perA || !perD) return;
      add({
        name: "edge/object_calls_per_1000_denied",
        value: d.calls,
        unit: "calls",
        baseline: perD.calls,
        ratio: d.calls / perD.calls,
        target: "<= 10",
        holds: d.calls <= 10,
      });
      add({
        name: "edge/rows_per_1000_admitted",
        value: a.rows,
        unit: "rows",
        baseline: perA.rows,
        ratio: a.rows / perA.rows,
        target: "ratio <= 1.0",
        holds: a.rows <= perA.rows,
      });
      for (const [phase, ours, theirs, most] of [
        ["admitted", dollars(a), dollars(perA), 1],
        ["denied", dollars(d), dollars(perD), 0.2],
      ] as const) {
        add({
          name: `edge/dollars_per_million_${phase}`,
          value: ours,
          unit: "$",
          baseline: theirs,
          ratio: ours / theirs,
          target: `ratio <= ${most.toFixed(1)}`,
          holds: ours / theirs <= most,
        });
      }
    };
  }

  async function measureLatency(): Promise<void> {
    const singles = quick ? 500 : 5000;
    const next = fresh();
    const address = (): Record<string, string> => ({ "cf-connecting-ip": next().replace(/^10\./, "11.") });
    const times = await latencies(
      {
        origin: { url: field.origin, headers: address },
        forwarder: { url: url("forwarder"), headers: address },
        "weir, a user": { url: url("weir"), headers: () => ({ ...address(), authorization: `Bearer ${token()}` }) },
        "weir, anonymous": { url: url("weir"), headers: address },
      },
      singles,
    );
    const of = (name: string, part: number): number =>
      quantile(times[name] ?? [], part) - quantile(times.origin ?? [], part);
    say();
    say(`milliseconds that are added to a request to the origin, one at a time (${singles} each, in turn)`);
    table(
      ["", "p50", "p99"],
      ["forwarder", "weir, a user", "weir, anonymous"].map((name) => [
        name === "forwarder" ? "minimal JavaScript forwarder" : name,
        of(name, 0.5).toFixed(2),
        of(name, 0.99).toFixed(2),
      ]),
    );
    for (const [name, part] of [
      ["weir, a user", 0.5],
      ["weir, a user", 0.99],
      ["weir, anonymous", 0.5],
      ["weir, anonymous", 0.99],
    ] as const) {
      add({
        name: `edge/added_ms_${name === "weir, a user" ? "user" : "anonymous"}_p${part * 100}`,
        value: of(name, part),
        unit: "ms",
        baseline: of("forwarder", part),
        ratio: of(name, part) / of("forwarder", part),
        target: null,
        holds: null,
      });
    }
  }

  async function measureStart(): Promise<void> {
    const wasm = readFileSync(join(root, "build", "index_bg.wasm"));
    const bundleOf = (clone: string): Buffer => Buffer.concat(edgeModules(clone).map((path) => readFileSync(path)));
    const ours = bundleOf(root);
    const minimal = Buffer.from(await bundle("minimal"));
    const gzip = (bytes: Buffer): number => gzipSync(bytes, { level: 9 }).length / 1024;
    const size = (name: string, value: number, baseline: number | null, most?: number): void =>
      add({
        name,
        value,
        unit: "KiB",
        baseline,
        ratio: null,
        target: most === undefined ? null : `<= ${most}`,
        holds: most === undefined ? null : value <= most,
      });
    size("edge/wasm_kib", wasm.length / 1024, null);
    size("edge/wasm_gzip_kib", gzip(wasm), null);
    size("edge/bundle_kib", ours.length / 1024, minimal.length / 1024);
    size("edge/bundle_gzip_kib", gzip(ours), gzip(minimal), 300);
    const limiter = ["src/limit.mjs", "src/limits.mjs", "build/limiter/index.js", "build/limiter/index_bg.wasm"];
    const hono = Buffer.from(await bundle("hono"));
    const onlyLimits = Buffer.concat(limiter.map((path) => readFileSync(join(root, path))));
    size("edge/only_limits_gzip_kib_vs_hono", gzip(onlyLimits), gzip(hono), 120);
    if (before) {
      const earlier = bundleOf(before);
      size("edge/bundle_kib_vs_before", ours.length / 1024, earlier.length / 1024);
      size("edge/bundle_gzip_kib_vs_before", gzip(ours), gzip(earlier));
    }
    // Node's types do not include it.
    const { WebAssembly } = globalThis as unknown as { WebAssembly: { compile(bytes: Uint8Array): Promise<object> } };
    const compiled: number[] = [];
    for (let n = 0; n < 7; n++) {
      const started = process.hrtime.bigint();
      await WebAssembly.compile(wasm);
      compiled.push(Number(process.hrtime.bigint() - started) / 1e6);
    }
    add({
      name: "edge/wasm_compile_ms",
      value: median(compiled),
      unit: "ms",
      baseline: null,
      ratio: null,
      target: "<= 1000 (the platform's limit for starting)",
      holds: median(compiled) <= 1000,
    });
    const rounds = quick ? 3 : 11;
    const { weir, minimal: beside } = await startTimes(join(storage, "start"), field.origin, field.secrets, rounds);
    say();
    say(
      `milliseconds from the start of a fresh runtime process to its first answer of a submission, median of ${rounds} (lowest to highest)`,
    );
    table(
      ["", "ms", "CPU time: ms"],
      [
        ["weir", spread(weir.total), spread(weir.cpu)],
        [title("minimal"), spread(beside.total), spread(beside.cpu)],
      ],
    );
    add({
      name: "edge/first_answer_ms",
      value: median(weir.total),
      unit: "ms",
      baseline: median(beside.total),
      ratio: median(weir.total) / median(beside.total),
      target: null,
      holds: null,
    });
    if (weir.cpu.length === 0) return;
    add({
      name: "edge/first_answer_cpu_ms",
      value: median(weir.cpu),
      unit: "ms",
      baseline: median(beside.cpu),
      ratio: median(weir.cpu) / median(beside.cpu),
      target: "<= 60",
      holds: median(weir.cpu) <= 60,
    });
  }
}

function title(name: string): string {
  return (
    {
      weir: "weir",
      minimal: "minimal JavaScript, per address",
      hono: "hono-rate-limiter, Durable Object",
      "hono-counted": "hono-rate-limiter, Durable Object",
      memory: "(minimal JavaScript that forgets)",
      binding: "(Cloudflare's rate-limit binding)",
      signer: "minimal JavaScript, verifies and signs",
      forwarder: "(minimal JavaScript that only forwards)",
      before: "weir before",
    }[name] ?? name
  );
}

function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  return sorted.length % 2
    ? (sorted[middle] ?? Number.NaN)
    : ((sorted[middle - 1] ?? Number.NaN) + (sorted[middle] ?? Number.NaN)) / 2;
}

function spread(values: number[]): string {
  return `${Math.round(median(values))} (${Math.round(Math.min(...values))} to ${Math.round(Math.max(...values))})`;
}

function number(value: number): string {
  return value >= 100 ? Math.round(value).toString() : Number(value.toPrecision(3)).toString();
}

function table(head: string[], rows: string[][]): void {
  const widths = head.map((cell, column) => Math.max(cell.length, ...rows.map((row) => row[column]?.length ?? 0)));
  const line = (cells: string[]): string =>
    cells
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[column] ?? 0) : cell.padStart(widths[column] ?? 0)))
      .join("  ");
  say(line(head));
  for (const row of rows) say(line(row));
}
