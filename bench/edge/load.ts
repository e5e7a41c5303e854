import autocannon from "autocannon";

/** Returns the client's address for each request of a load. */
export type Addresses = () => string;

/** Ten requests for each address, then the next address. All are admitted. */
export function fresh(): Addresses {
  let sent = 0;
  return () => {
    const address = Math.floor(sent++ / 10);
    return `10.${(address >> 16) & 255}.${(address >> 8) & 255}.${address & 255}`;
  };
}

/** A hundred addresses in turn. */
export function hundred(): Addresses {
  let sent = 0;
  return () => `172.16.0.${sent++ % 100}`;
}

export interface Outcome {
  /** Answers per second. */
  rps: number;
  statuses: Record<string, number>;
}

const path = "/api/jobs/analysis";
const body = JSON.stringify({ files: [{ path: "a_test.go", content: "func TestA(t *testing.T) {}" }] });

/** Submits over sixteen connections for a number of seconds, as users if there are tokens. */
export async function load(url: string, addresses: Addresses, seconds: number, token?: () => string): Promise<Outcome> {
  const statuses: Record<string, number> = {};
  const instance = autocannon({
    url,
    connections: 16,
    duration: seconds,
    requests: [
      {
        method: "POST",
        path,
        body,
        headers: { "content-type": "application/json" },
        setupRequest: (request: { headers: Record<string, string> }) => {
          request.headers["cf-connecting-ip"] = addresses();
          if (token) request.headers.authorization = `Bearer ${token()}`;
          return request;
        },
        onResponse: (status: number) => {
          statuses[status] = (statuses[status] ?? 0) + 1;
        },
      },
    ],
  });
  const started = process.hrtime.bigint();
  await instance;
  const elapsed = Number(process.hrtime.bigint() - started) / 1e9;
  const answers = Object.values(statuses).reduce((sum, count) => sum + count, 0);
  return { rps: answers / elapsed, statuses };
}

/** Sends a number of submissions, sixteen at a time or, with `over`, evenly spread over that many seconds. */
export async function send(
  url: string,
  addresses: Addresses,
  count: number,
  over?: number,
): Promise<Record<string, number>> {
  const statuses: Record<string, number> = {};
  const one = async (): Promise<void> => {
    const answer = await fetch(url + path, { method: "POST", body, headers: { "cf-connecting-ip": addresses() } });
    await answer.arrayBuffer();
    statuses[answer.status] = (statuses[answer.status] ?? 0) + 1;
  };
  if (over) {
    const started = Date.now();
    const all = [];
    for (let sent = 0; sent < count; sent++) {
      const due = started + (sent * over * 1000) / count;
      if (due > Date.now()) await new Promise((done) => setTimeout(done, due - Date.now()));
      all.push(one());
    }
    await Promise.all(all);
  } else {
    let left = count;
    await Promise.all(
      Array.from({ length: 16 }, async () => {
        while (left-- > 0) await one();
      }),
    );
  }
  return statuses;
}
