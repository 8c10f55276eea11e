// Figures, lines and pages of simulations in words.

import assert from "node:assert/strict";
import { test } from "node:test";

import { inWords } from "../../src/demo";
import { shares } from "../../src/lapse";
import { amount, within } from "../../src/sim";
import { thinned } from "../../src/simdraw";

test("values have their unit, and an interval where there are several seeds", () => {
  assert.equal(amount(0.1823, "share"), "18.2 %");
  assert.equal(amount(1234, "blocks"), "1\u202f234");
  assert.equal(within(null, "blocks"), "–");
  assert.equal(within({ middle: 7, low: 5, high: 9, seeds: 20 }, "blocks"), "7 (5 to 9)");
  assert.equal(within({ middle: 7, low: 5, high: 9, seeds: 1 }, "blocks"), "7");
  assert.equal(within({ middle: 7, low: 7, high: 7, seeds: 9 }, "blocks"), "7");
});

test("a thinned line keeps its ends and its extremes, in order", () => {
  const values = Array.from({ length: 10_000 }, (_, at) => Math.sin(at / 500));
  [values[1234], values[4321]] = [-7, 9];
  const at = values.map((_, place) => place);
  const kept = thinned({ name: "", look: 0, at, values }, 400);
  assert.ok(kept.length <= 402, String(kept.length));
  assert.ok([0, 1234, 4321, 9999].every((place) => place === 0 || kept.includes(place)));
  assert.deepEqual(
    kept,
    [...kept].sort((a, b) => a - b),
  );
  const few = { name: "", look: 0, at: [3, 4], values: [1, 0] };
  assert.deepEqual(thinned(few, 400), [0, 1]);
});

test("pageblocks are counted by list", () => {
  assert.deepEqual(shares([1, 1, 3, 1]), [0, 3, 0, 1]);
  assert.deepEqual(shares([]), []);
});

test("pages are said in runs", () => {
  const said = "pages 0 to 1 program A, page 2 free, page 3 the kernel, page 4 the kernel's cache of names";
  assert.equal(inWords("Aa.KN"), said);
  assert.equal(inWords("...."), "pages 0 to 3 free");
  assert.equal(inWords(""), "");
});
