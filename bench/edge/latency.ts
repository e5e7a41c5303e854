import { Agent, request } from "node:http";

/** The parameters of a request. */
export interface Target {
  url: string;
  headers: () => Record<string, string>;
}

/**
 * Durations of single submissions in milliseconds. The targets take turns, with one connection each and no other load.
 */
export async function latencies(targets: Record<string, Target>, rounds: number): Promise<Record<string, number[]>> {
  const times: Record<string, number[]> = {};
  const agents: Record<string, Agent> = {};
  for (const name of Object.keys(targets)) {
    times[name] = [];
    agents[name] = new Agent({ keepAlive: true, maxSockets: 1 });
  }
  const warmUp = Math.min(100, rounds / 5);
  for (let round = -warmUp; round < rounds; round++) {
    for (const [name, target] of Object.entries(targets)) {
      const started = process.hrtime.bigint();
      await once(target, agents[name]);
      if (round >= 0) times[name]?.push(Number(process.hrtime.bigint() - started) / 1e6);
    }
  }
  for (const agent of Object.values(agents)) agent.destroy();
  return times;
}

function once(target: Target, agent: Agent | undefined): Promise<void> {
  return new Promise((done, failed) => {
    const body = "{}";
    const outgoing = request(
      `${target.url}/api/jobs/analysis`,
      { method: "POST", agent, headers: { "content-length": body.length, ...target.headers() } },
      (response) => {
        if (response.statusCode !== 202) failed(new Error(`answered ${response.statusCode}`));
        response.resume();
        response.on("end", done);
      },
    );
    outgoing.on("error", failed);
    outgoing.end(body);
  });
}

/** The value that this share of the values does not exceed. */
export function quantile(values: number[], part: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? Number.NaN;
}
