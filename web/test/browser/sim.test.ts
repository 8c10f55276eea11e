// Pages of simulations: tables, charts, the pictures by slider and by play, and the demonstration.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import type { Browser, Page } from "puppeteer-core";

import { data, frames, launch, open, values, WITHOUT } from "./harness";

let browser: Browser;
let close: () => Promise<void> = async () => {};
before(async () => {
  if (WITHOUT === false) ({ browser, close } = await launch());
});
after(() => close());

const rowsOf = (page: Page, caption: string) =>
  page.evaluate((wanted) => {
    const found = [...document.querySelectorAll("table")].find((one) => one.caption?.textContent === wanted);
    return [...(found?.rows ?? [])].map((row) => [...row.cells].map((cell) => cell.textContent ?? ""));
  }, caption);

/** Colours of the first pixels of a picture. */
const pixels = (page: Page, selector: string, count: number) =>
  page.evaluate(
    (which, many) => {
      // A copy is read: the browser says so where a canvas of the page is read again and again.
      const copy = new OffscreenCanvas(many, 1).getContext("2d")!;
      copy.drawImage(document.querySelector<HTMLCanvasElement>(which)!, 0, 0);
      const { data } = copy.getImageData(0, 0, many, 1);
      return Array.from({ length: many }, (_, at) => [...data.slice(at * 4, at * 4 + 3)]);
    },
    selector,
    count,
  );

test("figures stand in tables by phase, with those of the paper below", { skip: WITHOUT }, async () => {
  const { page, wrong } = await open(browser, "sim");
  assert.deepEqual(await rowsOf(page, "pass 1"), [
    ["", "unit", "standard", "zone+linear"],
    ["success", "share", "0.180 (0.150…0.210)", "0.230 (0.200…0.260)"],
    ["in the paper", "share", "0.180", "0.210"],
  ]);
  const rest = await rowsOf(page, "at rest");
  assert.deepEqual(rest[1], ["huge pages", "blocks", "110 (104…116)", "181 (175…187)"]);
  assert.deepEqual(rest[2], ["in the paper", "blocks", "110", "–"]);
  assert.equal(rest[3]?.[0], "from Normal");
  // Of two seeds there is no interval.
  assert.deepEqual(rest.at(-1), ["pages read again", "pages", "1\u202f234", "120.5"]);
  // Figure 9 of the paper, to its last digit.
  assert.deepEqual((await rowsOf(page, "Pages to free, by order")).slice(1).map((row) => row[1]), [
    "50.00 %",
    "75.00 %",
    "87.50 %",
    "93.75 %",
    "96.88 %",
    "98.44 %",
    "99.90 %",
    "99.98 %",
  ]);
  assert.deepEqual(wrong, []);
  await page.close();
});

test("what mattered stands first, differences in front of the figures", { skip: WITHOUT }, async () => {
  const { page, wrong } = await open(browser, "sim");
  const titles = await page.$$eval("section > h2", (all) => all.map((one) => one.textContent));
  // Where something was varied the answer leads; differences stand behind the charts.
  assert.deepEqual(titles.slice(0, 4), [
    "Influence on at rest/success",
    "Success by scheme and zone",
    "Difference to standard, seed by seed",
    "Figures by scheme",
  ]);
  assert.deepEqual(await rowsOf(page, "highalloc on x86"), [
    ["", "unit", "zone+linear"],
    ["at rest"],
    ["success", "share", "+0.050"],
  ]);
  const text = await page.$eval("main", (one) => one.textContent ?? "");
  assert.ok(text.includes("3 points are too few for a verdict"));
  for (const said of ["difference to standard", "too few for a verdict"])
    assert.ok(data("sim").sim!.text.includes(said), said);
  assert.deepEqual(wrong, []);
  await page.close();
});

test("tables fit a page of 1200 pixels, and names stand on one line", { skip: WITHOUT }, async () => {
  const { page } = await open(browser, "sim-wide", { width: 1200 });
  const wide = await page.evaluate(() =>
    [...document.querySelectorAll<HTMLElement>(".sim-table .scroll")].map((one) => [
      one.scrollWidth - one.clientWidth,
      Math.max(...[...one.querySelectorAll<HTMLElement>("tbody th")].map((cell) => cell.offsetHeight)),
    ]),
  );
  assert.ok(wide.length > 0 && wide.every(([over, high]) => over! <= 0 && high! < 60), JSON.stringify(wide));
  await page.setViewport({ width: 700, height: 800 });
  await frames(page);
  const labels = await page.evaluate(() => {
    const found = [...document.querySelectorAll(".drawing svg")].find((svg) =>
      (svg.getAttribute("aria-label") ?? "").startsWith("Success"),
    );
    return [...(found?.querySelectorAll("text") ?? [])].map((one) => one.textContent ?? "");
  });
  const names = labels.filter((label) => /: (standard|list|zone)/.test(label));
  assert.equal(new Set(names).size, 10, JSON.stringify(labels));
  await page.close();
});

test("bars are as long as their values, lines end where the data do", { skip: WITHOUT }, async () => {
  const { page } = await open(browser, "sim");
  const charts = await page.evaluate(() =>
    [...document.querySelectorAll(".drawing svg")].map((svg) => ({
      label: svg.getAttribute("aria-label") ?? "",
      bars: [...svg.querySelectorAll("rect")]
        .filter((rect) => rect.querySelector("title") !== null)
        .map((rect) => ({ says: rect.textContent ?? "", width: Number(rect.getAttribute("width")) })),
      lines: [...svg.querySelectorAll("path")].map((path) => path.getAttribute("d") ?? ""),
    })),
  );
  const of = (part: string) => charts.find(({ label }) => label.includes(part))!;
  const [normal, high, , more] = of("Huge pages, blocks by zone").bars;
  assert.match(normal!.says, /^standard, Normal: 16/);
  assert.ok(Math.abs(high!.width / normal!.width - 95 / 16) < 0.01, JSON.stringify([normal, high]));
  assert.ok(Math.abs(more!.width / high!.width - 137 / 95) < 0.01);
  const lines = of("F_u(10) at rest").lines;
  const series = data("sim").sim!.series;
  assert.equal(lines.length, series.length);
  // In one chart heights and values are in proportion: compare two ends with two starts.
  const ends = lines.map((d) => {
    const points = [...d.matchAll(/[ML]([\d.]+) ([\d.]+)/g)].map((found) => Number(found[2]));
    return [points[0]!, points.at(-1)!];
  });
  const known = series.map((one) => {
    const all = values("sim", one.values);
    return [all[0]!, all.at(-1)!];
  });
  const scale = (ends[0]![0]! - ends[1]![0]!) / (known[0]![0]! - known[1]![0]!);
  const other = (ends[0]![1]! - ends[1]![1]!) / (known[0]![1]! - known[1]![1]!);
  assert.ok(Math.abs(scale / other - 1) < 0.05, `${scale} ${other}`);
  await page.close();
});

test("a slider goes through the pictures, and play ends at the last", { skip: WITHOUT }, async () => {
  const { page, wrong } = await open(browser, "sim");
  const { memory } = data("sim").sim!;
  const shownAt = async (place: number) => {
    const { cells } = memory!.pictures[place]!;
    const wanted = values("sim", cells)
      .slice(0, 40)
      .map((cell) => memory!.legend[cell]!.colour);
    assert.deepEqual(await pixels(page, ".picture canvas", 40), wanted, `picture ${place}`);
  };
  const when = () => page.$eval(".map-when", (one) => one.textContent ?? "");
  await shownAt(0);
  await page.focus(".map-time input");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  await shownAt(2);
  assert.match(await when(), /standard · under load · step 2.000 · picture 3 of 5/);
  const spoken = await page.$eval(".map-time input", (one) => one.getAttribute("aria-valuetext"));
  assert.equal(spoken, await when());
  await page.keyboard.press("End");
  await shownAt(4);
  // Play begins anew from the end, and stops by itself.
  await page.focus(".map-time button");
  await page.keyboard.press("Enter");
  assert.equal(await page.$eval(".map-time button", (one) => one.textContent), "Stop");
  await page.waitForFunction(
    () =>
      document.querySelector(".map-time button")?.textContent === "Play" &&
      document.querySelector<HTMLInputElement>(".map-time input")?.value === "4",
    { timeout: 30_000 },
  );
  // The other scheme has pictures of its own.
  const scheme = await page.$$eval(
    "select",
    (all) => all.find((one) => one.labels[0]?.textContent?.startsWith("Scheme"))!.id,
  );
  await page.select(`#${scheme}`, "1");
  await frames(page);
  await shownAt(9);
  assert.match(await when(), /zone\+linear/);
  const owners = values("sim", memory!.pictures[9]!.owners);
  const words = await page.$eval(".owners", (one) => one.getAttribute("aria-label") ?? "");
  assert.match(words, new RegExp(`${owners.filter((list) => list === 0).length} unmovable`));
  assert.deepEqual(wrong, []);
  await page.close();
});

test("the demonstration goes step by step under chosen policies", { skip: WITHOUT }, async () => {
  const { page, wrong } = await open(browser, "demo");
  const lanes = () =>
    page.$$eval(".demo-lane", (all) =>
      all.map((lane) => ({
        policy: (lane as HTMLElement).dataset["policy"],
        frames: [...lane.querySelectorAll(".demo-page")].map((one) => one.textContent).join(""),
        touched: lane.querySelectorAll(".demo-touched").length,
      })),
    );
  const { demo } = data("demo");
  const expected = (at: number, which: number[]) =>
    which.map((lane) => {
      const { policy, steps } = demo!.lanes[lane]!;
      return { policy, frames: steps[at]!.frames, touched: steps[at]!.touched.length };
    });
  assert.deepEqual(await lanes(), expected(0, [0, 1]));
  const [back, next] = await page.$$(".demo-buttons button");
  await next!.click();
  await next!.click();
  assert.deepEqual(await lanes(), expected(2, [0, 1]));
  await next!.click();
  assert.deepEqual(await lanes(), expected(2, [0, 1]), "there is no step behind the last");
  await back!.click();
  assert.deepEqual(await lanes(), expected(1, [0, 1]));
  const boxes = await page.$$(".demo-choose input");
  await boxes[1]!.click();
  await boxes[2]!.click();
  assert.deepEqual(await lanes(), expected(1, [0, 2]));
  const label = await page.$eval(".demo-memory", (one) => one.getAttribute("aria-label"));
  assert.equal(label, "Pages under mobility: page 0 program A, pages 1 to 31 free");
  assert.deepEqual(wrong, []);
  await page.close();
});
