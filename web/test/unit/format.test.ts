// Numbers look as they do in the terminal: the cases of format_cases.json, which its tests run too, and more.

import assert from "node:assert/strict";
import { test } from "node:test";

import * as format from "../../src/format";
import cases from "./format_cases.json";

function check<T>(show: (value: T) => string, cases: [T, string][]): void {
  for (const [value, text] of cases) assert.equal(show(value), text);
}

/** The text of the terminal with the minus sign of the page. */
function onPage(text: string): string {
  return text.replace(/^-/, "−");
}

test("numbers look as on the terminal", () => {
  const tables: [(value: number) => string, (string | number)[][]][] = [
    [format.bytes, cases.bytes],
    [format.threeDigits, cases.three_digits],
    [format.percent, cases.percent],
    [format.count, cases.count],
    [format.nanoseconds, cases.duration_ns],
  ];
  for (const [show, rows] of tables) {
    assert.ok(rows.length > 3);
    for (const [value, text] of rows) assert.equal(show(Number(value)), onPage(String(text)));
  }
});

test("amounts below zero and sizes of blocks", () => {
  check(format.bytes, [[-1536, "−1.50 KiB"]]);
  check(format.shortSize, [
    [4096, "4K"],
    [2 ** 21, "2M"],
    [2 ** 30, "1G"],
    [512, "512B"],
  ]);
});

test("indices are cut off after three digits, as the kernel cuts them", () => {
  check(format.index, [
    [0.0669, "0.066"],
    [0.067, "0.067"],
    [0.29, "0.290"],
    [-0.5, "−0.500"],
    [-1, "−1.000"],
    [0.9999, "0.999"],
    [0, "0.000"],
  ]);
});

test("counts are grouped by narrow blanks", () => {
  check(format.count, [[-1234, "−1\u202f234"]]);
  check(format.exact, [
    [1234.5, "1\u202f234.5"],
    [-0.25, "−0.25"],
    [1e21, "1e+21"],
  ]);
  check(format.large, [
    [999, "999"],
    [9999, "9999"],
    [10_000, "10 k"],
    [2_500_000, "2.50 M"],
    [3e12, "3 T"],
  ]);
});

test("a count under a bar has at most four signs", () => {
  check(format.shortCount, [
    [0, "0"],
    [9999, "9999"],
    [10_000, "10k"],
    [298_412, "298k"],
    [999_499, "999k"],
    [999_500, "1.0M"],
    [9_960_000, "10M"],
    [7e12, "7.0T"],
  ]);
});

test("times", () => {
  check(format.nanoseconds, [
    [0.25, "0.250 ns"],
    [-1.5e9, "−1.50 s"],
    [-61e9, "−1 min 1 s"],
  ]);
  check(format.longTime, [
    [0, "0 s"],
    [59.6, "1 min"],
    [3600, "1 h"],
    [7500, "2 h 5 min"],
    [7505, "2 h 5 min"],
    [273_600, "3 d 4 h"],
    [-61, "−1 min 1 s"],
  ]);
  check(format.moment, [
    [1_790_000_000_000_000_000, "2026-09-21 14:13:20 UTC"],
    [1e30, "1e+30 ns since 1970"],
  ]);
});

test("values of a series in their unit; a failed reading is no number", () => {
  const cases: [number | null, string, string][] = [
    [null, "bytes", "–"],
    [NaN, "count", "–"],
    [2 ** 30, "bytes", "1 GiB"],
    [2 ** 20, "bytes/s", "1 MiB/s"],
    [611, "permille", "0.611"],
    [1500, "us", "1.50 ms"],
    [7, "count/s", "7/s"],
    [7, "pages", "7 pages"],
    [7.123456789, "furlongs", "7.12346 furlongs"],
  ];
  for (const [value, unit, text] of cases) assert.equal(format.value(value, unit), text);
});
