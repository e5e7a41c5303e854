/** A heading, paragraph, list item, table cell, message or name, with the line it starts on. */
export interface Passage {
  kind: "prose" | "heading" | "message" | "name";
  text: string;
  line: number;
}

/** The passages of a file that people read. Other kinds of files have none. */
export function passagesOf(file: string, text: string): Passage[] {
  const lines = text.split("\n");
  const language = languageOf(file, lines[0] ?? "");
  if (!language)
    return file.endsWith("grafana/weir.json") ? values(text, /"(?:title|description|content)": "(.+)"/g) : [];
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
  const kind = isRule(next) ? "heading" : "message";
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
      const isShebang = index === 0 && line.startsWith("#!");
      group.push(isShebang || isDirective(text) || (language === hashes && isSetting(text)) ? "" : text);
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
const goString = /"((?:\\.|[^"\\\n])*)"/g;
const pythonString = /(?<!")"((?:\\[\s\S]|[^"\\\n])+)"(?!")|(?<=""")([\s\S]*?)(?=""")/g;
const sqlString = /'((?:''|[^'])*)'/g;

/** Programs that the tests run, and documents that they send: their texts imitate other software. */
const fixture = /(?:^|\/)(?:generators|strange\w*|generated_\w+)(?:\.rs|\/)/;

/**
 * The texts that a program shows: its string literals of three words or more, except SQL and code. In tests and
 * benchmarks, the reasons of assertions and the names of steps are also such texts.
 */
function messages(file: string, text: string): Passage[] {
  if (/\.ya?ml$/.test(file)) return values(text, /^\s*(?:- )?(?:name|summary|description): "?(.+?)"?$/gm);
  if (/^scripts\/lib\/prose\/|\/prose\.test\.ts$/.test(file) || fixture.test(file)) return [];
  if (file.endsWith(".sql")) return described(text);
  const code = text.replace(/^\s*(?:\/\/|\*|\/\*).*$/gm, (line) => line.replace(/["`]/g, " "));
  if (file.endsWith(".rs")) return literals(code.matchAll(rustString), text);
  if (/\.(?:ts|mjs)$/.test(file) && !file.endsWith(".d.ts")) return literals(code.matchAll(scriptString), text);
  if (file.endsWith(".go")) return literals(code.matchAll(goString), text);
  if (file.endsWith(".py")) return literals(text.replace(/#.*$/gm, "").matchAll(pythonString), text);
  return [];
}

/** The messages and hints of RAISE statements, and the descriptions of tables and columns. */
function described(text: string): Passage[] {
  const statements = text.matchAll(/\b(RAISE|COMMENT ON)\s(?:'(?:''|[^'])*'|[^;'])*;/g);
  return [...statements].flatMap((statement) =>
    literals(statement[0].matchAll(sqlString), statement[0]).map((passage) => ({
      kind: statement[1] === "RAISE" ? passage.kind : "prose",
      text: passage.text.replace(/''/g, "'").replace(/%[sLI]?/g, "X"),
      line: passage.line + lineOf(text, statement.index) - 1,
    })),
  );
}

function literals(found: Iterable<RegExpMatchArray>, text: string): Passage[] {
  const passages = [...found].map((match) => ({
    kind: "message" as const,
    text: (match[2] ?? match[1] ?? "")
      .replace(/\\\n\s*/g, "")
      .replace(/\\n/g, "\n")
      .replace(/\\(["'`])/g, "$1")
      .replace(/\$?\{[^}]*\}/g, "X"),
    line: lineOf(text, match.index ?? 0),
  }));
  return passages.flatMap(({ text, line }) => {
    const words = text
      .replace(/`[^`]*`/g, "")
      .split(/\s+/)
      .filter((word) => /\p{L}{2}/u.test(word));
    if (words.length < 3 || isCode(text)) return [];
    return markdown(text.split("\n"), line).map((passage) => ({ ...passage, kind: "message" as const }));
  });
}

const sqlStart =
  /^\s*\(?\s*(?:SELECT|INSERT|UPDATE|DELETE|WITH|SET|COPY|CREATE|ALTER|DROP|GRANT|REVOKE|LOCK|CALL|TRUNCATE|MERGE|DO|BEGIN|COMMIT|VACUUM|ANALYZE|EXPLAIN|REASSIGN|VALUES|FROM|WHERE|AND|ORDER|JOIN|RETURNING|RESET|REINDEX|LISTEN|NOTIFY|PREPARE|DECLARE|RAISE|ON|HAVING|TABLE|COMMENT)\b/;

/** SQL, PromQL, a shell command, markup, a header or a line of a configuration. */
function isCode(text: string): boolean {
  const plain = text.replace(/`[^`]*`/g, "");
  return (
    sqlStart.test(text) ||
    /<\/?[a-z!][^>]*>|[{}]|=>|\w=\S|[\w)\]] (?:==?|!=|<=|>=|<>|\|\|) |^\s*[\w.-]+ = |;\s*$|::\w+|^[a-z]+=|\b(?:AND|OR|NULL|COALESCE)\b/m.test(
      plain,
    ) ||
    /^[\w-]+: \S+$|^\S+\/\S+ \S+$|^-/.test(plain.trim())
  );
}

function values(text: string, pattern: RegExp): Passage[] {
  return [...text.matchAll(pattern)].flatMap((match) => {
    const value = (match[1] ?? "").replace(/\{\{.*?\}\}/g, "X").replace(/\\n/g, "\n");
    return markdown(value.split("\n"), 1).map((passage) => ({ ...passage, line: lineOf(text, match.index) }));
  });
}

function lineOf(text: string, index: number): number {
  return text.slice(0, index).split("\n").length;
}

const declaration =
  /\b(?:fn|function|func|def|mod|const|static|FUNCTION|struct|enum|trait|type|class|interface)\s+(\w+)/g;
const rustEnum = /\benum \w+[^{;]*\{\n([\s\S]*?)\n\s*\}/g;
const variant = /^\s+([A-Z]\w*)\s*(?:[,({=]|$)/gm;
const testTitle = /\b(?:it|test|describe)(?:\.\w+)?\(\s*(["'`])((?:\\.|(?!\1)[^\\\n])*)\1/g;

/** Names of functions, modules, constants, types, variants and tests. */
function names(text: string): Passage[] {
  const found = [...text.matchAll(declaration), ...text.matchAll(testTitle)];
  const names = found.map((match) => ({ text: match[2] ?? match[1] ?? "", index: match.index }));
  for (const { 0: whole, 1: body = "", index } of text.matchAll(rustEnum)) {
    const start = index + whole.indexOf("{\n") + 2;
    for (const match of body.matchAll(variant)) names.push({ text: match[1] ?? "", index: start + match.index });
  }
  return names.map(({ text: name, index }) => ({ kind: "name", text: name, line: lineOf(text, index) }));
}
