import type { Passage } from "./passages.ts";

export interface Finding {
  rule: string;
  line: number;
  /** The sentence or name, on one line. */
  text: string;
}

const mostWords = 30;
const longestName = 70;

/** Words and phrases that a native writer would not use here. `\s+` because a line may end between two words. */
const phrases: Record<string, RegExp> = {
  "relative clause as subject": /^\W*(?:What|Who|Whoever|Whatever|Whichever|Whose)\b(?!.*\?\W*$)/s,
  "somebody, nobody, whose": /\b(?:somebody|nobody|anybody|everybody|whose)\b/i,
  "tell, say, hear": /\b(?:tell|tells|telling|told|say|says|saying|said|hear|hears|hearing|heard)\b/i,
  "unless told": /\bunless\s+told\b/i,
  "for ever": /\bfor\s+ever\b/i,
  anew: /\banew\b/i,
  "beside, besides": /\bbesides?\b/i,
  begun: /\bbegun\b/i,
  "in vain": /\bin\s+vain\b/i,
  "of its own": /\bof\s+(?:its|their|his|her|your|our|one's)\s+own\b/i,
  "is looked for": /\b(?:is|are|was|were|be|been|being)\s+(?:looked|waited|asked)\s+for\b/i,
};

export const ruleNames = [...Object.keys(phrases), "long sentence", "long name"];

export function findingsIn({ kind, text, line }: Passage): Finding[] {
  if (kind === "name") return text.length > longestName ? [{ rule: "long name", line, text }] : [];
  const findings: Finding[] = [];
  for (const { plain, original, offset } of sentencesOf(text)) {
    const found = Object.entries(phrases).filter(([, pattern]) => pattern.test(plain));
    // A heading names a topic, so "What it costs" is a good one.
    const rules = found.map(([rule]) => rule).filter((rule) => kind !== "heading" || !rule.startsWith("relative"));
    if (wordsIn(plain) > mostWords) rules.push("long sentence");
    const at = line + text.slice(0, offset).split("\n").length - 1;
    for (const rule of rules) findings.push({ rule, line: at, text: original.trim().replace(/\s+/g, " ") });
  }
  return findings;
}

export function wordsIn(plain: string): number {
  return plain.split(/\s+/).filter((word) => /[\p{L}\p{N}]/u.test(word)).length;
}

/** The sentences of a passage. `plain` has code as one word, and no markup. */
export function sentencesOf(text: string): { plain: string; original: string; offset: number }[] {
  const plain = withoutMarkup(text);
  const sentences = [];
  let offset = 0;
  for (const { index, 0: mark } of plain.matchAll(/[.!?]["')\]]*\s+(?=["'([]*[\p{Lu}\p{N}])/gu)) {
    const end = index + mark.length;
    sentences.push({ plain: plain.slice(offset, end).trim(), original: text.slice(offset, end), offset });
    offset = end;
  }
  sentences.push({ plain: plain.slice(offset).trim(), original: text.slice(offset), offset });
  return sentences.filter((sentence) => wordsIn(sentence.plain) > 0);
}

/** Keeps the length, so that offsets stay valid. Code becomes one word of capitals, because it may begin a sentence. */
function withoutMarkup(text: string): string {
  const blank = (part: string): string => part.replace(/\S/g, " ");
  const word = (part: string): string => "X".repeat(part.length);
  return text
    .replace(/(`+)[^`][\s\S]*?\1/g, word)
    .replace(/\{(?:[^{}]|\{[^{}]*\})*\}/g, word)
    .replace(/!?\[(?=[^\]]*\])/g, blank)
    .replace(/\]\([^)\s]*\)|\](?:\[[^\]]*\])?/g, blank)
    .replace(/<https?:[^>]*>|https?:\/\/\S+|\b[\w./-]+\.(?:md|mjs|ts|rs)\b/g, word)
    .replace(/<\/?[a-z][^>]*>/gi, blank)
    .replace(/[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}/g, blank);
}
