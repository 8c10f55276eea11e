// The page's program: unpacks the data, builds the sections, and reports when the page is complete.

import * as decode from "./decode";
import type { Page, Run } from "./data";
import { demonstration } from "./demo";
import { el, heading, newId } from "./dom";
import { header } from "./head";
import { factorialSection, experiment, measures, overAxis, trialSeries } from "./experiment";
import { findings } from "./findings";
import { freeMemory } from "./orders";
import { pageblocks } from "./blocks";
import { picture } from "./picture";
import { simulation } from "./sim";
import { supply } from "./supply";
import { memoryUse } from "./memory_use";
import { probe } from "./probe";
import { processes, failures } from "./processes";
import { machine } from "./machine";
import { maps } from "./maps";
import { matrix } from "./matrix";
import * as recording from "./recording";
import { events, series, streams } from "./series";
import { terminal } from "./terminal";
import { themeButton } from "./theme";
import { tuneSection } from "./tune";

/** A part of a run's report. `null`: this run has no such part. */
export type Section = { title: string; content: HTMLElement[] } | null;

/** A section: its title goes into the navigation. */
type Builder = (run: Run, rank: number) => Section | Promise<Section>;

/**
 * In reading order: the answer, its basis, and the raw samples. A new section is
 * one line here and one module.
 */
const SECTIONS: Builder[] = [
  findings,
  tuneSection,
  experiment,
  factorialSection,
  overAxis,
  matrix,
  measures,
  trialSeries,
  recording.fragmentation,
  recording.freeBlocks,
  recording.usedMemory,
  recording.pressure,
  recording.activity,
  maps,
  series,
  freeMemory,
  pageblocks,
  supply,
  memoryUse,
  probe,
  streams,
  events,
  processes,
  failures,
  machine,
  terminal,
];

async function build(page: Page): Promise<void> {
  const main = document.getElementById("report");
  if (main === null) throw new Error("the page has no element for the report");
  if (page.picture !== undefined) return main.replaceChildren(...(await picture(page.picture)));
  if (page.sim !== undefined) return main.replaceChildren(...(await simulation(page.sim)));
  if (page.demo !== undefined) return main.replaceChildren(...demonstration(page.demo));
  const several = page.runs.length !== 1;
  const shown: HTMLElement[] = [];
  if (several) shown.push(el("h1", {}, page.title), runsNav(page.runs));
  for (const [at, run] of page.runs.entries()) shown.push(await runSection(run, several ? 2 : 1, at));
  main.replaceChildren(...shown);
}

function runsNav(runs: Run[]): HTMLElement {
  const links = runs.map((run, at) =>
    el("li", {}, el("a", { href: `#run-${at}` }, run.name), ` ${run.run.kind}, ${run.head.name}`),
  );
  return el("nav", { "aria-label": "Runs", class: "runs" }, el("ol", {}, ...links));
}

async function runSection(run: Run, rank: number, at: number): Promise<HTMLElement> {
  const sections: { id: string; section: NonNullable<Section> }[] = [];
  for (const builder of SECTIONS) {
    const section = await builder(run, rank + 2);
    if (section !== null) sections.push({ id: newId("section"), section });
  }
  const links = sections.map(({ id, section }) => el("li", {}, el("a", { href: `#${id}` }, section.title)));
  const name = newId("run-name");
  return el(
    "article",
    { id: `run-${at}`, class: "run", "aria-labelledby": name },
    ...header(run, rank, name),
    el(
      "nav",
      { "aria-label": `Parts of the report on ${run.name}: ${run.head.name}`, class: "parts" },
      el("ul", {}, ...links),
    ),
    ...sections.map(({ id, section }) =>
      el(
        "section",
        { id, "aria-labelledby": `${id}-title` },
        heading(rank + 1, { id: `${id}-title` }, section.title),
        ...section.content,
      ),
    ),
  );
}

async function start(): Promise<void> {
  const root = document.documentElement;
  root.classList.add("has-script");
  document.getElementById("tools")?.append(themeButton());
  try {
    await build(await decode.page());
    root.dataset["state"] = "ready";
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    document
      .getElementById("report")
      ?.replaceChildren(
        el("h1", {}, "This report cannot be shown"),
        el(
          "p",
          { role: "alert" },
          `Cannot read the data in the page: ${why}. `,
          "The file may be truncated, or the browser too old: ",
          "it needs DecompressionStream (Chromium 80, Firefox 113, Safari 16.4). ",
          "For the same report as text, run ",
          el("code", {}, "pagelab report"),
          " in a terminal.",
        ),
      );
    root.dataset["state"] = "failed";
    throw error;
  }
}

void start();
