import { element, make } from "./elements.ts";
import type { Allowance } from "./rate-limit.ts";

const drops = element("drops", HTMLElement);
const words = element("allowance-text", HTMLElement);
let timer: ReturnType<typeof setInterval> | undefined;

/** Shows how many anonymous submissions are left, counting down to when they are all there again. */
export function showAllowance(allowance: Allowance): void {
  clearInterval(timer);
  const limit = allowance.limit ?? allowance.left;
  const show = (): void => {
    const seconds = Math.ceil((allowance.renewsAt - Date.now()) / 1000);
    const over = seconds <= 0;
    const left = over ? limit : allowance.left;
    drops.replaceChildren(...Array.from({ length: Math.min(limit, 40) }, (_, n) => make("i", "", n < left ? "full" : "")));
    words.textContent = over ? `${left} of ${limit} left` : `${left} of ${limit} left, all of them again in ${seconds} s`;
    if (over) clearInterval(timer);
  };
  show();
  timer = setInterval(show, 1000);
}
