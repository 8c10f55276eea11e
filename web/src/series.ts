// Series and samples over time: a chart for each, with a choice of columns; events as marks and as a table.

import { type Line, rates } from "./bucket";
import type { Run, Series, SeriesColumn, Stream } from "./data";
import { numbers } from "./decode";
import { type Child, details, el, figure, table, vars } from "./dom";
import * as format from "./format";
import type { Section } from "./main";
import { type Area, type Curve, type Kind, Link, LINE_STYLES, Plot, sample, sampleMark } from "./plot";

/** A line that a chart can show. */
export interface Choice {
  name: string;
  /** Unit of the displayed values: per second for a counter. */
  unit: string;
  line: Line;
  area?: Area;
}

/** Options of a chart with a choice of lines. */
export interface ChartOptions extends Kind {
  /** Lines shown initially. */
  chosen?: Choice[];
  /** Whether lines can be chosen. */
  fixed?: boolean;
}

/** Lines that a chart shows initially. */
const FIRST = 4;

async function doubles(...blocks: Parameters<typeof numbers>[0][]): Promise<Float64Array[]> {
  const found = await Promise.all(blocks.map((block) => numbers(block)));
  return found.map((array) => (array instanceof Float64Array ? array : Float64Array.from(array)));
}

/** The charts of a run that show one window of time. */
const links = new WeakMap<Run, Link>();

export function linkOf(run: Run): Link {
  const known = links.get(run);
  if (known !== undefined) return known;
  const ends = [...run.series, ...run.derived].flatMap(({ from_s, to_s }) =>
    from_s === null || to_s === null ? [] : [from_s, to_s],
  );
  ends.push(...(run.maps?.shown ?? []).map(({ at_ns }) => at_ns / 1e9));
  const made = new Link(span(ends));
  links.set(run, made);
  return made;
}

/** A window around these moments that is not empty. */
function span(moments: number[]): [number, number] {
  let [from, to] = [Infinity, -Infinity];
  for (const moment of moments) {
    from = Math.min(from, moment);
    to = Math.max(to, moment);
  }
  if (to < from) return [0, 1];
  return from === to ? [Math.max(0, from - 0.5), to + 0.5] : [from, to];
}

/** Series that other sections interpret; all their columns are shown on request. */
export function isInterpreted(run: Run, one: Series): boolean {
  const derived = (name: string) => run.derived.some((series) => series.name === name);
  const has = (column: string) => one.columns.some(({ name }) => name === column);
  switch (one.name) {
    case "buddyinfo":
      return derived("unusable_index");
    case "meminfo":
      return derived("use");
    case "vmstat":
      return has("pgfault");
    case "pressure":
      return one.columns.some(({ name }) => name.endsWith(".total"));
    default:
      return false;
  }
}

export async function series(run: Run, rank: number): Promise<Section> {
  if (run.series.length === 0) return null;
  const content: HTMLElement[] = [];
  for (const one of run.series.filter((series) => !isInterpreted(run, series)))
    content.push(await seriesFigure(run, one, rank));
  for (const one of run.series.filter((series) => isInterpreted(run, series))) {
    const words = `${one.name}: every column as recorded (${format.count(one.columns.length)})`;
    const place = details(words);
    place.dataset["series"] = one.name;
    place.addEventListener("toggle", () => {
      if (place.children.length === 1) void seriesFigure(run, one, rank).then((made) => place.append(made));
    });
    content.push(place);
  }
  return { title: "Recorded series", content };
}

/** The readings of a column, or the rates of a counter; null of one that never changed. */
export async function lineOf(column: SeriesColumn): Promise<Line | null> {
  if (column.at_s === null || column.values === null) return null;
  const [at, values] = (await doubles(column.at_s, column.values)) as [Float64Array, Float64Array];
  return column.is_counter ? rates({ at, values }) : { at, values };
}

async function seriesFigure(run: Run, one: Series, rank: number): Promise<HTMLElement> {
  const choices: Choice[] = [];
  let shownOf = 0;
  for (const column of one.columns) {
    const line = await lineOf(column);
    if (line === null) continue;
    choices.push({ name: column.name, unit: column.is_counter ? `${column.unit}/s` : column.unit, line });
    if (column.decimated_from !== null) shownOf = Math.max(shownOf, line.values.length);
  }
  const constant = one.columns.flatMap((column): Child[][] =>
    column.constant === null ? [] : [[column.name, format.value(column.constant.value, column.unit)]],
  );
  const span =
    one.from_s === null || one.to_s === null
      ? ""
      : ` in ${format.nanoseconds((one.to_s - one.from_s) * 1e9)}`;
  const says = `${one.name}: ${format.count(one.readings)} readings${span}`;
  const source: Child[] = [
    "Source: ",
    one.source,
    "; time in seconds since the start of the run.",
    choices.some(({ unit }) => unit.endsWith("/s")) ? " Counters are shown as their growth per second." : "",
    shownOf > 0 ? decimationNote(one.readings, shownOf) : "",
  ];
  const never =
    constant.length === 0
      ? null
      : details(
          `${format.count(constant.length)} ${constant.length === 1 ? "column" : "columns"} never changed`,
          table(
            "Columns that never changed",
            [
              { text: "column", names: true },
              { text: "value", right: true },
            ],
            constant,
          ),
        );
  if (choices.length === 0) return figure(rank, [says], source, el("p", {}, "No column changed."), never);
  const first = firstChoice(choices)[0];
  return chart(
    rank,
    first === undefined ? says : `${says}; ${rangeOf(first)}`,
    source,
    choices,
    run,
    { link: linkOf(run) },
    never,
  );
}

/** Range of a line. */
function rangeOf({ name, unit, line }: Choice): string {
  const [low, high] = extent(line.values);
  return high < low
    ? `${name} was never read`
    : `${name} from ${format.value(low, unit)} to ${format.value(high, unit)}`;
}

export function decimationNote(readings: number, shown: number): string {
  return (
    ` Of ${format.count(readings)} readings, this page has the minimum and maximum of each stretch, ` +
    `${format.count(shown)} in a column.`
  );
}

/** A chart with a choice of lines. */
export function chart(
  rank: number,
  says: string,
  source: Child[],
  choices: Choice[],
  run: Run,
  options: ChartOptions,
  more: Child,
): HTMLElement {
  const ends = choices.flatMap(({ line }) =>
    line.at.length === 0 ? [] : [line.at[0]!, line.at[line.at.length - 1]!],
  );
  const dots = options.dots ?? false;
  const plot = new Plot(says, options.link?.whole ?? span(ends), run.events, options);
  const legend = el("ul", { class: "lines", "aria-label": "Lines shown" });
  let chosen = options.chosen ?? firstChoice(choices);
  const boxes = new Map<Choice, HTMLInputElement>();
  const show = () => {
    const curves = chosen.map((choice, at): Curve => ({ ...choice, look: at }));
    plot.show(curves);
    legend.replaceChildren(
      ...curves.map((curve) => el("li", {}, legendMark(curve, dots), curve.name)),
      el("li", { class: "unit" }, unitWords(chosen[0]?.unit ?? "")),
    );
    for (const [choice, box] of boxes) box.checked = chosen.includes(choice);
  };
  const choose = (choice: Choice, on: boolean) => {
    if (!on) chosen = chosen.filter((other) => other !== choice);
    // One axis has one unit: another unit starts another chart.
    else if (chosen[0]?.unit !== choice.unit) chosen = [choice];
    else chosen = [...chosen, choice].slice(-LINE_STYLES);
    show();
  };
  const picker = choices.length > 1 && options.fixed !== true ? chooser(choices, boxes, choose) : null;
  const whole_ = figure(rank, [says], source, legend, plot.element, picker, more);
  show();
  return whole_;
}

function legendMark(curve: Curve, dots: boolean): HTMLElement | SVGElement {
  if (curve.area !== undefined) {
    const { kind } = curve.area;
    const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
    if (typeof kind !== "string") return vars(swatch, { colour: kind[0] });
    swatch.classList.add(kind);
    return swatch;
  }
  return dots ? sampleMark(curve.look) : sample(curve.look);
}

/** The lines that moved most, of the unit that most columns have. */
function firstChoice(choices: Choice[]): Choice[] {
  const units = new Map<string, Choice[]>();
  for (const choice of choices) units.set(choice.unit, [...(units.get(choice.unit) ?? []), choice]);
  const group = [...units.values()].sort((a, b) => b.length - a.length)[0] ?? [];
  const spreads = new Map(
    group.map((choice) => {
      const [low, high] = extent(choice.line.values);
      return [choice, high - low];
    }),
  );
  const most = [...group].sort((a, b) => spreads.get(b)! - spreads.get(a)!).slice(0, FIRST);
  return group.filter((choice) => most.includes(choice));
}

/** The least and the most; the least above the most without any. */
export function extent(values: Float64Array): [number, number] {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

function chooser(
  choices: Choice[],
  boxes: Map<Choice, HTMLInputElement>,
  choose: (choice: Choice, on: boolean) => void,
): HTMLElement {
  const units = [...new Set(choices.map(({ unit }) => unit))];
  const groups = units.map((unit) => {
    const items = choices
      .filter((choice) => choice.unit === unit)
      .map((choice) => {
        const box = el("input", { type: "checkbox" });
        boxes.set(choice, box);
        box.addEventListener("change", () => choose(choice, box.checked));
        return el("li", {}, el("label", {}, box, " ", choice.name));
      });
    return el("fieldset", {}, el("legend", {}, unitWords(unit)), el("ul", { class: "columns" }, ...items));
  });
  const filter = el("input", {
    type: "search",
    placeholder: "filter",
    "aria-label": "Filter columns by name",
  });
  filter.addEventListener("input", () => {
    const wanted = filter.value.toLowerCase();
    for (const [choice, box] of boxes) {
      const item = box.closest("li");
      if (item !== null) item.hidden = !choice.name.toLowerCase().includes(wanted);
    }
  });
  return details(
    `Choose lines (${format.count(choices.length)}; ${LINE_STYLES} at a time, of one unit)`,
    choices.length > 12 ? filter : null,
    ...groups,
  );
}

function unitWords(unit: string): string {
  const words: Record<string, string> = {
    bytes: "bytes",
    pages: "pages",
    ns: "time",
    us: "time",
    count: "number",
    permille: "share of 1",
    "bytes/s": "bytes per second",
    "pages/s": "pages per second",
    "count/s": "per second",
    "us/s": "µs per second",
    "ns/s": "ns per second",
  };
  return words[unit] ?? unit;
}

/** Rows of a table of samples that are shown without a request. */
const ROWS_OPEN = 12;

/** Streams of one measure share a chart, a line for each combination of labels. */
export async function streams(run: Run, rank: number): Promise<Section> {
  if (run.streams.length === 0) return null;
  const groups = new Map<string, Stream[]>();
  for (const stream of run.streams) {
    const key = JSON.stringify([stream.name, stream.unit]);
    groups.set(key, [...(groups.get(key) ?? []), stream]);
  }
  const content: HTMLElement[] = [];
  for (const group of groups.values()) content.push(await streamFigure(run, group, rank));
  return { title: "Samples", content };
}

function labelOf(stream: Stream): string {
  return stream.labels.length === 0 ? stream.name : stream.labels.map(oneLabel).join(", ");
}

/** `pages huge`; an amount of memory is shown as one: `64 MiB`. */
function oneLabel([key, value]: [string, string]): string {
  return key === "bytes" && /^\d+$/.test(value) ? format.bytes(Number(value)) : `${key} ${value}`;
}

async function streamFigure(run: Run, group: Stream[], rank: number): Promise<HTMLElement> {
  const { name, unit } = group[0]!;
  const choices: Choice[] = [];
  for (const stream of group) {
    const [at, values] = (await doubles(stream.at_s, stream.values)) as [Float64Array, Float64Array];
    choices.push({ name: labelOf(stream), unit, line: { at, values } });
  }
  const samples = group.reduce((sum, stream) => sum + (stream.summary?.count ?? 0), 0);
  const cut = group.filter((stream) => stream.decimated_from !== null);
  const says =
    `${name}: ${format.count(samples)} ${samples === 1 ? "sample" : "samples"}` +
    (group.length > 1 ? ` in ${group.length} streams` : "");
  const source: Child[] = [
    "Source: raw samples of the run; time in seconds since its start.",
    cut.length === 0
      ? ""
      : ` Of ${format.count(cut[0]!.decimated_from ?? 0)} samples, this page has the minimum and maximum ` +
        `of each stretch, ${format.count(cut[0]!.values.length)}; the table is of all.`,
  ];
  if (samples === 0) return figure(rank, [says], source, el("p", {}, "No samples."));
  return chart(rank, says, source, choices, run, { dots: samples <= 20000 }, summaries(group, unit));
}

function summaries(group: Stream[], unit: string): HTMLElement {
  const all = group.flatMap((stream) => stream.summary ?? []);
  const low = Math.min(...all.map(({ min }) => min));
  const high = Math.max(...all.map(({ max }) => max));
  const rows = group.map((stream): Child[] => {
    const { summary } = stream;
    if (summary === null) return [labelOf(stream), "0", "", "", "", "", "", ""];
    const show = (value: number) => format.value(value, unit);
    return [
      labelOf(stream),
      format.count(summary.count),
      show(summary.min),
      show(summary.p5),
      show(summary.median),
      show(summary.p95),
      show(summary.max),
      range([summary.min, summary.p5, summary.median, summary.p95, summary.max], low, high),
    ];
  });
  const summary = table(
    "All samples",
    [
      { text: "kind", names: true },
      { text: "samples", right: true },
      { text: "least", right: true },
      { text: "5 %", right: true },
      { text: "median", right: true },
      { text: "95 %", right: true },
      { text: "most", right: true },
      { text: "on one scale" },
    ],
    rows,
  );
  return rows.length > ROWS_OPEN ? details("The numbers", summary) : summary;
}

/** From minimum to maximum, the middle nine tenths thicker, the median marked; all rows on one scale. */
function range(five: number[], low: number, high: number): HTMLElement {
  const place = (value: number) => `${(high > low ? ((value - low) / (high - low)) * 100 : 50).toFixed(2)}%`;
  const [min = 0, p5 = 0, median = 0, p95 = 0, max = 0] = five;
  return vars(
    el(
      "span",
      { class: "range", "aria-hidden": "true" },
      el("span", { class: "most" }),
      el("span", { class: "middle" }),
      el("span", { class: "median" }),
    ),
    {
      min: place(min),
      p5: place(p5),
      median: place(median),
      p95: place(p95),
      max: place(max),
    },
  );
}

export function events(run: Run): Section {
  if (run.events.length === 0) return null;
  const shown = run.events.slice(0, 1000);
  const rows = shown.map((event): Child[] => [format.nanoseconds(event.at_ns), event.kind, event.text]);
  const content = [
    table("Events", [{ text: "after", right: true }, { text: "kind", names: true }, { text: "what" }], rows),
  ];
  if (shown.length < run.events.length) {
    content.push(
      el(
        "p",
        { class: "source" },
        `The first ${format.count(shown.length)} of ${format.count(run.events.length)}.`,
      ),
    );
  }
  return { title: "Events", content };
}
