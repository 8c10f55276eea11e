// Every page: quiet, alone, drawn, readable at phone width and by keyboard, and not to be hurt by names.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import type { Browser, Page } from "puppeteer-core";

import { data, frames, WITHOUT, launch, open, pageNames } from "./harness";

const ALL = [
  "live",
  "fragmented",
  "healthy",
  "sampled",
  "nothing",
  "large",
  "recorded",
  "recording",
  "imported",
  "several",
  "no-runs",
  "hostile",
  "maps",
  "maps-several",
  "picture",
  "picture-hilbert",
  "picture-tiles",
  "million",
  "decimated",
  "experiment",
  "experiment-crossing",
  "experiment-axis",
  "sim",
  "sim-nothing",
  "sim-hostile",
  "sim-wide",
  "sim-large",
  "demo",
];

let browser: Browser;
let close: () => Promise<void> = async () => {};
before(async () => {
  if (WITHOUT === false) ({ browser, close } = await launch());
});
after(() => close());

/** What is drawn on each canvas: pixels that are not empty, and colours. */
async function canvases(page: Page): Promise<{ label: string; drawn: number; colours: number }[]> {
  return page.evaluate(() =>
    [...document.querySelectorAll("canvas")].map((canvas) => {
      const label =
        canvas.getAttribute("aria-label") ?? canvas.closest("[aria-label]")?.getAttribute("aria-label") ?? "";
      const context = canvas.getContext("2d");
      if (context === null || canvas.width === 0 || canvas.height === 0)
        return { label, drawn: 0, colours: 0 };
      const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
      const colours = new Set<number>();
      let drawn = 0;
      for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3]! === 0) continue;
        drawn += 1;
        colours.add((data[at]! << 16) | (data[at + 1]! << 8) | data[at + 2]!);
      }
      return { label, drawn, colours: colours.size };
    }),
  );
}

for (const theme of ["light", "dark"] as const) {
  test(`every page is quiet, makes no request and is drawn: ${theme}`, { skip: WITHOUT }, async () => {
    for (const name of pageNames(ALL)) {
      const { page, wrong } = await open(browser, name, { theme });
      const drawn = await canvases(page);
      const runs = data(name).runs;
      const maps = runs.reduce((sum, run) => sum + (run.census?.zones.length ?? 0), 0);
      const told = ["buddyinfo", "meminfo", "vmstat", "pressure"];
      const charts = runs.reduce(
        (sum, run) => sum + run.series.filter((series) => !told.includes(series.name)).length,
        0,
      );
      assert.ok(
        drawn.length >= maps + charts,
        `${name}: ${drawn.length} canvases for ${maps} maps, ${charts} series`,
      );
      for (const { label, drawn: pixels, colours } of drawn) {
        assert.ok(pixels > 100 && colours > 1, `${name}: ${label}: ${pixels} pixels, ${colours} colours`);
      }
      assert.deepEqual(wrong, [], name);
      await page.close();
    }
  });
}

test(
  "at 360 pixels nothing makes the page scroll sideways, whatever is unfolded",
  { skip: WITHOUT },
  async () => {
    for (const name of pageNames(ALL)) {
      const { page } = await open(browser, name, { width: 360 });
      const folded = await page.evaluate(() => document.documentElement.scrollWidth);
      // What is made when it is unfolded has parts to unfold too.
      for (let depth = 0; depth < 2; depth++) {
        await page.evaluate(() =>
          document.querySelectorAll("details").forEach((one) => {
            one.open = true;
          }),
        );
        await frames(page);
      }
      const unfolded = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.deepEqual([folded, unfolded], [360, 360], name);
      await page.close();
    }
  },
);

test(
  "headings go down step by step, and every chart has a title and a source",
  { skip: WITHOUT },
  async () => {
    for (const name of pageNames(ALL)) {
      const { page } = await open(browser, name);
      const found = await page.evaluate(() => ({
        ranks: [...document.querySelectorAll("main :is(h1, h2, h3, h4, h5, h6)")].map((one) =>
          Number(one.tagName[1]),
        ),
        figures: [...document.querySelectorAll("figure")].map((one) => ({
          title: document.getElementById(one.getAttribute("aria-labelledby") ?? "")?.textContent ?? "",
          source: one.querySelector("figcaption")?.textContent ?? "",
        })),
        nameless: [
          ...document.querySelectorAll(
            "button, canvas:not([aria-hidden]), [role=region], [role=group], nav, input, select, summary",
          ),
        ]
          .filter(
            (one) =>
              !(one.getAttribute("aria-label") ?? "") &&
              (one.textContent ?? "").trim() === "" &&
              (one as HTMLInputElement).labels?.length !== 1,
          )
          .map((one) => one.outerHTML.slice(0, 100)),
        ids: [...document.querySelectorAll("[id]")].map((one) => one.id),
      }));
      assert.equal(found.ranks.filter((rank) => rank === 1).length, 1, `${name}: one first heading`);
      found.ranks.forEach((rank, at) => {
        assert.ok(rank <= (found.ranks[at - 1] ?? 0) + 1, `${name}: heading ${at} leaps to rank ${rank}`);
      });
      for (const { title, source } of found.figures) {
        assert.ok(title.length > 10 && source.startsWith("Source: "), `${name}: ${title} / ${source}`);
      }
      assert.deepEqual(found.nameless, [], name);
      assert.equal(new Set(found.ids).size, found.ids.length, `${name}: an id stands twice`);
      await page.close();
    }
  },
);

test(
  "the keyboard goes through the page in the order of reading, and the focus is seen",
  { skip: WITHOUT },
  async () => {
    for (const name of ["fragmented", "recorded", "recording", "picture"]) {
      const { page } = await open(browser, name);
      const seen: string[] = [];
      for (let step = 0; step < 60; step++) {
        await page.keyboard.press("Tab");
        const at = await page.evaluate(() => {
          const now = document.activeElement;
          if (now === null || now === document.body) return null;
          const before = (window as unknown as { before?: Element }).before;
          (window as unknown as { before?: Element }).before = now;
          const style = getComputedStyle(now);
          return {
            what: `${now.tagName} ${now.textContent?.slice(0, 30)}`,
            follows:
              before === undefined ||
              (before.compareDocumentPosition(now) & Node.DOCUMENT_POSITION_FOLLOWING) > 0,
            outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
          };
        });
        if (at === null) break;
        assert.ok(at.follows && at.outlined, `${name}: ${JSON.stringify(at)}`);
        seen.push(at.what);
      }
      assert.match(seen[0] ?? "", /^A To the report/);
      for (const tag of ["CANVAS", "BUTTON", "SUMMARY"]) {
        if (tag === "CANVAS" && name.startsWith("record")) continue;
        assert.ok(
          seen.some((one) => one.startsWith(tag)),
          `${name}: the keyboard does not reach a ${tag}`,
        );
      }
      await page.close();
    }
  },
);

test("names that strangers choose stay text", { skip: WITHOUT }, async () => {
  for (const scripts of [true, false]) {
    const { page, wrong } = await open(browser, "hostile", { scripts });
    const found = await page
      .evaluate(() => ({
        elements: [
          ...document.querySelectorAll(
            "img, iframe, object, embed, form, base, link:not([rel=icon]), video, [onerror]",
          ),
        ].map((one) => one.outerHTML),
        links: [...document.querySelectorAll("a")]
          .map((one) => one.getAttribute("href") ?? "")
          .filter((href) => !href.startsWith("#")),
        scripts: [...document.querySelectorAll("script")].filter((one) => one.type === "").length,
        unseen: (document.documentElement.outerHTML.match(/[\u001b\u202e]/g) ?? []).length,
        text: (document.body.innerText.match(/<script>alert\(1\)<\/script>/g) ?? []).length,
      }))
      .catch(() => null);
    // Without scripts the page itself cannot be asked in the same way; its elements are counted from outside.
    if (found === null || !scripts) {
      assert.equal((await page.$$("img, iframe, object, embed, form, base, [onerror]")).length, 0);
    } else {
      assert.deepEqual(found.elements, []);
      assert.deepEqual(found.links, []);
      assert.equal(found.scripts, 1);
      assert.equal(found.unseen, 0);
      assert.ok(found.text > 10, `${found.text} times as text`);
    }
    assert.deepEqual(wrong, []);
    await page.close();
  }
});

test("without scripts the page is the terminal's text", { skip: WITHOUT }, async () => {
  const { page, wrong } = await open(browser, "fragmented", { scripts: false });
  const handle = await page.$("noscript pre");
  const text = await handle?.evaluate((one) => one.textContent ?? "");
  assert.equal(text?.trimEnd(), data("fragmented").runs[0]!.text.trimEnd());
  const box = await handle?.boundingBox();
  assert.ok(box !== null && box !== undefined && box.height > 500, "it is seen");
  assert.deepEqual(wrong, []);
  await page.close();
});

test("the theme can be chosen, canvases follow it, and paper is light", { skip: WITHOUT }, async () => {
  const { page, wrong } = await open(browser, "sampled", { theme: "light" });
  const look = () =>
    page.evaluate(() => ({
      ground: getComputedStyle(document.body).backgroundColor,
      first: document.querySelector("canvas")!.toDataURL(),
    }));
  const light = await look();
  await page.click("button.theme");
  await frames(page);
  const dark = await look();
  assert.notEqual(light.ground, dark.ground);
  assert.notEqual(light.first, dark.first);
  await page.emulateMediaType("print");
  await frames(page);
  const paper = await look();
  assert.equal(paper.ground, "rgb(255, 255, 255)");
  assert.equal(paper.first, light.first);
  await page.emulateMediaType("screen");
  await page.click("button.theme");
  await frames(page);
  assert.deepEqual(await look(), light);
  assert.deepEqual(wrong, []);
  await page.close();
});
