import { element, make } from "./elements.ts";
import type { Scene } from "./scene.ts";
import { language, onLanguage, t } from "./text.ts";

/** A picture in words: the number of waiting jobs in each queue, and of slots in use. */
export class Scoreboard {
  readonly #rows: { waiting: HTMLElement; slots: HTMLElement | null }[];
  readonly #done: HTMLElement;

  constructor(stage: HTMLElement) {
    this.#rows = [...stage.querySelectorAll<HTMLElement>(".user")].map((row) => ({
      waiting: part(row, ".count"),
      slots: row.querySelector<HTMLElement>(".slot-text"),
    }));
    this.#done = part(stage, ".done-count");
  }

  /** Writes the numbers at a moment. */
  count(scene: Scene, at: number): void {
    let done = 0;
    const queues = scene.queues(at);
    for (const [n, row] of this.#rows.entries()) {
      const status = queues[n];
      if (!status) continue;
      done += status.done;
      write(row.waiting, t("waitingCount", { n: status.waiting.length }));
      const slots = scene.users[n]?.slots ?? 1;
      // Lent jobs run over the slots.
      const used = Math.min(slots, status.inSlot.length + status.running.length);
      if (row.slots) write(row.slots, `${used}/${slots}`);
    }
    write(this.#done, scene.jobs.length > 0 ? t("doneOf", { done, total: scene.jobs.length }) : "");
  }
}

/** The newcomer's times in both queues. */
export interface Comparison {
  mine: number;
  shared: number;
  /** Whether the job in the shared queue has finished; otherwise its time is the time so far. */
  isFinal: boolean;
}

/** With a smaller ratio, the claim stays. */
const leastRatio = 2;

const claim = element("claim", HTMLElement);
const result = element("flood-result", HTMLElement);
const sentence = element("flood-sentence", HTMLElement);
let words = (): string => "";
let comparison: Comparison | undefined;

onLanguage(() => {
  write(sentence, words());
  showComparison();
});
showComparison();

/** Shows a sentence; a screen reader reads it when it changes. */
export function setSentence(now: () => string): void {
  words = now;
  write(sentence, words());
}

/** Shows how long the newcomer's job takes in both queues, as bars; without times, their labels and empty bars. */
export function compare(now: Comparison | undefined): void {
  const isSame =
    now?.mine === comparison?.mine && now?.shared === comparison?.shared && now?.isFinal === comparison?.isFinal;
  if (isSame) return;
  comparison = now;
  showComparison();
}

export function inSeconds(seconds: number): string {
  const digits = { minimumFractionDigits: seconds < 10 ? 2 : 1, maximumFractionDigits: seconds < 10 ? 2 : 1 };
  return t("seconds", { n: new Intl.NumberFormat(language, digits).format(seconds) });
}

function showComparison(): void {
  const { mine, shared, isFinal } = comparison ?? {};
  const ratio = isFinal && mine && shared ? Math.round(shared / mine) : 0;
  write(claim, ratio >= leastRatio ? t("sooner", { n: ratio }) : t("claim"));
  const longest = Math.max(mine ?? 0, shared ?? 0, 0.01);
  const inShared = shared === undefined ? undefined : inSeconds(shared);
  const bars = [
    { label: t("youWithWeir"), time: mine === undefined ? undefined : inSeconds(mine), seconds: mine, name: "mine" },
    {
      label: t("youShared"),
      time: inShared && !isFinal ? t("soFar", { time: inShared }) : inShared,
      seconds: shared,
      name: "shared",
    },
  ];
  result.replaceChildren(
    ...bars.flatMap(({ label, time, seconds, name }) => {
      const bar = make("span", "", "bar");
      bar.setAttribute("aria-hidden", "true");
      if (seconds === undefined) return [make("span", label), make("span", "–", "none"), bar];
      const length = make("i", "", name);
      length.style.width = `${Math.max(0.5, (100 * seconds) / longest)}%`;
      bar.append(length);
      return [make("span", label), make("strong", time), bar];
    }),
  );
}

function part(parent: HTMLElement, selector: string): HTMLElement {
  const found = parent.querySelector<HTMLElement>(selector);
  if (!found) throw new Error(`index.html has no ${selector} in #${parent.id || parent.className}`);
  return found;
}

function write(place: HTMLElement, text: string): void {
  if (place.textContent !== text) place.textContent = text;
}
