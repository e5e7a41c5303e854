import type { Lanes } from "./api.ts";
import { element } from "./elements.ts";
import { Stream } from "./stream.ts";
import { language, onLanguage, t } from "./text.ts";

/** The server sends data about once a second. After a silence this long, the shown data may be old. */
const patience = 4000;

const sign = element("live", HTMLElement);
const words = element("live-text", HTMLElement);
const notice = element("stale", HTMLElement);

const listeners: ((lanes: Lanes) => void)[] = [];
const recoveries: (() => void)[] = [];
let latest: Lanes | undefined;
/** When the last data arrived from the server; the page itself counts. */
let aliveAt = Date.now();
let wasAlive = false;

/** Called with the lanes whenever the server sends them, and immediately if they are already known. */
export function onLanes(listener: (lanes: Lanes) => void): void {
  listeners.push(listener);
  if (latest) listener(latest);
}

/** Called when the server responds again after a silence. */
export function onRecovery(listener: () => void): void {
  recoveries.push(listener);
}

/** Resolves when the lanes are known. */
export const firstLanes = new Promise<void>((known) => onLanes(() => known()));

export function lanes(): Lanes | undefined {
  return latest;
}

/** Records that data has just arrived from the server. */
export function markAlive(): void {
  const wasSilent = isSilent();
  aliveAt = Date.now();
  wasAlive = true;
  show();
  if (wasSilent) for (const listener of recoveries) listener();
}

export function watchLanes(): void {
  new Stream("/api/lanes/events", {
    lanes: (now: Lanes) => {
      latest = now;
      markAlive();
      for (const listener of listeners) listener(now);
    },
  });
  setInterval(show, 500);
  onLanguage(show);
}

function isSilent(): boolean {
  return Date.now() - aliveAt > patience;
}

function show(): void {
  const silent = isSilent();
  sign.classList.toggle("silent", silent);
  sign.classList.toggle("alive", wasAlive && !silent);
  const age = (Date.now() - aliveAt) / 1000;
  const number = new Intl.NumberFormat(language, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
  words.textContent = wasAlive ? t(silent ? "silentFor" : "live", { n: number.format(age) }) : t("connecting");
  const message = silent ? t("stale", { time: clockTime(aliveAt) }) : "";
  // A screen reader reads it each time it is written, so write it only when it changes.
  if (notice.textContent !== message) notice.textContent = message;
  notice.hidden = !silent;
}

/** Called only when needed: on a slow machine, a browser's first format of a time takes a tenth of a second. */
function clockTime(moment: number): string {
  return new Intl.DateTimeFormat(language, {
    timeStyle: "medium",
    ...(language === "ko" ? { hourCycle: "h23" } : {}),
  }).format(moment);
}
