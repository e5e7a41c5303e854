import { globSync } from "node:fs";
import { LinkChecker } from "linkinator";
import { anyFree, host } from "./ports.ts";

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
