// Data blocks, written here with node's own gzip.

import assert from "node:assert/strict";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

import { fromBase64, fromPlanes, gunzip, escapeInvisible, toNumbers } from "../../src/decode";

/** All lowest bytes first, then all second ones. */
function planes(bytes: Uint8Array, width: number): Uint8Array<ArrayBuffer> {
  const out: number[] = [];
  for (let plane = 0; plane < width; plane++) {
    for (let at = plane; at < bytes.length; at += width) out.push(bytes[at]!);
  }
  return Uint8Array.from(out);
}

test("a block is base64 of gzip of planes", async () => {
  const values = Float64Array.of(0, -1.5, NaN, 2 ** 53, 1e-300, 8_589_934_592);
  const packed = gzipSync(planes(new Uint8Array(values.buffer), 8)).toString("base64");
  const found = toNumbers(await gunzip(fromBase64(`\n${packed}\n`)), "f64", values.length);
  assert.deepEqual(found, values);
});

test("every type comes back", () => {
  for (const [type, values] of [
    ["u8", Uint8Array.of(0, 7, 255)],
    ["u16", Uint16Array.of(0, 256, 65535)],
    ["u32", Uint32Array.of(1, 2 ** 31, 4294967295)],
  ] as const) {
    const width = values.BYTES_PER_ELEMENT;
    const bytes = planes(new Uint8Array(values.buffer), width);
    assert.deepEqual(toNumbers(bytes, type, values.length), values);
    assert.deepEqual([...fromPlanes(bytes, width)], [...new Uint8Array(values.buffer)]);
  }
});

test("what shows nothing is escapeInvisible out, in names and in texts, and line ends stay", () => {
  const evil = { "a\u202eb": ["\u001b[2J", "x\ny", 7, null, { n: "\u{e0041}\u200bé" }] };
  assert.deepEqual(escapeInvisible(evil), {
    "a\\u{202e}b": ["\\u{1b}[2J", "x\ny", 7, null, { n: "\\u{e0041}\\u{200b}é" }],
  });
});

test("a block of another length than said is refused", () => {
  assert.throws(() => toNumbers(new Uint8Array(9), "f64", 1), /9 bytes, expected 8/);
});
