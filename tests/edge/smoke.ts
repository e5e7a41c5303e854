// Checks a deployed edge from outside:
//
//   node tests/edge/smoke.ts https://edge.example.com [--token TOKEN] [--origin URL] [--spare-limit]
//
// It uses up this machine's anonymous submissions of one window, except with --spare-limit. They are for a service that
// does not exist, so nothing runs. With a token, it checks that the token's user is recognised. With the origin's URL,
// it checks that direct access to the origin gains nothing. The exit code is 1 if any check fails.
import { parseArgs } from "node:util";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    token: { type: "string" },
    origin: { type: "string" },
    "spare-limit": { type: "boolean", default: false },
  },
});
const edge = positionals[0]?.replace(/\/$/, "");
if (!edge) {
  console.error(
    "usage: node tests/edge/smoke.ts https://edge.example.com [--token TOKEN] [--origin URL] [--spare-limit]",
  );
  process.exit(2);
}

let failures = 0;
async function check(what: string, body: () => Promise<string | undefined>): Promise<void> {
  let wrong: string | undefined;
  try {
    wrong = await body();
  } catch (error) {
    wrong = String(error instanceof Error ? (error.cause ?? error.message) : error);
  }
  if (wrong) failures++;
  console.log(`${wrong ? "FAILS" : "holds"}  ${what}${wrong ? `: ${wrong}` : ""}`);
}

const ask = (path: string, init: RequestInit = {}, at = edge): Promise<Response> =>
  fetch(at + path, { redirect: "manual", signal: AbortSignal.timeout(15_000), ...init });
const expect = (answer: Response, status: number): string | undefined =>
  answer.status === status ? undefined : `answered ${answer.status}, wanted ${status}`;
const unless = (holds: boolean, otherwise: string): string | undefined => (holds ? undefined : otherwise);

await check("the page is served", async () => {
  const answer = await ask("/");
  return expect(answer, 200) ?? unless(/<html/i.test(await answer.text()), "it is not HTML");
});
for (const path of ["/metrics", "/healthz", "/readyz"]) {
  await check(`the origin's ${path} cannot be reached`, async () => expect(await ask(path), 404));
}
await check("the API answers through the origin", async () => {
  const answer = await ask("/api/lanes");
  return (
    expect(answer, 200) ??
    unless(
      /"anon-read";q=\d+;w=60/.test(answer.headers.get("ratelimit-policy") ?? ""),
      `RateLimit-Policy is ${answer.headers.get("ratelimit-policy")}`,
    )
  );
});
await check("no shared cache may store an API response", async () => {
  const control = (await ask("/api/lanes")).headers.get("cache-control") ?? "";
  return unless(/no-store|private/.test(control), `Cache-Control is ${control}`);
});
await check("a preflight is answered", async () => {
  const answer = await ask("/api/jobs/none", {
    method: "OPTIONS",
    headers: { origin: "https://smoke.example", "access-control-request-method": "POST" },
  });
  return (
    expect(answer, 204) ?? unless(answer.headers.get("access-control-allow-methods") !== null, "it allows no methods")
  );
});
await check("a bad bearer token is refused", async () => {
  const answer = await ask("/api/usage", { headers: { authorization: "Bearer nonsense" } });
  return (
    expect(answer, 401) ??
    unless((answer.headers.get("www-authenticate") ?? "").startsWith("Bearer"), "it has no challenge")
  );
});
await check("a client cannot cause a panic", async () => {
  const answer = await ask("/api/lanes", { headers: { "weir-drill-panic": "1" } });
  return unless(answer.status !== 500, "DRILLS is on");
});
if (values.token) {
  await check("a user's token is recognised", async () => {
    const answer = await ask("/api/usage", { headers: { authorization: `Bearer ${values.token}` } });
    return expect(answer, 200) ?? unless(answer.headers.get("ratelimit") === null, "its user is rate limited");
  });
}
if (values.origin) {
  await check("direct access to the origin gains nothing", async () => {
    const answer = await ask(
      "/api/usage",
      { headers: { authorization: `Bearer ${values.token ?? "x"}`, "x-forwarded-for": "127.0.0.1" } },
      values.origin?.replace(/\/$/, ""),
    );
    return unless(answer.status === 401 || answer.status === 403, `answered ${answer.status}`);
  });
}
if (!values["spare-limit"]) {
  await check("submissions of one address are limited, regardless of its headers", async () => {
    for (let sent = 0; sent < 200; sent++) {
      const answer = await ask("/api/jobs/none", {
        method: "POST",
        body: "{}",
        headers: { "content-type": "application/json", "x-forwarded-for": `198.51.100.${sent}` },
      });
      const limit = Number(/q=(\d+)/.exec(answer.headers.get("ratelimit-policy") ?? "")?.[1]);
      if (answer.status !== 429) {
        if (sent > limit) return `${sent + 1} passed where ${limit} should (is ANON_MODE shadow?)`;
        continue;
      }
      const { title } = (await answer.json()) as { title?: string };
      const retry = Number(answer.headers.get("retry-after"));
      return unless(title === "Too Many Requests" && retry >= 1, `title ${title}, Retry-After ${retry}`);
    }
    return "200 submissions were admitted";
  });
}
console.log(failures === 0 ? "all checks pass" : `${failures} of the checks fail`);
process.exitCode = failures === 0 ? 0 : 1;
