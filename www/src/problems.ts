import { Refusal } from "./api.ts";
import { retryAfter } from "./rate-limit.ts";
import { day, type Key, number, t } from "./text.ts";

/** Maximum size of a submission's body, as on the server. */
export const largestBody = 256 * 1024;

/** A problem that the browser detects itself, without a request. */
export class Fault extends Error {
  readonly words: Key;
  readonly values: Record<string, string | number>;

  /** `words` is the key of the title; the same key with the suffix `Text` is the text. */
  constructor(words: "tooLarge" | "hasNul" | "notText" | "longName" | "manyFiles" | "notObject", values = {}) {
    super(words);
    this.words = words;
    this.values = values;
  }
}

export interface Words {
  title: string;
  text: string;
  /** Details from the server, in its own words, which are English. */
  detail?: string;
}

/** The problem in the reader's language. */
export function inWords(error: unknown): Words {
  if (error instanceof Fault)
    return { title: t(error.words, error.values), text: t(`${error.words}Text` as Key, error.values) };
  if (error instanceof Refusal) return refusal(error);
  if (error instanceof DOMException && error.name === "TimeoutError")
    return { title: t("noAnswer"), text: t("noAnswerText") };
  return { title: t("unreachable"), text: t("checkConnection") };
}

function refusal({ status, headers, message, quota, policies }: Refusal): Words {
  if (quota) {
    const values = {
      left: number(quota.remaining ?? 0),
      limit: number(quota.limit ?? 0),
      date: day(quota.reset_at, true),
    };
    const { window = "month" } = quota;
    if (window === "month") return { title: t("overQuota"), text: t("overQuotaText", values) };
    return { title: t("overQuota"), text: t("overQuotaWindowText", { ...values, per: t(`per.${window}` as Key) }) };
  }
  if (status === 429 && policies.includes("streams"))
    return { title: t("tooManyStreams"), text: t("tooManyStreamsText") };
  if (status === 429) return { title: t("rateLimit"), text: t("rateLimitText") };
  if (status === 413) return { title: t("tooLarge"), text: t("tooLargeTextPlain", { limit: largestBody / 1024 }) };
  if (status === 401) return { title: t("signInAgain"), text: t("signInAgainText") };
  if (status === 404) return { title: t("notThere"), text: t("notThereText") };
  if (status === 502 || status === 503 || status === 504)
    // With a time from the server, the countdown tells when.
    return { title: t("away"), text: retryAfter(headers) ? "" : t("awayText") };
  if (status >= 500) return { title: t("broken"), text: t("brokenText") };
  return { title: t("notUsable"), text: "", detail: message };
}
