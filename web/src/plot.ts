// A chart over time: uPlot draws; this module selects the extremes of the visible window, zoom by drag, keys
// and buttons, a cursor with the exact readings, events as marks.

import uPlot from "uplot";

import { type Line, nearest, windowPoints } from "./bucket";
import type { Event } from "./data";
import { colour, el, newId, onWidth, svg } from "./dom";
import * as format from "./format";
import { onTheme } from "./theme";

/** One line of a chart. */
export interface Curve {
  name: string;
  /** Unit of the displayed values: `bytes`, `count/s` … */
  unit: string;
  line: Line;
  /** Index in the list of colours and dashes. */
  look: number;
  /** For parts that add up: the upper edge of this part, and its fill. */
  area?: Area;
}

/** A part of a stack of areas. */
export interface Area {
  /** This part and all below it. */
  edge: Line;
  /** A class of CSS that fills its legend, `use-cache` …, or a colour and the distance of stripes. */
  kind: keyof typeof FILLS | Fill;
}

/** A colour, and the distance of stripes in pixels; 0: none. */
export type Fill = readonly [string, number];

/** Fill of areas: no two parts differ only by colour. */
export const FILLS = {
  "use-programs": ["var(--class-anon_huge)", 0],
  "use-cache": ["var(--class-file)", 7],
  "use-free": ["var(--class-free)", 0],
} as const;

/** Charts of one run that show one window of time. */
export class Link {
  private readonly plots: Plot[] = [];

  constructor(readonly whole: [number, number]) {}

  add(plot: Plot): void {
    this.plots.push(plot);
  }

  /** Shows the window of one chart in the others. */
  zoom(from: Plot, window: [number, number]): void {
    for (const plot of this.plots) if (plot !== from) plot.followWindow(window);
  }

  /** Moves the cursor of the others. */
  point(from: Plot, at: number | null): void {
    for (const plot of this.plots) if (plot !== from) plot.followCursor(at);
  }
}

/** Options of a chart. */
export interface Kind {
  /** Samples are marks, not lines. */
  dots?: boolean;
  /** Charts that show the same window. */
  link?: Link;
  /** The least and the most of the axis of values. */
  range?: [number, number];
}

/** Colours and dashes: no two lines differ only by colour. */
export const DASHES: number[][] = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2], [1, 4]];
export const LINE_STYLES = DASHES.length;

export function lineColour(look: number): string {
  return `var(--line-${look % LINE_STYLES})`;
}

/** A piece of a line as it is drawn, for a legend. */
export function sample(look: number): SVGElement {
  const line = svg("line", {
    x1: 1,
    x2: 27,
    y1: 4,
    y2: 4,
    "stroke-dasharray": (DASHES[look % LINE_STYLES] ?? []).join(" "),
  });
  line.style.stroke = lineColour(look);
  return svg("svg", { class: "sample", viewBox: "0 0 28 8", "aria-hidden": "true" }, line);
}

/** Divisions of an axis of seconds. */
const SECONDS = [
  1e-9, 1e-8, 1e-7, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05,
  0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400,
  172800, 604800, 2592000,
];
/** Divisions of an axis of bytes. */
const BINARY = Array.from({ length: 61 }, (_, power) => 2 ** power);

const HEIGHT = 260;
export const FONT = "12px system-ui, sans-serif";
/** Smallest useful window: nanoseconds. */
const NARROWEST = 1e-8;

export class Plot {
  readonly element: HTMLElement;
  private readonly host: HTMLElement;
  private readonly readout: HTMLOutputElement;
  private readonly zoomed: HTMLElement;
  private chart: uPlot | null = null;
  private curves: Curve[] = [];
  private window: [number, number];
  private width = 0;
  /** Where the cursor is, in seconds. */
  private cursor: number | null = null;
  private zoomStart = 0;
  /** Whether it is on the screen: others follow a zoom when they become visible. */
  private seen = true;
  private stale = false;
  private readonly dots: boolean;

  constructor(
    label: string,
    private readonly whole: [number, number],
    private readonly events: Event[],
    private readonly kind: Kind,
  ) {
    this.dots = kind.dots ?? false;
    this.window = whole;
    kind.link?.add(this);
    const help = newId("help");
    this.host = el("div", {
      class: "plot",
      tabindex: 0,
      role: "group",
      "aria-roledescription": "chart",
      "aria-label": label,
      "aria-describedby": help,
    });
    this.readout = el("output", { class: "readout" });
    this.zoomed = el("span", { class: "zoomed" });
    const button = (text: string, label: string, act: () => void) => {
      const made = el("button", { type: "button", "aria-label": label }, text);
      made.addEventListener("click", act);
      return made;
    };
    this.element = el(
      "div",
      {},
      this.host,
      el(
        "div",
        { class: "plot-tools" },
        button("+", "Zoom in", () => this.scale(0.5)),
        button("−", "Zoom out", () => this.scale(2)),
        button("all", "Show the whole run", () => this.zoom(...this.whole)),
        this.zoomed,
      ),
      el(
        "p",
        { id: help, class: "hidden-help" },
        "Drag to zoom. Left and right arrow move the cursor, with Shift the window; plus and ",
        "minus zoom, zero shows all.",
      ),
      this.readout,
    );
    this.host.addEventListener("keydown", (event) => this.key(event));
    onWidth(this.host, (width) => {
      this.width = width;
      this.rebuild();
    });
    onTheme(() => this.chart?.redraw());
    new IntersectionObserver((entries) => {
      this.seen = entries.some((entry) => entry.isIntersecting);
      if (this.seen && this.stale) this.redraw();
    }).observe(this.host);
  }

  /** Shows these lines, all of one unit. */
  show(curves: Curve[]): void {
    this.curves = curves;
    this.rebuild();
  }

  private data(): uPlot.AlignedData {
    const buckets = Math.max(64, Math.floor(this.width - 80));
    const [times, ...points] = windowPoints(
      this.curves.map(({ line, area }) => area?.edge ?? line),
      ...this.window,
      buckets,
    );
    return [times, ...points] as uPlot.AlignedData;
  }

  private rebuild(): void {
    this.chart?.destroy();
    this.chart = null;
    if (this.width === 0) return;
    const unit = this.curves[0]?.unit ?? "count";
    const data = this.data();
    const few = data[0].length <= this.width / 6;
    const axis = {
      stroke: () => colour("var(--ink-soft)"),
      font: FONT,
      grid: { stroke: () => colour("var(--rule)"), width: 1 },
      ticks: { show: false },
    };
    const options: uPlot.Options = {
      width: this.width,
      height: HEIGHT,
      legend: { show: false },
      padding: [12, 26, 0, 0],
      scales: {
        x: { time: false, min: this.window[0], max: this.window[1] },
        y: { range: (_, low, high) => this.range(low, high) },
      },
      axes: [
        {
          ...axis,
          incrs: SECONDS,
          space: 70,
          size: 26,
          label: "since the start of the run",
          labelSize: 22,
          labelFont: FONT,
          values: (_, ticks) => ticks.map(timeTick),
        },
        {
          ...axis,
          size: 78,
          space: 36,
          ...(unit.startsWith("bytes") ? { incrs: BINARY } : {}),
          values: (_, ticks) => ticks.map((at) => format.tick(at, unit)),
        },
      ],
      cursor: {
        y: false,
        drag: { x: true, y: false, setScale: false },
        points: { size: 7 },
        bind: {
          dblclick: () => () => {
            this.zoom(...this.whole);
            return null;
          },
        },
      },
      series: [
        {},
        ...this.curves.map((curve): uPlot.Series => ({
          label: curve.name,
          stroke: () => colour(curve.area ? "var(--ink-soft)" : lineColour(curve.look)),
          width: curve.area ? 1 : 1.5,
          dash: curve.area ? [] : (DASHES[curve.look % LINE_STYLES] ?? []),
          ...(this.dots ? { paths: () => null } : {}),
          ...(curve.area ? { fill: () => filling(curve.area!.kind) } : {}),
          points: { show: few && !this.dots },
        })),
      ],
      hooks: {
        setSelect: [
          (chart) => {
            const { left, width } = chart.select;
            if (width < 3) return;
            const from = chart.posToVal(left, "x");
            const to = chart.posToVal(left + width, "x");
            chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            this.zoom(from, to);
          },
        ],
        setCursor: [
          (chart) => {
            const left = chart.cursor.left ?? -1;
            this.cursor = left < 0 ? null : chart.posToVal(left, "x");
            this.say();
            this.kind.link?.point(this, this.cursor);
          },
        ],
        draw: [
          (chart) => {
            if (this.dots) this.drawDots(chart);
            this.drawEvents(chart);
            this.drawn();
          },
        ],
      },
    };
    this.chart = new uPlot(options, data, this.host);
    // The host and the readout describe its contents.
    this.chart.ctx.canvas.setAttribute("aria-hidden", "true");
  }

  /** Samples as marks, each line with a different shape. */
  private drawDots(chart: uPlot): void {
    const context = chart.ctx;
    const { left, top, width, height } = chart.bbox;
    const times = chart.data[0];
    const size = (times.length > 2000 ? 1.5 : times.length > 300 ? 2.5 : 3.5) * devicePixelRatio;
    context.save();
    context.beginPath();
    context.rect(left - size, top - size, width + 2 * size, height + 2 * size);
    context.clip();
    this.curves.forEach((curve, which) => {
      const values = chart.data[which + 1] ?? [];
      context.strokeStyle = context.fillStyle = colour(lineColour(curve.look));
      context.lineWidth = devicePixelRatio;
      for (let at = 0; at < times.length; at++) {
        const value = values[at];
        if (value === null || value === undefined) continue;
        mark(
          context,
          curve.look,
          chart.valToPos(times[at]!, "x", true),
          chart.valToPos(value, "y", true),
          size,
        );
      }
    });
    context.restore();
  }

  private drawEvents(chart: uPlot): void {
    const context = chart.ctx;
    const { left, top, width, height } = chart.bbox;
    context.save();
    context.beginPath();
    context.rect(left, top, width, height);
    context.clip();
    context.strokeStyle = colour("var(--event)");
    context.fillStyle = colour("var(--event)");
    context.lineWidth = devicePixelRatio;
    context.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    const size = 5 * devicePixelRatio;
    for (const event of this.events) {
      const x = Math.round(chart.valToPos(event.at_ns / 1e9, "x", true)) + 0.5;
      if (x < left - 1 || x > left + width + 1) continue;
      context.beginPath();
      context.moveTo(x, top);
      context.lineTo(x, top + height);
      context.stroke();
      context.beginPath();
      context.moveTo(x - size, top);
      context.lineTo(x + size, top);
      context.lineTo(x, top + 1.6 * size);
      context.fill();
    }
    context.restore();
  }

  /** Shows the window from `from` to `to`, within the run. */
  private zoom(from: number, to: number): void {
    this.zoomStart = performance.now();
    const [first, last] = this.whole;
    const wanted = Math.min(Math.max(to - from, Math.min(NARROWEST, last - first)), last - first);
    const start = Math.min(Math.max(from, first), last - wanted);
    this.window = [start, start + wanted];
    this.redraw();
    this.kind.link?.zoom(this, this.window);
  }

  /** Redraws the window. */
  private redraw(): void {
    this.stale = false;
    const chart = this.chart;
    if (chart === null) return;
    chart.batch(() => {
      chart.setData(this.data(), false);
      chart.setScale("x", { min: this.window[0], max: this.window[1] });
    });
    const all = this.window[1] - this.window[0] >= this.whole[1] - this.whole[0];
    this.zoomed.textContent = all ? "" : `${seconds(this.window[0])} to ${seconds(this.window[1])}`;
  }

  /** Shows the window of another chart: in the next frame, or when it becomes visible. */
  followWindow(window: [number, number]): void {
    this.window = window;
    this.stale = true;
    if (this.seen) requestAnimationFrame(() => this.stale && this.redraw());
  }

  /** Marks the time under the cursor of another chart, without announcing the values. */
  followCursor(at: number | null): void {
    this.cursor = at;
    const chart = this.chart;
    if (chart === null) return;
    const inside = at !== null && at >= this.window[0] && at <= this.window[1];
    chart.setCursor({ left: inside ? chart.valToPos(at, "x") : -10, top: inside ? 0 : -10 }, false);
    this.readout.setAttribute("aria-live", "off");
    this.say();
  }

  private range(low: number | null, high: number | null): [number, number] {
    if (this.kind.range !== undefined) return this.kind.range;
    // Areas start at zero, because their height is the value.
    if (this.curves.some(({ area }) => area !== undefined)) return [0, (high ?? 1) * 1.03];
    return aroundZero(low, high);
  }

  /** A zoom is complete when it is drawn: the tests read its duration. */
  private drawn(): void {
    if (this.zoomStart === 0) return;
    performance.measure("pagelab zoom", { start: this.zoomStart, end: performance.now() });
    this.zoomStart = 0;
  }

  private scale(factor: number): void {
    const [from, to] = this.window;
    const middle =
      this.cursor !== null && this.cursor >= from && this.cursor <= to ? this.cursor : (from + to) / 2;
    this.zoom(middle - (middle - from) * factor, middle + (to - middle) * factor);
  }

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target !== this.host) return;
    const [from, to] = this.window;
    const direction = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
    if (direction !== 0 && event.shiftKey)
      this.zoom(from + (direction * (to - from)) / 4, to + (direction * (to - from)) / 4);
    else if (direction !== 0) this.step(direction);
    else if (event.key === "+" || event.key === "=") this.scale(0.5);
    else if (event.key === "-") this.scale(2);
    else if (event.key === "0" || event.key === "Escape") this.zoom(...this.whole);
    else if (event.key === "Home") this.place(from);
    else if (event.key === "End") this.place(to);
    else return;
    event.preventDefault();
  }

  /** Moves the cursor to the next reading, or by a pixel where readings lie closer. */
  private step(direction: number): void {
    const [from, to] = this.window;
    const times = this.curves[0]?.line.at;
    if (times === undefined || times.length === 0) return;
    const at = this.cursor ?? (direction > 0 ? from : to);
    const here = nearest(times, at);
    const next = times[Math.min(times.length - 1, Math.max(0, here + direction))]!;
    const pixel = (to - from) / Math.max(1, this.width - 90);
    const moved = direction > 0 ? Math.max(next, at + pixel) : Math.min(next, at - pixel);
    this.place(Math.min(to, Math.max(from, moved)));
  }

  private place(at: number): void {
    this.readout.setAttribute("aria-live", "polite");
    this.chart?.setCursor({ left: this.chart.valToPos(at, "x"), top: 0 }, false);
    this.cursor = at;
    this.say();
    this.kind.link?.point(this, at);
  }

  /** The readings nearest to the cursor, and an event if there is one. */
  private say(): void {
    const at = this.cursor;
    if (at === null) {
      this.readout.textContent = "";
      return;
    }
    const facts = this.curves.map(({ name, unit, line }) => {
      const place = nearest(line.at, at);
      return place < 0 ? `${name} –` : `${name} ${format.value(line.values[place]!, unit)}`;
    });
    const first = this.curves[0]?.line.at;
    const place = first === undefined ? -1 : nearest(first, at);
    const time = place < 0 ? at : first![place]!;
    const reach = ((this.window[1] - this.window[0]) / Math.max(1, this.width)) * 6;
    const near = this.events.filter((event) => Math.abs(event.at_ns / 1e9 - at) <= reach).slice(0, 3);
    this.readout.textContent = [
      `at ${seconds(time)}`,
      ...facts,
      ...near.map((event) => `${event.kind}: ${event.text}`),
    ].join(" · ");
  }
}

/** The fill of an area: plain, or striped. */
function filling(kind: Area["kind"]): string | CanvasPattern {
  const [expression, stripes] = typeof kind === "string" ? FILLS[kind] : kind;
  const plain = colour(expression);
  if (stripes === 0) return plain;
  const tile = document.createElement("canvas");
  const side = stripes * devicePixelRatio;
  tile.width = tile.height = side;
  const context = tile.getContext("2d");
  if (context === null) return plain;
  context.fillStyle = plain;
  context.fillRect(0, 0, side, side);
  context.strokeStyle = colour("var(--sheet)");
  context.globalAlpha = 0.35;
  context.lineWidth = 1.5 * devicePixelRatio;
  context.beginPath();
  for (const shift of [-side, 0, side]) {
    context.moveTo(shift, side);
    context.lineTo(shift + side, 0);
  }
  context.stroke();
  return context.createPattern(tile, "repeat") ?? plain;
}

/** A mark around a point: disc, ring, square, cross, triangle, bar. */
function mark(context: CanvasRenderingContext2D, look: number, x: number, y: number, size: number): void {
  context.beginPath();
  switch (look % LINE_STYLES) {
    case 0:
      context.arc(x, y, size, 0, 7);
      context.fill();
      break;
    case 1:
      context.arc(x, y, size, 0, 7);
      context.stroke();
      break;
    case 2:
      context.fillRect(x - size, y - size, 2 * size, 2 * size);
      break;
    case 3:
      context.moveTo(x - size, y - size);
      context.lineTo(x + size, y + size);
      context.moveTo(x + size, y - size);
      context.lineTo(x - size, y + size);
      context.stroke();
      break;
    case 4:
      context.moveTo(x, y - 1.2 * size);
      context.lineTo(x + 1.2 * size, y + size);
      context.lineTo(x - 1.2 * size, y + size);
      context.fill();
      break;
    default:
      context.fillRect(x - size, y - size / 3, 2 * size, (2 * size) / 3);
  }
}

/** The marks of a legend, as text. */
const MARKS = ["●", "○", "■", "✕", "▲", "▬"];

/** A mark as it is drawn, for a legend. */
export function sampleMark(look: number): HTMLElement {
  const shown = el("span", { class: "sample-mark", "aria-hidden": "true" }, MARKS[look % LINE_STYLES] ?? "");
  shown.style.color = lineColour(look);
  return shown;
}

function timeTick(at: number): string {
  if (at === 0) return "0";
  return Math.abs(at) >= 60 ? format.longTime(at) : seconds(at);
}

/** A time of the run, with enough digits to distinguish it from its neighbours. */
function seconds(at: number): string {
  if (at === 0) return "0 s";
  if (Math.abs(at) >= 0.001) return `${format.exact(Number(at.toFixed(at >= 1000 ? 2 : 4)))} s`;
  return format.nanoseconds(at * 1e9);
}

/** A scale from zero if the values begin near it; otherwise around the values, to make changes visible. */
function aroundZero(low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) return [0, 1];
  if (low === high) return low === 0 ? [0, 1] : [Math.min(0, low * 1.1), Math.max(0, high * 1.1)];
  const room = (high - low) * 0.06;
  if (low >= 0 && low < high * 0.4) return [0, high + room];
  return [low - room, high + room];
}
