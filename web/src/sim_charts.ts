// Charts of simulations as shapes: lines over attempts, and bars of several parts. Pure.

import {
  type ShortenAt,
  DASHES,
  fit,
  line,
  marks,
  NARROW,
  type Palette,
  round,
  type Shape,
  shape,
  SIGN,
  text,
  svgRoot,
} from "./drawing";
import * as format from "./format";

/** A line of values over integers. */
export interface Curve {
  name: string;
  /** Index of its scheme: lines of one scheme have the same style. */
  look: number;
  at: ArrayLike<number>;
  values: ArrayLike<number>;
}

export interface CurveChart {
  title: string;
  /** Quantity along the axis. */
  axis: string;
  curves: Curve[];
}

/** A value of an index or share: three decimals. */
export function share(value: number): string {
  return format.index(value);
}

/** Range of the values: at least from 0 to 1. */
export function range(curves: Curve[]): [number, number] {
  let [low, high] = [0, 1];
  for (const { values } of curves)
    for (let at = 0; at < values.length; at++) {
      low = Math.min(low, values[at]!);
      high = Math.max(high, values[at]!);
    }
  return [low, high];
}

/** Points of a line that are drawn: all, or the minimum and maximum of each stretch in their order. */
export function thinPoints({ at, values }: Curve, most: number): number[] {
  const all = Array.from({ length: at.length }, (_, place) => place);
  if (all.length <= most) return all;
  const size = Math.ceil((all.length * 2) / most);
  const kept: number[] = [];
  for (let from = 0; from < all.length; from += size) {
    const stretch = all.slice(from, from + size);
    const by = (better: (a: number, b: number) => boolean) =>
      stretch.reduce((best, place) => (better(values[place]!, values[best]!) ? place : best));
    const ends = [by((a, b) => a < b), by((a, b) => a > b)].sort((a, b) => a - b);
    kept.push(ends[0]!, ...(ends[1] === ends[0] ? [] : [ends[1]!]));
  }
  if (kept[kept.length - 1] !== all.length - 1) kept.push(all.length - 1);
  return kept;
}

/** Lines over attempts on one scale, distinguished by dashes and named below with their last value. */
export function curves(chart: CurveChart, width: number, palette: Palette): Shape {
  const [left, right, top, deep, key] = [46, 16, 12, 240, 18];
  const foot = top + deep;
  const height = foot + 46 + chart.curves.length * key;
  const across = Math.max(60, width - left - right);
  const [low, high] = range(chart.curves);
  const last = Math.max(1, ...chart.curves.map(({ at }) => at[at.length - 1] ?? 0));
  const x = (at: number) => left + (at / last) * across;
  const y = (value: number) => foot - ((value - low) / (high - low)) * deep;
  const drawn: Shape[] = [0, 0.25, 0.5, 0.75, 1].flatMap((part) => {
    const value = low + part * (high - low);
    return [
      line(left, y(value), left + across, y(value), { stroke: palette.rule }),
      text(left - 6, y(value) + 4, format.index(value).slice(0, 6), {
        "text-anchor": "end",
        fill: palette.soft,
      }),
    ];
  });
  for (const at of marks(last, "count"))
    drawn.push(
      text(x(at), foot + 16, format.tick(at, "count"), {
        "text-anchor": at === 0 ? "start" : "middle",
        fill: palette.soft,
      }),
    );
  drawn.push(
    text(left + across / 2, foot + 33, fit(chart.axis, across), {
      "text-anchor": "middle",
      fill: palette.ink,
    }),
  );
  chart.curves.forEach((curve, row) => {
    const stroke = {
      stroke: palette.lines[curve.look % palette.lines.length]!,
      "stroke-width": 2,
      "stroke-dasharray": DASHES[curve.look % DASHES.length]!,
    };
    const places = thinPoints(curve, across * 2);
    const point = (at: number) => `${round(x(curve.at[at]!))} ${round(y(curve.values[at]!))}`;
    const path = places.map((at, place) => `${place === 0 ? "M" : "L"}${point(at)}`).join("");
    const title = shape("title", {}, curve.name);
    if (path !== "") drawn.push(shape("path", { d: path, fill: "none", ...stroke }, title));
    const down = foot + 46 + row * key;
    const end = curve.values[curve.values.length - 1];
    const says = end === undefined ? curve.name : `${curve.name}: ${share(end)} at the end`;
    drawn.push(line(left, down, left + 30, down, stroke));
    drawn.push(text(left + 38, down + 4, fit(says, across - 38), { fill: palette.ink }));
  });
  return svgRoot(width, height, chart.title, ...drawn);
}

/** A bar of parts. */
export interface Stack {
  label: string;
  /** Value of each part; null: not measured. */
  parts: (number | null)[];
  /** The total; null: not measured. */
  whole: number | null;
  /** The same in words: medians of parts may not add up to the median of the total. */
  total: string;
}

export interface StackChart {
  title: string;
  unit: string;
  /** Names of the parts. */
  parts: string[];
  stacks: Stack[];
  /** Where names are shortened; by default at their end. */
  cut?: ShortenAt;
}

/** Bars of several parts, each with its number if it fits, followed by the total, and a key below. */
export function stacks(chart: StackChart, width: number, palette: Palette): Shape {
  const isNarrow = width < NARROW;
  const longest = Math.max(4, ...chart.stacks.map(({ label }) => label.length));
  const names = isNarrow ? 0 : Math.min(longest * SIGN + 14, width * 0.4);
  const across = Math.max(40, width - names - 60);
  const [row, thick, top, key] = [isNarrow ? 42 : 26, 16, 6, 18];
  const foot = top + chart.stacks.length * row;
  const sum = ({ parts }: Stack) => parts.reduce((total: number, part) => total + (part ?? 0), 0);
  const most = Math.max(0, ...chart.stacks.map(sum));
  const wide = (value: number) => (most > 0 ? (value / most) * across : 0);
  const drawn: Shape[] = marks(most, chart.unit).flatMap((at) => [
    line(names + wide(at), top, names + wide(at), foot, { stroke: palette.rule }),
    text(names + wide(at), foot + 16, format.tick(at, chart.unit), {
      "text-anchor": at === 0 ? "start" : "middle",
      fill: palette.soft,
    }),
  ]);
  const fill = (part: number) => palette.lines[part % palette.lines.length]!;
  chart.stacks.forEach((stack, at) => {
    const y = top + at * row;
    const from = isNarrow ? y + 19 : y + 5;
    drawn.push(
      isNarrow
        ? text(0, y + 14, fit(stack.label, width, chart.cut), { fill: palette.ink })
        : text(names - 8, y + 17, fit(stack.label, names - 8, chart.cut), {
            "text-anchor": "end",
            fill: palette.ink,
          }),
    );
    let x = names;
    stack.parts.forEach((value, part) => {
      if (value === null || value === 0) return;
      const says = format.value(value, chart.unit);
      const title = shape("title", {}, `${stack.label}, ${chart.parts[part]}: ${says}`);
      const size = { x: round(x), y: from, width: round(wide(value)), height: thick };
      drawn.push(shape("rect", { ...size, fill: fill(part), stroke: palette.sheet }, title));
      const short = String(part + 1);
      if (wide(value) > SIGN * 2)
        drawn.push(
          text(x + wide(value) / 2, from + 12, short, { "text-anchor": "middle", fill: palette.sheet }),
        );
      x += wide(value);
    });
    drawn.push(text(x + 6, from + 12, stack.total, { fill: palette.ink }));
  });
  chart.parts.forEach((name, part) => {
    const y = foot + 40 + part * key;
    drawn.push(
      shape("rect", { x: 0, y: y - 11, width: 26, height: 14, fill: fill(part) }),
      text(13, y, String(part + 1), { "text-anchor": "middle", fill: palette.sheet }),
      text(34, y, fit(name, width - 34), { fill: palette.ink }),
    );
  });
  return svgRoot(width, foot + 36 + chart.parts.length * key, chart.title, ...drawn);
}
