const heartbeatEvery = 10_000;

/** Steps that take fewer milliseconds than this are not announced. */
let silentFor = 0;

export function stayQuietFor(milliseconds: number): void {
  silentFor = milliseconds;
}

/** The steps that are under way, each with its part of the terminal's last line, which is not ended yet. */
const underWay = new Map<Pulse, string>();

export function say(line: string): void {
  show(`weir: ${line}`);
}

/** Prints lines, also in the middle of a step. */
export function show(lines: string): void {
  if (isOpen()) process.stderr.write("\r\x1b[K");
  console.error(lines);
  draw();
}

const isOpen = (): boolean => [...underWay.values()].some((line) => line !== "");

/** Shows what is under way in a line that is written over by the next one; nothing ends it. */
function draw(): void {
  if (!isOpen()) return;
  const lines = [...underWay.values()].filter((line) => line !== "").join(" | ");
  process.stderr.write(`\r\x1b[K${`weir: ${lines}`.slice(0, (process.stderr.columns || 80) - 1)}`);
}

/** What a long step is doing, in its tool's last line of output. */
export class Pulse {
  latest = "";
}

/**
 * Runs one step of a set-up. On a terminal it has one line, with how long it takes. Elsewhere its title is a line, and
 * so is a sign of life every ten seconds. Steps that run at once share the line, and name themselves in theirs.
 */
export async function step<T>(title: string, work: (pulse: Pulse) => Promise<T>): Promise<T> {
  const started = Date.now();
  const seconds = (): string => `${((Date.now() - started) / 1000).toFixed(1)} s`;
  const pulse = new Pulse();
  const terminal = process.stderr.isTTY;
  let announced = false;
  const keep = (line: string): void => {
    underWay.set(pulse, line);
    draw();
  };
  const announce = (): void => {
    announced = true;
    if (terminal) keep(`${title} ...`);
    else say(title);
  };
  underWay.set(pulse, "");
  const announcement = silentFor > 0 ? setTimeout(announce, silentFor) : undefined;
  if (!announcement) announce();
  const named = (words: string): string => (underWay.size > 1 ? `  ${title}: ${words}` : `  ${words}`);
  const beat = (): void => {
    const words = pulse.latest.trim().replace(/\s+/g, " ").slice(0, 90);
    const whole = `${Math.round((Date.now() - started) / 1000)} s${words ? `  ${words}` : ""}`;
    if (!terminal) say(named(whole));
    else if (announced) keep(`${title} ... ${whole}`);
  };
  const heartbeat = setInterval(beat, terminal ? 1000 : heartbeatEvery);
  let end = "failed after";
  try {
    const result = await work(pulse);
    end = "done in";
    return result;
  } finally {
    clearTimeout(announcement);
    clearInterval(heartbeat);
    const last = named(`${end} ${seconds()}`);
    underWay.delete(pulse);
    if (terminal && announced) {
      process.stderr.write("\r\x1b[K");
      say(`${title}: ${end} ${seconds()}`);
    } else if (announced && Date.now() - started > heartbeatEvery) {
      say(last);
    }
  }
}
