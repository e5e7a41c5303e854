import { onRequest, type Sent } from "./api.ts";
import { showDocument } from "./api-view.ts";
import { element } from "./elements.ts";
import { samples } from "./samples.ts";
import { sessionToken } from "./session.ts";
import { onShown } from "./tabs.ts";
import { onLanguage, t } from "./text.ts";

/** Shows the last request that changed something, as a command. */

const title = element("curl-title", HTMLElement);
const place = element("curl", HTMLElement);
const copy = element("copy", HTMLButtonElement);

/** A longer body does not fit on a command line. */
const longestBody = 4000;

let last: (Sent & { session: string | undefined }) | undefined;

onRequest((sent) => {
  if (sent.method === "GET" || sent.path.startsWith("/api/dev/")) return;
  last = { ...sent, session: sessionToken() };
  show();
});
onLanguage(show);
onShown("api", () => {
  show();
  void showDocument();
});
copy.addEventListener("click", () => {
  void copyCommand().then(() => {
    copy.textContent = t("copied");
    setTimeout(() => (copy.textContent = t("copy")), 2000);
  });
});

async function copyCommand(): Promise<void> {
  // The clipboard's API exists only with TLS and on localhost.
  if (isSecureContext) return navigator.clipboard.writeText(place.textContent ?? "");
  getSelection()?.selectAllChildren(place);
  document.execCommand("copy");
}

function show(): void {
  title.textContent = t(last ? "lastRequest" : "exampleRequest");
  place.textContent = command(last ?? example());
}

function example(): Sent & { session: string | undefined } {
  const body = JSON.stringify({ files: [samples.Go] });
  const headers = new Headers({ "Content-Type": "application/json" });
  return { method: "POST", path: "/api/jobs/analysis", headers, body, session: sessionToken() };
}

function command({ method, path, headers, body, session }: NonNullable<typeof last>): string {
  const lines = [`curl -X ${method} ${location.origin}${path}`];
  const all = new Headers(headers);
  // The page's own token is in a cookie; elsewhere it goes into a header.
  if (session !== undefined && !all.has("Authorization")) all.set("Authorization", `Bearer ${session}`);
  for (const [name, value] of all) lines.push(`-H ${quoted(`${capitalised(name)}: ${value}`)}`);
  if (body === undefined) return lines.join(" \\\n  ");
  if (body.length <= longestBody) return [...lines, `-d ${quoted(body)}`].join(" \\\n  ");
  const size = (body.length / 1024).toFixed(1);
  return `${t("bodyInFile", { size })}\n${[...lines, "-d @body.json"].join(" \\\n  ")}`;
}

/** The usual spelling: a browser returns header names in lower case. */
function capitalised(name: string): string {
  return name.replace(/\b[a-z]/g, (letter) => letter.toUpperCase());
}

/** Quotes a text as one word of a shell. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
