import { Seed } from "./seed.ts";

/** The target of a fault. Two faults of the same target do not overlap; others may. */
type Where = "part" | "server" | "network" | "rows" | "server's clock" | "part's clock";

/** Each kind of fault: its target, its shortest and longest duration in milliseconds, and how often it is in a deck. */
export const kinds = {
  "killed (-9)": { where: "part", lasts: [0, 0], cards: 4 },
  "drained (SIGTERM) and started again": { where: "part", lasts: [0, 0], cards: 2 },
  "frozen for a moment": { where: "part", lasts: [500, 4_000], cards: 2 },
  "frozen past the lease": { where: "part", lasts: [11_000, 14_000], cards: 2 },
  "PostgreSQL restarted, fast": { where: "server", lasts: [0, 0], cards: 1 },
  "PostgreSQL restarted, immediate": { where: "server", lasts: [0, 0], cards: 1 },
  "PostgreSQL killed (-9) and started again": { where: "server", lasts: [0, 0], cards: 1 },
  "PostgreSQL frozen": { where: "server", lasts: [1_000, 9_000], cards: 1 },
  "PostgreSQL read-only": { where: "server", lasts: [1_000, 4_000], cards: 1 },
  "no connection left": { where: "server", lasts: [2_000, 5_000], cards: 1 },
  "all connections terminated": { where: "server", lasts: [0, 0], cards: 1 },
  "each COMMIT takes 100 ms longer": { where: "server", lasts: [2_000, 6_000], cards: 1 },
  "network delayed": { where: "network", lasts: [2_000, 6_000], cards: 1 },
  "network stands still": { where: "network", lasts: [1_000, 10_000], cards: 1 },
  "all connections dropped": { where: "network", lasts: [0, 0], cards: 1 },
  "cut before COMMIT": { where: "network", lasts: [3_000, 3_000], cards: 2 },
  "cut after COMMIT": { where: "network", lasts: [3_000, 3_000], cards: 2 },
  "a pooler's error after COMMIT": { where: "network", lasts: [3_000, 3_000], cards: 1 },
  "PostgreSQL's clock jumps ahead": { where: "server's clock", lasts: [2_000, 9_000], cards: 1 },
  "PostgreSQL's clock jumps back": { where: "server's clock", lasts: [2_000, 9_000], cards: 1 },
  "a process's clock jumps ahead": { where: "part's clock", lasts: [2_000, 9_000], cards: 1 },
  "a process's clock jumps back": { where: "part's clock", lasts: [2_000, 9_000], cards: 1 },
  "rows locked": { where: "rows", lasts: [1_000, 4_000], cards: 1 },
  "deadlocks provoked": { where: "rows", lasts: [2_000, 4_000], cards: 2 },
} as const satisfies Record<string, { where: Where; lasts: [number, number]; cards: number }>;

export type Kind = keyof typeof kinds;

export interface Fault {
  kind: Kind;
  /** When it starts, in milliseconds after the start of the plan. */
  at: number;
  /** The duration, unless the target determines it. */
  lasts: number;
  /** The part, if it affects one. */
  part?: string;
  /** The size: COMMITs that fail, milliseconds of delay, locked rows, or seconds that a clock is off. */
  count: number;
}

/** The pause between the starts of two faults, in milliseconds. */
const pauses = { least: 500, most: 4_000 };

/**
 * The faults within this many milliseconds, the same for the same seed. No kind repeats before all kinds have occurred.
 * Clocks jump if `clocks` is set. Those of programs in Go cannot jump.
 */
export function planOf(seed: number, span: number, parts: readonly string[], { clocks }: { clocks: boolean }): Fault[] {
  const draws = new Seed(seed);
  const plan: Fault[] = [];
  const freeAt = new Map<string, number>();
  let deck: Kind[] = [];
  for (let at = draws.between(1_000, 2_000); at < span; at += draws.between(pauses.least, pauses.most)) {
    if (deck.length === 0) deck = draws.shuffled(wholeDeck(clocks));
    const part = draws.pick(parts);
    const place = deck.findIndex((kind) => canHappen(kind, part) && (freeAt.get(whereOf(kind, part)) ?? 0) <= at);
    const [kind] = place < 0 ? [] : deck.splice(place, 1);
    if (!kind) continue;
    const {
      where,
      lasts: [least, most],
    } = kinds[kind];
    const lasts = Math.min(draws.between(least, most), Math.max(0, span - at));
    plan.push({ kind, at, lasts, count: draws.between(1, 12), ...(isOfPart(where) ? { part } : {}) });
    // An ended process needs a moment to start again, and so does a server.
    freeAt.set(whereOf(kind, part), at + lasts + 2_000);
  }
  return plan;
}

function wholeDeck(clocks: boolean): Kind[] {
  return (Object.keys(kinds) as Kind[])
    .filter((kind) => clocks || !kinds[kind].where.endsWith("clock"))
    .flatMap((kind) => Array<Kind>(kinds[kind].cards).fill(kind));
}

function canHappen(kind: Kind, part: string): boolean {
  return kinds[kind].where !== "part's clock" || !part.startsWith("fleet");
}

function isOfPart(where: Where): boolean {
  return where === "part" || where === "part's clock";
}

/** The target that it must not overlap on. */
export function whereOf(kind: Kind, part: string | undefined): string {
  const { where } = kinds[kind];
  return isOfPart(where) ? `${where} ${part}` : where;
}
