// An experiment: the answer for each workload, bars with intervals, factorials, axes, and every measure.

import { withReadout } from "./cells";
import { type Axis, axes, findFactorial, type Variant } from "./factorial";
import type { Json, Run } from "./data";
import { type Child, details, el, figure, table } from "./dom";
import { chart } from "./download";
import { type Bar, bars, type Cell, type Course, heat, lines, type Mark, sayBar } from "./drawing";
import * as format from "./format";
import { number, numbersOf, object, objects, reason, text, texts } from "./json";
import type { Section } from "./main";
import { curveFigure } from "./sim";
import type { Curve } from "./sim_charts";

/**
 * Further curves of a chart besides the judged measure: of each row the first measure that was
 * taken. The program's own control group knows best; rusage knows the processes that were waited for, and
 * the machine's counters include those of all processes, as their names say.
 */
const ON_AXIS = [
  ["wall"],
  ["group.pgmajfault", "rusage.majflt", "counter.major-faults", "vmstat.pgmajfault"],
  ["rusage.minflt", "counter.minor-faults", "group.pgfault", "vmstat.pgfault"],
  ["group.workingset_refault_anon", "vmstat.workingset_refault_anon"],
  ["group.workingset_refault_file", "vmstat.workingset_refault_file"],
  ["pressure.group.memory.some", "pressure.memory.some"],
];
/** Verdicts in a table. */
const SHORT: Record<string, string> = {
  better: "faster",
  worse: "slower",
  no_difference: "no difference",
  too_few: "too few to decide",
  undecided: "undecided",
  not_huge: "no huge pages allocated",
  not_applied: "a setting was not applied",
  differs: "differs",
};
/** Text after the answer, if it is advice. */
const ADVICE: Record<string, string> = {
  always: " → huge pages always",
  madvise: " → huge pages where the program requests them",
  never: " → no huge pages",
};

/** One workload with the results of its measures. */
export interface Workload {
  name: string;
  judgedBy: string | null;
  effects: Json;
  measures: Json[];
}

export interface ExperimentData {
  plan: Json;
  variants: Variant[];
  baseline: string;
  workloads: Workload[];
  /** `needs` of the experiment: how much memory each workload needs. */
  needs: Json[];
}

export function readExperiment(run: Run): ExperimentData | null {
  const experiment = object(run.experiment ?? null);
  const plan = object(experiment?.["plan"]);
  if (experiment === null || plan === null) return null;
  const variants = objects(plan["variants"]).map((variant): Variant => {
    const settings = objects(variant["settings"]).map((setting): [string, string] => [
      text(setting["key"]) ?? "",
      text(setting["value"]) ?? "",
    ]);
    return { name: text(variant["name"]) ?? "", settings: new Map(settings) };
  });
  const workloads = objects(experiment["effects"]).map((effects): Workload => ({
    name: text(effects["workload"]) ?? "",
    judgedBy: text(effects["judged_by"]),
    effects,
    measures: objects(effects["measures"]),
  }));
  const needs = objects(experiment["needs"]);
  return { plan, variants, baseline: text(plan["baseline"]) ?? "", workloads, needs };
}

export function measureOf(workload: Workload, name: string | null): Json | null {
  return workload.measures.find((measure) => text(measure["name"]) === name) ?? null;
}

export function variantOf(measure: Json | null, name: string): Json | null {
  return objects(measure?.["variants"]).find((variant) => text(variant["variant"]) === name) ?? null;
}

function trialsOf(workload: Workload, name: string): Json | null {
  return objects(workload.effects["trials"]).find((trials) => text(trials["variant"]) === name) ?? null;
}

/** `wall` as `time`, `counter.cycles` as `cycles`. */
export function nameOf(measure: string): string {
  if (measure === "wall") return "time";
  if (measure === "memory.peak") return "peak memory";
  if (measure === "huge.all") return "in huge pages";
  if (measure.startsWith("pressure.")) {
    const [of, kind] = measure.split(".").slice(-2);
    const whose = measure.startsWith("pressure.group.") ? "of its group" : "of the machine";
    return `pressure on ${of}, ${kind}, ${whose}`;
  }
  const refaults = /^(group|vmstat)\.workingset_refault_(anon|file)$/.exec(measure);
  if (refaults !== null) {
    const whose = refaults[1] === "vmstat" ? ", of the machine" : "";
    return `refaults, ${refaults[2] === "anon" ? "anonymous" : "file"}${whose}`;
  }
  if (/^(group\.pgmajfault|rusage\.majflt)$/.test(measure)) return "major faults";
  if (measure === "rusage.minflt") return "minor faults";
  return measure.replace(/^counter\./, "").replace(/^latency\./, "latency ");
}

/** Whether the ratio of a variant is an effect of it. */
export function isVoid(effect: Json | null): boolean {
  return ["not_huge", "not_applied"].includes(text(effect?.["verdict"]) ?? "");
}

/** A ratio with as many digits as its interval is worth, as on the terminal. */
function digits(value: number, interval: Json | null): string {
  const [low, high] = [number(interval?.["low"]) ?? 0, number(interval?.["high"]) ?? 0];
  const isNarrow = high - low > 1e-9 && high - low < 0.02 && low > 0.85 && high < 1.15;
  if (value >= 1e4 || (value > 0 && value < 9.95e-3)) return value.toExponential(1);
  if (value >= 99.95) return value.toFixed(0);
  if (value >= 9.995) return value.toFixed(1);
  return value.toFixed(value < 0.0995 || isNarrow ? 3 : 2);
}

export function times(value: number | null, interval: Json | null = null): string {
  return value === null ? "–" : `${digits(value, interval)}×`;
}

function within(interval: Json | null): string {
  if (interval === null) return "–";
  const end = (name: string) => digits(number(interval[name]) ?? 0, interval);
  return `${end("low")} to ${end("high")}`;
}

export function experiment(run: Run, rank: number): Section {
  const found = readExperiment(run);
  if (found === null) return null;
  const { plan, workloads } = found;
  const content: HTMLElement[] = [el("p", { class: "intro" }, text(plan["question"]) ?? "")];
  content.push(...failureList(run, found));
  for (const workload of workloads) content.push(...answer(found, workload, rank));
  content.push(details("Command", planSection(found)));
  return { title: `Experiment ${text(plan["name"]) ?? ""}`, content };
}

/** Flags and trials that failed, before anything that they make doubtful. */
function failureList(run: Run, { plan }: ExperimentData): HTMLElement[] {
  const trials = objects(object(run.experiment ?? null)?.["trials"]);
  const kinds = new Map<string, { count: number; first: string; variants: Set<string> }>();
  const put = (kind: string, first: string, trial: Json) => {
    const known = kinds.get(kind) ?? { count: 0, first, variants: new Set<string>() };
    known.count += 1;
    known.variants.add(text(object(trial["of"])?.["variant"]) ?? "?");
    kinds.set(kind, known);
  };
  for (const trial of trials) {
    for (const flag of objects(trial["flags"]))
      put(text(flag["kind"]) ?? "", text(flag["text"]) ?? "", trial);
    const end = text(trial["end"]) ?? "done";
    if (end !== "done") {
      const detail = text(trial["end_detail"]) ?? text(trial["last_output"]) ?? "";
      put(end.replaceAll("_", " "), detail.trim().split("\n").at(-1) ?? "", trial);
    }
  }
  const planned = objects(plan["schedule"]).length;
  if (trials.length < planned)
    kinds.set("not finished", {
      count: planned - trials.length,
      first: `of ${planned} planned`,
      variants: new Set(["all"]),
    });
  if (kinds.size === 0) return [];
  // Flags that invalidate a ratio come first.
  const weight = (kind: string) => ["no huge pages", "not applied"].indexOf(kind) + 1 || 9;
  const items = [...kinds]
    .sort(([a], [b]) => weight(a) - weight(b))
    .map(([kind, { count, first, variants }]) =>
      el(
        "li",
        {},
        el("strong", {}, kind),
        `: ${format.count(count)} ${count === 1 ? "trial" : "trials"} of `,
        [...variants].slice(0, 6).join(", "),
        first === "" ? "" : ` (${first})`,
      ),
    );
  return [el("div", { class: "notice", role: "note" }, el("ul", {}, ...items))];
}

function answer(found: ExperimentData, workload: Workload, rank: number): HTMLElement[] {
  const judged = measureOf(workload, workload.judgedBy);
  if (judged === null) return [el("p", {}, el("strong", {}, workload.name), ": no measurements")];
  const advice = text(workload.effects["advice"]);
  const floor = object(judged["noise_floor"]);
  const noise =
    floor === null
      ? `noise floor unknown: ${reason(judged, "noise_floor")}`
      : `noise floor ${format.percent((number(floor["ratio"]) ?? 1) - 1)} ` +
        `(${number(floor["pairs"])} pairs of twins)`;
  const rows = found.variants.map(({ name }) => row(found, workload, judged, name));
  const columns = [
    { text: "variant", names: true },
    { text: "median", right: true },
    { text: "speed-up", right: true },
    { text: "95 % interval", right: true },
    { text: "time saved", right: true },
    { text: "memory", right: true },
    { text: "p99.9", right: true },
    { text: "huge pages", right: true },
    { text: "trials", right: true },
    { text: "verdict" },
  ];
  // A column without measurements is left out.
  const isTold = (_: unknown, at: number) => rows.some((row) => row[at] !== "–");
  const numbers = table(
    `${workload.name} by ${nameOf(workload.judgedBy ?? "")}; ${noise}`,
    columns.filter(isTold),
    rows.map((row) => row.filter(isTold)),
  );
  const says = `${workload.name}: ${headline(found, workload, judged)}`;
  return [barFigure(found, workload, judged, rank, says + (ADVICE[advice ?? ""] ?? "")), numbers];
}

/** The variant that corresponds to the advice. */
function advisedVariant(found: ExperimentData, advice: string | null): string | null {
  const of = { always: "always", madvise: "advise" }[advice ?? ""];
  if (of === undefined) return null;
  return found.variants.find(({ settings }) => settings.get("thp")?.includes(of) ?? false)?.name ?? null;
}

/** The best variant in a phrase. */
function headline(found: ExperimentData, workload: Workload, judged: Json): string {
  const name = nameOf(workload.judgedBy ?? "");
  const known = found.variants.flatMap((variant) => {
    const effect = object(variantOf(judged, variant.name)?.["effect"]);
    return effect === null ? [] : [{ variant, effect, verdict: text(effect["verdict"]) ?? "" }];
  });
  const speed = (effect: Json) => number(effect["speed_up"]) ?? 0;
  const better = known.filter(({ verdict }) => verdict === "better");
  const named = advisedVariant(found, text(workload.effects["advice"]));
  const first = better.sort((a, b) => speed(b.effect) - speed(a.effect))[0];
  const best = better.find(({ variant }) => variant.name === named) ?? first;
  if (best !== undefined) {
    const interval = within(object(best.effect["speed_up_interval"]));
    const fast = times(speed(best.effect), object(best.effect["speed_up_interval"]));
    return `${fast} as fast with ${best.variant.name} (${interval})`;
  }
  const worse = known.filter(({ verdict }) => verdict === "worse");
  if (worse.length > 0) {
    const most = worse.sort((a, b) => speed(a.effect) - speed(b.effect))[0]!;
    const lead = worse.length === 1 ? "" : "slowest: ";
    return `${lead}${times(1 / speed(most.effect))} slower with ${most.variant.name}`;
  }
  const verdicts = new Set(known.map(({ verdict }) => SHORT[verdict] ?? verdict));
  const said = verdicts.size === 0 ? "" : `: ${[...verdicts].join(", ")}`;
  return `${name} under ${found.variants.length} variants${said}`;
}

function row(found: ExperimentData, workload: Workload, judged: Json, name: string): Child[] {
  const of = variantOf(judged, name);
  const effect = object(of?.["effect"]);
  const counted = isVoid(effect) ? null : effect;
  const ratio = (measure: string) => {
    const other = object(variantOf(measureOf(workload, measure), name)?.["effect"]);
    return isVoid(other) ? "–" : times(number(other?.["ratio"]), object(other?.["ratio_interval"]));
  };
  const huge = number(variantOf(measureOf(workload, "huge.all"), name)?.["median"]);
  const trials = trialsOf(workload, name);
  const [done, planned] = [number(trials?.["done"]) ?? 0, number(trials?.["planned"]) ?? 0];
  const killed = number(trials?.["out_of_memory"]) ?? 0;
  const verdict = text(effect?.["verdict"]);
  const dies = done === 0 && killed > 0 ? "out of memory" : "–";
  const saved = number(counted?.["saved_percent"]);
  return [
    name,
    format.value(number(of?.["median"]), text(judged["unit"]) ?? ""),
    times(number(counted?.["speed_up"]), object(counted?.["speed_up_interval"])),
    within(object(counted?.["speed_up_interval"])),
    saved === null ? "–" : `${saved.toFixed(1).replace("-", "−")} %`,
    ratio("memory.peak"),
    ratio("latency.p99.9"),
    huge === null ? "–" : format.bytes(huge),
    `${done} of ${planned}`,
    name === found.baseline ? "baseline" : verdict === null ? dies : (SHORT[verdict] ?? verdict),
  ];
}

function barsOf(found: ExperimentData, workload: Workload, measure: Json): Bar[] {
  return found.variants.map(({ name }): Bar => {
    const of = variantOf(measure, name);
    const mean = object(of?.["mean"]);
    const effect = object(of?.["effect"]);
    const trials = trialsOf(workload, name);
    const dies = (number(trials?.["done"]) ?? 0) === 0 && (number(trials?.["out_of_memory"]) ?? 0) > 0;
    return {
      label: name,
      value: number(mean?.["value"]) ?? number(of?.["median"]),
      low: number(mean?.["low"]),
      high: number(mean?.["high"]),
      isBaseline: name === found.baseline,
      note: dies ? "out of memory" : isVoid(effect) ? (SHORT[text(effect?.["verdict"]) ?? ""] ?? "") : "",
    };
  });
}

function barFigure(
  found: ExperimentData,
  workload: Workload,
  measure: Json,
  rank: number,
  says: string,
): HTMLElement {
  const name = nameOf(text(measure["name"]) ?? "");
  const unit = text(measure["unit"]) ?? "";
  const all = barsOf(found, workload, measure);
  const rows = () => [
    ["workload", "measure", "unit", "variant", "mean", "low", "high", "note"],
    ...all.map((bar) => [workload.name, name, unit, bar.label, bar.value, bar.low, bar.high, bar.note]),
  ];
  const better = { lower: "lower is better", higher: "higher is better" }[text(measure["better"]) ?? ""];
  const source: Child[] = [
    "Source: ",
    text(measure["source"]) ?? "",
    ". Bars are geometric means of the trials, lines their 95 % intervals",
    better === undefined ? "." : `; ${better}.`,
  ];
  const drawing = { title: `${workload.name}: ${name}`, unit, bars: all };
  return figure(
    rank,
    [says],
    source,
    chart([workload.name, name], (width, palette) => bars(drawing, width, palette), rows),
  );
}

function planSection({ plan }: ExperimentData): HTMLElement {
  const workloads = objects(plan["workloads"]).map((workload): Child[] => [
    text(workload["name"]) ?? "",
    texts(workload["command"]).join(" "),
    text(workload["generator"]) ?? "",
  ]);
  const variants = objects(plan["variants"]).map((variant): Child[] => [
    text(variant["name"]) ?? "",
    objects(variant["settings"])
      .map((setting) => `${text(setting["key"])} = ${text(setting["value"])}`)
      .join(", ") || "no settings",
    variant["asks_for_huge_pages"] === true ? "requests huge pages" : "",
  ]);
  return el(
    "div",
    {},
    table("Workloads", [{ text: "name", names: true }, { text: "command" }, { text: "input" }], workloads),
    table("Variants", [{ text: "name", names: true }, { text: "settings" }, { text: "" }], variants),
    el(
      "p",
      {},
      `Order ${text(plan["sequence"])}, seed ${number(plan["seed"])}, place ${text(plan["place"])}, `,
      `recipe ${text(plan["origin"])}.`,
    ),
    el("pre", { class: "plain" }, text(plan["recipe"]) ?? ""),
  );
}

/** A map of all cells for a factorial of settings. */
export function factorialSection(run: Run, rank: number): Section {
  const found = readExperiment(run);
  const grid = found === null ? null : findFactorial(found.variants);
  if (found === null || grid === null) return null;
  const content = found.workloads.flatMap((workload) => {
    const judged = measureOf(workload, workload.judgedBy);
    if (judged === null) return [];
    const unit = text(judged["unit"]) ?? "";
    const cell = (at: number | null): Cell | null => {
      const variant = at === null ? undefined : found.variants[at];
      if (variant === undefined) return null;
      const of = variantOf(judged, variant.name);
      const effect = object(of?.["effect"]);
      const isBaseline = variant.name === found.baseline;
      const speedUp = isBaseline ? 1 : isVoid(effect) ? null : number(effect?.["speed_up"]);
      const verdict = text(effect?.["verdict"]);
      const note = isBaseline
        ? "baseline"
        : speedUp === null
          ? (SHORT[verdict ?? ""] ?? "no ratio")
          : times(speedUp);
      return { label: variant.name, lines: [format.value(number(of?.["median"]), unit), note], speedUp };
    };
    const name = nameOf(workload.judgedBy ?? "");
    const map = {
      title: `${workload.name}: ${name} by ${grid.keys.join(", ")}`,
      rows: grid.rows,
      columns: grid.columns,
      cells: grid.cells.map((row) => row.map(cell)),
    };
    const rows = () => [
      ["workload", "measure", "unit", ...grid.keys, "median", "speed_up"],
      ...found.variants.map((variant) => {
        const of = variantOf(judged, variant.name);
        const settings = grid.keys.map((key) => variant.settings.get(key) ?? null);
        const speed = number(object(of?.["effect"])?.["speed_up"]);
        return [workload.name, name, unit, ...settings, number(of?.["median"]), speed];
      }),
    ];
    const known = map.cells.flat().flatMap((cell) => (cell?.speedUp == null ? [] : [cell]));
    known.sort((a, b) => b.speedUp! - a.speedUp!);
    const [best, worst] = [known[0], known.at(-1)];
    const range =
      best === undefined || worst === undefined
        ? ""
        : `, from ${best.lines[0]} (${best.label}) to ${worst.lines[0]} (${worst.label})`;
    const source =
      "Source: the trials of this run. Each cell has the median and its speed-up over the " +
      "baseline: blue is faster, orange slower; full colour is the largest difference from it.";
    const drawing = chart([workload.name, "crossing"], (width, palette) => heat(map, width, palette), rows);
    const says = `${workload.name} under all combinations${range}`;
    return [figure(rank, [says], [source], withReadout(map, drawing))];
  });
  return content.length === 0 ? null : { title: "All combinations", content };
}

/** Several measures over one numeric setting. */
export function overAxis(run: Run, rank: number): Section {
  const found = readExperiment(run);
  if (found === null) return null;
  const all = axes(found.variants);
  const content = found.workloads.flatMap((workload) =>
    all.map((axis) => axisFigure(found, workload, axis, rank)).filter((made) => made !== null),
  );
  const keys = [...new Set(all.map(({ key }) => key))];
  return content.length === 0 ? null : { title: `Over ${keys.join(", ")}`, content };
}

function coursesOf(found: ExperimentData, workload: Workload, axis: Axis): Course[] {
  const isThere = (name: string) => objects(measureOf(workload, name)?.["variants"]).length > 0;
  const wanted = [workload.judgedBy, ...ON_AXIS.map((names) => names.find(isThere) ?? null)];
  const courses: Course[] = [];
  for (const name of new Set(wanted)) {
    const measure = measureOf(workload, name);
    if (name === null || measure === null) continue;
    const points = axis.places.map(({ variant }) => {
      const of = variantOf(measure, found.variants[variant]?.name ?? "");
      const mean = object(of?.["mean"]);
      const value = number(mean?.["value"]) ?? number(of?.["median"]);
      return value === null ? null : { value, low: number(mean?.["low"]), high: number(mean?.["high"]) };
    });
    if (points.some((point) => point !== null && point.value !== 0))
      courses.push({ name: nameOf(name), unit: text(measure["unit"]) ?? "", points });
  }
  return courses;
}

/** Report of the memory need along this axis. */
function needOf(found: ExperimentData, workload: Workload, axis: Axis): Json | null {
  if (axis.key !== "memory_limit") return null;
  const names = new Set(axis.places.map(({ variant }) => found.variants[variant]?.name));
  const isIt = (need: Json) =>
    text(need["workload"]) === workload.name &&
    objects(need["limits"]).length > 0 &&
    objects(need["limits"]).every((limit) => names.has(text(limit["variant"]) ?? ""));
  return found.needs.find(isIt) ?? null;
}

/** Lines across the chart, in the units of its axis. */
function marksOf(need: Json): Mark[] {
  const [at, low, high] = [number(need["need_bytes"]), need["too_little_bytes"], need["enough_bytes"]];
  const marks: Mark[] = [];
  if (at !== null)
    marks.push({ at, low: number(low), high: number(high), words: `need ${format.bytes(at)}` });
  const knee = number(need["knee_bytes"]);
  if (knee !== null) marks.push({ at: knee, low: null, high: null, words: `knee ${format.bytes(knee)}` });
  return marks;
}

function axisFigure(found: ExperimentData, workload: Workload, axis: Axis, rank: number): HTMLElement | null {
  const courses = coursesOf(found, workload, axis);
  if (courses.length === 0) return null;
  const dead = axis.places.flatMap(({ variant }, place) => {
    const trials = trialsOf(workload, found.variants[variant]?.name ?? "");
    const dies = (number(trials?.["done"]) ?? 0) === 0 && (number(trials?.["failed"]) ?? 0) > 0;
    const note = (number(trials?.["out_of_memory"]) ?? 0) > 0 ? "out of memory" : "failed";
    return dies ? [{ place, note }] : [];
  });
  const common = axis.common === "" ? "" : `, ${axis.common}`;
  const over = `${workload.name} over ${axis.key}${common}: ${courses.map(({ name }) => name).join(", ")}`;
  const need = needOf(found, workload, axis);
  const said = need === null ? [] : texts(need["says"]);
  const says = said.length === 0 ? over : `${workload.name}${common}: ${said[0]}`;
  const drawing = {
    title: over,
    axis: axis.key,
    places: axis.places,
    courses,
    dead,
    marks: need === null ? [] : marksOf(need),
  };
  const rows = () => [
    [axis.key, ...courses.map(({ name, unit }) => `${name} [${unit}]`)],
    ...axis.places.map(({ label }, place) => [
      label,
      ...courses.map(({ points }) => points[place]?.value ?? null),
    ]),
  ];
  const numbers = table(
    says,
    [{ text: axis.key, names: true }, ...courses.map(({ name }) => ({ text: name, right: true }))],
    axis.places.map(({ label }, place): Child[] => [
      label,
      ...courses.map(({ points, unit }) => {
        const point = points[place] ?? null;
        const note = dead.find((one) => one.place === place)?.note ?? "";
        return sayBar(
          { label, isBaseline: false, note, ...(point ?? { value: null, low: null, high: null }) },
          unit,
        );
      }),
    ]),
  );
  const more = said.slice(1).map((phrase) => ` ${phrase[0]!.toUpperCase()}${phrase.slice(1)}.`);
  const marked =
    drawing.marks.length === 0
      ? ""
      : " The need is marked where the monotone fit crosses the loss; the shaded range is its 95 % " +
        "interval, from an insufficient limit to a sufficient one.";
  const source =
    "Source: the trials of this run. Each measure is drawn as a share of its largest value; vertical " +
    "lines are 95 % intervals." +
    marked +
    more.join("");
  return figure(
    rank,
    [says],
    [source],
    chart([workload.name, axis.key], (width, palette) => lines(drawing, width, palette), rows),
    details("The numbers", numbers),
  );
}

/** A chart for every other measure, made on request; absent measures are listed once with the reason. */
export function measures(run: Run, rank: number): Section {
  const found = readExperiment(run);
  if (found === null) return null;
  const content = found.workloads.map((workload) => {
    const known = workload.measures.filter(
      (measure) => objects(measure["variants"]).length > 0 && text(measure["name"]) !== workload.judgedBy,
    );
    const absent = workload.measures.filter((measure) => measure["variants"] === null);
    const place = details(`${workload.name}: ${format.count(known.length)} more measures`);
    place.addEventListener("toggle", () => {
      if (place.children.length > 1) return;
      for (const measure of known) {
        const name = nameOf(text(measure["name"]) ?? "");
        place.append(barFigure(found, workload, measure, rank, `${name} of ${workload.name} by variant`));
      }
      if (absent.length > 0) {
        const rows = absent.map((measure): Child[] => [
          nameOf(text(measure["name"]) ?? ""),
          reason(measure, "variants"),
        ]);
        place.append(table("Not available", [{ text: "measure", names: true }, { text: "why" }], rows));
      }
    });
    return place;
  });
  return content.length === 0 ? null : { title: "All measures", content };
}

/** The series of the first trial of each workload and variant, as of simulations. */
export function trialSeries(run: Run, rank: number): Section {
  const names = new Set<string>();
  const charts = new Map<string, Curve[]>();
  for (const trial of objects(object(run.experiment ?? null)?.["trials"])) {
    const [all, slot] = [objects(trial["series"]), object(trial["of"])];
    const name = ["workload", "variant"].map((part) => text(slot?.[part]) ?? "").join(", ");
    if (all.length === 0 || names.has(name)) continue;
    names.add(name);
    for (const one of all) {
      const points = (Array.isArray(one["points_ppm"]) ? one["points_ppm"] : []).map(numbersOf);
      const key = JSON.stringify([text(one["name"]) ?? "", text(one["over"]) ?? ""]);
      const at = points.map(([position]) => position ?? 0);
      const values = points.map(([, value]) => (value ?? 0) / 1e6);
      const curve = { name, look: names.size - 1, at, values };
      charts.set(key, [...(charts.get(key) ?? []), curve]);
    }
  }
  const source = "Source: the first trial of each workload and variant.";
  const content = [...charts].map(([key, drawn]) =>
    curveFigure(rank, JSON.parse(key) as [string, string], drawn, "trial", source),
  );
  return content.length === 0 ? null : { title: "Series of trials", content };
}
