// Figures, lines and pages of simulations in words.

import assert from "node:assert/strict";
import { test } from "node:test";

import { describeFrames } from "../../src/demo";
import { bars, fit, PAPER, SIGN, toText } from "../../src/drawing";
import { shares } from "../../src/timelapse";
import { within } from "../../src/sim";
import { stacks, thinPoints } from "../../src/sim_charts";

test("values are those of the terminal", () => {
  const value = { middle: 120.5, low: 118, high: 122, seeds: 20, shown: "120.5", text: "120.5 (118…122)" };
  assert.deepEqual(within(value), ["120.5", "(118…122)"]);
  assert.deepEqual(within({ ...value, low: null, high: null, text: "120.5" }), ["120.5", ""]);
  assert.deepEqual(within(null), ["–", ""]);
});

test("a bar says what the terminal says, and one without an interval draws none", () => {
  const palette = { ...PAPER };
  const bar = { label: "standard", note: "", isBaseline: false, value: 317.5, low: null, high: null };
  const shown = { short: "317.5", whole: "317.5" };
  const plain = toText(bars({ title: "t", unit: "count", bars: [{ ...bar, shown }] }, 900, palette));
  assert.ok(plain.includes("standard: 317.5</title>"), plain);
  const marked = { ...bar, low: 310, high: 320, shown: { short: "317.5", whole: "317.5 (310…320)" } };
  const whole = toText(bars({ title: "t", unit: "count", bars: [marked] }, 900, palette));
  assert.ok(whole.includes("standard: 317.5 (310…320)</title>"), whole);
  const lines = (of: string) => [...of.matchAll(/<line/g)].length;
  assert.equal(lines(whole), lines(plain) + 3, "a line and its two ends");
});

test("behind a bar of zones stands the median of the whole, not the sum", () => {
  const stack = { label: "list", parts: [16, 95], whole: 110, total: "110" };
  const drawn = toText(stacks({ title: "t", unit: "count", parts: ["a", "b"], stacks: [stack] }, 900, PAPER));
  assert.ok(drawn.includes(">110</text>") && !drawn.includes(">111</text>"), drawn);
});

test("names that differ in their ends keep them", () => {
  const names = ["pass 1: standard", "pass 2: list"].map((name) => `highalloc under load, ${name}`);
  assert.deepEqual(
    names.map((name) => fit(name, 13 * SIGN, "start")),
    ["… 1: standard", "…pass 2: list"],
  );
  assert.equal(fit(names[0]!, 9 * SIGN), "highallo…");
});

test("a thinPoints line keeps its ends and its extremes, in order", () => {
  const values = Array.from({ length: 10_000 }, (_, at) => Math.sin(at / 500));
  [values[1234], values[4321]] = [-7, 9];
  const at = values.map((_, place) => place);
  const kept = thinPoints({ name: "", look: 0, at, values }, 400);
  assert.ok(kept.length <= 402, String(kept.length));
  assert.ok([0, 1234, 4321, 9999].every((place) => place === 0 || kept.includes(place)));
  assert.deepEqual(
    kept,
    [...kept].sort((a, b) => a - b),
  );
  const few = { name: "", look: 0, at: [3, 4], values: [1, 0] };
  assert.deepEqual(thinPoints(few, 400), [0, 1]);
});

test("pageblocks are counted by list", () => {
  assert.deepEqual(shares([1, 1, 3, 1]), [0, 3, 0, 1]);
  assert.deepEqual(shares([]), []);
});

test("pages are said in runs", () => {
  const said = "pages 0 to 1 program A, page 2 free, page 3 the kernel, page 4 the dentry cache";
  assert.equal(describeFrames("Aa.KN"), said);
  assert.equal(describeFrames("...."), "pages 0 to 3 free");
  assert.equal(describeFrames(""), "");
});
