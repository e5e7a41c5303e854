import type { Request } from "../chaos/clients.ts";
import { type Moment, quantileOf, type Table } from "./measure.ts";

/** The maximum growth and slowdown at the end. */
const tolerance = 1.1;

/** Differences below this many bytes of a table do not count: small tables consist of few pages. */
const smallBytes = 256 * 1024;

/** A line of the table: the measurement in the first minutes, in the last minutes, and the maximum. */
export interface Line {
  what: string;
  unit: string;
  first: number;
  last: number;
  most: number;
}

export interface Window {
  moments: Moment[];
  /** Answered requests for a submission. */
  requests: Request[];
  /** From a freed slot to the next start, in milliseconds. */
  wakes: number[];
  /** Commits that do not depend on Weir, in milliseconds. */
  commits: number[];
}

/**
 * Compares two windows. Small differences count as noise of the machine:
 * - A time may differ by a few milliseconds, and memory by a few MiB.
 * - A time may grow as much as that of a commit that does not depend on Weir, because then the machine became slower.
 * - A table that keeps history may grow as much as its number of rows.
 * - A few dead rows do not matter, nor do a few pages. Dead rows come and go with autovacuum, so their mean counts.
 *   Rows below autovacuum's threshold do not count; the threshold grows with the table.
 */
export function compare(first: Window, last: Window): Line[] {
  const machine = Math.max(1, p99(last.commits) / p99(first.commits) || 1);
  const times = (what: string, one: number, other: number): Line => ({
    what: `p99 of ${what}`,
    unit: " ms",
    first: one,
    last: other,
    most: Math.max(one * tolerance, one + 5) * machine,
  });
  return [
    { ...times("an additional commit", p99(first.commits), p99(last.commits)), most: Number.POSITIVE_INFINITY },
    times("reservation", p99(took(first)), p99(took(last))),
    times("settlement", settled(first), settled(last)),
    times("wake", p99(first.wakes), p99(last.wakes)),
    ...[...(first.moments[0]?.memory.keys() ?? [])].map((process): Line => {
      const of = ({ moments }: Window): number => median(moments.map(({ memory }) => memory.get(process) ?? 0));
      return {
        what: `memory of ${process}`,
        unit: " MiB",
        first: of(first),
        last: of(last),
        most: Math.max(of(first) * tolerance, of(first) + 4),
      };
    }),
    ...[...(last.moments[0]?.tables.keys() ?? [])].sort().flatMap((table) => tableLines(table, first, last)),
  ];
}

export function fails({ last, most }: Line): boolean {
  return last > most;
}

/** The changed lines, as a table. */
export function printed(lines: Line[]): string {
  const number = (value: number): string => (value < 100 ? value.toFixed(1) : Math.round(value).toLocaleString("en"));
  const changed = lines.filter(({ first, last }) => first !== last);
  const rows = changed.map((line) => {
    const [first, last, most] = [line.first, line.last, line.most].map((value) => `${number(value)}${line.unit}`);
    // A line without a limit is the reference for the others.
    const verdict = Number.isFinite(line.most) ? `${most} | ${fails(line) ? "**beyond**" : "within"}` : " | ";
    return `| ${line.what} | ${first} | ${last} | ${verdict} |`;
  });
  return [
    "| what | first | last | at most | |",
    "|---|---|---|---|---|",
    ...rows,
    "",
    `${lines.length - rows.length} more are as they were.`,
  ].join("\n");
}

function tableLines(name: string, first: Window, last: Window): Line[] {
  const [before, after] = [end(first, name), end(last, name)];
  if (!before || !after) return [];
  const growth = Math.max(1, after.rows / Math.max(1, before.rows));
  const dead = ({ moments }: Window): number => mean(moments.map(({ tables }) => tables.get(name)?.dead ?? 0));
  const more = Math.max(0, leftAlone(after.rows) - leftAlone(before.rows));
  const small = (smallBytes / Math.max(1, before.bytes)) * (before.rows + dead(first));
  const kib = 1024;
  return [
    {
      what: `size of ${name} (rows: ${before.rows}, ${after.rows})`,
      unit: " KiB",
      first: before.bytes / kib,
      last: after.bytes / kib,
      most: (before.bytes * growth * tolerance + smallBytes) / kib,
    },
    {
      what: `dead rows of ${name}`,
      unit: "",
      first: dead(first),
      last: dead(last),
      most: Math.max(dead(first) + more, leftAlone(after.rows)) * tolerance + small,
    },
  ].filter(({ first: one, last: other }) => one > 0 || other > 0);
}

/** The dead rows that autovacuum leaves, with PostgreSQL's default settings. */
function leftAlone(rows: number): number {
  return 50 + 0.2 * rows;
}

function end({ moments }: Window, table: string): Table | undefined {
  return moments.at(-1)?.tables.get(table);
}

function took({ requests }: Window): number[] {
  return requests.map(({ took: milliseconds }) => milliseconds);
}

function settled({ moments }: Window): number {
  const [begin, finish] = [moments[0], moments.at(-1)];
  return begin && finish ? quantileOf(begin.settlements, finish.settlements, 0.99) : 0;
}

function p99(values: number[]): number {
  const sorted = values.toSorted((one, other) => one - other);
  return sorted[Math.ceil(sorted.length * 0.99) - 1] ?? 0;
}

function mean(values: number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
}

function median(values: number[]): number {
  return values.toSorted((one, other) => one - other)[Math.floor(values.length / 2)] ?? 0;
}
