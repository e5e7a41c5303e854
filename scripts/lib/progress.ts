const heartbeatEvery = 10_000;

/** Steps that take fewer milliseconds than this are not announced. */
let silentFor = 0;

export function stayQuietFor(milliseconds: number): void {
  silentFor = milliseconds;
}

export function say(line: string): void {
  console.error(`weir: ${line}`);
}

/** What a long step is doing, in its tool's last line of output. */
export class Pulse {
  latest = "";
}

/** Runs one step of a set-up and prints its title, a sign of life every ten seconds, and how long it took. */
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
