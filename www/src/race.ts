import { element, make } from "./elements.ts";
import { t } from "./text.ts";

/**
 * The same jobs twice: in the order in which they were submitted, and below in the order in which they were done. What the
 * Pro job has passed has a colour of its own: it is left of the Pro job's mark above, and right of it below.
 */
export class Race {
  readonly #total: number;
  readonly #in = new Lap("race-in");
  readonly #out = new Lap("race-out");
  #submitted = 0;
  #proIsIn = false;
  #finished = 0;
  #before: number | undefined;

  constructor(total: number) {
    this.#total = total;
  }

  clear(): void {
    this.#submitted = 0;
    this.#proIsIn = false;
    this.#finished = 0;
    this.#before = undefined;
    this.relabel();
  }

  submitted(): void {
    this.#submitted++;
    this.relabel();
  }

  proSubmitted(): void {
    this.#proIsIn = true;
    this.relabel();
  }

  /** How many Free jobs are done, and how many of them were done before the Pro job; `undefined` while it is not. */
  finished(free: number, before: number | undefined): void {
    this.#finished = free;
    this.#before = before;
    this.relabel();
  }

  relabel(): void {
    const total = this.#total;
    this.#in.show(this.#submitted, total, this.#proIsIn ? total : undefined, this.#before);
    this.#in.label(
      t(this.#proIsIn ? "raceInLabel" : "raceInBefore", { free: this.#submitted, total, place: total + 1 }),
    );
    this.#out.show(this.#finished, total, this.#before, this.#before);
    this.#out.label(
      this.#before === undefined
        ? t("demoFree", { done: this.#finished, total })
        : t("raceOutLabel", { free: this.#finished, total, place: this.#before + 1 }),
    );
  }
}

class Lap {
  readonly #box: HTMLElement;
  readonly #free = make("i", "", "free");
  readonly #passed = make("i", "", "passed");
  readonly #pro = make("b", "", "pro");
  readonly #words = make("span");

  constructor(id: string) {
    this.#box = element(id, HTMLElement);
    this.#pro.hidden = true;
    this.#pro.append(this.#words);
    this.#box.append(this.#free, this.#passed, this.#pro);
  }

  /** How many Free jobs are shown, from which on they are passed by, and after how many the Pro job comes. */
  show(free: number, total: number, proAfter: number | undefined, passedFrom = free): void {
    this.#free.style.width = `${(100 * Math.min(free, passedFrom)) / total}%`;
    this.#passed.style.width = `${(100 * Math.max(0, free - passedFrom)) / total}%`;
    this.#pro.hidden = proAfter === undefined;
    if (proAfter === undefined) return;
    this.#pro.style.left = `${(100 * proAfter) / total}%`;
    this.#words.textContent = `Pro ${proAfter + 1}`;
    // Its words stand beside it, on the side with room.
    this.#pro.classList.toggle("late", proAfter > total / 2);
  }

  label(words: string): void {
    this.#box.setAttribute("aria-label", words);
  }
}
