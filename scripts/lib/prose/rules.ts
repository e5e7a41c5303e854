import type { Passage } from "./passages.ts";

export interface Finding {
  rule: string;
  line: number;
  /** The sentence or name, on one line. */
  text: string;
}

const mostWords = 25;
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
  "there is no": /^\W*There\s+(?:is|are)\s+no\b/i,
  "how long as statement": /^\W*How\s+(?:long|many|much|often|far)\b(?!.*\?\W*$)/s,
  "give back, take back": /\b(?:give[ns]?|giving|gave|take[ns]?|taking|took)\s+(?:\w+\s+){0,3}back\b/i,
  "could not be made": /\bcould\s+not\s+be\s+made\b/i,
  "event type": /\bevent\s+types?\b/i,
  duty: /\bdut(?:y|ies)\b/i,
  meanwhile: /\bmeanwhile\b/i,
  ", too": /,\s+too\b(?!\s+(?:many|few|much|little|large|small|long|short|late|early|often)\b)/i,
  "of theirs": /(?<!\binstead\s+)\bof\s+(?:River's|Weir's|Cloudflare's|PostgreSQL's|theirs|ours|yours|mine)\b(?!\s+\w)/,
  "whatever, however many":
    /,\s+(?:whatever|however\s+(?:many|much|long|often|far|late))\b|\b(?:same|time)\s+whatever\b/i,
  "one after the other": /\bone\s+after\s+the\s+other\b/i,
  "for good": /\bfor\s+good\b/i,
  "come to at most": /\bcomes?\s+to\s+at\s+most\b/i,
  // Code is a word of the letter X here. Lists of several names may follow the noun.
  "the header X": /\b(?:the|its)\s+(?:header|claim|scope|cookie|label)\s+X+\b(?!,|\s+(?:and|or)\b)/i,
  "answered with a status": /\b(?:is|are|was|were|be)\s+answered\s+(?:with\s+)?[1-5]\d\d\b/,
  "go on": /\b(?:go|goes|going|went|gone)\s+on\b/i,
};

/** A heading names a topic, so "What it costs" and "How long jobs stay" are good ones. */
const topics = new Set(["relative clause as subject", "how long as statement"]);

/** Words that make a name of two words or more a riddle. */
const riddle = /^(?:what|who|whoever|whose|why)\b|\b(?:nobody|somebody)s?\b/i;

/** A verb with a negated object, as in "delays no maintenance". "Has no" and "gets no" are plain. */
const negatedObject =
  /\b(?:abort|accept|admit|affect|call|cancel|charge|claim|compile|cost|delay|draw|emit|exceed|free|lose|park|prefetch|promote|reach|rescue|reserve|scan|start|stop|store|touch|write)(?:s|es)? (?:no|none|nothing|neither)\b/i;

export const ruleNames = [...Object.keys(phrases), "long sentence", "long name", "riddle", "negated object"];

export function findingsIn({ kind, text, line }: Passage): Finding[] {
  if (kind === "name") return findingsInName(text, line);
  const findings: Finding[] = [];
  for (const { plain, original, offset } of sentencesOf(text)) {
    const rules = rulesIn(plain).filter((rule) => kind !== "heading" || !topics.has(rule));
    if (longestClause(kind, plain) > mostWords) rules.push("long sentence");
    const at = line + text.slice(0, offset).split("\n").length - 1;
    for (const rule of rules) findings.push({ rule, line: at, text: original.trim().replace(/\s+/g, " ") });
  }
  return findings;
}

/** A name of four words or more, such as a test's, is read as a sentence. */
function findingsInName(text: string, line: number): Finding[] {
  const sentence = /^\w+$/.test(text) ? wordsOf(text) : text;
  const rules = wordsIn(sentence) < 4 ? [] : rulesIn(sentence);
  if (rules.length === 0 && wordsIn(sentence) > 1 && riddle.test(sentence)) rules.push("riddle");
  if (negatedObject.test(sentence)) rules.push("negated object");
  if (text.length > longestName) rules.push("long name");
  return rules.map((rule) => ({ rule, line, text }));
}

/** The words of a name in snake_case or camelCase, as a sentence. */
function wordsOf(name: string): string {
  const words = name.replace(/(?<=[a-z\d])(?=[A-Z])/g, " ").replace(/_/g, " ");
  return words.replace(/^\w/, (first) => first.toUpperCase());
}

function rulesIn(sentence: string): string[] {
  return Object.entries(phrases)
    .filter(([, pattern]) => pattern.test(sentence))
    .map(([rule]) => rule);
}

/** The words of the longest clause. A message may have a hint after a semicolon, and a list in parentheses. */
function longestClause(kind: Passage["kind"], plain: string): number {
  const clauses = (kind === "message" ? plain.replace(/\([^()]*\)/g, "") : plain).split(/;| · /);
  const isList = kind === "message" || clauses.length > 2;
  return isList ? Math.max(...clauses.map(wordsIn)) : wordsIn(plain);
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
    .replace(/\*{1,2}(?=\S)|(?<=\S)\*{1,2}|(?<!\w)_{1,2}(?=\S)|(?<=\S)_{1,2}(?!\w)/g, blank);
}
