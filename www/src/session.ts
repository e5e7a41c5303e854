import { Refusal, readUsage, type Usage } from "./api.ts";

/** The cookie that the edge reads. Unlike a header it also goes with the requests of an EventSource. */
const cookie = "auth_token";

let usage: Usage | undefined;
const listeners: ((usage: Usage | undefined) => void)[] = [];

export function isSignedIn(): boolean {
  return usage !== undefined;
}

/** Called with what the user's plan allows whenever that is known anew, with nothing when nobody is signed in. */
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

/** Asks anew who we are and what is left. A token that has expired in between shows as nobody. */
export async function refreshUsage(): Promise<void> {
  if (!document.cookie.includes(`${cookie}=`)) {
    publish(undefined);
    return;
  }
  try {
    const answer = await readUsage();
    publish(answer.analysis ? answer : undefined);
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) signOut();
    else throw error;
  }
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
