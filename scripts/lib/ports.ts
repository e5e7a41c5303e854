import { createServer } from "node:net";
import { Failure } from "./failure.ts";
import { say } from "./progress.ts";

export const host = "127.0.0.1";

export function isFree(port: number): Promise<boolean> {
  return new Promise((done) => {
    const server = createServer();
    server.once("error", () => done(false));
    server.listen({ port, host, exclusive: true }, () => server.close(() => done(true)));
  });
}

/** A port from the environment, or the default. An invalid value is an error. */
export function portFrom(name: string, otherwise: number): number {
  const text = process.env[name];
  if (text === undefined || text === "") return otherwise;
  const port = Number(text);
  if (Number.isInteger(port) && port >= 1 && port <= 65535) return port;
  throw new Failure(
    `${name} is "${text}", which is not a port`,
    `set ${name} to a number from 1 to 65535, or leave it unset for ${otherwise}`,
  );
}

/** The port of a part: the variable's value, or else its usual port if that is free. */
export interface Wanted {
  name: string;
  usual: number;
  what: string;
}

/** The maximum distance from a part's usual port. */
const farthest = 100;

/**
 * Chooses the ports of the parts. A port from a variable has no alternative. For the others, chooses the next free one.
 * Fails if any ports from variables are in use, and names all of them.
 */
export async function choosePorts(wanted: readonly Wanted[]): Promise<number[]> {
  const taken: (Wanted & { port: number })[] = [];
  const named = new Map<Wanted, number>();
  for (const part of wanted) {
    if (!process.env[part.name]) continue;
    const port = portFrom(part.name, part.usual);
    named.set(part, port);
    if (!(await isFree(port))) taken.push({ ...part, port });
  }
  if (taken.length > 0) {
    const words = taken.map(({ port, what, name }) => `port ${port} for ${what} (${name}) is in use`).join("; ");
    const others = taken.map(({ name, port }) => `${name}=${port + 1000}`).join(" ");
    throw new Failure(words, `stop the process that uses this port, or choose other ports: ${others} npm start`);
  }
  const chosen = new Set(named.values());
  const ports: number[] = [];
  for (const part of wanted) {
    const port = named.get(part) ?? (await nextFree(part, chosen));
    chosen.add(port);
    ports.push(port);
  }
  return ports;
}

async function nextFree({ name, usual, what }: Wanted, chosen: ReadonlySet<number>): Promise<number> {
  for (let port = usual; port < usual + farthest; port++) {
    if (chosen.has(port) || !(await isFree(port))) continue;
    if (port !== usual) say(`port ${usual} is in use, so ${what} gets ${port}`);
    return port;
  }
  throw new Failure(
    `ports ${usual} to ${usual + farthest - 1} for ${what} are all in use`,
    `stop the process that uses this port, or choose another: ${name}=${usual + 1000} npm start`,
  );
}

/** A port that is free now. */
export function anyFree(): Promise<number> {
  return new Promise((done, failed) => {
    const server = createServer();
    server.once("error", failed);
    server.listen({ port: 0, host }, () => {
      const address = server.address();
      server.close(() => (typeof address === "object" && address ? done(address.port) : failed(new Error("no port"))));
    });
  });
}
