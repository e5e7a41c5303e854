import assert from "node:assert/strict";
import { after, describe, it } from "node:test";
import * as fc from "fast-check";
import { rendered } from "../../www/src/rendered.ts";
import { openPage } from "./browser.ts";

// Markdown comes from handlers, and handlers take text from strangers. So the browser must build only harmless
// elements, attributes and links from it. `WEIR_CASES` sets the number of cases, and `WEIR_SEED` repeats a run.

const cases = Number(process.env.WEIR_CASES ?? 10_000);
const seed = Number(process.env.WEIR_SEED ?? Math.floor(Math.random() * 2 ** 31));

const allowed: Record<string, string[]> = {
  ...Object.fromEntries(
    "p h1 h2 h3 h4 h5 h6 ul li blockquote pre em strong hr br".split(" ").map((name) => [name, []]),
  ),
  ol: ["start"],
  code: ["class"],
  a: ["href", "title"],
  img: ["src", "alt", "title"],
};
const protocols: Record<string, string[]> = {
  a: ["http:", "https:", "mailto:", "irc:", "ircs:", "xmpp:"],
  img: ["http:", "https:"],
};

/** A node that the browser created from the HTML: an element, or any other node except text. */
interface Made {
  name: string;
  attributes: [string, string][];
  /** The protocol of its link, as the browser reads it. */
  protocol: string | null;
}

// A template is parsed like a page, but runs and loads nothing.
const read = `(html) => {
  const template = document.createElement("template");
  template.innerHTML = html;
  const walker = document.createTreeWalker(template.content, NodeFilter.SHOW_ALL & ~NodeFilter.SHOW_TEXT);
  const made = [];
  const protocolOf = (url) => { try { return new URL(url, "https://page.example/").protocol; } catch { return null; } };
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const url = node.getAttribute?.("href") ?? node.getAttribute?.("src") ?? null;
    made.push({
      name: node.localName ?? node.nodeName,
      attributes: [...(node.attributes ?? [])].map(({ name, value }) => [name, value]),
      protocol: url === null ? null : protocolOf(url),
    });
  }
  return made;
}`;

/** The problem with a node, if there is one. */
function fault({ name, attributes, protocol }: Made): string | undefined {
  const names = allowed[name];
  if (!names) return `<${name}>`;
  for (const [attribute, value] of attributes) {
    if (!names.includes(attribute)) return `<${name} ${attribute}>`;
    if (attribute === "class" && !value.startsWith("language-")) return `class ${value}`;
  }
  return protocol !== null && !protocols[name]?.includes(protocol) ? `<${name}> to ${protocol}` : undefined;
}

const piece = fc.constantFrom(
  ..."# > - * _ ` ``` ~~~ ! [ ] ( ) < > & ; : \" ' \\ / = | \t \n \r \0 \u{a0} \u{200b} \u{2028} \u{fffd}".split(" "),
  ..." \n\n|\n    |](|][|]: |![|<!--|-->|<![CDATA[|]]>|<?|?>|</|&#x6a;|&#106;|&colon;|&Tab;|&NewLine;|&lt;|&quot;".split(
    "|",
  ),
  ..."javascript:|JaVaScRiPt:|java\tscript:|java&#10;script:|\x01javascript:|data:text/html,|vbscript:|blob:".split(
    "|",
  ),
  ..."https://a.example/|//a.example|mailto:a@b.example|/path?q#f|<https://a.example>|<javascript:alert(1)>".split("|"),
  ..."<script>|</script>|<img src=x onerror=alert(1)>|<svg onload=alert(1)>|<a href=javascript:alert(1)>|<b>".split(
    "|",
  ),
  ..."<iframe srcdoc=|<style>|<math><mi>|<template>|<noscript>|<textarea>|<title>|<plaintext>|<!doctype html>".split(
    "|",
  ),
  ..."a b c 1. 10) \"onmouseover=alert(1) ' onclick=x\u{0} style=color:red &quot;onerror=x".split(" "),
);
const markdown = fc
  .array(fc.oneof({ weight: 8, arbitrary: piece }, { weight: 1, arbitrary: fc.string({ unit: "binary" }) }), {
    maxLength: 40,
  })
  .map((pieces) => pieces.join(""));

describe("markdown in the page", () => {
  const lifetime = { after };
  const opened = openPage(lifetime);
  const judge = async (htmls: string[]): Promise<string[][]> => {
    const { page } = await opened;
    const made = await page.evaluate<Made[][]>(`${JSON.stringify(htmls)}.map(${read})`);
    return made.map((nodes) => nodes.map(fault).filter((one) => one !== undefined));
  };

  it("is accepted only if it is harmless", async () => {
    const bad = [
      "<script>alert(1)</script>",
      "<p onclick=alert(1)>",
      '<a href="java\tscript:alert(1)">',
      '<a href=" &#1;javascript:alert(1)">',
      '<img src="data:image/svg+xml,x">',
      "<svg><a></a></svg>",
      "<!-- a -->",
      '<code class="x">',
    ];
    const faults = await judge(bad);
    for (const [index, html] of bad.entries()) assert.notDeepEqual(faults[index], [], html);
    assert.deepEqual(await judge(['<p><a href="https://a.example" title="b">c</a></p>']), [[]]);
  });

  it("renders as harmless elements for any input", { timeout: 300_000 + 20 * cases }, async () => {
    let texts = 0;
    // Many at once, because most of the time goes into calls to the browser.
    const some = fc.array(markdown, { minLength: 1, maxLength: 200, size: "max" });
    await fc.assert(
      fc.asyncProperty(some, async (all) => {
        texts += all.length;
        const faults = await judge(await Promise.all(all.map(rendered)));
        assert.deepEqual(faults.flat(), []);
      }),
      { numRuns: Math.ceil(cases / 100), seed },
    );
    console.log(`${texts} texts, seed ${seed}`);
  });
});
