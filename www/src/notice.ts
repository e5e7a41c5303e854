import { Refusal } from "./api.ts";
import { element, make } from "./elements.ts";
import { retryAfter } from "./rate-limit.ts";

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
  const title = make("strong", refusal?.title ?? "The server cannot be reached");
  const detail = make("span", refusal?.message ?? "Check the connection and try again.");
  place.replaceChildren(title, detail);
  const seconds = refusal && retryAfter(refusal.headers);
  if (seconds !== undefined) {
    const until = Date.now() + seconds * 1000;
    const countdown = make("div", "", "countdown");
    // A screen reader is told the time once, not every second.
    countdown.setAttribute("aria-live", "off");
    const show = (): void => {
      const left = Math.ceil((until - Date.now()) / 1000);
      countdown.textContent = left > 0 ? `You can try again in ${inWords(left)}.` : "You can try again now.";
      if (left <= 0) clearInterval(timer);
    };
    show();
    timer = setInterval(show, 1000);
    place.append(countdown);
  }
  place.hidden = false;
}

function inWords(seconds: number): string {
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} days`;
}
