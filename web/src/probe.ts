// Results of --probe: the time of a memory access by buffer size, with base and with huge pages.

import uPlot from "uplot";

import type { Json, Run } from "./data";
import { type Child, colour, details, el, figure, newId, onWidth, sentence, table } from "./dom";
import * as format from "./format";
import { absentSection, number, numbersOf, object, objects, reason, text, texts } from "./json";
import type { Section } from "./main";
import { DASHES, FONT, lineColour, sample } from "./plot";
import { onTheme } from "./theme";

export function probe(run: Run, rank: number): Section {
  const found = object(run.checkup?.["probe"]);
  if (found === null) return null;
  const notes = texts(found["notes"]).map((note) => el("p", { class: "source" }, sentence(note)));
  // The same text twice adds nothing.
  if (
    object(found["huge_pages"]) === null &&
    object(found["access"]) === null &&
    reason(found, "huge_pages") === reason(found, "access")
  ) {
    return { title: "Probe", content: [absentSection(found, "access"), ...notes] };
  }
  const content: HTMLElement[] = [
    el(
      "p",
      { class: "intro" },
      `Allowed ${format.bytes(number(found["budget_bytes"]) ?? 0)} of memory `,
      `(${text(found["budget_limit"]) ?? ""}).`,
    ),
  ];
  const huge = object(found["huge_pages"]);
  content.push(huge === null ? absentSection(found, "huge_pages") : requestedPages(huge));
  const access = object(found["access"]);
  if (access === null) content.push(absentSection(found, "access"));
  else content.push(curve(access, rank), pairs(access));
  content.push(...notes);
  return { title: "Probe", content };
}

function requestedPages(huge: Json): HTMLElement {
  const size = format.bytes(number(huge["page_size_bytes"]) ?? 0);
  const median = number(huge["latency_ns_median"]);
  const worst = Math.max(...numbersOf(huge["latency_ns"]));
  const took =
    median === null
      ? ""
      : ` A request took ${format.nanoseconds(median)} at the median, ${format.nanoseconds(worst)} at most.`;
  const failure = text(huge["first_error"]);
  return el(
    "p",
    {},
    el(
      "strong",
      {},
      `${number(huge["allocated"])} of ${number(huge["requested"])} pages of ${size} were allocated`,
    ),
    ` on request (${number(huge["succeeded"])} requests succeeded, `,
    `read back by ${text(huge["read_back_by"]) ?? ""}).`,
    took,
    failure === null ? "" : ` The first failure: ${failure}.`,
  );
}

interface PointOf {
  size: number;
  median: number;
  low: number;
  high: number;
}

function points(of: Json[]): PointOf[] {
  return of.flatMap((point) => {
    const all = numbersOf(point["ps_per_access"]).map((ps) => ps / 1000);
    const size = number(point["size_bytes"]);
    const median = number(point["ps_per_access_median"]);
    if (size === null || median === null) return [];
    return [{ size, median: median / 1000, low: Math.min(...all), high: Math.max(...all) }];
  });
}

function curve(access: Json, rank: number): HTMLElement {
  const base = points(objects(access["base_curve"]));
  const huge = points(objects(access["huge_curve"]));
  const knee = number(access["knee_bytes"]);
  const says =
    knee === null
      ? `Time of a dependent random read by buffer size; no knee: ${reason(access, "knee_bytes")}`
      : `With base pages, reads become slower beyond ${format.bytes(knee)}: ` +
        "about the reach of the largest TLB";
  const source = [
    "Source: dependent reads in random order (pointer chase); the median of the repeats, and ",
    "their range. Programs that do other work between reads gain less.",
  ];
  if (base.length === 0) return figure(rank, [says], source, el("p", {}, "No curve available."));
  const chart = new Curves(
    [
      { name: "base pages", points: base },
      { name: "huge pages", points: huge },
    ],
    says,
  );
  const rows = base.map((point): Child[] => {
    const other = huge.find(({ size }) => size === point.size);
    const show = (of: PointOf | undefined) =>
      of === undefined
        ? "–"
        : `${format.threeDigits(of.median)} ns ` +
          `(${format.threeDigits(of.low)} to ${format.threeDigits(of.high)})`;
    return [format.bytes(point.size), show(point), show(other)];
  });
  return figure(
    rank,
    [says],
    source,
    chart.element,
    details(
      "The numbers",
      table(
        "Time per read",
        [
          { text: "buffer", right: true, names: true },
          { text: "base pages", right: true },
          { text: "huge pages", right: true },
        ],
        rows,
      ),
    ),
  );
}

/** Lines over buffer sizes, with the range of the repeats at each. */
class Curves {
  readonly element: HTMLElement;
  private readonly host: HTMLElement;
  private readonly readout: HTMLOutputElement;
  private readonly sizes: number[];
  private chart: uPlot | null = null;
  private width = 0;

  constructor(
    private readonly curves: { name: string; points: PointOf[] }[],
    label: string,
  ) {
    this.curves = curves.filter(({ points }) => points.length > 0);
    this.sizes = [...new Set(this.curves.flatMap(({ points }) => points.map(({ size }) => size)))].sort(
      (a, b) => a - b,
    );
    const help = newId("help");
    this.host = el("div", {
      class: "plot",
      tabindex: 0,
      role: "group",
      "aria-roledescription": "chart",
      "aria-label": label,
      "aria-describedby": help,
    });
    this.readout = el("output", { class: "readout", "aria-live": "polite" });
    const legend = el(
      "ul",
      { class: "lines" },
      ...this.curves.map(({ name }, at) => el("li", {}, sample(at), name)),
    );
    this.element = el(
      "div",
      {},
      legend,
      this.host,
      el("p", { id: help, class: "hidden-help" }, "Left and right arrow move from size to size."),
      this.readout,
    );
    this.host.addEventListener("keydown", (event) => this.key(event));
    onWidth(this.host, (width) => {
      this.width = width;
      this.build();
    });
    onTheme(() => this.chart?.redraw());
  }

  private build(): void {
    this.chart?.destroy();
    if (this.width === 0) return;
    const values = this.curves.map(({ points }) =>
      this.sizes.map((size) => points.find((point) => point.size === size)?.median ?? undefined),
    );
    const axis = {
      stroke: () => colour("var(--ink-soft)"),
      font: FONT,
      grid: { stroke: () => colour("var(--rule)"), width: 1 },
      ticks: { show: false },
    };
    // Sizes are powers of two or of its square root: their logarithm is the scale.
    const steps = this.sizes.map((size) => Math.log2(size));
    const room = 0.3;
    this.chart = new uPlot(
      {
        width: this.width,
        height: 260,
        legend: { show: false },
        padding: [12, 30, 0, 0],
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
        scales: {
          x: { time: false, range: [steps[0]! - room, steps[steps.length - 1]! + room] },
          y: {
            range: (_, __, high) => [
              0,
              Math.max(high ?? 1, ...this.curves.flatMap(({ points }) => points.map((point) => point.high))) *
                1.05,
            ],
          },
        },
        axes: [
          {
            ...axis,
            incrs: [1, 2, 4],
            space: 56,
            size: 26,
            label: "buffer size",
            labelSize: 22,
            labelFont: FONT,
            values: (_, ticks) => ticks.map((at) => format.bytes(2 ** at)),
          },
          {
            ...axis,
            size: 48,
            label: "ns per read",
            labelSize: 22,
            labelFont: FONT,
            values: (_, ticks) => ticks.map(String),
          },
        ],
        series: [
          {},
          ...this.curves.map(({ name }, at): uPlot.Series => ({
            label: name,
            width: 2,
            stroke: () => colour(lineColour(at)),
            dash: DASHES[at] ?? [],
            points: { show: true, size: 6, fill: colour(lineColour(at)) },
          })),
        ],
        hooks: {
          draw: [(chart) => this.ranges(chart)],
          setCursor: [(chart) => this.say(chart.cursor.idx ?? null)],
        },
      },
      [steps, ...values] as uPlot.AlignedData,
      this.host,
    );
    this.chart.ctx.canvas.setAttribute("aria-hidden", "true");
  }

  private ranges(chart: uPlot): void {
    const context = chart.ctx;
    context.save();
    context.lineWidth = 1.5 * devicePixelRatio;
    this.curves.forEach(({ points }, which) => {
      context.strokeStyle = colour(lineColour(which));
      for (const { size, low, high } of points) {
        const x = chart.valToPos(Math.log2(size), "x", true) + (which - 0.5) * 3 * devicePixelRatio;
        context.beginPath();
        context.moveTo(x, chart.valToPos(low, "y", true));
        context.lineTo(x, chart.valToPos(high, "y", true));
        context.stroke();
      }
    });
    context.restore();
  }

  private at = -1;

  private key(event: KeyboardEvent): void {
    const direction = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
    if (direction === 0 || this.chart === null) return;
    event.preventDefault();
    this.at = Math.min(this.sizes.length - 1, Math.max(0, this.at + direction));
    this.chart.setCursor({ left: this.chart.valToPos(Math.log2(this.sizes[this.at]!), "x"), top: 0 });
    this.say(this.at);
  }

  private say(at: number | null): void {
    const size = at === null ? undefined : this.sizes[at];
    if (size === undefined) return;
    const facts = this.curves.map(({ name, points }) => {
      const point = points.find((other) => other.size === size);
      return `${name} ${point === undefined ? "–" : `${format.threeDigits(point.median)} ns`}`;
    });
    this.readout.textContent = [`buffer of ${format.bytes(size)}`, ...facts].join(" · ");
  }
}

function pairs(access: Json): HTMLElement {
  const rows = objects(access["pairs"]).map((pair): Child[] => {
    const base = object(pair["base"]);
    const huge = object(pair["huge"]);
    const effect = object(pair["effect"]);
    const ns = (of: Json | null) => {
      const ps = number(of?.["ps_per_access_median"]);
      return ps === null ? "–" : `${format.threeDigits(ps / 1000)} ns`;
    };
    const size = format.bytes(number(base?.["size_bytes"]) ?? 0);
    const backed = number(huge?.["huge_backed_bytes"]);
    const there =
      huge === null
        ? reason(pair, "huge")
        : backed === null
          ? reason(huge, "huge_backed_bytes")
          : `${format.bytes(backed)} of ${size}`;
    let difference = "some huge pages are missing: not compared";
    if (effect !== null) {
      const saved =
        `${format.threeDigits((number(effect["saved_ps"]) ?? 0) / 1000)} ± ` +
        `${format.threeDigits((number(effect["saved_error_ps"]) ?? 0) / 1000)} ns`;
      difference = effect["is_clear"] === true ? `${saved} saved` : `no difference measured (${saved})`;
    }
    return [size, ns(base), ns(huge), difference, there];
  });
  if (rows.length === 0) return el("p", {}, "Base and huge pages were not compared.");
  return el(
    "div",
    {},
    table(
      "Base pages and huge pages, interleaved measurements",
      [
        { text: "buffer", right: true, names: true },
        { text: "base pages", right: true },
        { text: "huge pages", right: true },
        { text: "difference", right: true },
        { text: "huge pages verified", right: true },
      ],
      rows,
    ),
    el(
      "p",
      { class: "source" },
      "The difference is the median of interleaved measurements, ± its standard error: drift ",
      "cancels out in the difference but not in the columns.",
    ),
  );
}
