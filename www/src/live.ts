import type { Lanes } from "./api.ts";
import { element } from "./elements.ts";
import { Stream } from "./stream.ts";
import { language, onLanguage, t } from "./text.ts";

/** The server tells something about every second; when it has been silent this long, what is shown may be old. */
const patience = 4000;

const sign = element("live", HTMLElement);
const words = element("live-text", HTMLElement);
const notice = element("stale", HTMLElement);

const listeners: ((lanes: Lanes) => void)[] = [];
const recoveries: (() => void)[] = [];
let latest: Lanes | undefined;
/** When the server was last heard; the page itself is something that it said. */
let heardAt = Date.now();
let heardBefore = false;

/** Called with the lanes whenever the server tells them, and at once when they are known. */
export function onLanes(listener: (lanes: Lanes) => void): void {
  listeners.push(listener);
  if (latest) listener(latest);
}

/** Called when the server is heard again after a silence. */
export function onRecovery(listener: () => void): void {
  recoveries.push(listener);
}

/** Resolves when the lanes are known. */
export const firstLanes = new Promise<void>((known) => onLanes(() => known()));

export function lanes(): Lanes | undefined {
  return latest;
}

/** Says that the server has just been heard. */
export function heard(): void {
  const wasSilent = isSilent();
  heardAt = Date.now();
  heardBefore = true;
  show();
  if (wasSilent) for (const listener of recoveries) listener();
}

export function watchLanes(): void {
  new Stream("/api/lanes/events", {
    lanes: (now: Lanes) => {
      latest = now;
      heard();
      for (const listener of listeners) listener(now);
    },
  });
  setInterval(show, 500);
  onLanguage(show);
}

function isSilent(): boolean {
  return Date.now() - heardAt > patience;
}

function show(): void {
  const silent = isSilent();
  sign.classList.toggle("silent", silent);
  const age = (Date.now() - heardAt) / 1000;
  const number = new Intl.NumberFormat(language, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
  words.textContent = heardBefore ? t(silent ? "silentFor" : "live", { n: number.format(age) }) : t("connecting");
  const time = new Intl.DateTimeFormat(language, { timeStyle: "medium" }).format(heardAt);
  const said = silent ? t("stale", { time }) : "";
  // It is read out when it is written, so only when it is another.
  if (notice.textContent !== said) notice.textContent = said;
  notice.hidden = !silent;
}
