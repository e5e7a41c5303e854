// Each function here replaces many calls from Rust into the runtime, each of which would copy strings between the two.
// Nothing is decided here. Values are packed one per line: no header, method or URL can contain a line break.
import { waitUntil } from "cloudflare:workers";

export { waitUntil };

/** A list of header names that Rust can hold on to. */
export function names(lines) {
  return lines.split("\n");
}

/** The values of these headers, one per line: "=" and the value, or an empty line for an absent header. */
export function values(headers, lines) {
  let packed = "";
  for (const name of lines.split("\n")) {
    const value = headers.get(name);
    packed += value === null ? "\n" : `=${value}\n`;
  }
  return packed;
}

/** Method, URL, and the values of these headers. */
export function facts(request, lines) {
  return `${request.method}\n${request.url}\n${values(request.headers, lines)}`;
}

/**
 * The listed headers of `from`, with changes: pairs of lines, a name and a value. "+" before a name appends to the
 * header, "-" removes it, and a name alone sets it.
 */
function headersOf(from, listed, changes) {
  const headers = new Headers();
  if (from) {
    // Look up the listed names: browsers and Cloudflare send dozens of others.
    for (const name of listed) {
      const value = from.get(name);
      if (value !== null) headers.append(name, value);
    }
  }
  if (changes === "") return headers;
  const lines = changes.split("\n");
  for (let line = 0; line < lines.length; line += 2) {
    const name = lines[line];
    if (name[0] === "+") headers.append(name.slice(1), lines[line + 1]);
    else if (name[0] === "-") headers.delete(name.slice(1));
    else headers.set(name, lines[line + 1]);
  }
  return headers;
}

/** Forwards a request, with its body unread. Resolves to the response. */
export function forward(url, method, request, listed, changes) {
  const headers = headersOf(request.headers, listed, changes);
  // Otherwise a rule of the origin's zone may answer one caller with what another one was answered.
  return fetch(url, { method, headers, body: request.body, redirect: "manual", cache: "no-store" });
}

/** The same response with other headers, its body unread. */
export function pass(response, listed, changes) {
  return new Response(response.body, {
    status: response.status,
    headers: headersOf(response.headers, listed, changes),
  });
}

/** A response that the edge makes itself. */
export function respond(status, changes, body) {
  return new Response(body, { status, headers: headersOf(undefined, undefined, changes) });
}

/** Posts a text. Resolves to the status of the response. */
export async function post(url, changes, body) {
  const headers = headersOf(undefined, undefined, changes);
  const response = await fetch(url, { method: "POST", headers, body, redirect: "manual" });
  // An unread body would hold on to the connection.
  await response.body?.cancel();
  return response.status;
}

/** Resolves after this many milliseconds. */
export function sleep(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

/** Settles as `promise` does, or rejects with "timed out" after this many milliseconds. */
export function withTimeout(promise, milliseconds) {
  // The timer is not cleared: it ends with its request, and clearing it would cost as much as setting it.
  const timer = new Promise((_, reject) => setTimeout(reject, milliseconds, "timed out"));
  return Promise.race([promise, timer]);
}
