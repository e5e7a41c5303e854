import { globSync } from "node:fs";
import { LinkChecker } from "linkinator";
import { anyFree, host } from "./ports.ts";

const notOurs = new Set([".git", ".weir", "build", "dist", "node_modules", "target"]);

/** The files in a folder that end so, without what is installed or built there. */
export function filesIn(folder: string, ending: string): string[] {
  return globSync(`**/*${ending}`, { cwd: folder, exclude: (name) => notOurs.has(name) });
}

/**
 * The links of Markdown files or HTML files that lead nowhere: to a page, an anchor, an image or a folder that is not
 * there. Links to other hosts are not followed, since a check must not depend on them.
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
