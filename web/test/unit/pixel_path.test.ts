// Where the pixels of a picture of memory lie, against the steps of the curve itself.

import assert from "node:assert/strict";
import { test } from "node:test";

import { frameAt, findRun, numberAt, rowsOf, type PixelPath } from "../../src/pixel_path";

function numbers(path: PixelPath): Map<number, [number, number]> {
  const found = new Map<number, [number, number]>();
  for (let y = 0; y < path.height; y++) {
    for (let x = 0; x < path.width; x++) found.set(numberAt(path, x, y), [x, y]);
  }
  assert.equal(found.size, path.width * path.height);
  return found;
}

test("each pixel has a number of its own, and the Hilbert curve never leaps", () => {
  const hilbert = numbers({ pixel_layout: "hilbert", width: 24, height: 8, tile: [8, 8] });
  for (let at = 1; at < 192; at++) {
    const [a, b] = [hilbert.get(at - 1)!, hilbert.get(at)!];
    assert.equal(Math.abs(a[0] - b[0]) + Math.abs(a[1] - b[1]), 1, `${at}`);
  }
  assert.deepEqual(numbers({ pixel_layout: "rows", width: 5, height: 2, tile: [5, 1] }).get(7), [2, 1]);
  assert.deepEqual(numbers({ pixel_layout: "tiles", width: 8, height: 4, tile: [4, 2] }).get(9), [5, 0]);
});

test("a position is a frame in the runs, and a frame has its zone", () => {
  const runs = [
    { first_frame: 10, frames: 2 },
    { first_frame: 100, frames: 5 },
  ];
  assert.deepEqual([0, 1, 2, 6, 7].map((at) => frameAt(runs, at)), [10, 11, 100, 104, null]);
  assert.equal(findRun(runs, 104), runs[1]);
  assert.equal(findRun(runs, 12), undefined);
});

test("a zone has the rows that its pixels have, holes left out", () => {
  const extents = [
    { first_frame: 8, frames: 32 },
    { first_frame: 1000, frames: 32 },
  ];
  const paths: PixelPath[] = [
    { pixel_layout: "rows", width: 4, height: 8, tile: [4, 1] },
    { pixel_layout: "tiles", width: 8, height: 4, tile: [4, 2] },
  ];
  for (const path of paths) {
    const layout = { ...path, extents, pages_per_pixel: 2 };
    for (const zone of [
      { first_frame: 0, frames: 9 },
      { first_frame: 8, frames: 16 },
      { first_frame: 20, frames: 990 },
      { first_frame: 1000, frames: 32 },
      { first_frame: 50, frames: 900 },
    ]) {
      // Every pixel asked whether it shows a frame of the zone.
      const rows = new Set<number>();
      for (let y = 0; y < path.height; y++) {
        for (let x = 0; x < path.width; x++) {
          for (let page = 0; page < 2; page++) {
            const frame = frameAt(extents, numberAt(path, x, y) * 2 + page);
            if (frame !== null && findRun([zone], frame) !== undefined) rows.add(y);
          }
        }
      }
      const tile = path.tile[1];
      const top = rows.size === 0 ? 0 : Math.floor(Math.min(...rows) / tile) * tile;
      const end = rows.size === 0 ? 0 : (Math.floor(Math.max(...rows) / tile) + 1) * tile;
      assert.deepEqual(rowsOf(layout, zone), [top, end], `${path.pixel_layout} ${zone.first_frame}`);
    }
  }
});
