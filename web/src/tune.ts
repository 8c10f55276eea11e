// Gain of a program from huge pages: the verdict, misses by region before and with the plan, and the curve.

import type { Json, Run } from "./data";
import { type Child, details, el, figure, table } from "./dom";
import { chart } from "./download";
import { type Bar, bars, type LineChart, lines } from "./drawing";
import * as format from "./format";
import { number, object, objects, text, texts } from "./json";
import type { Section } from "./main";

/** Regions that are drawn. */
const REGIONS_MAX = 24;
/** Arms of a curve, by their selection of huge pages. */
const ARM_SERIES: [string[], string][] = [
  [["costliest", "plan", "all"], "costliest regions first"],
  [["random"], "random"],
  [["most_used"], "most used first"],
];

function regionName(region: Json): string {
  const offset = number(region["offset"]) ?? 0;
  const hex = `${offset < 0 ? "-" : "+"}0x${Math.abs(offset).toString(16)}`;
  return `${text(region["mapping"]) ?? ""} ${hex}`;
}

/** A bar of misses of a region. Planned regions are drawn in full colour. */
function barOf(region: Json, field: string, more: string): Bar {
  const isPlanned = region["is_planned"] === true;
  const value = number(region[field]);
  const note = isPlanned ? "planned" : "";
  return { label: regionName(region) + more, value, low: null, high: null, isBaseline: !isPlanned, note };
}

/** Bars of misses: before, with the plan, or both side by side on one scale. */
export function missBars(regions: Json[], which: "before" | "after" | "both"): Bar[] {
  return regions.slice(0, REGIONS_MAX).flatMap((region) => {
    const before = barOf(region, "misses_before", which === "both" ? ", before" : "");
    const after = barOf(region, "misses_after", which === "both" ? ", with the plan" : "");
    if (which === "before") return [before];
    if (which === "after") return [after];
    return [
      { ...before, isBaseline: true, note: "" },
      { ...after, isBaseline: false, note: "" },
    ];
  });
}

/** Speed-ups by number of huge pages; null if only the three arms were measured. */
export function curveOf(arms: Json[]): LineChart | null {
  if (!arms.some((arm) => arm["selection"] === "costliest")) return null;
  const ratio = (arm: Json) => object(arm["speed_up"]);
  const pagesOf = (arm: Json) => number(arm["planned"]);
  const counts = [...new Set(arms.filter((arm) => arm["selection"] !== "none").map(pagesOf))];
  counts.sort((a, b) => (a ?? Infinity) - (b ?? Infinity));
  const places = counts.map((value) => ({ label: value === null ? "all" : String(value), value }));
  const measured = ARM_SERIES.map(([ons, name]) => ({
    name: `speed-up, ${name}`,
    unit: "×",
    points: counts.map((pages) => {
      const arm = arms.find((of) => ons.includes(text(of["selection"]) ?? "") && pagesOf(of) === pages);
      const found = arm === undefined ? null : ratio(arm);
      const value = number(found?.["ratio"]);
      if (value === null) return null;
      return { value, low: number(found?.["low"]), high: number(found?.["high"]) };
    }),
  }));
  const predicted = {
    name: "speed-up, predicted",
    unit: "×",
    points: counts.map((pages) => {
      const arm = arms.find(
        (of) => ["costliest", "plan"].includes(text(of["selection"]) ?? "") && pagesOf(of) === pages,
      );
      const value = number(arm?.["predicted_speed_up"]);
      return value === null ? null : { value, low: null, high: null };
    }),
  };
  const courses = [...measured, predicted].filter(({ points }) => points.some((point) => point !== null));
  return { title: "huge pages → speed-up", axis: "huge pages", places, courses, dead: [] };
}

function missFigures(rank: number, tune: Json): HTMLElement[] {
  const regions = objects(tune["regions"]);
  if (regions.length === 0) return [];
  const isRecounted = regions.some((region) => number(region["misses_after"]) !== null);
  const rows = () => [
    ["mapping", "offset", "planned", "before", "with the plan"],
    ...regions.map((region) => [
      text(region["mapping"]),
      number(region["offset"]),
      region["is_planned"] === true ? "yes" : "no",
      number(region["misses_before"]),
      number(region["misses_after"]),
    ]),
  ];
  const source =
    "Source: second-level TLB misses per region of huge-page size, from the profile " +
    "in this run, and recounted as if the plan's regions were on huge pages. " +
    `The ${Math.min(REGIONS_MAX, regions.length)} regions with the most misses of ` +
    `${format.count(number(tune["regions_total"]) ?? regions.length)}.`;
  const kinds: ["before" | "after" | "both", string][] = isRecounted
    ? [
        ["before", "Misses by region before"],
        ["after", "Misses by region with the plan"],
        ["both", "Misses by region before and with the plan"],
      ]
    : [["before", "Misses by region"]];
  return kinds.map(([which, says]) => {
    const drawing = { title: says, unit: "count", bars: missBars(regions, which) };
    const words = ["misses", which];
    return figure(
      rank,
      [says],
      [source],
      chart(words, (width, palette) => bars(drawing, width, palette), rows),
    );
  });
}

function curveFigure(rank: number, tune: Json): HTMLElement[] {
  const arms = objects(tune["arms"]);
  const drawing = curveOf(arms);
  if (drawing === null) return [];
  const rows = () => [
    ["arm", "huge pages", "speed-up", "low", "high", "predicted"],
    ...arms.map((arm) => {
      const found = object(arm["speed_up"]);
      return [
        text(arm["name"]),
        number(arm["planned"]),
        number(found?.["ratio"]),
        number(found?.["low"]),
        number(found?.["high"]),
        number(arm["predicted_speed_up"]),
      ];
    }),
  ];
  const source =
    "Source: the trials of this run; each curve is a share of its largest value, vertical " +
    "lines are 95 % intervals. Random and most used first are controls.";
  const words = ["curve"];
  const numbers = table(
    drawing.title,
    [{ text: "arm", names: true }, ...rows()[0]!.slice(1).map((of) => ({ text: String(of), right: true }))],
    rows()
      .slice(1)
      .map((row) => row.map((of): Child => (of === null ? "–" : String(of)))),
  );
  return [
    figure(
      rank,
      ["Speed-up by number of huge pages: measured, predicted, and the controls"],
      [source],
      chart(words, (width, palette) => lines(drawing, width, palette), rows),
      details("The numbers", numbers),
    ),
  ];
}

/** Result of a tuning. */
export function tuneSection(run: Run, rank: number): Section {
  const tune = run.tune ?? null;
  if (tune === null) return null;
  const verdict = el("p", { class: "verdict" }, el("strong", {}, text(tune["verdict"]) ?? ""));
  const notes = texts(tune["notes"]).map((note) => el("li", {}, note));
  const content = [verdict, ...curveFigure(rank, tune), ...missFigures(rank, tune)];
  if (notes.length > 0) content.push(el("ul", {}, ...notes));
  return { title: "Huge pages for this program", content };
}
