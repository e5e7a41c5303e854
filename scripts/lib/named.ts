import { existsSync, globSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { filesIn } from "./links.ts";

/** What Markdown can name. The generated pages of the reference are current, because tests compare them. */
interface Code {
  root: string;
  /** All identifiers in the code and its settings. */
  words: Set<string>;
  /** The identifiers of each file in Rust. */
  rust: { path: string; words: Set<string> }[];
  /** The help of each command by its name, such as `weir plan set`. */
  help: Map<string, string>;
  scripts: Set<string>;
  files: string[];
}

const endings = [
  "rs",
  "ts",
  "mjs",
  "js",
  "sql",
  "toml",
  "py",
  "go",
  "tsx",
  "json",
  "jsonc",
  "yaml",
  "yml",
  "example",
  "service",
];

/** Names of PostgreSQL, River, other programs and invented services. */
const elsewhere = new RegExp(
  "^(weir_edge_$|pg_|raw_|query_string|http_|sk_test_|evt_|whsec_|weir_sk_|add_test|max_words|postgres_fdw|synchronous_standby_names" +
    "|max_(slot|standby|prepared)_|include_(object|schemas)|RIVER_BASIC_|ON_ERROR_STOP|GROUP_ROUND_ROBIN|OLD_|RAW_URI|REQUEST_URI|WORDS_" +
    "|river_leadership|request_resign|metadata_changed|weir_host_)|_(priority|default|scheduled)$",
);

/** The paths, identifiers, commands and options in code spans and blocks that the repository does not have. */
export function unknownNames(root: string, pages: string[]): string[] {
  const code = readCode(root);
  return pages.filter(isChecked).flatMap((page) => {
    const found = codeIn(readFileSync(join(root, page), "utf8")).flatMap((text) => [
      ...unknownPaths(code, page, text),
      ...unknownCommands(code, text),
      ...unknownScripts(code, text),
      ...unknownWords(code, text),
    ]);
    return [...new Set(found)].map((name) => `${page} names what does not exist: ${name}`);
  });
}

/** Decisions from outside and the history keep the names of their time. */
function isChecked(page: string): boolean {
  return page !== "CHANGELOG.md" && !/^docs\/(reference\/|adr\/\d)/.test(page);
}

function readCode(root: string): Code {
  const words = new Set<string>();
  const rust: Code["rust"] = [];
  const files = filesIn(root, `.{${endings.join(",")}}`);
  for (const path of files) {
    const own = new Set(readFileSync(join(root, path), "utf8").match(/\w+/g));
    for (const word of own) words.add(word);
    if (path.endsWith(".rs")) rust.push({ path, words: own });
  }
  const commands = readFileSync(join(root, "docs/reference/commands.md"), "utf8")
    .split(/^#+ (?=weir )/m)
    .slice(1);
  const help = new Map(commands.map((text) => [text.slice(0, text.indexOf("\n")), text]));
  const { scripts } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as { scripts: object };
  return { root, words, rust, help, scripts: new Set(Object.keys(scripts)), files };
}

/** The code spans, and the blocks, of Markdown. */
function codeIn(text: string): string[] {
  const blocks: string[] = [];
  const rest = text.replaceAll(/^ *```(\w*)\n(.*?)^ *```/gms, (_, language: string, block: string) => {
    if (/^(sh|bash|console)$/.test(language)) blocks.push(...block.replaceAll("\\\n", " ").split("\n"));
    return "";
  });
  return [...[...rest.matchAll(/`([^`]+)`/g)].map(([, span = ""]) => span.replaceAll(/\s+/g, " ")), ...blocks];
}

/** A path that starts with a folder of the repository or of the page, or the end of the path of a file of code. */
function unknownPaths({ root, files }: Code, page: string, text: string): string[] {
  const paths = text.match(/(?<![\w./~$-])\w[\w.*-]*(?:\/[\w.*-]*\w)+|^[\w./-]+\.(?:rs|sql|ts|mjs)$/g) ?? [];
  return paths.filter((path) => {
    const inRoot = [root, join(root, dirname(page))].filter((base) => existsSync(join(base, path.split("/")[0] ?? "")));
    if (/node_modules|\.dev\.vars|\d\.\d|__name|NAME|^words\.mjs$/.test(path)) return false;
    if (inRoot.some((base) => globSync(path, { cwd: base }).length > 0)) return false;
    return /\.(rs|sql|ts|mjs)$/.test(path) ? !files.some((file) => `/${file}`.endsWith(`/${path}`)) : inRoot.length > 0;
  });
}

/** A command, its subcommands and its options. */
function unknownCommands({ help }: Code, text: string): string[] {
  const start = /(?:(?:^(?:\$ )?(?:[A-Z_]+=\S+ )*|[(|] ?|-- )weir|npm run (?:-s )?weir --) ([a-z][^|#`;&)]*)/g;
  return [...text.matchAll(start)].flatMap(([, rest = ""]) => {
    // The only hidden command, which a running worker starts.
    if (rest.startsWith("watch-programs")) return [];
    let command = "weir";
    const words = rest.trim().split(/[\s,]+/);
    while (help.has(`${command} ${words[0]}`)) command += ` ${words.shift()}`;
    const known = help.get(command) ?? "Commands:";
    if (known.includes("Commands:") && /^[a-z]/.test(words[0] ?? "")) return [`${command} ${words[0]}`];
    const options = words.flatMap((word) => /^\[?(--[a-z-]+)/.exec(word)?.[1] ?? []);
    return options
      .filter((option) => !new RegExp(`${option}(?![\\w-])`).test(known))
      .map((name) => `${command} ${name}`);
  });
}

function unknownScripts({ scripts }: Code, text: string): string[] {
  const named = [...text.matchAll(/npm run (?:-s )?([\w:-]+)/g)].map(([, name = ""]) => name);
  return named.filter((name) => !scripts.has(name)).map((name) => `npm run ${name}`);
}

/** Identifiers of the code or, if they are long, parts of them; and paths of Rust: one file has both names. */
function unknownWords({ words, rust }: Code, text: string): string[] {
  const plain = text.match(/(?<!\\)\b(?:[a-z]\w*_\w*\w|[A-Z]+_[A-Z_]*[A-Z])\b/g) ?? [];
  const unknown = plain
    .filter((word) => !elsewhere.test(word) && !words.has(word) && !words.has(word.replace(/_FILE$/, "")))
    .filter((word) => word.length < 12 || ![...words].some((known) => known.includes(word)));
  const paths = [...text.matchAll(/\b(\w+)::(\w+)/g)].filter(
    ([, owner = "", name = ""]) =>
      !rust.some((file) => (file.words.has(owner) || file.path.includes(owner)) && file.words.has(name)),
  );
  return [...unknown, ...paths.map(([path]) => path)];
}
