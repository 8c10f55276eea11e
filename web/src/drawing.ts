// Charts as shapes: drawn in the page with its colours, or written as an SVG file with print colours. Pure.

import * as format from "./format";

/** An element of SVG and what is in it. Text is text: it is escaped where it becomes markup. */
export interface Shape {
  tag: "svg" | "g" | "rect" | "line" | "text" | "path" | "title";
  attributes: Record<string, string | number>;
  children: (Shape | string)[];
}

/** Colours of a chart. */
export interface Palette {
  ink: string;
  soft: string;
  rule: string;
  sheet: string;
  bar: string;
  baseline: string;
  better: string;
  worse: string;
  lines: string[];
}

/** The page's own colours, which follow its theme. */
export const SCREEN: Palette = {
  ink: "var(--ink)",
  soft: "var(--ink-soft)",
  rule: "var(--rule)",
  sheet: "var(--sheet)",
  bar: "var(--class-anon)",
  baseline: "var(--class-other)",
  better: "var(--line-0)",
  worse: "var(--line-1)",
  lines: [0, 1, 2, 3, 4, 5].map((look) => `var(--line-${look})`),
};

/** Dark on white, as the page's light theme has them. */
export const PAPER: Palette = {
  ink: "#1b1f23",
  soft: "#565e66",
  rule: "#d5d8d5",
  sheet: "#ffffff",
  bar: "#5a9bd6",
  baseline: "#8a8a8a",
  better: "#0b62a4",
  worse: "#c75000",
  lines: ["#0b62a4", "#c75000", "#00795c", "#a3257a", "#6a5600", "#4a4f9c"],
};

const FONT = "system-ui, sans-serif";
const SIZE = 12;
/** Width of a character in pixels, upper estimate. */
export const SIGN = 7.2;
/** Below this width, names are above their bars. */
export const NARROW = 520;
export const DASHES = ["", "8 4", "2 3", "10 3 2 3", "5 2", "1 4"];

export function shape(
  tag: Shape["tag"],
  attributes: Shape["attributes"] = {},
  ...children: Shape["children"]
): Shape {
  return { tag, attributes, children };
}

export function text(x: number, y: number, of: string, more: Shape["attributes"] = {}): Shape {
  return shape("text", { x: round(x), y: round(y), "font-size": SIZE, ...more }, of);
}

export function line(x1: number, y1: number, x2: number, y2: number, more: Shape["attributes"]): Shape {
  return shape("line", { x1: round(x1), y1: round(y1), x2: round(x2), y2: round(y2), ...more });
}

export function round(value: number): number {
  return Math.round(value * 100) / 100;
}

export function svgRoot(width: number, height: number, label: string, ...children: Shape[]): Shape {
  const size = {
    width: round(width),
    height: round(height),
    viewBox: `0 0 ${round(width)} ${round(height)}`,
  };
  return shape("svg", { ...size, role: "img", "aria-label": label, "font-family": FONT }, ...children);
}

/** Shortens `of` to a width in pixels: at its end, or at its start if names differ in their ends. */
export function fit(of: string, pixels: number, at: ShortenAt = "end"): string {
  const signs = Math.max(3, Math.floor(pixels / SIGN));
  if (of.length <= signs) return of;
  return at === "end" ? `${of.slice(0, signs - 1)}…` : `…${of.slice(1 - signs)}`;
}

/** The end at which names are shortened. */
export type ShortenAt = "start" | "end";

/** A separate file. */
export function toText(of: Shape): string {
  const escape = (value: string) =>
    value.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
  const write = ({ tag, attributes, children }: Shape): string => {
    const all = Object.entries(attributes).map(([name, value]) => ` ${name}="${escape(String(value))}"`);
    const inside = children.map((child) => (typeof child === "string" ? escape(child) : write(child)));
    return `<${tag}${all.join("")}>${inside.join("")}</${tag}>`;
  };
  const attributes = { xmlns: "http://www.w3.org/2000/svg", ...of.attributes };
  return `<?xml version="1.0" encoding="UTF-8"?>\n${write({ ...of, attributes })}\n`;
}

/** Marks of an axis from 0 to `most`: about four, at even amounts of the unit. */
export function marks(most: number, unit: string): number[] {
  if (!(most > 0) || !Number.isFinite(most)) return [0];
  const isBinary = unit === "bytes";
  const wanted = most / 4;
  const base = isBinary ? 2 ** Math.floor(Math.log2(wanted)) : 10 ** Math.floor(Math.log10(wanted));
  const steps = isBinary ? [1, 2] : [1, 2, 2.5, 5, 10];
  const step = base * (steps.find((step) => base * step >= wanted) ?? 1);
  const found: number[] = [];
  for (let at = 0; at * step <= most * 1.0001 && at < 12; at++) found.push(at * step);
  return found;
}

/** A value of one configuration with its interval. */
export interface Bar {
  label: string;
  /** null: it was not measured. */
  value: number | null;
  low: number | null;
  high: number | null;
  isBaseline: boolean;
  /** Caveat: no huge pages were allocated, it was killed. */
  note: string;
  /** Displayed value, and the same with its interval; by default in the chart's unit. */
  shown?: { short: string; whole: string };
}

export interface BarChart {
  title: string;
  unit: string;
  bars: Bar[];
  /** Where names are shortened; by default at their end. */
  shortenAt?: ShortenAt;
}

/** One bar per configuration, with its interval. */
export function bars(chart: BarChart, width: number, palette: Palette): Shape {
  const isNarrow = width < NARROW;
  const longest = Math.max(...chart.bars.map(({ label }) => label.length), 4);
  const names = isNarrow ? 0 : Math.min(longest * SIGN + 14, width * 0.4);
  const values = 92;
  const across = Math.max(40, width - names - values);
  const row = isNarrow ? 42 : 26;
  const top = 6;
  const height = top + chart.bars.length * row + 34;
  const most = Math.max(...chart.bars.flatMap(({ value, high }) => [value ?? 0, high ?? 0]), 0);
  const x = (value: number) => names + (most > 0 ? (value / most) * across : 0);
  const foot = top + chart.bars.length * row;
  const grid = marks(most, chart.unit).flatMap((at) => [
    line(x(at), top, x(at), foot, { stroke: palette.rule }),
    text(x(at), foot + 16, format.tick(at, chart.unit), {
      "text-anchor": at === 0 ? "start" : "middle",
      fill: palette.soft,
    }),
  ]);
  const rows = chart.bars.flatMap((bar, at) => {
    const y = top + at * row;
    const [from, thick] = isNarrow ? [y + 19, 16] : [y + 5, 16];
    const label = isNarrow
      ? text(0, y + 14, fit(bar.label, width, chart.shortenAt), { fill: palette.ink })
      : text(names - 8, y + 17, fit(bar.label, names - 8, chart.shortenAt), {
          "text-anchor": "end",
          fill: palette.ink,
        });
    if (bar.value === null)
      return [label, text(names + 6, from + 12, bar.note || "not measured", { fill: palette.soft })];
    const drawn: Shape[] = [
      label,
      shape(
        "rect",
        {
          x: names,
          y: from,
          width: round(Math.max(0, x(bar.value) - names)),
          height: thick,
          fill: bar.isBaseline ? palette.baseline : palette.bar,
          ...(bar.note === ""
            ? {}
            : { "fill-opacity": 0.25, stroke: palette.worse, "stroke-dasharray": "3 2" }),
        },
        shape("title", {}, `${bar.label}: ${sayBar(bar, chart.unit)}`),
      ),
    ];
    if (bar.low !== null && bar.high !== null) {
      const middle = from + thick / 2;
      const stroke = { stroke: palette.ink, "stroke-width": 1.5 };
      drawn.push(line(x(bar.low), middle, x(bar.high), middle, stroke));
      for (const end of [bar.low, bar.high])
        drawn.push(line(x(end), middle - 4, x(end), middle + 4, stroke));
    }
    const end = Math.max(x(bar.value), bar.high === null ? 0 : x(bar.high));
    const value = bar.shown?.short ?? format.value(bar.value, chart.unit);
    const says = value + (bar.note === "" ? "" : " !");
    drawn.push(text(end + 6, from + 12, says, { fill: palette.ink }));
    return drawn;
  });
  return svgRoot(width, height, chart.title, ...grid, ...rows);
}

/** A bar in words: `2.1 s (2.0 s to 2.2 s)`. */
export function sayBar(bar: Bar, unit: string): string {
  if (bar.value === null) return bar.note || "not measured";
  if (bar.shown !== undefined) return bar.shown.whole + (bar.note === "" ? "" : `, ${bar.note}`);
  const within =
    bar.low === null || bar.high === null
      ? ""
      : ` (${format.value(bar.low, unit)} to ${format.value(bar.high, unit)})`;
  return `${format.value(bar.value, unit)}${within}${bar.note === "" ? "" : `, ${bar.note}`}`;
}

export interface Cell {
  /** Full name of the configuration. */
  label: string;
  /** Text in it, by line. */
  lines: string[];
  /** Speed-up against the baseline; null: unknown. */
  speedUp: number | null;
}

export interface HeatMap {
  title: string;
  rows: string[];
  columns: string[];
  /** Row by row; null: no such configuration. */
  cells: (Cell | null)[][];
}

/** Strength of a colour: full for the value furthest from the baseline, if that is at least twice or half. */
export function strength(speedUp: number, furthest: number): number {
  return (Math.abs(Math.log2(speedUp)) / Math.max(1, furthest)) * 0.62;
}

/** All configurations of a factorial: blue is faster than the baseline, orange is slower. */
export function heat(map: HeatMap, width: number, palette: Palette): Shape {
  const names = Math.min(Math.max(...map.rows.map((row) => row.length), 4) * SIGN + 8, 220);
  const cell = Math.max(86, (width - names) / Math.max(1, map.columns.length));
  const [top, high] = [26, 44];
  const known = map.cells.flat().flatMap((of) => (of?.speedUp == null ? [] : [of.speedUp]));
  const furthest = Math.max(...known.map((speedUp) => Math.abs(Math.log2(speedUp))), 1);
  const head = map.columns.map((column, at) =>
    text(names + (at + 0.5) * cell, 16, fit(column, cell - 4), {
      "text-anchor": "middle",
      fill: palette.ink,
    }),
  );
  const body = map.cells.flatMap((row, down) => {
    const y = top + down * high;
    const label = text(names - 8, y + high / 2 + 4, fit(map.rows[down] ?? "", names - 8), {
      "text-anchor": "end",
      fill: palette.ink,
    });
    const cells = row.flatMap((of, right): Shape[] => {
      const x = names + right * cell;
      const frame = {
        x: round(x + 1),
        y: y + 1,
        width: round(cell - 2),
        height: high - 2,
        stroke: palette.rule,
      };
      if (of === null) return [shape("rect", { ...frame, fill: "none", "stroke-dasharray": "2 4" })];
      const { speedUp } = of;
      const colour =
        speedUp === null
          ? { fill: "none" }
          : {
              fill: speedUp >= 1 ? palette.better : palette.worse,
              "fill-opacity": round(strength(speedUp, furthest)),
            };
      const said = of.lines.map((words, at) =>
        text(x + cell / 2, y + 18 + at * 15, fit(words, cell - 6), {
          "text-anchor": "middle",
          fill: palette.ink,
          ...(at === 0 ? { "font-weight": 600 } : {}),
        }),
      );
      const title = shape("title", {}, `${of.label}: ${of.lines.join(", ")}`);
      return [shape("rect", { ...frame, ...colour }, title), ...said];
    });
    return [label, ...cells];
  });
  const size = [names + cell * map.columns.length, top + high * map.rows.length + 2] as const;
  return svgRoot(size[0], size[1], map.title, ...head, ...body);
}

export interface Course {
  name: string;
  unit: string;
  /** One for each place of the axis; null: not measured there. */
  points: ({ value: number; low: number | null; high: number | null } | null)[];
}

/** A line across a chart, with the interval around it. */
export interface Mark {
  at: number;
  low: number | null;
  high: number | null;
  words: string;
}

export interface LineChart {
  title: string;
  /** Name of the axis, and its places in ascending order; null is without the setting. */
  axis: string;
  places: { label: string; value: number | null }[];
  courses: Course[];
  /** Lines across, in the numbers of the places. */
  marks?: Mark[];
  /** Places at which no trial completed, and the reason: `out of memory`. */
  dead: { place: number; note: string }[];
}

/** Positions on an axis, from 0 to 1: logarithmic for a wide range, else linear. */
export function spread(places: LineChart["places"]): number[] {
  const share = axisPosition(places);
  return places.map(({ value }) => (value === null ? 1 : share(value)));
}

/** Position of a number on the axis, from 0 to 1: logarithmic for a wide range, else linear. */
export function axisPosition(places: LineChart["places"]): (value: number) => number {
  const known = places.flatMap(({ value }) => (value === null ? [] : [value]));
  const isFar = known.length > 1 && known[0]! > 0 && known[known.length - 1]! / known[0]! >= 3;
  const of = (value: number) => (isFar ? Math.log(value) : value);
  const [low, high] = [of(known[0] ?? 0), of(known[known.length - 1] ?? 1)];
  // Variants without the setting are one step beyond.
  const hasFree = places.some(({ value }) => value === null);
  const end = hasFree ? 1 - 1 / Math.max(2, places.length) : 1;
  return (value) => (high > low ? ((of(value) - low) / (high - low)) * end : end / 2);
}

/** Several measures over one axis, each as a share of its largest value. */
export function lines(chart: LineChart, width: number, palette: Palette): Shape {
  const [left, right, top, deep] = [46, 24, 18, 230];
  const key = 18;
  const foot = top + deep;
  const height = foot + 44 + chart.courses.length * key;
  const across = Math.max(60, width - left - right);
  const xs = spread(chart.places).map((share) => left + share * across);
  const y = (share: number) => foot - share * deep;
  const drawn: Shape[] = [];
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    drawn.push(line(left, y(share), left + across, y(share), { stroke: palette.rule }));
    drawn.push(
      text(left - 6, y(share) + 4, `${share * 100} %`, { "text-anchor": "end", fill: palette.soft }),
    );
  }
  let free = -Infinity;
  chart.places.forEach(({ label }, at) => {
    const x = xs[at]!;
    const half = (Math.min(label.length, 10) * SIGN) / 2;
    if (x - half > free) {
      const middle = Math.min(Math.max(x, left + half - 20), left + across - half + 20);
      drawn.push(text(middle, foot + 16, fit(label, 74), { "text-anchor": "middle", fill: palette.soft }));
      free = x + half + 4;
    }
  });
  drawn.push(
    text(left + across / 2, foot + 33, fit(chart.axis, across), {
      "text-anchor": "middle",
      fill: palette.ink,
    }),
  );
  for (const { place, note } of chart.dead) {
    const x = xs[place] ?? left;
    drawn.push(line(x, top, x, foot, { stroke: palette.worse, "stroke-dasharray": "4 3" }));
    drawn.push(
      text(x, top - 5, `✕ ${note}`, {
        "text-anchor": x < left + 60 ? "start" : "middle",
        fill: palette.worse,
      }),
    );
  }
  const share = axisPosition(chart.places);
  (chart.marks ?? []).forEach((mark, row) => {
    const [x, low, high] = [mark.at, mark.low, mark.high].map((of) =>
      of === null ? null : left + Math.min(1, Math.max(0, share(of))) * across,
    ) as [number, number | null, number | null];
    if (low !== null && high !== null && high > low)
      drawn.push(
        shape("rect", {
          x: low,
          y: top,
          width: high - low,
          height: deep,
          fill: palette.rule,
          opacity: "0.6",
        }),
      );
    const isNear = x > left + across / 2;
    drawn.push(
      line(x, top, x, foot, { stroke: palette.ink, "stroke-width": 1.5, "stroke-dasharray": "1 3" }),
      text(x + (isNear ? -5 : 5), top + 13 + row * 15, mark.words, {
        "text-anchor": isNear ? "end" : "start",
        fill: palette.ink,
      }),
    );
  });
  chart.courses.forEach((course, look) => drawn.push(...one(course, look, xs, y, palette)));
  chart.courses.forEach((course, look) => {
    const at = foot + 44 + look * key;
    const colour = palette.lines[look % palette.lines.length]!;
    drawn.push(
      line(left, at, left + 30, at, {
        stroke: colour,
        "stroke-width": 2,
        "stroke-dasharray": DASHES[look % DASHES.length]!,
      }),
      text(left + 38, at + 4, fit(`${course.name}: 100 % is ${most(course).words}`, across - 38), {
        fill: palette.ink,
      }),
    );
  });
  return svgRoot(width, height, chart.title, ...drawn);
}

function most(course: Course): { value: number; words: string } {
  const value = Math.max(...course.points.map((point) => Math.max(point?.value ?? 0, point?.high ?? 0)), 0);
  return { value, words: format.value(value, course.unit) };
}

function one(course: Course, look: number, xs: number[], y: (share: number) => number, palette: Palette) {
  const top = most(course).value;
  const colour = palette.lines[look % palette.lines.length]!;
  const at = (value: number) => y(top > 0 ? value / top : 0);
  const drawn: Shape[] = [];
  let path = "";
  let isOpen = false;
  course.points.forEach((point, place) => {
    const x = xs[place] ?? 0;
    if (point === null) {
      isOpen = false;
      return;
    }
    path += `${isOpen ? "L" : "M"}${round(x)} ${round(at(point.value))}`;
    isOpen = true;
    const stroke = { stroke: colour, "stroke-width": 1.5 };
    if (point.low !== null && point.high !== null)
      drawn.push(line(x, at(point.low), x, at(point.high), stroke));
    const title = shape("title", {}, `${course.name}: ${format.value(point.value, course.unit)}`);
    const mark = { x: round(x - 3), y: round(at(point.value) - 3), width: 6, height: 6, fill: colour };
    drawn.push(shape("rect", mark, title));
  });
  const stroke = { stroke: colour, "stroke-width": 2, "stroke-dasharray": DASHES[look % DASHES.length]! };
  return [shape("path", { d: path, fill: "none", ...stroke }), ...drawn];
}
