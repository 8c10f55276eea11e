// Every variant by the measures that distinguish variants, each as a multiple of the baseline.

import { withReadout } from "./cells";
import type { Json, Run } from "./data";
import { type Child, details, figure, table } from "./dom";
import { chart } from "./download";
import { type Cell, heat, type HeatMap } from "./drawing";
import {
  type ExperimentData,
  isVoid,
  measureOf,
  nameOf,
  readExperiment,
  times,
  variantOf,
  type Workload,
} from "./experiment";
import * as format from "./format";
import { number, object, text } from "./json";
import type { Section } from "./main";

/** Fewer variants are compared by bars instead. */
const VARIANTS_MIN = 6;
const COLUMNS_MAX = 14;
/** Measures for columns, the most informative first, if the run has them. */
const COLUMNS = [
  "wall",
  "cpu.user",
  "cpu.system",
  "rusage.minflt",
  "figure.access_minor_faults",
  "rusage.majflt",
  "counter.L1-dcache-load-misses",
  "counter.L1-dcache-store-misses",
  "counter.dTLB-load-misses",
  "counter.dTLB-store-misses",
  "memory.peak",
  "rusage.maxrss",
  "rusage.inblock",
  "rusage.oublock",
  "rusage.nvcsw",
  "rusage.nivcsw",
  "page_tables",
  "huge.all",
];
/** Multiple of the baseline beyond which a colour gets no stronger. */
const RATIO_MAX = 64;

function medianOf(measure: Json, variant: string): number | null {
  return number(variantOf(measure, variant)?.["median"]);
}

/** Columns with values. */
function columnsOf(found: ExperimentData, workload: Workload): Json[] {
  const wanted = [workload.judgedBy, ...COLUMNS].filter((name) => name !== null);
  const known = [...new Set(wanted)]
    .map((name) => measureOf(workload, name))
    .filter((measure) => measure !== null);
  const says = (measure: Json) => found.variants.some(({ name }) => (medianOf(measure, name) ?? 0) !== 0);
  return known.filter(says).slice(0, COLUMNS_MAX);
}

/** Improvement factor: more of measures where more is better, less of all others. */
function improvement(of: number, base: number, better: string | null): number | null {
  if (of === base) return 1;
  const times = base === 0 ? RATIO_MAX : of === 0 ? 1 / RATIO_MAX : of / base;
  const bounded = Math.min(Math.max(times, 1 / RATIO_MAX), RATIO_MAX);
  return better === "higher" ? bounded : 1 / bounded;
}

function cellOf(found: ExperimentData, workload: Workload, measure: Json, variant: string): Cell | null {
  const [of, base] = [medianOf(measure, variant), medianOf(measure, found.baseline)];
  if (of === null) return null;
  const label = `${variant}, ${nameOf(text(measure["name"]) ?? "")}`;
  const value = format.value(of, text(measure["unit"]) ?? "");
  if (variant === found.baseline) return { label, lines: [value, "baseline"], speedUp: 1 };
  const judged = measureOf(workload, workload.judgedBy);
  if (isVoid(object(variantOf(judged, variant)?.["effect"])))
    return { label, lines: [value, "setting not applied"], speedUp: null };
  if (base === null) return { label, lines: [value, "no ratio"], speedUp: null };
  const ratio = of === base ? "1.00×" : base === 0 ? "the baseline has 0" : times(of / base);
  return { label, lines: [value, ratio], speedUp: improvement(of, base, text(measure["better"])) };
}

export function matrixOf(found: ExperimentData, workload: Workload): HeatMap | null {
  const measures = columnsOf(found, workload);
  if (found.variants.length < VARIANTS_MIN || measures.length < 2) return null;
  return {
    title: `${workload.name}: every variant against ${found.baseline}`,
    rows: found.variants.map(({ name }) => name),
    columns: measures.map((measure) => nameOf(text(measure["name"]) ?? "")),
    cells: found.variants.map(({ name }) =>
      measures.map((measure) => cellOf(found, workload, measure, name)),
    ),
  };
}

/** A map of all variants by all informative measures. */
export function matrix(run: Run, rank: number): Section {
  const found = readExperiment(run);
  if (found === null) return null;
  const content = found.workloads.flatMap((workload) => {
    const map = matrixOf(found, workload);
    if (map === null) return [];
    const rows = () => [
      ["workload", "variant", "measure", "median", "ratio"],
      ...columnsOf(found, workload).flatMap((measure) =>
        found.variants.map(({ name }) => {
          const [of, base] = [medianOf(measure, name), medianOf(measure, found.baseline)];
          const ratio = of === null || base === null || base === 0 ? null : of / base;
          return [workload.name, name, text(measure["name"]), of, ratio];
        }),
      ),
    ];
    const words = [workload.name, "all variants"];
    const drawing = chart(words, (width, palette) => heat(map, width, palette), rows);
    const numbers = table(
      map.title,
      [{ text: "variant", names: true }, ...map.columns.map((column) => ({ text: column, right: true }))],
      map.cells.map((row, at): Child[] => [
        map.rows[at] ?? "",
        ...row.map((cell) => (cell === null ? "–" : cell.lines.join(", "))),
      ]),
    );
    const sources = columnsOf(found, workload).map(
      (measure) => `${nameOf(text(measure["name"]) ?? "")}: ${text(measure["source"]) ?? ""}`,
    );
    const source =
      "Source: medians of the trials of this run, and their ratios to the baseline. Blue is better than " +
      `the baseline, orange worse; full colour is ${RATIO_MAX} times or more, on a logarithmic scale. ` +
      sources.join("; ");
    const says = `${workload.name}: ${map.rows.length} variants by ${map.columns.length} measures`;
    const content = [withReadout(map, drawing), details("The numbers", numbers)];
    return [figure(rank, [says], [source], ...content)];
  });
  return content.length === 0 ? null : { title: "All variants", content };
}
