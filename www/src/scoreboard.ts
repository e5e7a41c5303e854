import { element, make } from "./elements.ts";
import type { Scene, Verdict } from "./scene.ts";
import { language, onLanguage, t } from "./text.ts";

/** The users of the picture in words: who waits with how many, and how many turns are taken. */

const rows = [...element("rows", HTMLElement).querySelectorAll<HTMLElement>(".user")].map((row) => ({
  waiting: part(row, ".count"),
  turns: part(row, ".turn-text"),
}));
const doneCount = element("done-count", HTMLElement);
const result = element("flood-result", HTMLElement);
const sentence = element("flood-says", HTMLElement);

let say = (): string => "";
let verdict: Verdict | undefined;

onLanguage(() => {
  showSentence();
  showVerdict();
});

function part(row: HTMLElement, selector: string): HTMLElement {
  const found = row.querySelector<HTMLElement>(selector);
  if (!found) throw new Error(`index.html has no ${selector} in a user's row`);
  return found;
}

/** Writes the numbers as they are at a moment. */
export function count(scene: Scene, at: number): void {
  let done = 0;
  for (const [n, row] of rows.entries()) {
    const user = scene.users[n];
    const { waiting, turn, running, done: ofUser } = scene.standing(n, at);
    done += ofUser;
    write(row.waiting, t("waitingCount", { n: waiting.length }));
    write(row.turns, `${turn.length + running.length}/${user?.turns ?? 1}`);
  }
  write(doneCount, scene.jobs.length > 0 ? t("doneOf", { done, total: scene.jobs.length }) : "");
}

function write(place: HTMLElement, words: string): void {
  if (place.textContent !== words) place.textContent = words;
}

/** Says what happens, to be read out; called only when something new is to be said. */
export function tell(words: () => string): void {
  say = words;
  showSentence();
}

function showSentence(): void {
  write(sentence, say());
}

/** Shows what became of the newcomer's job. It stays until another takes its place. */
export function conclude(now: Verdict | undefined): void {
  verdict = now;
  showVerdict();
}

export function inSeconds(seconds: number): string {
  const digits = { minimumFractionDigits: seconds < 10 ? 2 : 1, maximumFractionDigits: seconds < 10 ? 2 : 1 };
  return t("seconds", { n: new Intl.NumberFormat(language, digits).format(seconds) });
}

function showVerdict(): void {
  if (!verdict) {
    result.replaceChildren();
    return;
  }
  const { seconds, sharedSeconds } = verdict;
  const most = Math.max(seconds, sharedSeconds, 0.01);
  result.replaceChildren(
    ...(
      [
        ["byTurns", seconds, "mine"],
        ["sharedQueue", sharedSeconds, "shared"],
      ] as const
    ).flatMap(([key, time, name]) => {
      const bar = make("span", "", "bar");
      const length = make("i", "", name);
      length.style.width = `${Math.max(0.5, (100 * time) / most)}%`;
      bar.append(length);
      bar.setAttribute("aria-hidden", "true");
      return [make("span", t(key)), make("strong", inSeconds(time)), bar];
    }),
  );
}
