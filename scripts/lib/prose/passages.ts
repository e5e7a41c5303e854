/** A heading, paragraph, list item, table cell or name, with the line it starts on. */
export interface Passage {
  kind: "prose" | "heading" | "name";
  text: string;
  line: number;
}

/** The passages of a file that people read. Other kinds of files have none. */
export function passagesOf(file: string, text: string): Passage[] {
  const lines = text.split("\n");
  const language = languageOf(file, lines[0] ?? "");
  if (!language) return file.endsWith("grafana/weir.json") ? values(text, /"(?:title|description)": "(.+)"/g) : [];
  if (language === "markdown") return markdown(lines, 1);
  return [...comments(lines, language), ...messages(file, text), ...names(text)];
}

interface Language {
  line: string;
  block: boolean;
}

const slashes: Language = { line: "//", block: true };
const dashes: Language = { line: "--", block: true };
const hashes: Language = { line: "#", block: false };

const languages: Record<string, Language | "markdown"> = {
  md: "markdown",
  ...Object.fromEntries(["rs", "ts", "js", "mjs", "go"].map((ending) => [ending, slashes])),
  sql: dashes,
  ...Object.fromEntries(["toml", "sh", "yml", "yaml", "py", "example", "service"].map((ending) => [ending, hashes])),
};

function languageOf(file: string, firstLine: string): Language | "markdown" | undefined {
  const name = file.slice(file.lastIndexOf("/") + 1);
  if (firstLine.startsWith("#!") && !name.includes(".")) return hashes;
  return languages[name.slice(name.lastIndexOf(".") + 1)];
}

/** A line of a list in columns, as in weir.toml: one or more names, at least two spaces, a text. */
const column = /^(?:\S+(?:,? \S+)?\s{2,})+(.*)/;

function markdown(lines: string[], firstLine: number): Passage[] {
  const passages: Passage[] = [];
  let open: Passage | undefined;
  let fence = "";
  let start = 0;
  if (lines[0] === "---") start = lines.indexOf("---", 1) + 1;
  for (let index = start; index < lines.length; index++) {
    const line = lines[index] ?? "";
    const number = firstLine + index;
    const mark = /^\s*(?:>\s*)?(```+|~~~+)/.exec(line)?.[1];
    if (fence) {
      if (mark?.startsWith(fence)) fence = "";
      continue;
    }
    if (mark) {
      fence = mark;
      open = undefined;
      continue;
    }
    const content = line.replace(/^\s*(?:>\s?)*/, "");
    const heading = /^#{1,6}\s+(.*)/.exec(content)?.[1];
    const item = (/^(?:[-*+]|\d+[.)])\s+(.*)/.exec(content) ?? column.exec(content))?.[1];
    if (content === "" || /^<|^\[[^\]]+\]:\s/.test(content)) {
      open = undefined;
    } else if (heading !== undefined) {
      passages.push({ kind: "heading", text: heading, line: number });
      open = undefined;
    } else if (content.startsWith("|")) {
      passages.push(...cells(content, lines[index + 1] ?? "", number));
      open = undefined;
    } else if (item === undefined && open) {
      open.text += `\n${content}`;
    } else {
      open = { kind: "prose", text: item ?? content, line: number };
      passages.push(open);
    }
  }
  return passages;
}

function cells(row: string, next: string, line: number): Passage[] {
  const isRule = (text: string): boolean => /^[\s|:-]+$/.test(text) && text.includes("-");
  if (isRule(row)) return [];
  const kind = isRule(next) ? "heading" : "prose";
  const texts = row.split(/(?<!\\)\|/).map((text) => text.trim());
  return texts.filter(Boolean).map((text) => ({ kind, text, line }));
}

/** Comments are read as Markdown, as rustdoc and JSDoc do. */
function comments(lines: string[], language: Language): Passage[] {
  const passages: Passage[] = [];
  let group: string[] = [];
  let inBlock = false;
  const end = (index: number): void => {
    passages.push(...markdown(group, index + 1 - group.length));
    group = [];
  };
  lines.forEach((line, index) => {
    const trimmed = line.trim();
    if (language.block && (inBlock || trimmed.startsWith("/*"))) {
      const [text = ""] = trimmed.replace(/^\/\*+!?|^\*(?!\/)/, "").split("*/");
      inBlock = !trimmed.includes("*/");
      group.push(text.trim().replace(/^@\w+ /, "- "));
      if (!inBlock) end(index + 1);
    } else if (trimmed.startsWith(language.line)) {
      const text = trimmed.slice(language.line.length).replace(/^[/!#-]*\s?/, "");
      group.push(isDirective(text) || (language === hashes && isSetting(text)) ? "" : text);
    } else {
      end(index);
      const trailing = line.replace(/"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'/g, "").split(` ${language.line} `)[1];
      if (trailing) passages.push({ kind: "prose", text: trailing, line: index + 1 });
    }
  });
  end(lines.length);
  return passages;
}

function isDirective(text: string): boolean {
  return /^(?:biome-|@ts-|shellcheck |syntax=|!)/.test(text);
}

/** A setting that is commented out, such as `name = "x"`, `[table]` or `NAME=x`. */
function isSetting(text: string): boolean {
  return /^[\w."-]+\s*=|^\[+[\w.]+\]+$|^[\w-]+:\s*$/.test(text);
}

const rustString = /(?<![r#'\\\w])"((?:\\[\s\S]|[^"\\])*)"/g;
const scriptString = /(["`])((?:\\[\s\S]|(?!\1)[^\\])*)\1/g;

/** The texts that a program shows: its string literals of three words or more, except SQL and code. */
function messages(file: string, text: string): Passage[] {
  if (/\.ya?ml$/.test(file)) return values(text, /^\s*(?:summary|description): "?(.+?)"?$/gm);
  if (/(?:^|\/)(?:tests|bench|fuzz)\/|\.test\.|\/prose\//.test(file)) return [];
  const code = text.replace(/^\s*(?:\/\/|\*|\/\*).*$/gm, (line) => line.replace(/["`]/g, " "));
  if (file.endsWith(".rs")) return literals((code.split("#[cfg(test)]\nmod ")[0] ?? "").matchAll(rustString), text);
  if (/\.(?:ts|mjs)$/.test(file) && !file.endsWith(".d.ts")) return literals(code.matchAll(scriptString), text);
  return [];
}

function literals(found: Iterable<RegExpMatchArray>, text: string): Passage[] {
  const passages = [...found].map((match) => ({
    kind: "prose" as const,
    text: (match[2] ?? match[1] ?? "")
      .replace(/\\\n\s*/g, "")
      .replace(/\\n/g, "\n")
      .replace(/\$?\{[^}]*\}/g, "X"),
    line: lineOf(text, match.index ?? 0),
  }));
  return passages.flatMap(({ text, line }) => {
    if (/[<>{}=|]|;$/m.test(text.replace(/`[^`]*`/g, "")) || (text.match(/\p{L}{2,}/gu) ?? []).length < 3) return [];
    if (/^\s*(?:SELECT|INSERT|UPDATE|DELETE|WITH|SET|COPY|CREATE|ALTER|DROP|GRANT|LOCK|CALL|[a-z]+=)\b/.test(text))
      return [];
    return markdown(text.split("\n"), line);
  });
}

function values(text: string, pattern: RegExp): Passage[] {
  return [...text.matchAll(pattern)].map((match) => ({
    kind: "prose",
    text: (match[1] ?? "").replace(/\{\{.*?\}\}/g, "X"),
    line: lineOf(text, match.index),
  }));
}

function lineOf(text: string, index: number): number {
  return text.slice(0, index).split("\n").length;
}

const declaration = /\b(?:fn|function|func|def|mod|const|static|FUNCTION)\s+(\w+)/g;
const testTitle = /\b(?:it|test|describe)(?:\.\w+)?\(\s*(["'`])((?:\\.|(?!\1)[^\\\n])*)\1/g;

/** Names of functions, modules, constants and tests. */
function names(text: string): Passage[] {
  const found = [...text.matchAll(declaration), ...text.matchAll(testTitle)];
  return found.map((match) => ({
    kind: "name",
    text: match[2] ?? match[1] ?? "",
    line: lineOf(text, match.index),
  }));
}
