// Builds dist/page.html: one page with its program, its style, the licence of what is in it, and a content
// security policy that allows exactly these two. `node build.mjs [FILE]` writes elsewhere.

import { createHash } from "node:crypto";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

import * as esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ? resolve(process.argv[2]) : join(here, "dist/page.html");

async function bundle(entry, options) {
  const built = await esbuild.build({
    entryPoints: [join(here, entry)],
    absWorkingDir: here,
    bundle: true,
    minify: true,
    write: false,
    charset: "utf8",
    legalComments: "none",
    logLevel: "warning",
    ...options,
  });
  return built.outputFiles[0].text.trim();
}

const hash = (text) => `'sha256-${createHash("sha256").update(text, "utf8").digest("base64")}'`;

const js = await bundle("src/main.ts", { format: "iife", target: "es2022" });
const css = await bundle("src/page.css", { target: ["chrome123", "firefox120", "safari17.5"] });
// What ends an element, or begins another kind of script, may not stand inside of one.
for (const [name, text] of [
  ["script", js],
  ["style", css],
]) {
  if (/<\/(script|style)|<!--/i.test(text)) throw new Error(`the ${name} holds a tag`);
}
const licence = await readFile(join(here, "node_modules/uplot/LICENSE"), "utf8");
const { version } = JSON.parse(await readFile(join(here, "node_modules/uplot/package.json"), "utf8"));
const csp = [
  "default-src 'none'",
  `script-src ${hash(js)}`,
  `style-src ${hash(css)}`,
  "img-src data:",
  "base-uri 'none'",
  "form-action 'none'",
].join("; ");
const escape = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const parts = {
  "@CSP@": csp,
  "@CSS@": css,
  "@JS@": js,
  "@LICENCE@": escape(`uPlot ${version} (https://github.com/leeoniya/uPlot)\n\n${licence.trim()}`),
};
let page = await readFile(join(here, "src/page.html"), "utf8");
for (const [place, text] of Object.entries(parts)) {
  if (page.split(place).length !== 2) throw new Error(`${place} must stand once in src/page.html`);
  page = page.replace(place, () => text);
}
for (const place of ["title", "text", "data"]) {
  if (page.split(`<!--pagelab:${place}-->`).length !== 2)
    throw new Error(`the place ${place} must stand once`);
}
await mkdir(dirname(target), { recursive: true });
await writeFile(target, page);
console.log(`${target}: ${page.length} characters, script ${js.length}, style ${css.length}`);
