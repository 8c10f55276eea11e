// The pages of experiments: bars, crossings and axes show the numbers of the data, and can be saved.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import type { Browser, Page } from "puppeteer-core";

import type { Json } from "../../src/data";
import { number, object, objects, text } from "../../src/json";
import { data, frames, launch, open, WITHOUT } from "./harness";

let browser: Browser;
let close: () => Promise<void> = async () => {};
before(async () => {
  if (WITHOUT === false) ({ browser, close } = await launch());
});
after(() => close());

/** The measure that judges the workload at this place. */
function judged(name: string, at = 0): { effects: Json; variants: Json[] } {
  const effects = objects(data(name).runs[0]!.experiment!["effects"])[at]!;
  const measure = objects(effects["measures"]).find(
    (of) => text(of["name"]) === text(effects["judged_by"]),
  )!;
  return { effects, variants: objects(measure["variants"]) };
}

/** Catches what a page saves; nothing is written. */
async function catching(page: Page): Promise<() => Promise<{ name: string; content: string }[]>> {
  await page.evaluate(() => {
    const saved: { name: string; content: string }[] = [];
    (window as unknown as { saved: typeof saved }).saved = saved;
    HTMLAnchorElement.prototype.click = function (this: HTMLAnchorElement) {
      saved.push({ name: this.download, content: this.href });
    };
  });
  return async () => {
    const all = await page.evaluate(
      () => (window as unknown as { saved: { name: string; content: string }[] }).saved,
    );
    return all.map(({ name, content }) => {
      assert.match(content, /^data:(image\/svg\+xml|text\/csv);charset=utf-8,/);
      return { name, content: decodeURIComponent(content.slice(content.indexOf(",") + 1)) };
    });
  };
}

test(
  "bars are as long as the means of the data, and dead variants have none",
  { skip: WITHOUT },
  async () => {
    for (const [name, at] of [
      ["experiment", 0],
      ["experiment-axis", 0],
      ["experiment-crossing", 0],
    ] as const) {
      const { page, wrong } = await open(browser, name);
      const { variants } = judged(name, at);
      const means = variants.flatMap((of) => number(object(of["mean"])?.["value"]) ?? []);
      const widths = await page.$eval("figure .drawing svg", (svg) =>
        [...svg.querySelectorAll("rect")].map((rect) => rect.getBoundingClientRect().width),
      );
      assert.equal(widths.length, means.length, name);
      const [most, widest] = [Math.max(...means), Math.max(...widths)];
      means.forEach((mean, place) => {
        assert.ok(Math.abs(widths[place]! / widest - mean / most) < 0.01, `${name}: bar ${place}`);
      });
      assert.deepEqual(wrong, []);
      await page.close();
    }
  },
);

test(
  "the table says median, speed-up, interval and verdict of every variant",
  { skip: WITHOUT },
  async () => {
    const { page, wrong } = await open(browser, "experiment");
    const { variants } = judged("experiment");
    const rows = await page.$eval("table", (table) =>
      [...table.querySelectorAll("tbody tr")].map((row) =>
        [...row.children].map((cell) => cell.textContent ?? ""),
      ),
    );
    assert.deepEqual(
      rows.map(([name]) => name),
      ["never", "madvise", "always"],
    );
    const speed = number(object(variants[1]!["effect"])?.["speed_up"])!;
    assert.equal(rows[1]![2], `${speed.toFixed(2)}×`);
    assert.equal(rows[1]!.at(-1), "faster");
    const titles = await page.$$eval("figure .figure-title", (all) =>
      all.map((one) => one.textContent ?? ""),
    );
    const title = /^chase: 1\.9\d× as fast with madvise .*huge pages where the program requests them/;
    assert.match(titles[0]!, title);
    // The one that got no huge pages has no speed-up, and the page says so first.
    const notice = await page.$eval(".notice", (one) => one.textContent ?? "");
    assert.match(notice, /^no huge pages: 20 trials of madvise, always/);
    const tiny = await page.$$eval("table", (all) => {
      const table = all.find((one) => one.querySelector("caption")?.textContent?.startsWith("tiny by"))!;
      return [...table.querySelectorAll("thead th")].map((cell) => cell.textContent);
    });
    assert.deepEqual(tiny, ["variant", "median", "huge pages", "trials", "verdict"]);
    assert.deepEqual(wrong, []);
    await page.close();
  },
);

test(
  "a crossing has a cell for each variant with its median and its ratio",
  { skip: WITHOUT },
  async () => {
    const { page, wrong } = await open(browser, "experiment-crossing");
    const { variants } = judged("experiment-crossing");
    const cells = await page.evaluate(() => {
      const figures = [...document.querySelectorAll("figure")];
      const map = figures.find((one) => one.textContent?.includes("under all combinations"))!;
      return [...map.querySelectorAll("rect title")].map((one) => one.textContent ?? "");
    });
    assert.equal(cells.length, variants.length);
    for (const of of variants) {
      const name = text(of["variant"])!;
      const speed = number(object(of["effect"])?.["speed_up"]);
      const said = speed === null ? "baseline" : `${speed.toFixed(2)}×`;
      assert.ok(
        cells.some((cell) => cell.startsWith(`${name}: `) && cell.endsWith(said)),
        `${name} ${said}`,
      );
    }
    assert.deepEqual(wrong, []);
    await page.close();
  },
);

test(
  "a map of all variants has a cell for each median, which the keys and the pointer read",
  { skip: WITHOUT },
  async () => {
    const { page, wrong } = await open(browser, "experiment-crossing");
    const { variants } = judged("experiment-crossing");
    const saved = await catching(page);
    const handle = await page.evaluateHandle(
      () =>
        [...document.querySelectorAll("figure")].find((one) =>
          /variants by \d+ measures/.test(one.textContent ?? ""),
        )!,
    );
    const figure = handle.asElement()! as unknown as import("puppeteer-core").ElementHandle<HTMLElement>;
    const cells = await figure.$$eval("rect title", (all) => all.map((one) => one.textContent ?? ""));
    const columns = await figure.$$eval("thead th", (all) => all.length - 1);
    assert.ok(columns >= 2);
    assert.equal(cells.length, variants.length * columns);
    // The first column judges: its ratios are those of the medians, which no effect is needed for.
    const median = (of: Json) => number(of["median"])!;
    variants.forEach((of, at) => {
      const ratio = median(of) / median(variants[0]!);
      const said = at === 0 ? "baseline" : `${ratio.toFixed(2)}×`;
      assert.ok(cells[at * columns]!.endsWith(said), `${cells[at * columns]} ${said}`);
      assert.ok(cells[at * columns]!.startsWith(`${text(of["variant"])}, `), cells[at * columns]);
    });
    // Keys: the first one enters at the first cell, and each arrow goes one on.
    const readout = () => figure.$eval(".readout", (one) => one.textContent ?? "");
    await (await figure.$(".drawing"))!.focus();
    await page.keyboard.press("ArrowDown");
    assert.equal(await readout(), cells[0]);
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowRight");
    assert.equal(await readout(), cells[columns + 1]);
    assert.equal(await figure.$$eval("rect.chosen", (all) => all.length), 1);
    const third = (await figure.$$("rect:has(> title)"))[2 * columns]!;
    await third.hover();
    await frames(page);
    assert.equal(await readout(), cells[2 * columns]);
    for (const tool of await figure.$$(".plot-tools button"))
      await tool.evaluate((one) => (one as HTMLElement).click());
    const [drawing, rows] = await saved();
    assert.equal(drawing!.content.match(/<title>/g)!.length, cells.length);
    assert.equal(rows!.content.trimEnd().split("\n").length, 1 + cells.length);
    assert.deepEqual(wrong, []);
    await page.close();
  },
);

test("an axis shows several measures, and where the program dies", { skip: WITHOUT }, async () => {
  const { page, wrong } = await open(browser, "experiment-axis");
  const words = await page.evaluate(() => {
    const figure = [...document.querySelectorAll("figure")].find((one) =>
      one.textContent?.includes("for at most 5 % loss"),
    )!;
    return [...figure.querySelectorAll("svg text")].map((one) => one.textContent ?? "");
  });
  assert.ok(
    words.some((word) => word.startsWith("time: 100 % is ")),
    words.join(),
  );
  assert.ok(
    words.some((word) => word.startsWith("major faults: 100 % is ")),
    words.join(),
  );
  assert.ok(
    words.some((word) => word.startsWith("need ")) && words.some((word) => word.startsWith("knee ")),
    words.join(),
  );
  assert.ok(words.includes("✕ out of memory") && words.includes("256M"), words.join());
  assert.deepEqual(wrong, []);
  await page.close();
});

test(
  "charts are saved as SVG and CSV, and nothing of the policy is touched",
  { skip: WITHOUT },
  async () => {
    const { page, wrong } = await open(browser, "experiment");
    const saved = await catching(page);
    for (const button of (await page.$$("figure .plot-tools button")).slice(0, 2)) await button.click();
    const [drawing, table] = await saved();
    assert.deepEqual([drawing!.name, table!.name], ["chase-merit.svg", "chase-merit.csv"]);
    assert.ok(drawing!.content.startsWith('<?xml version="1.0"') && !drawing!.content.includes("var("));
    const { variants } = judged("experiment");
    const rows = table!.content.trimEnd().split("\n");
    assert.equal(rows[0], "workload,measure,unit,variant,mean,low,high,note");
    variants.forEach((of, at) => {
      const mean = number(object(of["mean"])?.["value"])!;
      assert.ok(rows[at + 1]!.startsWith(`chase,merit,ns,${text(of["variant"])},${mean},`), rows[at + 1]);
    });
    assert.deepEqual(wrong, []);
    await page.close();
    // The file is drawn by itself, as an image.
    const empty = await browser.newPage();
    const size = await empty.evaluate(async (svg) => {
      const image = new Image();
      image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
      await image.decode();
      return [image.naturalWidth, image.naturalHeight];
    }, drawing!.content);
    assert.ok(size[0] === 900 && size[1]! > 60, String(size));
    await empty.close();
  },
);

test(
  "all measures are shown on request, absent ones with their reason",
  { skip: WITHOUT },
  async () => {
    const { page, wrong } = await open(browser, "experiment");
    await page.evaluate(() =>
      document.querySelectorAll("details").forEach((one) => {
        if (one.textContent?.startsWith("chase: 4 more")) one.open = true;
      }),
    );
    await frames(page);
    const found = await page.evaluate(() => {
      const place = [...document.querySelectorAll("details")].find((one) =>
        one.textContent?.startsWith("chase: 4 more"),
      )!;
      return { figures: place.querySelectorAll("figure").length, text: place.textContent ?? "" };
    });
    assert.equal(found.figures, 4);
    assert.match(found.text, /dTLB-load-missesperf_event_open: this VM has no PMU/);
    assert.deepEqual(wrong, []);
    await page.close();
  },
);
