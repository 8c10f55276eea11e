// What a pageblock is, and where its cell stands.

import assert from "node:assert/strict";
import { test } from "node:test";

import { layout, statesOf } from "../../src/blockstate";

const CLASSES = [
  "free",
  "anon",
  "anon_huge",
  "file",
  "hugetlb",
  "slab",
  "page_table",
  "unknown",
  "deferred",
  "hole",
].map((name) => ({
  name,
  words: `[${name}]`,
  pollutes: ["slab", "page_table", "hole"].includes(name),
  movable: ["anon", "anon_huge", "file"].includes(name),
}));

/** The words of a block of 512 pages with these pages of each class. */
function stateOf(pages: Record<string, number>, oneFolio = false): string {
  const counts = CLASSES.map(({ name }) => pages[name] ?? 0);
  assert.equal(
    counts.reduce((a, b) => a + b),
    512,
  );
  const found = statesOf({
    classes: CLASSES,
    index: [3],
    counts,
    oneFolio: oneFolio ? [3] : [],
    blockPages: 512,
  });
  assert.deepEqual(found.blocks, [1]);
  const state = found.states[found.of[0]!]!;
  return `${state.words}${state.marked ? " *" : ""}`;
}

test("one unmovable page pollutes a block, and the class with the most names it", () => {
  assert.equal(stateOf({ free: 512 }), "free, available as a huge page");
  assert.equal(stateOf({ free: 511, slab: 1 }), "polluted, mostly by [slab] *");
  assert.equal(stateOf({ anon: 500, slab: 5, page_table: 7 }), "polluted, mostly by [page_table] *");
  assert.equal(stateOf({ free: 500, hole: 12 }), "polluted, mostly by [hole] *");
  assert.equal(stateOf({ hole: 512 }), "no memory");
  assert.equal(stateOf({ free: 511, unknown: 1 }), "possibly polluted: pages without flags *");
  assert.equal(stateOf({ free: 510, unknown: 1, slab: 1 }), "polluted, mostly by [slab] *");
});

test("what can be emptied is named by what fills it", () => {
  assert.equal(stateOf({ free: 400, anon: 100, file: 12 }), "can be emptied: mostly [anon]");
  assert.equal(stateOf({ deferred: 12, free: 500 }), "free, not initialised yet");
  assert.equal(stateOf({ deferred: 500, file: 12 }), "can be emptied: mostly [file]");
  assert.equal(stateOf({ hugetlb: 512 }), "huge page in use or in a pool");
  assert.equal(stateOf({ anon_huge: 512 }, true), "huge page in use or in a pool");
  assert.equal(stateOf({ anon_huge: 512 }), "can be emptied: mostly [anon_huge]");
});

test("a layout fits, its rows begin at round addresses, and every block has a cell", () => {
  for (const spanned of [1, 8, 100, 1528, 12_288, 262_144, 8_388_608]) {
    for (const width of [96, 264, 1000]) {
      for (const first of [0, 8, 2048, 260_097]) {
        const { columns, rows, cell, merge, before } = layout(spanned, first, width);
        const context = JSON.stringify({ spanned, width, first, columns, rows, cell, merge });
        assert.ok(columns * cell <= width, context);
        assert.ok(rows * cell <= 600 && cell >= 3, context);
        assert.ok(Number.isInteger(Math.log2(columns)) && Number.isInteger(Math.log2(merge)), context);
        assert.equal((first - before) % (columns * merge), 0, context);
        assert.ok(columns * rows * merge >= before + spanned, context);
      }
    }
  }
});
