import { Refusal } from "./api.ts";
import { element, make } from "./elements.ts";
import { retryAfter } from "./rate-limit.ts";
import { isSignedIn } from "./session.ts";
import { t } from "./text.ts";

const place = element("notice", HTMLElement);
let timer: ReturnType<typeof setInterval> | undefined;

export function hideNotice(): void {
  clearInterval(timer);
  place.hidden = true;
}

/** Shows why something could not be done, in the server's own words, and counts down to when to try again. */
export function showProblem(error: unknown): void {
  hideNotice();
  const refusal = error instanceof Refusal ? error : undefined;
  place.replaceChildren(
    make("strong", refusal?.title ?? t("unreachable")),
    make("span", refusal?.message ?? t("checkConnection")),
  );
  const seconds = refusal && retryAfter(refusal.headers);
  if (seconds !== undefined) place.append(countdown(seconds));
  if (refusal?.status === 429 && !isSignedIn()) {
    const link = make("a", t("signInAbove"));
    link.href = "#account";
    place.append(link);
  }
  place.hidden = false;
  // On a small screen the button that was pressed may be far from it.
  place.scrollIntoView({ block: "nearest" });
}

function countdown(seconds: number): HTMLElement {
  const until = Date.now() + seconds * 1000;
  const words = make("div", "", "countdown");
  // A screen reader is told the time once, not every second.
  words.setAttribute("aria-live", "off");
  const show = (): void => {
    const left = Math.ceil((until - Date.now()) / 1000);
    words.textContent = left > 0 ? t("tryAgainIn", { time: inWords(left) }) : t("tryAgainNow");
    if (left <= 0) clearInterval(timer);
  };
  show();
  timer = setInterval(show, 1000);
  return words;
}

function inWords(seconds: number): string {
  if (seconds < 120) return t("seconds", { n: seconds });
  if (seconds < 7200) return t("minutes", { n: Math.round(seconds / 60) });
  if (seconds < 172_800) return t("hours", { n: Math.round(seconds / 3600) });
  return t("days", { n: Math.round(seconds / 86_400) });
}
