// Charts of a tuning: which bars and courses its document becomes.

import assert from "node:assert/strict";
import { test } from "node:test";

import type { Json } from "../../src/data";
import { curveOf, missBars } from "../../src/tune";

const region = (offset: number, before: number, after: number | null, planned: boolean): Json => ({
  mapping: "anonymous 1 GiB",
  offset,
  is_planned: planned,
  misses_before: before,
  misses_after: after,
});

test("both counts of a region stand side by side, the first one as the baseline", () => {
  const regions = [region(0, 900, 1, true), region(-4096, 20, 20, false)];
  const both = missBars(regions, "both");
  assert.deepEqual(
    both.map((bar) => [bar.label, bar.value, bar.isBaseline]),
    [
      ["anonymous 1 GiB +0x0, before", 900, true],
      ["anonymous 1 GiB +0x0, with the plan", 1, false],
      ["anonymous 1 GiB -0x1000, before", 20, true],
      ["anonymous 1 GiB -0x1000, with the plan", 20, false],
    ],
  );
  assert.deepEqual(
    missBars(regions, "before").map((bar) => bar.note),
    ["planned", ""],
  );
  assert.equal(missBars([region(0, 1, null, true)], "after")[0]?.value, null, "not recounted is not 0");
});

test("a curve has a place for each number of huge pages, all last", () => {
  const arm = (selection: string, planned: number | null, ratio: number): Json => ({
    name: selection,
    selection,
    planned,
    speed_up: { ratio, low: ratio - 0.01, high: ratio + 0.01 },
    predicted_speed_up: null,
  });
  const three = [arm("none", 0, 1), arm("plan", 12, 1.2), arm("all", null, 1.5)];
  assert.equal(curveOf(three), null);
  const found = curveOf([...three, arm("costliest", 8, 1.1), arm("random", 8, 1.0)]);
  assert.deepEqual(
    found?.places.map((place) => place.label),
    ["8", "12", "all"],
  );
  assert.deepEqual(
    found?.courses.map((course) => course.points.map((point) => point?.value ?? null)),
    [
      [1.1, 1.2, 1.5],
      [1.0, null, null],
    ],
  );
});
