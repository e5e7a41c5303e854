import type { Result } from "./run.ts";

/** The maximum time after the last fault, in seconds: a lease of ten, a check every half second, and a start. */
const promised = 15;

/** All violations, one per line. On a busy machine, the slots may need longer. */
export function violations(result: Result, { slotsWithin = promised } = {}): string[] {
  const { verdict, watch, left, strange, ends, slotsBack } = result;
  const named = (what: string, lines: Iterable<string>): string[] => [...lines].map((line) => `${what}: ${line}`);
  return [
    ...named("over a limit", watch.seen),
    ...named("lost", verdict.lost),
    ...named("doubled", verdict.doubled),
    ...named("charged wrongly", verdict.charges),
    ...named("without effect", verdict.effectless),
    ...named("audit", verdict.audit),
    ...named("not ended", left),
    ...named("a strange answer", strange),
    ...named("ended by itself", ends),
    ...(slotsBack === undefined || slotsBack > slotsWithin
      ? [`slots are back only after ${slotsBack?.toFixed(1) ?? "more than a minute of"} s`]
      : []),
    ...(watch.samples === 0 ? ["nothing was sampled"] : []),
  ];
}

/** The faults and their results. */
export function report(result: Result): string {
  const { plan, verdict, watch, clients, minutes } = result;
  const count = <T>(all: T[], holds: (one: T) => boolean): number => all.filter(holds).length;
  const kinds = [...Map.groupBy(plan, ({ kind }) => kind)].map(([kind, all]) => `${all.length} × ${kind}`);
  const { entries } = clients;
  return [
    `faults: ${plan.length}: ${kinds.join(", ")}`,
    `processes started: ${result.starts}`,
    `submissions: ${entries.length}, with a key ${count(entries, ({ key }) => key !== undefined)}, in a transaction of the client's ${count(entries, ({ way }) => way === "sql")}`,
    `acknowledged: ${count(entries, ({ jobs }) => jobs !== undefined)} (${verdict.acknowledged} jobs), refused ${count(entries, ({ refused }) => refused)}, never answered ${count(entries, ({ jobs, refused }) => !jobs && !refused)}`,
    `jobs completed: ${verdict.completed}; effects: ${verdict.effects}`,
    `lost: ${verdict.lost.length}; doubled: ${verdict.doubled.length}; charged wrongly: ${verdict.charges.length}; without effect: ${verdict.effectless.length}`,
    `over a limit: ${watch.seen.size}, of ${watch.samples} samples; claimed without a slot, to be sent back: in ${watch.beyond} samples`,
    `the longest that one attempt had its slot: ${watch.longest.toFixed(1)} s; slots back after the last fault: ${result.slotsBack?.toFixed(1)} s`,
    `answered within 2 s, by the minute: ${minutes.map(({ requests, served }) => `${((served / Math.max(1, requests)) * 100).toFixed(0)} % of ${requests}`).join(", ")}`,
  ].join("\n");
}
