// The first stage of every npm script, in plain JavaScript for any Node >= 18.19, because nothing is installed yet. It
// installs the packages of package-lock.json, including a Node that runs TypeScript, and runs the real script with that
// Node.
import { spawn } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { constants } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const windows = process.platform === "win32";
const ownNode = join(root, "node_modules", "node", "bin", windows ? "node.exe" : "node");

const [command, ...args] = process.argv.slice(2);
const script = join(root, "scripts", `${command}.ts`);

if (!command || !/^[a-z-]+$/.test(command) || !existsSync(script)) {
  fail(`unknown script "${command ?? ""}"`, "run one of the commands that package.json lists: npm run");
}
const [major = 0, minor = 0] = process.versions.node.split(".").map(Number);
if (major < 18 || (major === 18 && minor < 19)) {
  fail(
    `Node ${process.versions.node} is too old to set this up`,
    "install Node 18.19 or newer, then run the same command again",
  );
}

const outdated = outdatedDependencies();
if (outdated) {
  await installPackages(outdated);
  const still = outdatedDependencies();
  if (still) fail(`after npm ci, ${still}`, "delete node_modules and run the same command again");
}

process.argv = [ownNode, script, ...args];
if (resolve(process.execPath) === ownNode) {
  // Already the right Node: signals reach the script directly.
  await import(pathToFileURL(script).href);
} else {
  const child = spawn(ownNode, [script, ...args], { stdio: "inherit" });
  onStop((signal) => child.kill(signal));
  child.on("error", (error) =>
    fail(`could not run ${ownNode}: ${error.message}`, "delete node_modules and run the same command again"),
  );
  child.on("exit", (code, signal) => process.exit(code ?? 128 + (constants.signals[signal] ?? 0)));
}

/** A description of how node_modules differs from the lock file; `undefined` if it does not. */
function outdatedDependencies() {
  const wanted = readJson(join(root, "package-lock.json"))?.packages;
  if (!wanted) fail("package-lock.json is missing or damaged", "restore it: git checkout package-lock.json");
  // npm writes this file last, so an interrupted installation does not have it.
  const installed = readJson(join(root, "node_modules", ".package-lock.json"))?.packages;
  if (!installed) return "the npm packages are not installed";
  for (const [path, entry] of Object.entries(wanted)) {
    if (path === "") continue;
    const found = installed[path];
    if (!found && entry.optional) continue; // for another platform
    if (found?.version !== entry.version) return `${path.replace(/^.*node_modules\//, "")} is not at ${entry.version}`;
  }
  if (!existsSync(ownNode)) return "the npm package node has no binary (were install scripts turned off?)";
  return undefined;
}

/**
 * Calls `stop` on a signal, or when the parent process has ended: npm ends on a signal without passing it on. Returns a
 * function that removes the handlers.
 * @param {(signal: "SIGINT" | "SIGTERM" | "SIGHUP") => void} stop
 */
function onStop(stop) {
  const listeners = ["SIGINT", "SIGTERM", "SIGHUP"].map((signal) => [signal, () => stop(signal)]);
  for (const [signal, listener] of listeners) process.on(signal, listener);
  const parent = process.ppid;
  const orphanWatch = setInterval(() => {
    if (process.ppid === parent) return;
    clearInterval(orphanWatch);
    stop("SIGTERM");
  }, 500);
  return () => {
    clearInterval(orphanWatch);
    for (const [signal, listener] of listeners) process.off(signal, listener);
  };
}

function readJson(path) {
  try {
    return JSON.parse(readFileSync(path, "utf8"));
  } catch {
    return undefined;
  }
}

/** @param {string} reason */
async function installPackages(reason) {
  const started = Date.now();
  const seconds = () => Math.round((Date.now() - started) / 1000);
  console.error(`weir: installing the npm packages (${reason})`);
  // Some packages fetch or link their binaries in their install scripts. package.json names them.
  const npmArgs = ["ci", "--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts=false"];
  const npm = process.env.npm_execpath;
  const [file, fileArgs] = npm?.endsWith(".js") ? [process.execPath, [npm, ...npmArgs]] : ["npm", npmArgs];
  const child = spawn(file, fileArgs, {
    cwd: root,
    stdio: ["ignore", "pipe", "pipe"],
    shell: windows && file === "npm",
  });
  let output = "";
  child.stdout.on("data", (data) => (output += data));
  child.stderr.on("data", (data) => (output += data));
  const forget = onStop((signal) => {
    child.kill(signal);
    process.exit(128 + constants.signals[signal]);
  });
  const heartbeat = setInterval(() => console.error(`weir:   ${seconds()} s, still installing`), 10_000);
  const code = await new Promise((done) => {
    child.on("error", (error) => {
      output += error.message;
      done(1);
    });
    child.on("close", done);
  });
  clearInterval(heartbeat);
  forget();
  if (code !== 0) {
    console.error(output.trim());
    fail("npm ci failed", "see npm's output above, check the network, and run the same command again");
  }
  console.error(`weir:   done in ${seconds()} s`);
}

/**
 * @param {string} what
 * @param {string} remedy
 * @returns {never}
 */
function fail(what, remedy) {
  console.error(`weir: ${what}\nweir: fix: ${remedy}`);
  process.exit(1);
}
