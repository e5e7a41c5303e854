import { english, type Key } from "./text/english.ts";
import { korean } from "./text/korean.ts";

export type { Key };

const dictionaries: Record<"en" | "ko", Record<Key, string>> = { en: english, ko: korean };

export type Language = keyof typeof dictionaries;

const rememberedAs = "weir-language";

export let language: Language = initial();

function initial(): Language {
  const chosen = remember((storage) => storage.getItem(rememberedAs)) ?? navigator.language;
  return /^ko(-|$)/.test(chosen) ? "ko" : "en";
}

/** Uses the browser's storage for this page, unless its user has disabled storage. */
function remember<T>(use: (storage: Storage) => T): T | undefined {
  try {
    return use(localStorage);
  } catch {
    return undefined;
  }
}

/** A text in the page's language, with each `{name}` replaced by its value. */
export function t(key: Key, values: Record<string, string | number> = {}): string {
  return dictionaries[language][key].replace(/\{(\w+)\}/g, (whole, name: string) => String(values[name] ?? whole));
}

/** A number with the language's separators. */
export function number(n: number): string {
  return new Intl.NumberFormat(language).format(n);
}

/** A day, with the time if `withTime`. Browsers differ in their short Korean dates, so those are written in full. */
export function day(at: string, withTime: boolean): string {
  const style: Intl.DateTimeFormatOptions =
    language === "ko" ? { dateStyle: "long", hourCycle: "h23" } : { dateStyle: "medium" };
  return new Intl.DateTimeFormat(language, withTime ? { ...style, timeStyle: "short" } : style).format(new Date(at));
}

/** A place in an order, such as `31st` in English. The texts of other languages contain what follows the number. */
export function ordinal(n: number): string {
  if (language !== "en") return String(n);
  const suffixes: Record<string, string> = { one: "st", two: "nd", few: "rd" };
  return `${n}${suffixes[new Intl.PluralRules("en", { type: "ordinal" }).select(n)] ?? "th"}`;
}

/** A service's name. Services outside the shipped catalogue keep the server's name. */
export function serviceName(name: string): string {
  return named("service", name);
}

/** A plan's name. */
export function planName(name: string): string {
  return named("plan", name);
}

/** A meter's name, with its unit. */
export function meterName(name: string, unit: string): string {
  const called = named("meter", name);
  return called === name ? `${name}, ${unit}` : called;
}

/** The dictionary's word for a name of the shipped catalogue; other names stay as the server sends them. */
function named(kind: string, name: string): string {
  const key = `${kind}.${name}`;
  return key in english ? t(key as Key) : name;
}

const listeners: (() => void)[] = [];

/** Called when the language changes, to update text that scripts have written. */
export function onLanguage(listener: () => void): void {
  listeners.push(listener);
}

export function setLanguage(chosen: Language): void {
  language = chosen;
  remember((storage) => storage.setItem(rememberedAs, chosen));
  translatePage();
  for (const listener of listeners) listener();
}

/** Writes the texts that index.html marks with `data-t`, and the labels that it marks with `data-label`. */
export function translatePage(): void {
  document.documentElement.lang = language;
  for (const marked of document.querySelectorAll<HTMLElement>("[data-t]")) {
    marked.textContent = t(marked.dataset.t as Key);
  }
  for (const marked of document.querySelectorAll<HTMLElement>("[data-label]")) {
    marked.ariaLabel = t(marked.dataset.label as Key);
  }
}
