// What the page says under the pointer and the cursor, against the data read without the page's program.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import type { Browser, ElementHandle, Page } from "puppeteer-core";

import type { Census, CensusZone, Json } from "../../src/data";
import * as format from "../../src/format";
import { frameAt, numberAt } from "../../src/pixel_path";
import { data, frames, WITHOUT, launch, open, values } from "./harness";

let browser: Browser;
let close: () => Promise<void> = async () => {};
before(async () => {
  if (WITHOUT === false) ({ browser, close } = await launch());
});
after(() => close());

const readout = (inside: ElementHandle) =>
  inside.evaluate((one) => one.closest("figure")?.querySelector("output")?.textContent ?? "");

/** The words of a block, made from the data alone. */
function expected(
  census: Census,
  zone: CensusZone,
  index: number[],
  counts: number[],
  block: number,
): RegExp {
  const place = index.indexOf(block);
  const pfn = zone.first_pfn + block * census.block_pages;
  const address = `0x${(pfn * census.page_bytes).toString(16)}`;
  const start = `block ${block} · PFN ${pfn} to ${pfn + census.block_pages - 1} · ${address} `;
  if (place < 0) return new RegExp(`^${escape(start)}.*no memory$`);
  const pages = zone.classes
    .map((one, which) => ({ words: one.words, sum: counts[which * index.length + place]! }))
    .filter(({ sum }) => sum > 0)
    .sort((a, b) => b.sum - a.sum);
  const list = pages.map(({ words, sum }) => `${words} ${format.count(sum)}`).join(", ");
  return new RegExp(`^${escape(start)}.* · pages: ${escape(list)}$`);
}

function escape(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}

test(
  "the picture of pageblocks says the counts of the data, by pointer and by keyboard",
  { skip: WITHOUT },
  async () => {
    for (const name of ["fragmented", "sampled", "live"]) {
      const census = data(name).runs[0]!.census;
      if (census === null) continue;
      const { page, wrong } = await open(browser, name);
      const maps = await page.$$(".map canvas");
      assert.equal(maps.length, census.zones.length);
      for (const [at, zone] of census.zones.entries()) {
        const map = maps[at]!;
        const [index, counts] = [values(name, zone.index), values(name, zone.counts)];
        await map.focus();
        let block = -1;
        for (const [key, times] of [
          ["ArrowRight", 1],
          ["ArrowRight", 3],
          ["ArrowDown", 2],
          ["ArrowLeft", 1],
          ["End", 1],
          ["Home", 1],
        ] as const) {
          for (let press = 0; press < times; press++) await page.keyboard.press(key);
          const said = await readout(map);
          block = Number(/^block (\d+)/.exec(said)?.[1] ?? -1);
          if (block >= 0) assert.match(said, expected(census, zone, index, counts, block), name);
        }
        assert.ok(block >= 0, `${name}: the cursor is nowhere`);
        await pointAt(page, map, async (said) => {
          const under = Number(/^block (\d+)/.exec(said)?.[1] ?? -1);
          if (under >= 0) assert.match(said, expected(census, zone, index, counts, under), name);
          return under;
        });
      }
      assert.deepEqual(wrong, [], name);
      await page.close();
    }
  },
);

/** Points at places all over a canvas; at least two blocks must be found. */
async function pointAt(
  page: Page,
  map: ElementHandle<Element>,
  check: (said: string) => Promise<number>,
): Promise<void> {
  await map.scrollIntoView();
  const box = (await map.boundingBox())!;
  const found = new Set<number>();
  for (let step = 0; step < 24; step++) {
    await page.mouse.move(
      box.x + 70 + ((box.width - 72) * ((step * 7) % 24)) / 24,
      box.y + 2 + ((box.height - 4) * step) / 24,
    );
    found.add(await check(await readout(map)));
  }
  found.delete(-1);
  assert.ok(found.size >= 2, `the pointer found ${[...found].join(" ")}`);
}

test("the kinds of blocks add up to the supply of huge pages", { skip: WITHOUT }, async () => {
  for (const name of ["fragmented", "large", "live"]) {
    const run = data(name).runs[0]!;
    const supply = run.checkup?.["supply"] as Json | null;
    if (run.census === null || run.census.sample !== null || supply === null) continue;
    const { page } = await open(browser, name);
    const kinds = await page.$$eval(".kind", (all) =>
      all.map((one) => ({
        words: one.querySelector(".kind-words")!.textContent!,
        blocks: Number(one.querySelector(".kind-count")!.textContent!.split("·")[0]!.replace(/\D/g, "")),
      })),
    );
    const sum = (start: string) =>
      kinds.filter(({ words }) => words.startsWith(start)).reduce((all, { blocks }) => all + blocks, 0);
    const total = supply["total"] as Json;
    const middle = (of: unknown) => (of as Json)["value"] as number;
    const interval = total["polluted"] as Json;
    assert.equal(sum("polluted"), middle(interval["low"]), `${name}: polluted`);
    assert.equal(sum("polluted") + sum("possibly"), middle(interval["high"]), `${name}: possibly polluted`);
    assert.equal(sum("free, available"), middle(total["free_now"]), `${name}: free`);
    assert.equal(sum("free, not"), middle(total["deferred"]), `${name}: deferred`);
    assert.equal(sum("huge page"), middle(total["in_use"]), `${name}: in use`);
    assert.equal(
      kinds.reduce((all, { blocks }) => all + blocks, 0) - sum("no memory"),
      middle(total["units"]),
      `${name}: units`,
    );
    await page.close();
  }
});

test("supply and probe are told in the document's numbers", { skip: WITHOUT }, async () => {
  for (const name of ["fragmented", "sampled", "live"]) {
    const checkup = data(name).runs[0]!.checkup!;
    const { page } = await open(browser, name);
    const text = (await page.$eval("#report", (report) => report.textContent!)).replace(/\s+/g, " ");
    const total = (checkup["supply"] as Json | null)?.["total"] as Json | undefined;
    if (total !== undefined) {
      const most = ((total["after_compaction"] as Json)["high"] as Json)["value"] as number;
      const said = `at most ~?${format.count(most)} after compaction`.replace(/\s/g, "\\s");
      assert.match(text, new RegExp(said));
    }
    const huge = (checkup["probe"] as Json | null)?.["huge_pages"] as Json | null | undefined;
    if (huge) {
      const median = format.nanoseconds(huge["latency_ns_median"] as number);
      assert.ok(text.includes(`A request took ${median} at the median`.replace(/\s+/g, " ")), name);
    }
    await page.close();
  }
});

test("each of several runs is headed and linked by the name of its file", { skip: WITHOUT }, async () => {
  const { page } = await open(browser, "several");
  const names = data("several").runs.map((run) => run.name);
  const of = (selector: string) =>
    page.$$eval(selector, (all) => all.map((one) => one.textContent ?? one.getAttribute("aria-label")!));
  const headings = await of("article.run > h2");
  const links = await of("nav.runs a");
  const parts = await page.$$eval("nav.parts", (all) => all.map((one) => one.getAttribute("aria-label")!));
  assert.equal(new Set(names).size, names.length);
  names.forEach((name, at) => {
    for (const words of [headings[at]!, links[at]!, parts[at]!]) assert.ok(words.includes(name));
  });
  const killed = await page.$eval("#run-2", (run) => run.textContent!);
  assert.match(killed, /Records may be in .*-wal, which belongs/);
  await page.close();
});

test("the table of free blocks is that of the document", { skip: WITHOUT }, async () => {
  const zones = (data("fragmented").runs[0]!.checkup!["fragmentation"] as Json)["zones"] as Json[];
  const { page } = await open(browser, "fragmented");
  const tables = await page.$$eval(".orders-chart ~ details table", (all) =>
    all.map((table) =>
      [...table.querySelectorAll("tbody tr")].map((row) =>
        [...row.children].map((cell) => cell.textContent!),
      ),
    ),
  );
  assert.equal(tables.length, zones.length);
  zones.forEach((zone, at) => {
    const counts = zone["free_blocks"] as number[];
    const index = zone["unusable_index"] as number[];
    assert.deepEqual(
      tables[at]!.map((row) => row[2]),
      counts.map((count) => format.count(count)),
    );
    assert.deepEqual(
      tables[at]!.map((row) => row[4]),
      index.map((one) => format.index(one)),
    );
  });
  await page.close();
});

/** The chart of all columns of a series, which is made on request. */
async function unfold(page: Page, series: string): Promise<ElementHandle> {
  await page.$eval(`details[data-series=${series}]`, (one) => {
    (one as HTMLDetailsElement).open = true;
  });
  const figure = await page.waitForSelector(`details[data-series=${series}] > figure .plot canvas`);
  await frames(page);
  return (await figure!.evaluateHandle((one) => one.closest("figure")!)) as ElementHandle;
}

/** The chart whose title begins like this. */
async function titled(page: Page, start: string): Promise<ElementHandle> {
  for (const figure of await page.$$("figure")) {
    const title = await figure.$eval(".figure-title", (one) => one.textContent ?? "");
    if (title.startsWith(start)) return figure;
  }
  throw new Error(`no chart is called ${start}…`);
}

test("charts of a recording say the derived values, and share one window", { skip: WITHOUT }, async () => {
  const { page, wrong } = await open(browser, "recording");
  const run = data("recording").runs[0]!;
  const column = (series: string, name: string) => {
    const all = run.derived.filter((one) => one.name === series);
    const found = all.map(({ columns }) => columns.find((one) => one.name === name)!);
    const at = found.flatMap((one) => values("recording", one.at_s!));
    return { at, values: found.flatMap((one) => values("recording", one.values!)) };
  };
  const wanted = column("unusable_index", "0/Normal/9");
  const [low, high] = [Math.min(...wanted.values), Math.max(...wanted.values)];
  const index = (permille: number) => format.index(permille / 1000);
  const figure = await titled(page, "F_u in node 0, zone Normal");
  const title = await figure.$eval(".figure-title", (one) => one.textContent);
  assert.equal(
    title,
    `F_u in node 0, zone Normal, 2 MiB blocks: ${index(low)} to ${index(high)}, ` +
      `at the end ${index(wanted.values.at(-1)!)}`,
  );
  await titled(page, "F_u in node 0, zone Movable: nothing was free");
  const plot = (await figure.$(".plot"))!;
  await plot.scrollIntoView();
  await plot.focus();
  await page.keyboard.press("End");
  for (let step = 0; step < 5; step++) {
    await page.keyboard.press("ArrowLeft");
    const said = await readout(plot);
    const time = Number(/^at ([\d.]+) s/.exec(said.replace(/\u202f/g, ""))?.[1] ?? NaN);
    const place = wanted.at.findIndex((one) => Math.abs(one - time) < 1e-6);
    assert.ok(place >= 0 && said.includes(`order 9 (2M) ${index(wanted.values[place]!)}`), said);
  }
  // The areas say the parts themselves, not where they are drawn, at the moment that is pointed at elsewhere.
  const used = await titled(page, "Use of 25 GiB of memory");
  const said = await readout((await used.$(".plot"))!);
  const [free, cache] = [column("use", "free"), column("use", "page_cache")];
  const time = Number(/^at ([\d.]+) s/.exec(said.replace(/\u202f/g, ""))?.[1] ?? NaN);
  const place = free.at.findIndex((one) => Math.abs(one - time) < 1e-6);
  const parts = [free, cache].map((one) => format.bytes(one.values[place]!));
  assert.ok(said.includes(`free ${parts[0]} · page cache ${parts[1]}`), said);
  await plot.focus();
  await page.keyboard.press("+");
  await frames(page);
  const zoomed = (of: ElementHandle) => of.$eval(".zoomed", (one) => one.textContent!);
  assert.notEqual(await zoomed(figure), "");
  for (const start of ["Free memory by size", "Use of", "Pressure", "Compaction"]) {
    const other = await titled(page, start);
    await other.scrollIntoView();
    await frames(page);
    assert.equal(await zoomed(other), await zoomed(figure), start);
  }
  await plot.focus();
  await page.keyboard.press("0");
  await frames(page);
  assert.equal(await zoomed(figure), "");
  // Orders are chosen like any other lines.
  await figure.$eval("details", (one) => {
    (one as HTMLDetailsElement).open = true;
  });
  const lines = () => figure.$$eval(".lines li:not(.unit)", (all) => all.map((one) => one.textContent!));
  assert.deepEqual(await lines(), ["order 3 (32K)", "order 6 (256K)", "order 9 (2M)", "order 10 (4M)"]);
  await figure.$$eval("label", (all) => {
    all.find((one) => one.textContent!.trim() === "order 5 (128K)")!.click();
  });
  assert.equal((await lines()).length, 5);
  assert.deepEqual(wrong, []);
  await page.close();
});

test(
  "the cursor of a chart says the readings, and zooming shows a part and all again",
  { skip: WITHOUT },
  async () => {
    const { page, wrong } = await open(browser, "recorded");
    const series = data("recorded").runs[0]!.series[0]!;
    const plot = (await (await unfold(page, "meminfo")).$(".plot"))!;
    const columns = series.columns.filter((column) => column.values !== null);
    const at = values("recorded", columns[0]!.at_s!);
    const read = columns.map((column) => values("recorded", column.values!));
    const check = async () => {
      const said = await readout(plot);
      const time = Number(/^at ([\d.]+) s/.exec(said.replace(/\u202f/g, ""))?.[1] ?? NaN);
      const place = at.findIndex((one) => Math.abs(one - time) < 1e-6);
      assert.ok(place >= 0, said);
      const wanted = columns.map(
        (column, which) => `${column.name} ${format.value(read[which]![place]!, column.unit)}`,
      );
      assert.ok(said.includes(wanted.join(" · ")), `${said} / ${wanted.join(" · ")}`);
      return place;
    };
    await plot.scrollIntoView();
    const over = (await (await plot.$(".u-over"))!.boundingBox())!;
    const places = new Set<number>();
    for (let step = 1; step < 12; step++) {
      await page.mouse.move(over.x + (over.width * step) / 12, over.y + 40);
      places.add(await check());
    }
    assert.equal(places.size, 11);

    const zoomed = () =>
      plot.evaluate((one) => one.closest("figure")!.querySelector(".zoomed")!.textContent!);
    assert.equal(await zoomed(), "");
    await page.mouse.move(over.x + over.width * 0.25, over.y + 60);
    await page.mouse.down();
    await page.mouse.move(over.x + over.width * 0.5, over.y + 60, { steps: 5 });
    await page.mouse.up();
    await frames(page);
    const [from, to] = (await zoomed()).split(" to ").map(parseFloat) as [number, number];
    assert.ok(Math.abs(from - 150) < 3 && Math.abs(to - 300) < 3, `${from} to ${to}`);

    await plot.focus();
    for (const key of ["ArrowRight", "ArrowRight", "ArrowLeft"]) {
      await page.keyboard.press(key);
      await check();
    }
    const before = await zoomed();
    await page.keyboard.press("+");
    await page.keyboard.down("Shift");
    await page.keyboard.press("ArrowRight");
    await page.keyboard.up("Shift");
    await frames(page);
    assert.notEqual(await zoomed(), before);
    await page.keyboard.press("Escape");
    await frames(page);
    assert.equal(await zoomed(), "");
    assert.deepEqual(wrong, []);
    await page.close();
  },
);

test("columns are chosen by one unit, and events are said", { skip: WITHOUT }, async () => {
  const { page, wrong } = await open(browser, "recorded");
  const figure = await unfold(page, "vmstat");
  await figure.$eval("details", (one) => {
    one.open = true;
  });
  const lines = () => figure.$$eval(".lines li:not(.unit)", (all) => all.map((one) => one.textContent!));
  const unit = () => figure.$eval(".lines .unit", (one) => one.textContent!);
  assert.deepEqual([(await lines()).length, await unit()], [4, "pages"]);
  const tick = (name: string) =>
    figure.$$eval(
      "label",
      (all, wanted) => {
        all.find((one) => one.textContent!.trim() === wanted)!.click();
      },
      name,
    );
  await tick("pgfault");
  assert.deepEqual([await lines(), await unit()], [["pgfault"], "per second"]);
  await tick("compact_stall");
  assert.deepEqual(await lines(), ["pgfault", "compact_stall"]);
  await tick("nr_gauge_3");
  assert.deepEqual([await lines(), await unit()], [["nr_gauge_3"], "pages"]);
  await figure.$eval("input[type=search]", (one) => {
    one.value = "thp";
    one.dispatchEvent(new Event("input"));
  });
  assert.deepEqual(
    await figure.$$eval(".columns li:not([hidden])", (all) => all.map((one) => one.textContent!.trim())),
    ["thp_fault_alloc", "thp_fault_fallback"],
  );
  const events = await page.$$eval("table", (all) =>
    all.map((one) => one.textContent!).find((one) => one.startsWith("Events")),
  );
  for (const { kind, text } of data("recorded").runs[0]!.events) {
    assert.ok(events?.includes(kind) && events.includes(text), kind);
  }
  assert.deepEqual(wrong, []);
  await page.close();
});

test("a page of more than a million values says how they are shown", { skip: WITHOUT }, async () => {
  const run = data("decimated").runs[0]!;
  const { page, wrong } = await open(browser, "decimated");
  const sources = await page.$$eval("figcaption", (all) => all.map((one) => one.textContent!));
  const shortened = /Of 600\u202f000 readings, this page has the minimum and maximum of each stretch/;
  assert.match(sources[0]!, shortened);
  // The smaller one fits into its share and is whole.
  assert.doesNotMatch(sources[1]!, /the minimum and maximum/);
  const shown =
    run.series[0]!.columns.reduce((sum, column) => sum + (column.values?.length ?? 0), 0) +
    run.streams.reduce((sum, stream) => sum + stream.values.length, 0);
  assert.ok(shown <= 1_000_000 && shown > 900_000, `${shown} values`);
  assert.deepEqual(wrong, []);
  await page.close();
});

test(
  "a slider goes through the maps of a recording, with pixels and legend of the data",
  { skip: WITHOUT },
  async () => {
    const maps = data("maps").runs[0]!.maps!;
    const { page, wrong } = await open(browser, "maps", { width: 360 });
    const look = () =>
      page.evaluate(() => {
        const canvas = document.querySelector<HTMLCanvasElement>(".picture canvas")!;
        // A copy, since a browser warns of canvases that are read again and again.
        const copy = document.createElement("canvas");
        [copy.width, copy.height] = [canvas.width, canvas.height];
        const context = copy.getContext("2d")!;
        context.drawImage(canvas, 0, 0);
        const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
        return {
          pixels: [...data],
          when: document.querySelector(".map-when")!.textContent ?? "",
          legend: [...canvas.closest("figure")!.querySelectorAll(".kind")].map(
            (one) => one.textContent ?? "",
          ),
          zones: [...document.querySelectorAll(".zone-band")].map((one) => one.textContent ?? ""),
        };
      });
    const check = async (at: number) => {
      const map = maps.shown[at]!;
      const layout = maps.layouts[map.layout]!;
      const cells = values("maps", map.cells);
      const { pixels, when, legend, zones } = await look();
      assert.deepEqual(
        pixels,
        cells.flatMap((cell) => (cell === 255 ? [0, 0, 0, 0] : [...maps.legend[cell]!.colour, 255])),
      );
      assert.ok(when.startsWith(`${format.nanoseconds(map.at_ns)} after the start`), when);
      assert.deepEqual(
        legend,
        maps.legend.flatMap(({ label, letter }, index) => {
          const amount = format.bytes(map.pages[index]! * layout.page_size_bytes);
          return map.pages[index] === 0 ? [] : [`${letter.trim() || "blank"}  ${label}${amount}`];
        }),
      );
      assert.deepEqual(zones.sort(), layout.zones.map(({ name }) => name).sort());
    };
    await check(0);
    await page.focus(".map-time input");
    for (const [key, at] of [
      ["ArrowRight", 1],
      ["End", maps.shown.length - 1],
      ["ArrowLeft", maps.shown.length - 2],
      ["Home", 0],
    ] as const) {
      await page.keyboard.press(key);
      await check(at);
    }
    // The cursor stays at its pixel while time advances.
    await page.focus(".picture canvas");
    for (const key of ["ArrowDown", "ArrowDown", "ArrowRight"]) await page.keyboard.press(key);
    const said = () => page.$eval(".readout:has(+ .picture)", (one) => one.textContent ?? "");
    for (const at of [0, 1]) {
      const { layout, cells } = maps.shown[at]!;
      const { pages_per_pixel, width, extents } = maps.layouts[layout]!;
      const frame = extents[0]!.first_frame + (width + 1) * pages_per_pixel;
      const { label } = maps.legend[values("maps", cells)[width + 1]!]!;
      const until = frame + pages_per_pixel - 1;
      const start = `frames ${frame} to ${until} · ${format.address(frame * 4096)} · ${label} `;
      assert.ok((await said()).startsWith(start), `${await said()} / ${start}`);
      await page.focus(".map-time input");
      await page.keyboard.press("ArrowRight");
    }
    assert.deepEqual(wrong, []);
    await page.close();
  },
);

test(
  "the page of a picture says the frame under the cursor, whatever the order of pixels",
  { skip: WITHOUT },
  async () => {
    for (const name of ["picture", "picture-hilbert", "picture-tiles"]) {
      const picture = data(name).picture!;
      const { page, wrong } = await open(browser, name);
      await page.focus(".picture canvas");
      // In rows a pixel's number is its place: the same map in rows says what each pixel of another order
      // shows.
      const cells = values(name, picture.cells);
      const inRows = values("picture", data("picture").picture!.cells);
      for (let at = 0; at < cells.length; at++) {
        const number = numberAt(picture, at % picture.width, Math.floor(at / picture.width));
        assert.equal(cells[at], inRows[number] ?? 255, `${name}: pixel ${at} is number ${number}`);
      }
      let [x, y] = [0, 0];
      for (const [key, right, down] of [
        ["ArrowRight", 0, 0],
        ["ArrowRight", 1, 0],
        ["ArrowDown", 0, 1],
        ["PageDown", 0, 64],
        ["ArrowLeft", -1, 0],
      ] as const) {
        await page.keyboard.press(key);
        [x, y] = [x + right, y + down];
        const number = numberAt(picture, x, y);
        const frame = frameAt(picture.extents, number * picture.pages_per_pixel)!;
        const { label } = picture.legend[cells[y * picture.width + x]!]!;
        const said = await page.$eval("output.readout", (one) => one.textContent ?? "");
        assert.ok(said.startsWith(`frames ${frame} to `), `${name}: ${said}`);
        assert.ok(said.includes(` · ${label} (`), `${name}: ${said}`);
      }
      assert.equal((await page.$$(".zone-band")).length, picture.pixel_layout === "hilbert" ? 0 : 2, name);
      assert.deepEqual(wrong, [], name);
      await page.close();
    }
  },
);
