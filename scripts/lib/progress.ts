const heartbeatEvery = 10_000;

/** When set, steps that finish sooner say nothing: for commands whose own output is what the person wants. */
let silentFor = 0;

export function stayQuietFor(milliseconds: number): void {
  silentFor = milliseconds;
}

export function say(line: string): void {
  console.error(`weir: ${line}`);
}

/** What a long step is doing right now, as its tool's last line says. */
export class Pulse {
  latest = "";
}

/** Runs one step of a set-up: says what it does, says every ten seconds that it still does it, and how long it took. */
export async function step<T>(title: string, work: (pulse: Pulse) => Promise<T>): Promise<T> {
  const started = Date.now();
  const seconds = (): string => `${((Date.now() - started) / 1000).toFixed(1)} s`;
  const pulse = new Pulse();
  let announced = false;
  const announce = (): void => {
    announced = true;
    say(title);
  };
  const announcement = silentFor > 0 ? setTimeout(announce, silentFor) : undefined;
  if (!announcement) announce();
  const heartbeat = setInterval(() => {
    const words = pulse.latest.trim().replace(/\s+/g, " ").slice(0, 90);
    say(`  ${Math.round((Date.now() - started) / 1000)} s${words ? `  ${words}` : ""}`);
  }, heartbeatEvery);
  try {
    const result = await work(pulse);
    if (announced && Date.now() - started > 1000) say(`  done in ${seconds()}`);
    return result;
  } finally {
    clearTimeout(announcement);
    clearInterval(heartbeat);
  }
}
