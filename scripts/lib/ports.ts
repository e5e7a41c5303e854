import { createServer } from "node:net";
import { Failure } from "./failure.ts";

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

/** Fails, naming all of them, when some of the ports are in use. */
export async function requireFree(wanted: { name: string; port: number; what: string }[]): Promise<void> {
  const taken: typeof wanted = [];
  for (const entry of wanted) if (!(await isFree(entry.port))) taken.push(entry);
  const first = taken[0];
  if (!first) return;
  const words = taken.map(({ port, what, name }) => `port ${port} for ${what} (${name}) is in use`).join("; ");
  const others = taken.map(({ name, port }) => `${name}=${port + 1000}`).join(" ");
  throw new Failure(words, `stop what listens there, or choose other ports: ${others} npm start`);
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
