// What is said to the runtime in one call here would take many from Rust, each with its texts copied between the two.
// Nothing is decided here. Texts are packed one to a line, since no header, method or URL can contain a line break.
import { waitUntil } from "cloudflare:workers";

export { waitUntil };

/** A list of names, to be kept. */
export function names(lines) {
  return lines.split("\n");
}

/** The values of these headers; a line that is there begins with "=", one that is not is empty. */
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

/** The listed ones of these headers, changed by pairs of lines: a name and a value, "+" before a name appends, "-" removes. */
function headersOf(from, listed, changes) {
  const headers = new Headers();
  if (from) {
    // Rather than going through all that were sent, of which a browser and Cloudflare add dozens.
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

/** Sends a request on, its body unread, and answers what comes of it. */
export function forward(url, method, request, listed, changes) {
  return fetch(url, { method, headers: headersOf(request.headers, listed, changes), body: request.body, redirect: "manual" });
}

/** Passes an answer on, its body unread. */
export function pass(response, listed, changes) {
  return new Response(response.body, { status: response.status, headers: headersOf(response.headers, listed, changes) });
}

/** An answer of the edge's own. */
export function respond(status, changes, body) {
  return new Response(body, { status, headers: headersOf(undefined, undefined, changes) });
}

/** Posts a text and answers the status. */
export async function post(url, changes, body) {
  const answer = await fetch(url, { method: "POST", headers: headersOf(undefined, undefined, changes), body, redirect: "manual" });
  // A body that nobody reads would keep the connection.
  await answer.body?.cancel();
  return answer.status;
}

/** Comes to nothing in so many milliseconds. */
export function after(milliseconds) {
  return new Promise((done) => setTimeout(done, milliseconds));
}

/** What a promise comes to, or a rejection with "timed out" when that takes longer than so many milliseconds. */
export function within(promise, milliseconds) {
  // The timer is not taken back: it ends with its request, and clearing it would cost as much as setting it.
  const late = new Promise((_, failed) => setTimeout(failed, milliseconds, "timed out"));
  return Promise.race([promise, late]);
}
