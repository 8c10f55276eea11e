// A recording: fragmentation by zone and order, free memory, use, faults, pressure, and the activity of
// huge pages, compaction and reclaim. Indices and sums are computed in Rust (docs/usage.md), and drawn
// here in charts that show one window of time.

import type { Line } from "./bucket";
import type { Run, Series, SeriesColumn } from "./data";
import type { Child } from "./dom";
import * as format from "./format";
import { number, object } from "./json";
import type { Section } from "./main";
import type { Area } from "./plot";
import { type Choice, chart, decimationNote, extent, lineOf, linkOf } from "./series";

/** The columns of all series of one name, concatenated by column. */
async function linesOf(all: Series[], wanted: (name: string) => boolean): Promise<Map<string, Line>> {
  const parts = new Map<string, Line[]>();
  for (const series of all) {
    for (const column of series.columns) {
      if (!wanted(column.name)) continue;
      const line = (await lineOf(column)) ?? constantLine(series, column);
      parts.set(column.name, [...(parts.get(column.name) ?? []), line]);
    }
  }
  return new Map([...parts].map(([name, lines]) => [name, joinLines(lines)]));
}

/** A column that never changed, from the first reading to the last; the rate of such a counter is 0. */
function constantLine(series: Series, column: SeriesColumn): Line {
  const { from_s, to_s } = series;
  if (from_s === null || to_s === null || column.constant === null) return empty();
  const value = column.is_counter && column.constant.value !== null ? 0 : (column.constant.value ?? NaN);
  const at = from_s === to_s ? [from_s] : [from_s, to_s];
  return { at: Float64Array.from(at), values: Float64Array.from(at, () => value) };
}

function empty(): Line {
  return { at: new Float64Array(), values: new Float64Array() };
}

function joinLines(lines: Line[]): Line {
  if (lines.length === 1) return lines[0]!;
  const length = lines.reduce((sum, line) => sum + line.at.length, 0);
  const whole: Line = { at: new Float64Array(length), values: new Float64Array(length) };
  let at = 0;
  for (const line of lines) {
    whole.at.set(line.at, at);
    whole.values.set(line.values, at);
    at += line.at.length;
  }
  return whole;
}

function seriesNamed(of: Series[], name: string): Series[] {
  return of.filter((series) => series.name === name);
}

function pageBytes(run: Run): number {
  return number(run.run.machine["page_size_bytes"]) ?? 4096;
}

/** The last reading that did not fail. */
function last(line: Line): number {
  for (let at = line.values.length - 1; at >= 0; at--) {
    const value = line.values[at]!;
    if (!Number.isNaN(value)) return value;
  }
  return NaN;
}

/** Source of the values of series, and the number of values in the page. */
function source(all: Series[], more: string): Child[] {
  const from = [...new Set(all.map((series) => series.source))].join(", ");
  const shown = all.flatMap(({ columns, readings }) =>
    columns.flatMap(({ decimated_from, values }) =>
      decimated_from === null || values === null ? [] : [decimationNote(readings, values.length)],
    ),
  );
  return ["Source: ", from, `; time in seconds since the start of the run. ${more}`, shown[0] ?? ""];
}

interface ZoneLines {
  node: string;
  zone: string;
  /** By order. */
  orders: Line[];
}

/** Lines named `NODE/ZONE/ORDER` by zone. */
async function zones(all: Series[]): Promise<ZoneLines[]> {
  const found: ZoneLines[] = [];
  for (const [name, line] of await linesOf(all, () => true)) {
    const parts = /^(\d+)\/(.+)\/(\d+)$/.exec(name);
    if (parts === null) continue;
    const [, node = "", zone = "", order = ""] = parts;
    let place = found.find((known) => known.node === node && known.zone === zone);
    if (place === undefined) {
      place = { node, zone, orders: [] };
      found.push(place);
    }
    place.orders[Number(order)] = line;
  }
  return found;
}

/** Zones with the most free memory first: these interest the reader. */
async function bySize(run: Run): Promise<string[]> {
  const sizes = (await zones(seriesNamed(run.series, "buddyinfo"))).map(({ node, zone, orders }) => {
    const most = (line: Line) => Math.max(0, extent(line.values)[1]);
    const size = orders.reduce((sum, line, order) => sum + most(line) * 2 ** order, 0);
    return { name: `${node}/${zone}`, size };
  });
  return sizes.sort((a, b) => b.size - a.size).map(({ name }) => name);
}

async function sorted(run: Run, all: Series[]): Promise<ZoneLines[]> {
  const order = await bySize(run);
  const place = ({ node, zone }: ZoneLines) => order.indexOf(`${node}/${zone}`);
  return (await zones(all)).sort((a, b) => place(a) - place(b));
}

function orderName(order: number, page: number): string {
  return `order ${order} (${format.shortSize(page * 2 ** order)})`;
}

/** The order of a huge page, or the largest order. */
function hugeOrder(run: Run, orders: number, page: number): number {
  const thp = object(run.run.settings["thp"]);
  const said = thp === null ? null : number(thp["pmd_size_bytes"]);
  const usual = Math.log2(page) - 3;
  return Math.min(orders - 1, said === null ? usual : Math.log2(said / page));
}

export async function fragmentation(run: Run, rank: number): Promise<Section> {
  const all = seriesNamed(run.derived, "unusable_index");
  if (all.length === 0) return null;
  const page = pageBytes(run);
  const content = (await sorted(run, all)).map(({ node, zone, orders }) => {
    const huge = hugeOrder(run, orders.length, page);
    const choices = choicesOf(orders, page, "permille");
    const first = new Set([3, 6, huge, orders.length - 1]);
    const [low, high] = extent(orders[huge]?.values ?? new Float64Array());
    const where = `node ${node}, zone ${zone}`;
    const block = format.bytes(page * 2 ** huge);
    const index = (permille: number) => format.index(permille / 1000);
    const moved =
      low === high
        ? `always ${index(low)}`
        : `${index(low)} to ${index(high)}, at the end ${index(last(orders[huge]!))}`;
    const says =
      high < low ? `F_u in ${where}: nothing was free` : `F_u in ${where}, ${block} blocks: ${moved}`;
    const words =
      "F_u(order): the share of free memory in blocks too small for that order; 0 is best. " +
      "It is undefined if nothing is free.";
    const chosen = choices.filter((_, order) => first.has(order));
    return chart(
      rank,
      says,
      source(all, words),
      choices,
      run,
      { link: linkOf(run), range: [0, 1000], chosen },
      null,
    );
  });
  return { title: "Fragmentation over time", content };
}

function choicesOf(orders: Line[], page: number, unit: string): Choice[] {
  return Array.from(orders, (line, order) => {
    return { name: orderName(order, page), unit, line: line ?? empty() };
  });
}

export async function freeBlocks(run: Run, rank: number): Promise<Section> {
  const all = seriesNamed(run.series, "buddyinfo");
  if (all.length === 0 || seriesNamed(run.derived, "unusable_index").length === 0) return null;
  const page = pageBytes(run);
  const content = (await sorted(run, all)).map(({ node, zone, orders }) => {
    const scaled = Array.from(orders, (line, order): Line => {
      const block = page * 2 ** order;
      const { at, values } = line ?? empty();
      return { at, values: values.map((blocks) => blocks * block) };
    });
    const choices = choicesOf(scaled, page, "bytes");
    const moved = scaled.map((line, order) => ({ order, high: extent(line.values)[1] }));
    moved.sort((a, b) => b.high - a.high);
    const most = moved[0];
    const says =
      `Free memory by size of block in node ${node}, zone ${zone}` +
      (most === undefined || most.high <= 0
        ? ": none"
        : `: most in blocks of ${orderName(most.order, page)}, up to ${format.bytes(most.high)}`);
    const first = new Set(moved.slice(0, 4).map(({ order }) => order));
    const words = "Blocks of this order only, times their size.";
    const chosen = choices.filter((_, order) => first.has(order));
    return chart(rank, says, source(all, words), choices, run, { link: linkOf(run), chosen }, null);
  });
  return { title: "Free memory over time", content };
}

export async function usedMemory(run: Run, rank: number): Promise<Section> {
  const all = seriesNamed(run.derived, "use");
  if (all.length === 0) return null;
  const lines = await linesOf(all, () => true);
  const parts: [string, string, string, Area["kind"]][] = [
    ["free", "free", "total", "use-free"],
    ["page_cache", "page cache", "used", "use-cache"],
    ["used_less_page_cache", "used − page cache", "used_less_page_cache", "use-programs"],
  ];
  // Without a page cache there are two parts: free, and used.
  const shown: typeof parts = lines.has("page_cache")
    ? parts
    : [parts[0]!, ["used", "used", "used", "use-programs"]];
  const choices = shown.flatMap(([name, words, upper, kind]): Choice[] => {
    const [line, edge] = [lines.get(name), lines.get(upper)];
    if (line === undefined || edge === undefined) return [];
    return [{ name: words, unit: "bytes", line, area: { edge, kind } }];
  });
  const range = (name: string) => {
    const [low, high] = extent(lines.get(name)?.values ?? new Float64Array());
    return high < low ? "never read" : `${format.bytes(low)} to ${format.bytes(high)}`;
  };
  const total = extent(lines.get("total")?.values ?? new Float64Array())[1];
  const says =
    `Use of ${format.bytes(Math.max(0, total))} of memory: used ${range("used")}` +
    (lines.has("page_cache") ? `, of which page cache ${range("page_cache")}` : "");
  const words =
    "Free: MemFree; page cache: Buffers + Cached + SwapCached; used: MemTotal − MemFree; the parts add up.";
  const wish = { link: linkOf(run), chosen: choices, fixed: true };
  const content = [chart(rank, says, source(all, words), choices, run, wish, null)];
  content.push(...(await counters(run, rank, "Page faults", FAULTS)));
  return { title: "Use over time", content };
}

/** Column of vmstat with its meaning. */
type Counters = [string, string][];

const FAULTS: Counters = [
  ["pgfault", "all faults"],
  ["pgmajfault", "major faults"],
];
const HUGE: Counters = [
  ["thp_fault_alloc", "allocated in faults"],
  ["thp_fault_fallback", "fell back in faults"],
  ["thp_collapse_alloc", "collapsed by khugepaged"],
  ["thp_split_page", "split"],
];
const COMPACTION: Counters = [
  ["compact_stall", "direct compactions"],
  ["compact_fail", "failed direct compactions"],
  ["compact_daemon_wake", "kcompactd wake-ups"],
  ["pgmigrate_success", "pages migrated"],
  ["pgmigrate_fail", "pages not migrated"],
  ["compact_migrate_scanned", "pages scanned by the migrate scanner"],
  ["compact_free_scanned", "pages scanned by the free scanner"],
];
const RECLAIM: Counters = [
  ["pgscan_kswapd", "pages scanned by kswapd"],
  ["pgscan_direct", "pages scanned by direct reclaim"],
  ["pgsteal_kswapd", "pages reclaimed by kswapd"],
  ["pgsteal_direct", "pages reclaimed by direct reclaim"],
  ["pswpin", "pages swapped in"],
  ["pswpout", "pages swapped out"],
];

/** A chart of rates, non-zero ones first; no chart if there are no such columns. */
async function counters(run: Run, rank: number, title: string, of: Counters): Promise<HTMLElement[]> {
  const all = seriesNamed(run.series, "vmstat");
  const lines = await linesOf(all, (name) => of.some(([column]) => column === name));
  if (lines.size === 0) return [];
  const choices = of.flatMap(([column, words]): Choice[] => {
    const line = lines.get(column);
    return line === undefined ? [] : [{ name: `${words} (${column})`, unit: "count/s", line }];
  });
  const busy = choices.filter(({ line }) => extent(line.values)[1] > 0);
  const peaks = busy.slice(0, 2).map(({ name, line }) => {
    return `${name} up to ${format.value(extent(line.values)[1], "count/s")}`;
  });
  const says = `${title}: ${peaks.length === 0 ? "none" : peaks.join(", ")}`;
  const chosen = (busy.length === 0 ? choices : busy).slice(0, 4);
  const words = "Growth of counters per second.";
  return [chart(rank, says, source(all, words), choices, run, { link: linkOf(run), chosen }, null)];
}

export async function activity(run: Run, rank: number): Promise<Section> {
  const content = [
    ...(await counters(run, rank, "Transparent huge pages", HUGE)),
    ...(await counters(run, rank, "Compaction", COMPACTION)),
    ...(await counters(run, rank, "Reclaim", RECLAIM)),
  ];
  return content.length === 0 ? null : { title: "Huge pages, compaction, reclaim", content };
}

export async function pressure(run: Run, rank: number): Promise<Section> {
  const all = seriesNamed(run.series, "pressure");
  const lines = await linesOf(all, (name) => name.endsWith(".total"));
  if (lines.size === 0) return null;
  const choices = [...lines].map(([name, line]): Choice => {
    // Microseconds of waiting in a second, as thousandths of the time.
    const share = { at: line.at, values: line.values.map((us) => us / 1000) };
    return { name: name.replace(/\.total$/, "").replace(".", " "), unit: "permille", line: share };
  });
  const busy = choices
    .map((choice) => ({ choice, most: extent(choice.line.values)[1] }))
    .filter(({ most }) => most > 0)
    .sort((a, b) => b.most - a.most);
  const most = busy[0];
  const says =
    most === undefined
      ? "Pressure: no task waited"
      : `Pressure: tasks waited for ${most.choice.name.replace(/ \w+$/, "")} up to ` +
        `${format.percent(most.most / 1000)} of the time`;
  const memory = choices.filter(({ name }) => name.startsWith("memory"));
  const chosen = [...new Set([...memory, ...busy.map(({ choice }) => choice)])].slice(0, 4);
  const words = "Share of the time in which some tasks, or all, waited: growth of the kernel's totals.";
  return {
    title: "Pressure over time",
    content: [chart(rank, says, source(all, words), choices, run, { link: linkOf(run), chosen }, null)],
  };
}
