import { existsSync, globSync, readFileSync, statSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { slug } from "github-slugger";
import { type DefaultTheme, defineConfig, type MarkdownEnv, type MarkdownOptions } from "vitepress";

type Markdown = Parameters<NonNullable<MarkdownOptions["config"]>>[0];

// The pages are read on GitHub, too. So nothing in them is for the site: it takes their order from docs/README.md, and
// points their links to where things are on the site.

const root = resolve(import.meta.dirname, "..", "..");

/** Files of the repository that are pages. */
const pages = [
  ...globSync("docs/**/*.md", { cwd: root, exclude: ["docs/node_modules"] }),
  "ARCHITECTURE.md",
  "CHANGELOG.md",
  "CONTRIBUTING.md",
  "SECURITY.md",
];

const { GITHUB_SERVER_URL, GITHUB_REPOSITORY, GITHUB_SHA, WEIR_DOCS_BASE } = process.env;

export default defineConfig({
  title: "Weir",
  description: "Fair background jobs for your API",
  lang: "en",
  base: WEIR_DOCS_BASE || "/",
  head: [["link", { rel: "icon", href: `data:image/svg+xml;base64,${read("www/weir.svg", "base64")}` }]],
  srcDir: root,
  srcExclude: ["!(docs)/**/*.md", "README.md"],
  rewrites: addressOf,
  cacheDir: join(root, "docs", "node_modules", ".vitepress"),
  markdown: {
    // GitHub's anchors.
    anchor: { slugify: (title) => slug(title) },
    config: pointLinks,
  },
  transformPageData: (page) => (page.relativePath === "index.md" ? { frontmatter: frontPage() } : undefined),
  themeConfig: {
    sidebar: sidebar(),
    outline: "deep",
    search: { provider: "local" },
  },
});

/** The address of a page: without `docs/`, and a folder's README is its index. */
function addressOf(page: string): string {
  return page.replace(/^docs\//, "").replace(/(^|\/)README\.md$/, "$1index.md");
}

/** The part of the front page above the list of docs/README.md, with the features of README.md. */
function frontPage(): Record<string, unknown> {
  const [intro = ""] = read("README.md").split(/^## /m);
  const features = [...intro.matchAll(/^- \*\*(.+?)\.\*\* ([\s\S]+?)(?=\n- |\n\n)/gm)].map(([, title, text = ""]) => ({
    title,
    // Only the first sentence, without links and code.
    details: /^.+?\.(?= |$)/.exec(
      text
        .replaceAll(/\s+/g, " ")
        .replaceAll(/\[(.+?)\]\(.+?\)/g, "$1")
        .replaceAll("`", ""),
    )?.[0],
  }));
  if (features.length === 0) throw new Error("README.md lists no features");
  return {
    layout: "home",
    hero: {
      name: "Weir",
      text: "Fair background jobs for your API",
      tagline: "One customer's 100 jobs must not make the next customer wait.",
      actions: [
        { theme: "brand", text: "A first session", link: "/tutorial/first-session" },
        { theme: "alt", text: "Your own service", link: "/tutorial/your-own-service" },
        { theme: "alt", text: "Deploy", link: "/how-to/deploy" },
      ],
    },
    features,
  };
}

function pointLinks(markdown: Markdown): void {
  markdown.core.ruler.push("point-links", ({ env, tokens }) => {
    const { realPath, path } = env as MarkdownEnv;
    for (const { children } of tokens) {
      for (const [index, token] of children?.entries() ?? []) {
        const href = token.type === "link_open" ? token.attrGet("href") : undefined;
        if (!href || /^([a-z]+:|#)/i.test(href)) continue;
        const target = pointed(href, realPath ?? path);
        if (target) {
          token.attrSet("href", target);
          continue;
        }
        const end = children?.slice(index).find(({ type }) => type === "link_close");
        for (const part of [token, end]) if (part) Object.assign(part, { type: "text", content: "" });
      }
    }
  });
}

/** Where a link leads on the site. Other files than pages are in the repository, if it is known where that is. */
function pointed(href: string, from: string): string | undefined {
  const [path = "", anchor] = href.split("#");
  const file = relative(root, resolve(dirname(from), path));
  if (pages.includes(file)) return `/${addressOf(file)}${anchor ? `#${anchor}` : ""}`;
  // Left as it is, so that it is reported as dead.
  if (!existsSync(join(root, file))) return href;
  if (!GITHUB_REPOSITORY) return undefined;
  const kind = statSync(join(root, file)).isDirectory() ? "tree" : "blob";
  return `${GITHUB_SERVER_URL}/${GITHUB_REPOSITORY}/${kind}/${GITHUB_SHA}/${file}`;
}

/** The groups and links of docs/README.md; below the decisions those of their own list. */
function sidebar(): DefaultTheme.SidebarItem[] {
  const groups = read("docs/README.md")
    .split(/^(?=\*\*)/m)
    .slice(1)
    .map((part) => ({ text: /^\*\*(.+?)\*\*/.exec(part)?.[1] ?? "", items: entries("docs/README.md", part) }));
  const listed = new Set(
    groups.flatMap(({ items }) => items).flatMap(({ page, items }) => [page, ...items.map((item) => item.page)]),
  );
  const missing = pages.filter((page) => page !== "docs/README.md" && !listed.has(page));
  if (missing.length > 0) throw new Error(`docs/README.md does not list ${missing.join(", ")}`);
  return groups;
}

interface Entry {
  page: string;
  text: string;
  link: string;
  collapsed: boolean;
  items: Entry[];
}

function entries(list: string, markdown: string): Entry[] {
  return [...markdown.matchAll(/\[([^\]]+)\]\(([^)#\s]+\.md)\)/g)].flatMap(([, text = "", href = ""]) => {
    const page = join(dirname(list), href);
    if (!pages.includes(page)) return [];
    const items = page === "docs/adr/README.md" ? entries(page, read(page)) : [];
    return [
      {
        page,
        text: text.replaceAll("`", "").replace(/\s+/g, " "),
        link: `/${addressOf(page)}`,
        collapsed: true,
        items,
      },
    ];
  });
}

function read(file: string, encoding: BufferEncoding = "utf8"): string {
  return readFileSync(join(root, file), encoding);
}
