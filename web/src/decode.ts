// Decoding of data blocks into values.

import type { Block, Page } from "./data";

export type Numbers = Float64Array | Uint32Array | Uint16Array | Uint8Array;

const WIDTHS = { f64: 8, u32: 4, u16: 2, u8: 1 } as const;

/** Bytes of a base64 text. */
export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const letters = atob(text.trim());
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
  return bytes;
}

/** Unpacks gzip. */
export async function gunzip(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Puts planes of bytes back together: the lowest bytes of all elements come first. */
export function fromPlanes(planes: Uint8Array, width: number): Uint8Array<ArrayBuffer> {
  const length = planes.length / width;
  const bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < width; plane++) {
    const start = plane * length;
    for (let at = 0; at < length; at++) bytes[at * width + plane] = planes[start + at]!;
  }
  return bytes;
}

/** The typed array of unpacked bytes. Every machine that shows this page is little-endian, as the data is. */
export function toNumbers(planes: Uint8Array<ArrayBuffer>, type: Block["type"], length: number): Numbers {
  const width = WIDTHS[type];
  if (planes.length !== length * width) {
    throw new Error(`a data block has ${planes.length} bytes, expected ${length * width}`);
  }
  const buffer = (width === 1 ? planes : fromPlanes(planes, width)).buffer;
  switch (type) {
    case "f64":
      return new Float64Array(buffer);
    case "u32":
      return new Uint32Array(buffer);
    case "u16":
      return new Uint16Array(buffer);
    case "u8":
      return new Uint8Array(buffer);
  }
}

async function bytesOf(id: string): Promise<Uint8Array<ArrayBuffer>> {
  const element = document.getElementById(id);
  if (element === null) throw new Error(`the data block ${id} is missing`);
  return gunzip(fromBase64(element.textContent ?? ""));
}

/**
 * Invisible characters that affect their neighbours: controls but the line's end, marks of
 * writing direction, blanks without width. The same as on the terminal (pagelab-report's style::is_unseen).
 */
const UNSEEN = new RegExp(
  "[\\u0000-\\u0009\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e" +
    "\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\u{e0000}-\\u{e0fff}]",
  "gu",
);

/** Spells out every such character in the names and texts of a value. */
export function escapeInvisible<T>(value: T): T {
  const show = (text: string) => text.replace(UNSEEN, (sign) => `\\u{${sign.codePointAt(0)!.toString(16)}}`);
  const walk = (inner: unknown): unknown => {
    if (typeof inner === "string") return show(inner);
    if (Array.isArray(inner)) return inner.map(walk);
    if (inner === null || typeof inner !== "object") return inner;
    return Object.fromEntries(Object.entries(inner).map(([name, one]) => [show(name), walk(one)]));
  };
  return walk(value) as T;
}

/** The document. */
export async function page(): Promise<Page> {
  const document = escapeInvisible(JSON.parse(new TextDecoder().decode(await bytesOf("page"))) as Page);
  if (document.page !== 2) throw new Error(`expected data of version 1, found ${document.page}`);
  return document;
}

const decoded = new Map<string, Promise<Numbers>>();

/** The numbers of a block; columns that share a block share the array. */
export function numbers(block: Block): Promise<Numbers> {
  let found = decoded.get(block.block);
  if (found === undefined) {
    found = bytesOf(block.block).then((bytes) => toNumbers(bytes, block.type, block.length));
    decoded.set(block.block, found);
  }
  return found;
}
