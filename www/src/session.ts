import { Refusal, readUsage, type Usage } from "./api.ts";

/** The cookie that the edge reads. Unlike a header it also goes with the requests of an EventSource. */
const cookie = "auth_token";

let usage: Usage | undefined;
const listeners: ((usage: Usage | undefined) => void)[] = [];

export function isSignedIn(): boolean {
  return usage !== undefined;
}

/** Called with the user's quota whenever it changes, and with undefined when no user is signed in. */
export function onUsage(listener: (usage: Usage | undefined) => void): void {
  listeners.push(listener);
}

/** Signs in; false when the server does not accept the token. */
export async function signIn(token: string): Promise<boolean> {
  setCookie(token, 3600);
  await refreshUsage();
  if (!usage) signOut();
  return isSignedIn();
}

export function signOut(): void {
  setCookie("", 0);
  publish(undefined);
}

let asking: Promise<void> | undefined;
let askAgain = false;

/**
 * Reads the user and the remaining quota again. At most one request runs at a time. Calls during a request share one
 * further request. After a token has expired, the page shows the visitor as signed out.
 */
export function refreshUsage(): Promise<void> {
  if (asking) {
    askAgain = true;
    return asking;
  }
  asking = (async () => {
    try {
      do {
        askAgain = false;
        await askOnce();
      } while (askAgain);
    } finally {
      asking = undefined;
    }
  })();
  return asking;
}

async function askOnce(): Promise<void> {
  const token = sessionToken();
  if (token === undefined) {
    publish(undefined);
    return;
  }
  try {
    const answer = await readUsage();
    // Another user may have signed in by now.
    if (sessionToken() === token) publish(answer.period ? answer : undefined);
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) signOut();
    else throw error;
  }
}

/** The signed-in user's token. */
export function sessionToken(): string | undefined {
  const found = document.cookie.split("; ").find((each) => each.startsWith(`${cookie}=`));
  return found ? decodeURIComponent(found.slice(cookie.length + 1)) || undefined : undefined;
}

function publish(now: Usage | undefined): void {
  usage = now;
  for (const listener of listeners) listener(now);
}

function setCookie(value: string, maxAge: number): void {
  const secure = location.protocol === "https:" ? "; Secure" : "";
  // biome-ignore lint/suspicious/noDocumentCookie: the Cookie Store API needs HTTPS, which a development edge lacks
  document.cookie = `${cookie}=${encodeURIComponent(value)}; Path=/; Max-Age=${maxAge}; SameSite=Strict${secure}`;
}
