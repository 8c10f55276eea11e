// Charts of experiments as shapes and as files, axes and crossings of settings, tables.

import assert from "node:assert/strict";
import { test } from "node:test";

import { axes, findFactorial, numeric, type Variant } from "../../src/factorial";
import { csv, fileName } from "../../src/download";
import {
  type Bar,
  bars,
  heat,
  lines,
  marks,
  PAPER,
  type Shape,
  spread,
  strength,
  toText,
} from "../../src/drawing";

function variant(name: string, settings: Record<string, string>): Variant {
  return { name, settings: new Map(Object.entries(settings)) };
}

function all(of: Shape, tag: Shape["tag"]): Shape[] {
  const inside = of.children.flatMap((child) => (typeof child === "string" ? [] : all(child, tag)));
  return of.tag === tag ? [of, ...inside] : inside;
}

const bar = (
  label: string,
  value: number | null,
  low: number | null = null,
  high: number | null = null,
): Bar => ({
  label,
  value,
  low,
  high,
  isBaseline: false,
  note: "",
});

test("marks of an axis are few, even and within it", () => {
  for (const [most, unit, wanted] of [
    [2.1e9, "ns", [0, 1e9, 2e9]],
    [100, "count", [0, 25, 50, 75, 100]],
    [3 * 2 ** 30, "bytes", [0, 2 ** 30, 2 ** 31, 3 * 2 ** 30]],
    [0, "count", [0]],
    [NaN, "count", [0]],
  ] as const) {
    assert.deepEqual(marks(most, unit), [...wanted], `${most} ${unit}`);
  }
  for (let power = -3; power < 15; power += 0.37) {
    const found = marks(10 ** power, "count");
    assert.ok(
      found.length >= 3 && found.length <= 6 && found.at(-1)! <= 10 ** power * 1.001,
      String(found),
    );
  }
});

test("bars are as long as their values, and intervals lie where they belong", () => {
  const chart = { title: "t", unit: "count", bars: [bar("a", 100, 80, 120), bar("b", 60), bar("c", null)] };
  for (const width of [320, 900]) {
    const drawn = bars(chart, width, PAPER);
    const [a, b] = all(drawn, "rect").map(({ attributes }) => Number(attributes["width"]));
    assert.ok(Math.abs(b! / a! - 0.6) < 0.001, `${a} ${b}`);
    const start = Number(all(drawn, "rect")[0]!.attributes["x"]);
    const whisker = all(drawn, "line").find(({ attributes }) => attributes["stroke"] === PAPER.ink)!;
    const [low, high] = ["x1", "x2"].map((end) => Number(whisker.attributes[end]) - start);
    assert.ok(Math.abs(low! / a! - 0.8) < 0.001 && Math.abs(high! / a! - 1.2) < 0.001, `${low} ${high}`);
    for (const { attributes } of all(drawn, "rect")) assert.ok(Number(attributes["width"]) <= width);
    assert.match(toText(drawn), /not measured/);
  }
});

test("a file is an SVG of its own in which names stay text", () => {
  const name = `</text><script>alert(1)</script>"&'`;
  const text = toText(bars({ title: name, unit: name, bars: [bar(name, 1, 0.5, 2)] }, 600, PAPER));
  assert.ok(
    text.startsWith('<?xml version="1.0" encoding="UTF-8"?>\n<svg xmlns="http://www.w3.org/2000/svg"'),
  );
  assert.ok(!text.includes("<script") && text.includes("&lt;script&gt;"));
  assert.ok(!text.includes("var("), "no colour of the page");
  const open = [...text.matchAll(/<([a-z]+)[ >]/g)].map(([, tag]) => tag);
  const closed = [...text.matchAll(/<\/([a-z]+)>/g)].map(([, tag]) => tag);
  assert.deepEqual(open.sort(), closed.sort());
});

test("settings with a size, a share or a target are numbers", () => {
  for (const [text, wanted] of [
    ["512M", 512 * 2 ** 20],
    ["1.5 GiB", 1.5 * 2 ** 30],
    ["64KB", 65536],
    ["0.8", 0.8],
    ['"30%"', 30],
    ["{order=9, target=0.95}", 0.95],
    ["always", null],
    ["", null],
    ["1x", null],
  ] as const) {
    assert.equal(numeric(text), wanted, text);
  }
});

test("an axis needs three numbers and variants that differ in nothing else", () => {
  const limits = ["256M", "1G", "512M"].map((limit) => variant(limit, { memory_limit: limit }));
  const [axis, ...more] = axes([variant("unlimited", {}), ...limits]);
  assert.equal(more.length, 0);
  assert.deepEqual(
    axis!.places.map(({ variant, label }) => [variant, label]),
    [
      [1, "256M"],
      [3, "512M"],
      [2, "1G"],
      [0, "unlimited"],
    ],
  );
  const places = spread(axis!.places);
  assert.ok(
    places[0] === 0 && places[3] === 1 && places[1]! < places[2]! && places[2]! < 1,
    String(places),
  );
  assert.ok(Math.abs(places[1]! * 2 - places[2]!) < 1e-9, "by logarithm: 256M, 512M, 1G are even");
  assert.deepEqual(axes(limits.slice(0, 2)), []);
  const both = ["off", "on"].flatMap((thp) =>
    ["1M", "2M", "3M"].map((limit) => variant(limit + thp, { thp, memory_limit: limit })),
  );
  assert.deepEqual(
    axes(both).map(({ common }) => common),
    ["thp off", "thp on"],
  );
});

test("a findFactorial has a cell for each variant", () => {
  const kinds = ["anon", "file"].flatMap((mapping) =>
    ["private", "shared"].flatMap((sharing) =>
      ["seq", "rand"].map((access) =>
        variant(`${mapping} ${sharing} ${access}`, { mapping, sharing, access }),
      ),
    ),
  );
  const grid = findFactorial(kinds)!;
  assert.deepEqual(grid.keys, ["mapping", "sharing", "access"]);
  assert.deepEqual([grid.rows.length, grid.columns.length], [4, 2]);
  assert.deepEqual(grid.cells.flat(), [0, 1, 2, 3, 4, 5, 6, 7]);
  assert.equal(findFactorial(kinds.slice(0, 2)), null);
  const some = findFactorial(kinds.filter((_, at) => at !== 3))!;
  assert.equal(some.cells.flat().filter((cell) => cell === null).length, 1);
  const cells = some.cells.map((row) =>
    row.map((at) => (at === null ? null : { label: String(at), lines: ["1 s", "2.00×"], speedUp: 2 })),
  );
  const drawn = heat({ title: "t", rows: some.rows, columns: some.columns, cells }, 300, PAPER);
  assert.equal(all(drawn, "rect").length, 8);
  assert.equal(strength(1, 3), 0);
  assert.ok(strength(2, 1) === strength(0.5, 1) && strength(8, 3) === strength(2, 1));
  assert.ok(strength(1.1, 0.2) < strength(1.1, 0) * 1.01, "small effects stay pale");
});

test("lines are shares of their own largest value, with gaps where nothing was measured", () => {
  const point = (value: number) => ({ value, low: null, high: null });
  const chart = {
    title: "t",
    axis: "memory_limit",
    places: [1, 2, 4].map((value) => ({ label: `${value}G`, value })),
    courses: [
      { name: "time", unit: "ns", points: [null, point(10), point(5)] },
      { name: "faults", unit: "count", points: [point(8), null, point(2)] },
    ],
    dead: [{ place: 0, note: "out of memory" }],
  };
  const drawn = lines(chart, 700, PAPER);
  const paths = all(drawn, "path").map(({ attributes }) => String(attributes["d"]));
  assert.equal(paths[0]!.match(/[ML]/g)!.join(""), "ML");
  assert.equal(paths[1]!.match(/[ML]/g)!.join(""), "MM");
  const heights = all(drawn, "rect").map(({ attributes }) => Number(attributes["y"]));
  assert.equal(heights[0], heights[2], "both have their largest at the top");
  assert.match(toText(drawn), /✕ out of memory/);
});

test("the need and the knee stand across the chart where their numbers are", () => {
  const point = (value: number) => ({ value, low: null, high: null });
  const chart = {
    title: "t",
    axis: "memory_limit",
    places: [256, 512, 1024].map((value) => ({ label: `${value}M`, value })),
    courses: [{ name: "time", unit: "ns", points: [point(4), point(2), point(1)] }],
    dead: [],
    marks: [
      { at: 724.08, low: 512, high: 1024, words: "need 724 MiB" },
      { at: 512, low: null, high: null, words: "knee 512 MiB" },
    ],
  };
  const drawn = lines(chart, 700, PAPER);
  const [shade] = all(drawn, "rect");
  // Far apart, the axis is logarithmic: 724 lies in the middle of 512 and 1024.
  const [left, wide] = [Number(shade!.attributes["x"]), Number(shade!.attributes["width"])];
  const marks = all(drawn, "line").filter(({ attributes }) => attributes["stroke-dasharray"] === "1 3");
  assert.equal(marks.length, 2);
  assert.ok(Math.abs(Number(marks[0]!.attributes["x1"]) - (left + wide / 2)) < 0.1);
  assert.ok(Math.abs(Number(marks[1]!.attributes["x1"]) - left) < 0.1);
  assert.match(toText(drawn), /need 724 MiB[^]*knee 512 MiB/);
});

test("tables are quoted, and hold no formulas and no paths", () => {
  assert.equal(
    csv([["a,b", 'say "hi"', "=cmd()", "-5", -5, null, "", " x"]]),
    '"a,b","say ""hi""",\'=cmd(),-5,-5,,""," x"\n',
  );
  assert.equal(csv([["a\nb\u001b[2J"]]), "a b [2J\n");
  assert.equal(fileName(["../../etc", "a b", "time"], "svg"), "etc-a_b-time.svg");
  assert.equal(fileName(["💾"], "csv"), "chart.csv");
});
