// Free memory by order: the amount in blocks of each size, and F_u, for each zone.

import type { Json, Run } from "./data";
import { type Child, type Column, details, el, figure, table, vars } from "./dom";
import * as format from "./format";
import { absentSection, number, numbersOf, object, objects, reason, text } from "./json";
import type { Section } from "./main";

interface Zone {
  name: string;
  freeBytes: number;
  counts: number[];
  /** F_u by order; null if nothing is free. */
  unusable: number[] | null;
  whyNot: string;
  indices: number[];
  hugeNow: number;
}

function zoneOf(json: Json): Zone {
  const unusable = numbersOf(json["unusable_index"]);
  return {
    name: `Node ${number(json["node"])}, zone ${text(json["zone"])}`,
    freeBytes: number(json["free_bytes"]) ?? 0,
    counts: numbersOf(json["free_blocks"]),
    unusable: unusable.length > 0 ? unusable : null,
    whyNot: reason(json, "unusable_index"),
    indices: numbersOf(json["fragmentation_index_permille"]),
    hugeNow: number(json["huge_pages_now"]) ?? 0,
  };
}

export function freeMemory(run: Run, rank: number): Section {
  const fragmentation = object(run.checkup?.["fragmentation"]);
  const machine = object(run.checkup?.["machine"]);
  if (fragmentation === null || machine === null) return null;
  const title = "Free memory by block size";
  const zones = objects(fragmentation["zones"]).map(zoneOf);
  if (zones.length === 0) return { title, content: [absentSection(fragmentation, "zones")] };
  const order = number(fragmentation["pmd_order"]) ?? 0;
  const page = number(machine["page_size_bytes"]) ?? 1;
  const saved = object(run.checkup?.["taken"]);
  const source =
    saved !== null && number(saved["euid"]) === null ? "buddyinfo of the saved tree" : "/proc/buddyinfo";
  const intro = el(
    "p",
    { class: "intro" },
    "The kernel keeps free memory in blocks of 2",
    el("sup", {}, "order"),
    " pages. ",
    el("em", {}, "F", el("sub", {}, "u")),
    ", the unusable free space index, is the share of the free memory in blocks too small for a request of ",
    "an order: at 0 all of it is usable, at 1 none.",
  );
  return {
    title,
    content: [
      intro,
      el(
        "div",
        { class: "side-by-side" },
        ...zones.map((zone) => zoneFigure(zone, order, page, rank, source)),
      ),
      balance(fragmentation, page),
    ],
  };
}

function zoneFigure(zone: Zone, order: number, page: number, rank: number, source: string): HTMLElement {
  const size = format.bytes(page * 2 ** order);
  if (zone.unusable === null) {
    return figure(
      rank,
      [`${zone.name}: nothing is free`],
      ["Source: ", source, "."],
      el("p", {}, zone.whyNot),
    );
  }
  const share = zone.unusable[order];
  const says =
    share === undefined
      ? `${zone.name}: ${format.bytes(zone.freeBytes)} free, no block is as large as ${size}`
      : `${zone.name}: ${format.percent(share)} of ${format.bytes(zone.freeBytes)} free is in ` +
        `blocks too small for ${size} pages`;
  return figure(
    rank,
    [says],
    [
      "Source: ",
      source,
      `; ${format.count(zone.hugeNow)} pages of ${size} available now. F`,
      el("sub", {}, "u"),
      "(j) = free memory in blocks of less than 2",
      el("sup", {}, "j"),
      " pages / all free memory.",
    ],
    bars(zone, order, page),
    details("The numbers", numbers(zone, order, page)),
  );
}

/** Two rows of bars over one row of orders. The bars are decorative: the table has all values. */
function bars(zone: Zone, order: number, page: number): HTMLElement {
  const amounts = zone.counts.map((count, at) => count * 2 ** at * page);
  const most = Math.max(...amounts);
  const columns: HTMLElement[] = [];
  const head = (row: string, ...children: Child[]) => el("div", { class: `axis ${row}` }, ...children);
  columns.push(
    head(
      "amount-axis",
      el("span", { class: "axis-title" }, "free memory"),
      el("span", { class: "top" }, format.bytes(most)),
      el("span", { class: "bottom" }, "0"),
    ),
  );
  columns.push(head("count-axis", "blocks"));
  columns.push(
    head(
      "index-axis",
      el("span", { class: "axis-title" }, "F", el("sub", {}, "u")),
      el("span", { class: "top" }, "1"),
      el("span", { class: "bottom" }, "0"),
    ),
  );
  columns.push(head("order-axis", "order"), head("size-axis", "block"));
  zone.counts.forEach((count, at) => {
    const place = at === order ? " pmd" : "";
    const small = at < order ? " small" : "";
    const unusable = zone.unusable?.[at] ?? 0;
    const cell = (row: string, child: Child, more = "") =>
      columns.push(el("div", { class: `${row}${place}${more}`, title: tip(zone, at, page) }, child));
    cell("amount", bar(most > 0 ? (amounts[at] ?? 0) / most : 0), small);
    cell("count", el("span", {}, format.shortCount(count)));
    cell("index", bar(unusable, short(unusable)));
    cell("order", String(at));
    cell("size", format.shortSize(page * 2 ** at));
  });
  const chart = el("div", { class: "orders", "aria-hidden": "true" }, ...columns);
  vars(chart, { orders: String(zone.counts.length) });
  const key = el(
    "p",
    { class: "key" },
    el("span", { class: "swatch small" }),
    ` smaller than a huge page (order ${order})  `,
    el("span", { class: "swatch large" }),
    " a huge page or more",
  );
  return el("div", { class: "orders-chart" }, chart, key);
}

function bar(share: number, label?: string): HTMLElement {
  const body = el("div", { class: share > 0 ? "bar" : "bar none" });
  vars(body, { share: `${(share * 100).toFixed(2)}%` });
  return el(
    "div",
    { class: "well" },
    body,
    label === undefined
      ? null
      : vars(el("span", { class: "label" }, label), { share: `${(share * 100).toFixed(2)}%` }),
  );
}

function short(share: number): string {
  if (share === 0 || share === 1) return String(share);
  if (share < 0.01) return "<.01";
  // Truncated like the index, so that both agree.
  const digits = share >= 0.99 ? 3 : 2;
  const cut = Math.trunc(share * 10 ** digits + 1e-6) / 10 ** digits;
  return cut.toFixed(digits).replace(/^0/, "");
}

function tip(zone: Zone, at: number, page: number): string {
  const count = zone.counts[at] ?? 0;
  const size = format.bytes(page * 2 ** at);
  const amount = format.bytes(count * 2 ** at * page);
  const unusable = zone.unusable?.[at];
  const index = unusable === undefined ? "" : `; F_u(${at}) ${format.index(unusable)}`;
  return `order ${at}: ${format.count(count)} blocks of ${size}, ${amount}${index}`;
}

function numbers(zone: Zone, order: number, page: number): HTMLElement {
  const columns: Column[] = [
    { text: "order", right: true, names: true },
    { text: "block", right: true },
    { text: "free blocks", right: true },
    { text: "free memory", right: true },
    { text: "F_u", right: true },
    { text: "F_i", right: true },
  ];
  const rows = zone.counts.map((count, at) => [
    at === order ? `${at} (huge page)` : String(at),
    format.bytes(page * 2 ** at),
    format.count(count),
    format.bytes(count * 2 ** at * page),
    zone.unusable?.[at] === undefined ? "–" : format.index(zone.unusable[at]),
    format.index((zone.indices[at] ?? 0) / 1000),
  ]);
  return el(
    "div",
    {},
    table(`Free blocks of ${zone.name}`, columns, rows),
    el(
      "p",
      { class: "source" },
      "F_i, the fragmentation index of the kernel: −1 if a request would succeed; else towards 0 ",
      "for lack of memory, towards 1 for fragmentation (mm/vmstat.c).",
    ),
  );
}

function balance(fragmentation: Json, page: number): HTMLElement {
  const found = object(fragmentation["free_balance"]);
  if (found === null) return absentSection(fragmentation, "free_balance");
  const amount = (field: string) => format.bytes((number(found[field]) ?? 0) * page);
  const lists = amount("on_lists_pages");
  const counted = amount("counted_pages");
  const verdicts: Record<string, string> = {
    agree: "The two counts agree.",
    deferred_initialisation: `${amount("deferred_pages")} of the difference is memory not initialised yet.`,
    unaccepted: `${amount("deferred_pages")} of the difference is memory not accepted yet.`,
    unexplained: "Nothing in the snapshot explains the difference.",
  };
  const verdict = verdicts[text(found["verdict"]) ?? ""] ?? "";
  return el(
    "p",
    { class: "source" },
    `${lists} is on the free lists (buddyinfo), ${counted} by the counter (MemFree). ${verdict}`,
  );
}
