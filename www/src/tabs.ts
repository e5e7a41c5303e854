import { element } from "./elements.ts";
import { hideNotice } from "./notice.ts";

/** The parts of the page below the picture. One is visible at a time, and its address is its id: `#api`. */

const tabs = [...document.querySelectorAll<HTMLButtonElement>("[role=tab]")];
const listeners = new Map<string, () => void>();
const choices: ((part: string) => void)[] = [];

for (const [n, tab] of tabs.entries()) {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", (event) => {
    const next = { ArrowRight: n + 1, ArrowLeft: n - 1, Home: 0, End: -1 }[event.key];
    const chosen = next === undefined ? undefined : tabs.at(next % tabs.length);
    if (!chosen) return;
    event.preventDefault();
    choose(chosen);
    chosen.focus();
  });
}
addEventListener("hashchange", follow);
follow();

/** Called each time a part comes into view. */
export function onShown(part: string, listener: () => void): void {
  listeners.set(part, listener);
  if (!element(part, HTMLElement).hidden) listener();
}

/** Called with the part in view, now and whenever another one is chosen. */
export function onChoice(listener: (part: string) => void): void {
  choices.push(listener);
  const chosen = tabs.find((tab) => tab.ariaSelected === "true");
  if (chosen) listener(panelOf(chosen));
}

function follow(): void {
  const part = location.hash.slice(1);
  const tab = tabs.find((each) => panelOf(each) === part);
  if (!tab) return;
  choose(tab);
  element(part, HTMLElement).focus({ preventScroll: true });
  element(part, HTMLElement).scrollIntoView();
}

function choose(chosen: HTMLButtonElement): void {
  const before = chosen.getBoundingClientRect().top;
  // A message is about the part that was in view.
  if (chosen.ariaSelected !== "true") hideNotice();
  for (const tab of tabs) {
    const isChosen = tab === chosen;
    tab.ariaSelected = String(isChosen);
    tab.tabIndex = isChosen ? 0 : -1;
    element(panelOf(tab), HTMLElement).hidden = !isChosen;
  }
  listeners.get(panelOf(chosen))?.();
  for (const listener of choices) listener(panelOf(chosen));
  // What is folded above the tabs must not move them.
  scrollBy({ top: chosen.getBoundingClientRect().top - before, behavior: "instant" });
}

function panelOf(tab: HTMLElement): string {
  return tab.getAttribute("aria-controls") ?? "";
}
