import { Refusal } from "./api.ts";
import { element, make } from "./elements.ts";
import { onLanes, onRecovery } from "./live.ts";
import { placeNear, reveal } from "./messages.ts";
import { Fault, inWords } from "./problems.ts";
import { retryAfter } from "./rate-limit.ts";
import { isSignedIn, onUsage } from "./session.ts";
import { onLanguage, t } from "./text.ts";

const place = element("notice", HTMLElement);
const words = element("notice-text", HTMLElement);
/** A notice stays at least this long, so that it can be read. */
const readingTime = 5000;
let shown: { error: unknown; since: number; until: number | undefined } | undefined;
let timer: ReturnType<typeof setInterval> | undefined;

element("notice-close", HTMLButtonElement).addEventListener("click", hideNotice);
onLanguage(() => {
  if (shown) write();
});
// A notice disappears with its cause: the server responds again, or another user has signed in.
onRecovery(() => {
  if (shown && isUnreachable(shown.error)) hideNotice();
});
onLanes(() => {
  if (shown && isUnreachable(shown.error) && Date.now() - shown.since > readingTime) hideNotice();
});
onUsage((usage) => {
  if (usage ? isAnonymousLimit(shown?.error) : isQuota(shown?.error)) hideNotice();
});

export function hideNotice(): void {
  clearInterval(timer);
  // Moves the focus out of the notice before hiding it.
  if (place.contains(document.activeElement)) document.querySelector<HTMLElement>("[aria-selected=true]")?.focus();
  shown = undefined;
  place.hidden = true;
}

/** Shows the failure next to its cause, and counts down to the next try. */
export function showProblem(error: unknown, cause?: Element): void {
  hideNotice();
  placeNear(place, cause);
  // The text of a used-up quota has a date, and there is nothing to count down to a retry at once.
  const seconds = error instanceof Refusal && !error.quota ? retryAfter(error.headers) : undefined;
  shown = { error, since: Date.now(), until: seconds ? Date.now() + seconds * 1000 : undefined };
  write();
  place.hidden = false;
  reveal(place);
}

function write(): void {
  if (!shown) return;
  clearInterval(timer);
  const { title, text, detail } = inWords(shown.error);
  words.replaceChildren(make("strong", title));
  if (text) words.append(make("span", text));
  if (detail) {
    const english = make("span", detail);
    english.lang = "en";
    words.append(make("span", t("serverSays")), english);
  }
  if (shown.until !== undefined) words.append(countdown(shown.until));
  if (isAnonymousLimit(shown.error) && !isSignedIn()) {
    const link = make("a", t("signInAbove"));
    link.href = "#account";
    words.append(link);
  }
}

function isAnonymousLimit(error: unknown): boolean {
  return error instanceof Refusal && error.status === 429 && !error.quota;
}

function isQuota(error: unknown): boolean {
  return error instanceof Refusal && error.quota !== undefined;
}

function isUnreachable(error: unknown): boolean {
  return !(error instanceof Fault) && !(error instanceof Refusal && error.status < 500);
}

function countdown(until: number): HTMLElement {
  const line = make("div", "", "countdown");
  // A screen reader reads the time once, not every second.
  line.setAttribute("aria-live", "off");
  const show = (): void => {
    const left = Math.ceil((until - Date.now()) / 1000);
    line.textContent = t("tryAgainIn", { time: duration(left) });
    if (left <= 0) hideNotice();
  };
  show();
  timer = setInterval(show, 1000);
  return line;
}

function duration(seconds: number): string {
  if (seconds < 120) return t("seconds", { n: seconds });
  if (seconds < 7200) return t("minutes", { n: Math.round(seconds / 60) });
  if (seconds < 172_800) return t("hours", { n: Math.round(seconds / 3600) });
  return t("days", { n: Math.round(seconds / 86_400) });
}
