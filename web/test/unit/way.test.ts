// Where the pixels of a picture of memory lie, against the steps of the curve itself.

import assert from "node:assert/strict";
import { test } from "node:test";

import { frameAt, holder, numberAt, rowsOf, type Way } from "../../src/way";

function numbers(way: Way): Map<number, [number, number]> {
  const found = new Map<number, [number, number]>();
  for (let y = 0; y < way.height; y++) {
    for (let x = 0; x < way.width; x++) found.set(numberAt(way, x, y), [x, y]);
  }
  assert.equal(found.size, way.width * way.height);
  return found;
}

test("each pixel has a number of its own, and the Hilbert curve never leaps", () => {
  const hilbert = numbers({ order: "hilbert", width: 24, height: 8, tile: [8, 8] });
  for (let at = 1; at < 192; at++) {
    const [a, b] = [hilbert.get(at - 1)!, hilbert.get(at)!];
    assert.equal(Math.abs(a[0] - b[0]) + Math.abs(a[1] - b[1]), 1, `${at}`);
  }
  assert.deepEqual(numbers({ order: "rows", width: 5, height: 2, tile: [5, 1] }).get(7), [2, 1]);
  assert.deepEqual(numbers({ order: "tiles", width: 8, height: 4, tile: [4, 2] }).get(9), [5, 0]);
});

test("a position is a frame in the runs, and a frame has its zone", () => {
  const runs = [
    { first_frame: 10, frames: 2 },
    { first_frame: 100, frames: 5 },
  ];
  assert.deepEqual([0, 1, 2, 6, 7].map((at) => frameAt(runs, at)), [10, 11, 100, 104, null]);
  assert.equal(holder(runs, 104), runs[1]);
  assert.equal(holder(runs, 12), undefined);
});

test("a zone has the rows that its pixels have, holes left out", () => {
  const extents = [
    { first_frame: 8, frames: 32 },
    { first_frame: 1000, frames: 32 },
  ];
  const ways: Way[] = [
    { order: "rows", width: 4, height: 8, tile: [4, 1] },
    { order: "tiles", width: 8, height: 4, tile: [4, 2] },
  ];
  for (const way of ways) {
    const ground = { ...way, extents, pages_per_pixel: 2 };
    for (const zone of [
      { first_frame: 0, frames: 9 },
      { first_frame: 8, frames: 16 },
      { first_frame: 20, frames: 990 },
      { first_frame: 1000, frames: 32 },
      { first_frame: 50, frames: 900 },
    ]) {
      // Every pixel asked whether it shows a frame of the zone.
      const rows = new Set<number>();
      for (let y = 0; y < way.height; y++) {
        for (let x = 0; x < way.width; x++) {
          for (let page = 0; page < 2; page++) {
            const frame = frameAt(extents, numberAt(way, x, y) * 2 + page);
            if (frame !== null && holder([zone], frame) !== undefined) rows.add(y);
          }
        }
      }
      const tile = way.tile[1];
      const top = rows.size === 0 ? 0 : Math.floor(Math.min(...rows) / tile) * tile;
      const end = rows.size === 0 ? 0 : (Math.floor(Math.max(...rows) / tile) + 1) * tile;
      assert.deepEqual(rowsOf(ground, zone), [top, end], `${way.order} ${zone.first_frame}`);
    }
  }
});
