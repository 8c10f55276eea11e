// The extremes of a window against a twin that does the same in the slowest and plainest way.

import assert from "node:assert/strict";
import { test } from "node:test";

import { type Line, type Point, extremes, lowerBound, nearest, rates, windowPoints } from "../../src/bucket";

/** A seeded generator (mulberry32). */
function random(seed: number): () => number {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

function line(seed: number, length: number): Line {
  const next = random(seed);
  let time = next();
  const at = new Float64Array(length);
  const values = new Float64Array(length);
  for (let i = 0; i < length; i++) {
    time += next() < 0.05 ? 0 : next();
    at[i] = time;
    values[i] = next() < 0.02 ? NaN : Math.floor(next() * 1000);
  }
  return { at, values };
}

/** For each stretch: its readings by filtering all of them, then the first least and the first most. */
function naive(of: Line, from: number, to: number, buckets: number): Point[] {
  const inside = (time: number) =>
    Math.min(buckets - 1, Math.max(0, Math.floor((time - from) * (buckets / (to - from)))));
  let start = of.at.findIndex((time) => time >= from);
  if (start < 0) start = of.at.length;
  start = Math.max(0, start - 1);
  let end = of.at.findIndex((time) => time > to);
  end = end < 0 ? of.at.length : end + 1;
  const out: Point[] = new Array<Point>(2 * buckets).fill(undefined);
  for (let bucket = 0; bucket < buckets; bucket++) {
    const all = [...of.values]
      .map((value, i) => ({ value, i }))
      .slice(start, end)
      .filter(({ i }) => inside(of.at[i]!) === bucket);
    const read = all.filter(({ value }) => !Number.isNaN(value));
    if (all.length === 0) continue;
    if (read.length === 0) {
      out[2 * bucket] = out[2 * bucket + 1] = null;
      continue;
    }
    const least = read.reduce((a, b) => (b.value < a.value ? b : a));
    const most = read.reduce((a, b) => (b.value > a.value ? b : a));
    const [first, second] = least.i < most.i ? [least, most] : [most, least];
    out[2 * bucket] = first.value;
    out[2 * bucket + 1] = first.i === second.i ? undefined : second.value;
  }
  return out;
}

test("extremes of a window are those of the plain twin", () => {
  for (let seed = 1; seed <= 60; seed++) {
    const next = random(seed * 7919);
    const of = line(seed, 1 + Math.floor(next() * 400));
    const last = of.at[of.at.length - 1]!;
    const a = next() * last * 1.2 - 0.1 * last;
    const b = a + (next() + 0.01) * last;
    const buckets = 1 + Math.floor(next() * 40);
    const out: Point[] = new Array<Point>(2 * buckets).fill(undefined);
    extremes(of, a, b, buckets, out);
    assert.deepEqual(out, naive(of, a, b, buckets), `seed ${seed}`);
  }
});

test("a window of few values shows all of them, on the times of all lines", () => {
  const a: Line = { at: Float64Array.of(1, 2, 3), values: Float64Array.of(10, NaN, 30) };
  const b: Line = { at: Float64Array.of(2.5), values: Float64Array.of(7) };
  const [times, first, second] = windowPoints([a, b], 0, 4, 100);
  assert.deepEqual(times, [1, 2, 2.5, 3]);
  assert.deepEqual(first, [10, null, undefined, 30]);
  assert.deepEqual(second, [undefined, undefined, 7, undefined]);
});

test("a window of many values keeps its least and its most", () => {
  const many = line(3, 50_000);
  const [from, to] = [many.at[10_000]!, many.at[40_000]!];
  const [times, points] = windowPoints([many], from, to, 300);
  assert.equal(times.length, 600);
  assert.ok(times.every((time, i) => i === 0 || time > times[i - 1]!));
  const shown = points!.filter((value) => typeof value === "number");
  const inside = many.values.slice(9_999, 40_002).filter((value) => !Number.isNaN(value));
  assert.equal(
    Math.min(...shown),
    inside.reduce((a, b) => Math.min(a, b)),
  );
  assert.equal(
    Math.max(...shown),
    inside.reduce((a, b) => Math.max(a, b)),
  );
});

test("searching by time", () => {
  const times = Float64Array.of(1, 2, 2, 5);
  assert.deepEqual(
    [0, 1, 1.5, 2, 5, 6].map((at) => lowerBound(times, at)),
    [0, 0, 1, 1, 3, 4],
  );
  assert.deepEqual(
    [-9, 1.4, 3.4, 3.6, 99].map((at) => nearest(times, at)),
    [0, 0, 2, 3, 3],
  );
  assert.equal(nearest([], 1), -1);
});

test("a counter's rate is per second, and a reset or a failed reading has none", () => {
  const { values } = rates({
    at: Float64Array.of(0, 2, 4, 5, 6, 6),
    values: Float64Array.of(10, 30, 20, NaN, 25, 30),
  });
  assert.deepEqual([...values], [NaN, 10, NaN, NaN, NaN, NaN]);
});
