// Maps of physical memory in a recording: a picture with a slider over time, and the classes of pages over
// time.

import type { Maps, Run } from "./data";
import { numbers } from "./decode";
import { type Child, el, figure, newId } from "./dom";
import * as format from "./format";
import type { Section } from "./main";
import { legend, rgb, PictureView } from "./picture";
import { type Choice, chart, linkOf } from "./series";

/** Absent memory is not a part of memory. */
const NO_MEMORY = "no memory";

export async function maps(run: Run, rank: number): Promise<Section> {
  const { maps } = run;
  if (maps === null) return null;
  const content: Child[] = [];
  if (maps.problem !== null)
    content.push(el("p", { role: "note" }, `Some maps could not be read: ${maps.problem}.`));
  if (maps.shown.length > 0) content.push(await overTime(run, maps, rank));
  if (maps.shown.length > 1) content.push(classes(run, maps, rank));
  return { title: "Maps of physical memory", content: content.filter((one) => one instanceof HTMLElement) };
}

/** Number and times of the maps. */
function span({ shown }: Maps): string {
  const time = (at: number) => format.nanoseconds(shown.at(at)!.at_ns);
  return shown.length === 1 ? `at ${time(0)}` : `from ${time(0)} to ${time(-1)} after the start`;
}

async function overTime(run: Run, maps: Maps, rank: number): Promise<HTMLElement> {
  const { shown, recorded } = maps;
  const cells = await Promise.all(shown.map((map) => numbers(map.cells)));
  const pixels = (at: number) => {
    const layout = maps.layouts[shown[at]!.layout]!;
    return { layout, legend: maps.legend, cells: cells[at]!, colours: null };
  };
  const some =
    shown.length === recorded
      ? `${format.count(recorded)} ${recorded === 1 ? "map" : "maps"}`
      : `${format.count(shown.length)} of ${format.count(recorded)} maps`;
  const says = `Pages of each class by address: ${some}, ${span(maps)}`;
  const view = new PictureView(says, pixels(0));
  const slider = el("input", {
    type: "range",
    id: newId("map-at"),
    min: 0,
    max: shown.length - 1,
    step: 1,
    value: 0,
  });
  const when = el("output", { for: slider.id, class: "map-when" });
  const key = el("div", {});
  const scale = el("span", {});
  const show = (at: number) => {
    const map = shown[at]!;
    const { layout } = pixels(at);
    const words = [
      `${format.nanoseconds(map.at_ns)} after the start`,
      format.moment(run.run.started_realtime_ns + map.at_ns),
      `${at + 1} of ${shown.length}`,
      `scan of ${format.nanoseconds(map.elapsed_ns)}`,
    ].join(" · ");
    when.textContent = words;
    slider.setAttribute("aria-valuetext", words);
    scale.textContent = `${maps.layouts[map.layout]!.scale}.`;
    view.show(pixels(at));
    key.replaceChildren(legend(maps.legend, map.pages, layout.page_size_bytes));
  };
  slider.addEventListener("input", () => show(Number(slider.value)));
  show(0);
  return figure(
    rank,
    [says],
    [
      "Source: kpageflags; ",
      scale,
      " Addresses grow from left to right and downward; ranges without memory are left out. A scan is ",
      "not atomic: memory changes during it.",
    ],
    shown.length === 1
      ? null
      : el("div", { class: "map-time" }, el("label", { for: slider.id }, "Time of the map"), slider),
    when,
    view.element,
    key,
  );
}

/** Contents of memory at the time of each map: parts that add up. */
function classes(run: Run, maps: Maps, rank: number): HTMLElement {
  const { shown } = maps;
  const at = Float64Array.from(shown, ({ at_ns }) => at_ns / 1e9);
  const bytes = (category: number) =>
    Float64Array.from(
      shown,
      ({ pages, layout }) => (pages[category] ?? 0) * maps.layouts[layout]!.page_size_bytes,
    );
  const parts = maps.legend
    .map((category, index) => ({ category, values: bytes(index) }))
    .filter(({ category, values }) => category.label !== NO_MEMORY && values.some((value) => value > 0));
  const below = new Float64Array(shown.length);
  const choices = parts.reverse().map(({ category, values }, index): Choice => {
    values.forEach((value, place) => {
      below[place]! += value;
    });
    const edge = { at, values: Float64Array.from(below) };
    const kind = [rgb(category), index % 2 === 0 ? 0 : 7] as const;
    return { name: category.label, unit: "bytes", line: { at, values }, area: { edge, kind } };
  });
  choices.reverse();
  const free = choices.find(({ name }) => name === "free");
  const ends = free === undefined ? "" : `: free ${range(free.line.values)}`;
  const says = `Memory by class of page at the times of these maps${ends}`;
  const source = ["Source: the maps above, each page counted; the parts add up to the scanned memory."];
  return chart(rank, says, source, choices, run, { link: linkOf(run), chosen: choices, fixed: true }, null);
}

function range(values: Float64Array): string {
  return `${format.bytes(Math.min(...values))} to ${format.bytes(Math.max(...values))}`;
}
