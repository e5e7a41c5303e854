// The work of the image product: arguments as JSON on standard input, output as JSON on standard output.
import { text } from "node:stream/consumers";

const escaped = (words) => words.replace(/[&<>]/g, (one) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[one]);

function image(words, width) {
  const height = Math.round(width / 2);
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}">` +
    `<text x="50%" y="50%" text-anchor="middle">${escaped(words)}</text></svg>`
  );
}

const services = {
  render: ({ words }) => ({ svg: image(words, 1200) }),
  preview: ({ words }) => ({ svg: image(words, 120) }),
  caption({ words, max_tokens }) {
    const tokens = words.split(/\s+/).filter(Boolean).slice(0, max_tokens);
    return { caption: tokens.join(" "), used: tokens.length };
  },
  export: ({ words }) => ({ file: "image.svg", bytes: Buffer.byteLength(image(words, 1200)) }),
};

const args = JSON.parse(await text(process.stdin));
if (typeof args.words !== "string") {
  console.error('"words" must be text');
  process.exit(1);
}
console.log(JSON.stringify(services[process.argv[2]](args)));
