// Runs the tests: `node test/run.mjs [unit|browser|bench]`, the first two without an argument. Sources are
// bundled first. Browser tests want pages: those in the folder PAGELAB_PAGES, which pagelab-report's test
// `pages` makes, and one by the binary PAGELAB_BIN; where these are not named, cargo is asked for them.

import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import * as esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const root = join(here, "../..");
const wanted = process.argv[2];
if (wanted !== undefined && !["unit", "browser", "bench"].includes(wanted))
  throw new Error(`no tests are called ${wanted}`);

function run(program, args, env = {}) {
  const ran = spawnSync(program, args, { stdio: "inherit", cwd: root, env: { ...process.env, ...env } });
  if (ran.error) throw ran.error;
  return ran.status === 0;
}

/** The folder with every page in it. */
function pages(folder) {
  const made = process.env.PAGELAB_PAGES ?? folder;
  mkdirSync(made, { recursive: true });
  if (
    !existsSync(join(made, "million.html")) &&
    !run("cargo", ["test", "--quiet", "-p", "pagelab-report", "--test", "pages"], { PAGELAB_PAGES: made })
  ) {
    throw new Error("the pages could not be made");
  }
  const live = join(made, "live.html");
  const checkup = ["checkup", "--brief", "--html", live];
  if (process.env.PAGELAB_BIN) run(process.env.PAGELAB_BIN, checkup);
  else run("cargo", ["run", "--quiet", "--", ...checkup]);
  if (!existsSync(live)) throw new Error("pagelab checkup --html wrote no page");
  return made;
}

/** Bundled files lie beside the tests, so that they find node_modules. */
async function bundle(folder, files) {
  await esbuild.build({
    entryPoints: files,
    outdir: folder,
    outExtension: { ".js": ".mjs" },
    bundle: true,
    format: "esm",
    platform: "node",
    packages: "external",
    logLevel: "warning",
    sourcemap: "inline",
    entryNames: "[name]",
  });
  return readdirSync(folder)
    .filter((name) => name.endsWith(".mjs"))
    .map((name) => join(folder, name));
}

const tests = (suite) =>
  readdirSync(join(here, suite))
    .filter((name) => name.endsWith(".test.ts"))
    .map((name) => join(here, suite, name));

const folder = mkdtempSync(join(here, ".bundled-"));
const scratch = mkdtempSync(join(tmpdir(), "pagelab-pages-"));
let ok = true;
try {
  for (const suite of wanted === undefined ? ["unit", "browser"] : [wanted]) {
    const env = suite === "unit" ? {} : { PAGELAB_PAGES: pages(scratch) };
    const into = join(folder, suite);
    if (suite === "bench") {
      const [bench] = await bundle(into, [join(here, "zoom.bench.ts")]);
      ok = run(process.execPath, [bench], env) && ok;
    } else {
      const files = await bundle(into, tests(suite));
      ok =
        run(
          process.execPath,
          ["--enable-source-maps", "--test", "--test-reporter=tap", "--test-concurrency=1", ...files],
          env,
        ) && ok;
    }
  }
} finally {
  for (const gone of [folder, scratch]) rmSync(gone, { recursive: true, force: true });
}
process.exitCode = ok ? 0 : 1;
