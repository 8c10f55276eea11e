// A Chromium for the tests, pages opened in it with everything that goes wrong written down, and the data
// of a page read without the page's own program.

import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { gunzipSync } from "node:zlib";

import puppeteer, { type Browser, type Page } from "puppeteer-core";

import type { Block, Page as Data } from "../../src/data";

/** The folder of pages, which run.mjs sees to. */
export const PAGES = process.env["PAGELAB_PAGES"] ?? "";

const CHROMIUM = [
  process.env["CHROMIUM"] ?? "",
  "/usr/bin/chromium",
  "/usr/bin/chromium-browser",
  "/usr/bin/google-chrome",
].find((path) => path !== "" && existsSync(path));

/** Why there is nothing to test in; false with a browser. */
export const WITHOUT =
  CHROMIUM === undefined
    ? "chromium-absent: there is no Chromium at /usr/bin/chromium, nor where CHROMIUM says"
    : false;

export function pageNames(all: string[]): string[] {
  const missing = all.filter((name) => !existsSync(file(name)));
  if (missing.length > 0) throw new Error(`${PAGES} lacks ${missing.join(", ")}`);
  return all;
}

export function file(name: string): string {
  return join(PAGES, `${name}.html`);
}

/** A browser with a profile of its own, gone with it. */
export async function launch(): Promise<{ browser: Browser; close: () => Promise<void> }> {
  const userDataDir = mkdtempSync(join(tmpdir(), "pagelab-chromium-"));
  const browser = await puppeteer.launch({
    executablePath: CHROMIUM ?? "",
    headless: true,
    userDataDir,
    args: [
      "--no-sandbox",
      "--disable-gpu",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
    ],
  });
  const close = async () => {
    await browser.close();
    rmSync(userDataDir, { recursive: true, force: true, maxRetries: 5 });
  };
  return { browser, close };
}

export interface Opened {
  page: Page;
  /** Everything that may not happen, in words. */
  wrong: string[];
}

export interface OpenOptions {
  theme?: "light" | "dark";
  width?: number;
  scripts?: boolean;
}

/** Opens a page and waits until it is all there. */
export async function open(browser: Browser, name: string, options: OpenOptions = {}): Promise<Opened> {
  const page = await browser.newPage();
  const wrong: string[] = [];
  const url = pathToFileURL(file(name)).href;
  page.on("console", (message) => {
    if (["error", "warn", "assert"].includes(message.type()))
      wrong.push(`console ${message.type()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => {
    wrong.push(`page error: ${error instanceof Error ? error.message : String(error)}`);
  });
  page.on("dialog", (dialog) => {
    wrong.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("request", (request) => {
    if (request.url() !== url && !request.url().startsWith("data:,"))
      wrong.push(`request: ${request.url().slice(0, 120)}`);
  });
  await page.exposeFunction("violated", (what: string) => {
    wrong.push(`policy: ${what}`);
  });
  await page.evaluateOnNewDocument(() => {
    addEventListener("securitypolicyviolation", (event) => {
      void (window as unknown as { violated: (what: string) => void }).violated(
        `${event.violatedDirective} ${event.blockedURI} ${event.sample}`,
      );
    });
  });
  await page.setViewport({ width: options.width ?? 1200, height: 900, deviceScaleFactor: 1 });
  await page.emulateMediaFeatures([
    { name: "prefers-color-scheme", value: options.theme ?? "light" },
    { name: "prefers-reduced-motion", value: "reduce" },
  ]);
  if (options.scripts === false) await page.setJavaScriptEnabled(false);
  await page.goto(url);
  if (options.scripts !== false) {
    await page.waitForFunction(() => document.documentElement.dataset["state"] !== undefined, {
      timeout: 120_000,
    });
    const state = await page.evaluate(() => document.documentElement.dataset["state"]);
    if (state !== "ready") wrong.push(`state: ${state}`);
    await frames(page);
  }
  return { page, wrong };
}

/** Waits until the requested parts are drawn. */
export async function frames(page: Page): Promise<void> {
  await page.evaluate(
    () =>
      new Promise<void>((done) => {
        requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0)));
      }),
  );
}

/** The text of a block, by the page's source and not by a browser. */
function blockText(name: string, id: string): Buffer {
  const html = readFileSync(file(name), "utf8");
  const start = `<script type="application/octet-stream" id="${id}">`;
  const at = html.indexOf(start);
  if (at < 0) throw new Error(`${name} has no block ${id}`);
  return gunzipSync(
    Buffer.from(html.slice(at + start.length, html.indexOf("<", at + start.length)), "base64"),
  );
}

/** The document in a page. */
export function data(name: string): Data {
  return JSON.parse(blockText(name, "page").toString("utf8")) as Data;
}

/** The numbers of a block. */
export function values(name: string, block: Block): number[] {
  const planes = blockText(name, block.block);
  const width = { f64: 8, u32: 4, u16: 2, u8: 1 }[block.type];
  return Array.from({ length: block.length }, (_, at) => {
    const bytes = Buffer.from(
      Array.from({ length: width }, (_, plane) => planes[plane * block.length + at]!),
    );
    return block.type === "f64" ? bytes.readDoubleLE() : bytes.readUIntLE(0, width);
  });
}
