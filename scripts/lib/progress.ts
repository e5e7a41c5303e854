const heartbeatEvery = 10_000;

/** Steps that take fewer milliseconds than this are not announced. */
let silentFor = 0;

export function stayQuietFor(milliseconds: number): void {
  silentFor = milliseconds;
}

/** The step on the terminal's last line, which has no line break yet. */
let open = "";

export function say(line: string): void {
  show(`weir: ${line}`);
}

/** Prints lines, even during a step. */
export function show(lines: string): void {
  if (open) process.stderr.write("\r\x1b[K");
  console.error(lines);
  if (open) process.stderr.write(open);
}

/** Shows a line that the next one overwrites. */
function keep(line: string): void {
  open = `weir: ${line}`.slice(0, (process.stderr.columns || 80) - 1);
  process.stderr.write(`\r\x1b[K${open}`);
}

/** The status of a long step: its tool's last line of output. */
export class Pulse {
  latest = "";
}

/**
 * Runs one step of a set-up. On a terminal, the step has one line, with its duration. Elsewhere, it prints its title,
 * and a line every ten seconds.
 */
export async function step<T>(title: string, work: (pulse: Pulse) => Promise<T>): Promise<T> {
  const started = Date.now();
  const seconds = (): string => `${((Date.now() - started) / 1000).toFixed(1)} s`;
  const pulse = new Pulse();
  const terminal = process.stderr.isTTY;
  let announced = false;
  const announce = (): void => {
    announced = true;
    if (terminal) keep(`${title} ...`);
    else say(title);
  };
  const announcement = silentFor > 0 ? setTimeout(announce, silentFor) : undefined;
  if (!announcement) announce();
  const beat = (): void => {
    const words = pulse.latest.trim().replace(/\s+/g, " ").slice(0, 90);
    const whole = `${Math.round((Date.now() - started) / 1000)} s${words ? `  ${words}` : ""}`;
    if (!terminal) say(`  ${whole}`);
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
    if (terminal && announced) {
      open = "";
      process.stderr.write(`\r\x1b[Kweir: ${title}: ${end} ${seconds()}\n`);
    } else if (announced && Date.now() - started > heartbeatEvery) {
      say(`  ${end} ${seconds()}`);
    }
  }
}
