import { existsSync, globSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
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

/** The paths in code spans of Markdown whose first folder exists, but which do not, and names of `npm run`. */
export function unknownPaths(root: string, files: string[]): string[] {
  const { scripts } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as { scripts: object };
  return files.flatMap((file) => {
    if (file === "CHANGELOG.md" || file.startsWith("docs/adr/")) return [];
    const text = readFileSync(join(root, file), "utf8").replaceAll(/^ *```.*?^ *```/gms, "");
    const paths = [...text.matchAll(/`(\w[\w.-]*\/[\w./-]*\w)`/g)].map(([, path = ""]) => path);
    const bases = [root, join(root, dirname(file))];
    const gone = paths.filter((path) => {
      const folder = bases.filter((base) => existsSync(join(base, path.split("/")[0] ?? "")));
      // Versions and names to fill in are examples.
      if (/\d\.\d|__name/.test(path)) return false;
      return folder.length > 0 && !bases.some((base) => existsSync(join(base, path)));
    });
    const named = [...text.matchAll(/npm run (?:-s )?([a-z][\w:-]*)/g)].map(([, name = ""]) => name);
    const missing = named.filter((name) => !(name in scripts)).map((name) => `npm run ${name}`);
    return [...gone, ...missing].map((name) => `${file} names what does not exist: ${name}`);
  });
}
