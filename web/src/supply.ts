// Supply of huge pages: now, after compaction, after dropping the page cache; and what prevents more.

import type { Json, Run } from "./data";
import { type Child, type Column, details, el, figure, table, vars } from "./dom";
import * as format from "./format";
import { absentSection, number, object, objects, reason, text } from "./json";
import type { Section } from "./main";

export function supply(run: Run, rank: number): Section {
  const checkup = run.checkup;
  const machine = object(checkup?.["machine"]);
  if (checkup === null || machine === null) return null;
  const title = "Supply of huge pages";
  const found = object(checkup["supply"]);
  if (found === null) return { title, content: [absentSection(checkup, "supply"), sinceBoot(checkup)] };
  const size = format.bytes(number(machine["huge_page_bytes"]) ?? 0);
  const total = object(found["total"]) ?? {};
  const zones = objects(found["zones"]);
  const content = [
    totalFigure(total, size, rank),
    details(
      "By zone, and polluting pages",
      byZone(total, zones, size),
      pollutingClasses(total),
      gigantic(found),
    ),
    sinceBoot(checkup),
  ];
  return { title, content };
}

/** The centre of an estimate. */
function value(of: Json, field: string): number {
  return number(object(of[field])?.["value"]) ?? 0;
}

function end(of: Json, field: string, which: "low" | "high"): number {
  return number(object(object(of[field])?.[which])?.["value"]) ?? 0;
}

interface Part {
  key: string;
  words: string;
  units: number;
}

/** Parts that add up to all units: pages without flags are counted as unmovable. */
function parts(total: Json): Part[] {
  const units = value(total, "units");
  const now = value(total, "free_now");
  const deferred = value(total, "deferred");
  const inUse = value(total, "in_use");
  const polluted = end(total, "polluted", "high");
  const certain = Math.min(polluted, end(total, "polluted", "low"));
  const compacted = Math.max(now + deferred, end(total, "after_compaction", "low"));
  const dropped = Math.max(compacted, end(total, "after_dropping_cache", "low"));
  const rest = Math.max(0, units - inUse - polluted - dropped);
  return [
    { key: "now", words: "free now", units: now },
    { key: "deferred", words: "not yet initialized", units: deferred },
    { key: "compaction", words: "more after compaction", units: compacted - now - deferred },
    { key: "cache", words: "more after dropping the page cache", units: dropped - compacted },
    { key: "inuse", words: "huge pages in use or in a pool", units: inUse },
    { key: "rest", words: "filled by programs", units: rest },
    { key: "doubt", words: "possibly polluted: pages without flags", units: polluted - certain },
    { key: "polluted", words: "polluted", units: certain },
  ];
}

function totalFigure(total: Json, size: string, rank: number): HTMLElement {
  const all = value(total, "units");
  const shown = parts(total).filter((part) => part.units > 0);
  const now = value(total, "free_now") + value(total, "deferred");
  // The bar shows the maximum, with pages without any flag as free; the bar below it shows the minimum.
  const most = end(total, "after_compaction", "high");
  const sampled =
    number(object(total["units"])?.["plus_minus"]) !== null ||
    number(object(total["free_now"])?.["plus_minus"]) !== null;
  const about = (units: number) => (sampled ? "~" : "") + format.count(units);
  const says =
    `${about(now)} of ${format.count(all)} pages of ${size} are free; ` +
    `at most ${about(most)} after compaction`;
  return figure(
    rank,
    [says],
    [
      sampled
        ? "Source: a sample of /proc/kpageflags. Upper bounds: pinned pages appear movable, and watermarks " +
          "are not taken into account. "
        : "Source: /proc/kpageflags; after compaction is the prediction of pagelab can. ",
      "Pages without any flag may be free or in use; the table shows both cases.",
    ],
    stack(
      shown.map((part) => ({ ...part, amount: part.units })),
      all,
      "supply",
      (part) => `${part.words}: ${about(part.amount)}, ${format.percent(part.amount / all)}`,
    ),
    keyOf(
      shown.map((part) => [part.key, part.words, about(part.units)]),
      "supply",
    ),
  );
}

/** A bar of parts that add up. */
export function stack<P extends { key: string; amount: number }>(
  shown: P[],
  all: number,
  kind: string,
  tip: (part: P) => string,
): HTMLElement {
  const pieces = shown.map((part) =>
    vars(el("span", { class: `piece ${kind}-${part.key}`, title: tip(part) }), {
      share: String(all > 0 ? part.amount / all : 0),
    }),
  );
  return el("div", { class: "stack", "aria-hidden": "true" }, ...pieces);
}

/** The legend of a stack, also its table: every part with its amount. */
export function keyOf(rows: [string, string, string][], kind: string): HTMLElement {
  return el(
    "ul",
    { class: "parts-key" },
    ...rows.map(([key, words, amount]) =>
      el(
        "li",
        {},
        el("span", { class: `swatch piece ${kind}-${key}`, "aria-hidden": "true" }),
        el("span", { class: "words" }, words),
        el("span", { class: "amount" }, amount),
      ),
    ),
  );
}

function estimate(of: Json | null): string {
  if (of === null) return "–";
  const middle = number(of["value"]);
  const error = number(of["plus_minus"]);
  if (middle === null) return "–";
  return error === null ? format.count(middle) : `~${format.count(middle)} ± ${format.count(error)}`;
}

function interval(of: Json | null): string {
  const low = estimate(object(of?.["low"]));
  const high = estimate(object(of?.["high"]));
  return low === high ? low : `${low} to ${high}`;
}

function byZone(total: Json, zones: Json[], size: string): HTMLElement {
  const named = [
    ...zones.map((zone) => ({ name: `${number(zone["node"])} ${text(zone["zone"])}`, zone })),
    { name: "all", zone: total },
  ];
  const columns: Column[] = [
    { text: `${size} pages`, names: true },
    ...named.map(({ name }) => ({ text: name, right: true })),
  ];
  const row = (words: string, show: (zone: Json) => Child): Child[] => [
    words,
    ...named.map(({ zone }) => show(zone)),
  ];
  const rows = [
    row("free lists (buddyinfo)", (zone) => {
      const now = number(zone["buddy_now"]);
      return now === null ? "–" : format.count(now);
    }),
    row("free", (zone) => estimate(object(zone["free_now"]))),
    row("not yet initialized", (zone) => estimate(object(zone["deferred"]))),
    row("huge pages in use or in a pool", (zone) => estimate(object(zone["in_use"]))),
    row("after compaction", (zone) => interval(object(zone["after_compaction"]))),
    row("… and dropping the page cache", (zone) => interval(object(zone["after_dropping_cache"]))),
    row("polluted", (zone) => interval(object(zone["polluted"]))),
    row("of", (zone) => estimate(object(zone["units"]))),
  ];
  return table("Huge pages by zone", columns, rows);
}

function pollutingClasses(total: Json): HTMLElement {
  const rows = objects(total["polluting_classes"])
    .filter((one) => number(object(one["holding"])?.["value"]) !== 0)
    .map((one) => [
      (text(one["class"]) ?? "").replace(/_/g, " "),
      estimate(object(one["holding"])),
      estimate(object(one["alone"])),
    ]);
  if (rows.length === 0) return el("p", {}, "No block is polluted.");
  return table(
    "Polluting page classes",
    [
      { text: "class", names: true },
      { text: "blocks with it", right: true },
      { text: "only with it", right: true },
    ],
    rows,
  );
}

function gigantic(found: Json): HTMLElement {
  const rows = objects(found["gigantic"]).map((one) => {
    const counts = object(one["counts"]);
    const size = format.bytes(number(one["page_size_bytes"]) ?? 0);
    if (counts === null) return [size, reason(one, "counts"), "", "", ""];
    const at = (field: string) => format.count(number(counts[field]) ?? 0);
    const low = at("contiguous_low");
    const high = at("contiguous_high");
    return [size, at("free_now"), at("deferred"), low === high ? low : `${low} to ${high}`, at("hugetlb")];
  });
  if (rows.length === 0) return el("div", {});
  return table(
    "Larger pages",
    [
      { text: "size", names: true },
      { text: "free", right: true },
      { text: "of them not initialised", right: true },
      { text: "free and movable", right: true },
      { text: "in hugetlb", right: true },
    ],
    rows,
  );
}

const SINCE_BOOT: [string, string][] = [
  ["thp_fault_allocated", "THP faults: allocated"],
  ["thp_fault_fell_back", "THP faults: fell back"],
  ["thp_collapsed", "THP collapses: allocated"],
  ["thp_collapse_failed", "THP collapses: failed"],
  ["thp_split", "THPs split"],
  ["compact_stalls", "stalls in compaction"],
  ["compact_success", "… that helped"],
  ["compact_fail", "… that failed"],
  ["compact_migrate_scanned_pages", "pages scanned by compaction"],
  ["reclaim_stalls", "stalls in reclaim"],
  ["refaults", "refaults of reclaimed pages"],
  ["swapped_pages", "pages swapped in or out"],
  ["oom_kills", "OOM kills"],
];

function sinceBoot(checkup: Json): HTMLElement {
  const counters = object(checkup["since_boot"]);
  if (counters === null) return absentSection(checkup, "since_boot");
  const rows = SINCE_BOOT.map(([field, words]) => {
    const counted = number(counters[field]);
    return [words, counted === null ? reason(counters, field) : format.count(counted)];
  });
  return details(
    "Huge pages, compaction and reclaim since boot",
    table(
      "Since boot (vmstat)",
      [
        { text: "what", names: true },
        { text: "count", right: true },
      ],
      rows,
    ),
  );
}
