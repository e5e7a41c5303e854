import { globSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { LinkChecker } from "linkinator";
import { anyFree, host } from "./ports.ts";
import { select } from "./selection.ts";

const notOurs = new Set([".git", ".weir", "build", "dist", "node_modules", "target"]);

/** The files with this ending in a folder, without installed or built ones. */
export function filesIn(folder: string, ending: string): string[] {
  return globSync(`**/*${ending}`, { cwd: folder, exclude: (name) => notOurs.has(name) });
}

/**
 * The dead links of Markdown files or HTML files: to a page, an anchor, an image or a folder that does not exist. Links
 * to other hosts are not checked, because the result must not depend on them.
 */
export async function deadLinks(root: string, files: string[]): Promise<string[]> {
  const port = await anyFree();
  const own = [`http://${host}:${port}/`, `http://localhost:${port}/`];
  const { links } = await new LinkChecker().check({
    path: files,
    serverRoot: root,
    port,
    markdown: true,
    checkFragments: true,
    directoryListing: true,
    linksToSkip: async (link) => !own.some((start) => link.startsWith(start)),
  });
  return links.filter(({ state }) => state === "BROKEN").map(({ url, parent }) => `${parent} links to ${url}`);
}

/** The names in `npm test -- NAME` of Markdown files that match no test and no file of tests. */
export async function unknownTests(root: string, files: string[]): Promise<string[]> {
  const unknown: string[] = [];
  const known = new Set(["NAME"]);
  for (const file of files) {
    for (const name of testsNamedIn(readFileSync(join(root, file), "utf8"))) {
      if (known.has(name)) continue;
      if ((await select([name])).unmatched.length > 0)
        unknown.push(`${file} names a test that does not exist: ${name}`);
      else known.add(name);
    }
  }
  return unknown;
}

/** The words after `npm test --`, up to the end of the code or a comment. Options are left out. */
export function testsNamedIn(text: string): string[] {
  const commands = text.matchAll(/npm test -- ([^`#\n]+)/g);
  return [...commands].flatMap(([, words = ""]) =>
    [...words.matchAll(/"([^"]+)"|(\S+)/g)]
      .map(([, quoted, word]) => quoted ?? word ?? "")
      .filter((word) => !word.startsWith("-")),
  );
}
