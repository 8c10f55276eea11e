// Simulations: figures by scheme, lines over attempts, memory over time.

import type { Sim, SimFigure, SimTable, SimValue } from "./data";
import { numbers } from "./decode";
import { type Child, details, el, figure, heading, newId, scroller, sentence, table } from "./dom";
import { chart } from "./download";
import { type Bar, bars } from "./drawing";
import * as format from "./format";
import { timelapse } from "./timelapse";
import type { Section } from "./main";
import { type Curve, curves, type Stack, share, stacks } from "./sim_charts";

/** Figures that are drawn as bars, at most; all of them are in the tables. */
const DRAWN_MAX = 8;

type Part = NonNullable<Section>;

/** Phases in the order in which figures name them. */
export function phases(sim: Sim): string[] {
  return [...new Set(sim.figures.map(({ phase }) => phase))];
}

/** A value with its interval, if there is one, which may wrap to the next line: `72`, `(64…80)`. */
export function within(value: SimValue | null): [string, string] {
  if (value === null) return ["–", ""];
  return [value.shown, value.text.slice(value.shown.length).trimStart()];
}

function cellOf(value: SimValue | null): Child {
  const [middle, interval] = within(value);
  if (interval === "") return middle;
  return el("span", {}, el("span", {}, middle), " ", el("span", {}, interval));
}

function nameOf({ name, zone }: SimFigure): string {
  return zone === null ? name : `from ${zone}`;
}

/** The tables, one for each phase, in the form of Figure 11. */
function tables(sim: Sim): Part | null {
  if (sim.figures.length === 0) return null;
  const columns = [
    { text: "", names: true },
    { text: "unit" },
    ...sim.schemes.map(({ name }) => ({ text: name, right: true })),
  ];
  const content = phases(sim).map((phase) => {
    const rows = sim.figures
      .filter((of) => of.phase === phase)
      .flatMap((of): Child[][] => {
        const ours = [nameOf(of), of.unit, ...of.values.map(cellOf)];
        if (of.paper.every((value) => value === null)) return [ours];
        const papers = of.paper_shown.map((value) => value ?? "–");
        return [ours, ["in the paper", of.unit, ...papers]];
      });
    return el("div", { class: "sim-table" }, table(phase === "" ? "Entire load" : phase, columns, rows));
  });
  const words = "Medians over the seeds, with their intervals in brackets for 6 seeds or more.";
  return { title: "Figures by scheme", content: [el("p", {}, words), ...content] };
}

/** Formatted tables, grouped by title. */
function conclusions(sim: Sim, leads: boolean): Part[] {
  const wanted = sim.tables.filter((of) => of.leads === leads);
  const titles = [...new Set(wanted.map(({ title }) => title))];
  return titles.map((title) => ({
    title: capital(title),
    content: wanted.filter((of) => of.title === title).flatMap(conclusion),
  }));
}

function conclusion({ of, words, columns, names, rows }: SimTable): HTMLElement[] {
  const heads = columns.map((text, at) => ({ text, names: at < names, right: at >= names }));
  const made: HTMLElement[] = [];
  if (rows.length > 0) {
    const cells = rows.map((row) => row.map((cell) => cell.trim()));
    made.push(el("div", { class: "sim-table" }, table(of === "" ? null : of, heads, cells)));
  }
  if (words !== "") made.push(el("p", {}, sentence(words)));
  return made;
}

/** Figures of one name and unit over all phases. */
function groups(sim: Sim): SimFigure[][] {
  const found = new Map<string, SimFigure[]>();
  for (const of of sim.figures) {
    if (of.zone !== null) continue;
    const key = JSON.stringify([of.name, of.unit]);
    found.set(key, [...(found.get(key) ?? []), of]);
  }
  const isDrawn = ([first]: SimFigure[]) =>
    first !== undefined &&
    (sim.figures.some((of) => of.zone !== null && of.name === first.name) ||
      first.paper.some((value) => value !== null) ||
      /^(success|F_u)/.test(first.name));
  return [...found.values()].filter(isDrawn).slice(0, DRAWN_MAX);
}

/** The bars of a figure over phases and schemes, with the paper's values below. */
export function barsOf(sim: Sim, group: SimFigure[]): Bar[] {
  return group.flatMap((of) =>
    sim.schemes.flatMap(({ name }, at): Bar[] => {
      const [value, paper] = [of.values[at] ?? null, of.paper[at] ?? null];
      const label = group.length > 1 ? `${of.phase}: ${name}` : name;
      const plain = { label, note: "", isBaseline: false };
      const ours =
        value === null
          ? { ...plain, value: null, low: null, high: null }
          : {
              ...plain,
              value: value.middle,
              low: value.low,
              high: value.high,
              shown: { short: value.shown, whole: value.text },
            };
      if (paper === null) return [ours];
      const said = of.paper_shown[at] ?? String(paper);
      const theirs = { label: `${label}, in the paper`, value: paper, low: null, high: null };
      return [ours, { ...theirs, shown: { short: said, whole: said }, note: "", isBaseline: true }];
    }),
  );
}

/** The zones of a figure, over phases and schemes; null: it has none. */
export function stacksOf(sim: Sim, group: SimFigure[]): { parts: string[]; stacks: Stack[] } | null {
  const of = sim.figures.filter(({ zone, name }) => zone !== null && name === group[0]?.name);
  const parts = [...new Set(of.map(({ zone }) => zone!))];
  if (parts.length < 2) return null;
  const found = group.flatMap(({ phase, values }) =>
    sim.schemes.map(({ name }, at) => ({
      label: group.length > 1 ? `${phase}: ${name}` : name,
      whole: values[at]?.middle ?? null,
      total: within(values[at] ?? null)[0],
      parts: parts.map(
        (zone) => of.find((one) => one.phase === phase && one.zone === zone)?.values[at]?.middle ?? null,
      ),
    })),
  );
  return { parts, stacks: found };
}

/** The unit for axes. */
function axis(unit: string): string {
  return unit === "share" ? "permille" : "count";
}

/** Shares are drawn in thousandths, as everywhere in the page. */
function scaled(bar: Bar, unit: string): Bar {
  const of = (value: number | null) => (value === null || unit !== "share" ? value : value * 1000);
  return { ...bar, value: of(bar.value), low: of(bar.low), high: of(bar.high) };
}

/** A title begins with a capital. */
function capital(title: string): string {
  return title.charAt(0).toUpperCase() + title.slice(1);
}

function success(sim: Sim, rank: number): Part | null {
  const content = groups(sim).flatMap((group) => {
    const { name, unit } = group[0]!;
    const own = barsOf(sim, group);
    const of = unit === "share" || unit === "" ? "" : `, ${unit}`;
    const title = capital(`${name}${of}: scheme by scheme`);
    const drawn = own.map((bar) => scaled(bar, unit));
    const drawing = { title, unit: axis(unit), bars: drawn, shortenAt: "start" as const };
    const rows = () => [
      ["what", "median", "low", "high"],
      ...own.map((bar) => [bar.label, bar.value, bar.low, bar.high]),
    ];
    const source = "Source: simulations of this page; lines across bars are intervals over seeds.";
    const made = [
      figure(
        rank,
        [title],
        [source],
        chart([title], (width, palette) => bars(drawing, width, palette), rows),
      ),
    ];
    const zones = stacksOf(sim, group);
    if (zones !== null) {
      const says = capital(`${name}${of} by zone`);
      const cells = () => [
        ["what", ...zones.parts, "whole"],
        ...zones.stacks.map(({ label, parts, whole }) => [label, ...parts, whole]),
      ];
      const shape = { title: says, unit: axis(unit), shortenAt: "start" as const, ...zones };
      made.push(
        figure(
          rank,
          [says],
          [
            "Source: simulations of this page, medians over seeds; zones are numbered as in the key. ",
            "The number after a bar is the median of the total, which may differ from the sum of its zones.",
          ],
          chart([says], (width, palette) => stacks(shape, width, palette), cells),
        ),
      );
    }
    return made;
  });
  return content.length === 0 ? null : { title: "Success by scheme and zone", content };
}

/** A chart of the series of one name, with a line for each of `kind`, and its numbers. */
export function curveFigure(
  rank: number,
  [name, over]: [string, string],
  drawn: Curve[],
  kind: string,
  source: string,
): HTMLElement {
  const title = capital(`${name} over ${over}`);
  const rows = () => [
    [kind, over, name],
    ...drawn.flatMap((one) => Array.from(one.at, (at, place) => [one.name, at, one.values[place]!])),
  ];
  const ends = drawn.map((one): Child[] => {
    const shown = (value: number | undefined) => (value === undefined ? "–" : share(value));
    const values = Array.from(one.values);
    return [
      one.name,
      format.count(values.length),
      shown(values[0]),
      shown(values.length > 0 ? Math.min(...values) : undefined),
      shown(values.length > 0 ? Math.max(...values) : undefined),
      shown(values.at(-1)),
    ];
  });
  const columns = [kind, over, "first", "lowest", "highest", "last"].map((word, at) =>
    at === 0 ? { text: word, names: true } : { text: word, right: true },
  );
  const drawing = { title, axis: over, curves: drawn };
  return figure(
    rank,
    [`${title}, a line for each ${kind}`],
    [source],
    chart([title], (width, palette) => curves(drawing, width, palette), rows),
    details("The numbers", table(title, columns, ends)),
  );
}

/** Lines in the form of Figures 5 to 8: a chart for each name, a line for each scheme. */
async function lines(sim: Sim, rank: number): Promise<Part | null> {
  const names = [...new Set(sim.series.map(({ name, over }) => JSON.stringify([name, over])))];
  const content = await Promise.all(
    names.map(async (key) => {
      const [name, over] = JSON.parse(key) as [string, string];
      const of = sim.series.filter((one) => one.name === name && one.over === over);
      const drawn = await Promise.all(
        of.map(async (one) => ({
          name: sim.schemes[one.scheme]?.name ?? "",
          look: one.scheme,
          at: await numbers(one.at),
          values: await numbers(one.values),
        })),
      );
      const source = "Source: simulations of this page, one seed each.";
      return curveFigure(rank, [name, over], drawn, "scheme", source);
    }),
  );
  return content.length === 0 ? null : { title: "Fragmentation over attempts", content };
}

/** Figure 9. */
function reclaim(sim: Sim): Part {
  const rows = sim.reclaim.map(({ order, share }): Child[] => [
    String(order),
    `${(share * 100).toFixed(2)} %`,
  ]);
  const columns = [
    { text: "order", names: true },
    { text: "share of a zone", right: true },
  ];
  const words =
    "If pages are freed in random order, this share of a zone must be freed in the worst case before a " +
    "block of an order is certain to be free: F_r(j) = (N / 2^j) (2^j − 1) + 1 of N pages " +
    "(Gorman and Whitcroft 2006).";
  const content = [el("p", {}, words), table("Pages to free, by order", columns, rows)];
  return { title: "Reclaim effort", content };
}

/** All parts of a page of simulations. */
export async function parts(sim: Sim, rank: number): Promise<Part[]> {
  const notes: Part | null =
    sim.notes.length === 0
      ? null
      : { title: "Notes", content: [el("ul", {}, ...sim.notes.map((note) => el("li", {}, note)))] };
  const memory = sim.memory === null ? null : await timelapse(sim, sim.memory, rank);
  const text = {
    title: "As text",
    content: [details("The report as text", scroller(el("pre", {}, sim.text), "The report as text"))],
  };
  const drawn = await lines(sim, rank);
  const how = sim.schemes.length > 0 ? reclaim(sim) : null;
  const [first, then] = [conclusions(sim, true), conclusions(sim, false)];
  const all = [...first, success(sim, rank), ...then, tables(sim), drawn, memory, how, notes, text];
  return all.filter((part) => part !== null);
}

/** The complete page. */
export async function simulation(sim: Sim): Promise<HTMLElement[]> {
  const made = (await parts(sim, 3)).map((part) => ({ id: newId("section"), part }));
  const links = made.map(({ id, part }) => el("li", {}, el("a", { href: `#${id}` }, part.title)));
  return [
    el("h1", {}, sim.title),
    el("p", { class: "source" }, sim.facts.join(" · ")),
    el("nav", { "aria-label": "Parts of the report", class: "parts" }, el("ul", {}, ...links)),
    ...made.map(({ id, part }) =>
      el(
        "section",
        { id, "aria-labelledby": `${id}-title` },
        heading(2, { id: `${id}-title` }, part.title),
        ...part.content,
      ),
    ),
  ];
}
