import { afterEach } from "node:test";

const logs = new Map<string, () => string>();

const linesShown = 40;

/** Prints the end of a server's log when a test of this file fails. */
export function showOnFailure(name: string, log: () => string): void {
  let unique = name;
  for (let count = 2; logs.has(unique); count++) unique = `${name} ${count}`;
  logs.set(unique, log);
}

function ends(): string {
  return [...logs].map(([name, log]) => `--- the end of what ${name} logged:\n${end(log)}`).join("\n");
}

function end(log: () => string): string {
  let text: string;
  try {
    text = log();
  } catch (error) {
    return `(cannot be read any more: ${error})`;
  }
  return text.trimEnd().split("\n").slice(-linesShown).join("\n") || "(nothing)";
}

afterEach((context) => {
  if ("passed" in context && !context.passed && logs.size > 0)
    console.error(`\n"${context.name}" failed.\n${ends()}\n---`);
});
