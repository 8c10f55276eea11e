// The picture of physical memory: every pageblock of a zone as a cell, coloured by the obstacle to
// a huge page; counts under the pointer and under a keyboard cursor.

import { type State, type States, type Zone, statesOf } from "./blockstate";
import type { Census, CensusZone, Run } from "./data";
import { numbers } from "./decode";
import { details, el, figure, table, vars } from "./dom";
import * as format from "./format";
import { absentSection, object } from "./json";
import type { Section } from "./main";
import { BlockMap } from "./blockmap";

export async function pageblocks(run: Run, rank: number): Promise<Section> {
  if (run.checkup === null) return null;
  const title = "Pageblocks";
  const census = run.census;
  if (census === null) {
    const supply = object(run.checkup["supply"]);
    return {
      title,
      content: [supply === null ? absentSection(run.checkup, "supply") : absentSection(supply, "scan")],
    };
  }
  const size = format.bytes(census.block_bytes);
  const content: HTMLElement[] = [
    el(
      "p",
      { class: "intro" },
      `Memory in address order, one cell per pageblock of ${size}. A block is polluted, and marked `,
      "at a corner, if at least one of its pages cannot be moved; it has the colour of the unmovable ",
      "class with the most pages. A block that can be emptied has the colour of its largest class. ",
      "Choose a state to highlight it; in the picture, the arrow keys move a cursor.",
    ),
  ];
  if (census.sample !== null) {
    const { blocks, blocks_total, seed } = census.sample;
    content.push(
      el(
        "p",
        { class: "notice", role: "note" },
        el("strong", {}, "A sample: "),
        `${format.count(blocks)} of ${format.count(blocks_total)} pageblocks were read `,
        `(random, seed ${seed}). `,
        "Only these are coloured; other blocks were not read or have no memory.",
      ),
    );
  }
  for (const zone of census.zones) content.push(await zoneFigure(census, zone, rank));
  return { title, content };
}

async function zoneFigure(census: Census, zone: CensusZone, rank: number): Promise<HTMLElement> {
  const [index, counts, oneFolio] = await Promise.all([
    numbers(zone.index),
    numbers(zone.counts),
    numbers(zone.one_folio),
  ]);
  const data: Zone = { classes: zone.classes, index, counts, oneFolio, blockPages: census.block_pages };
  const name = `Node ${zone.node}, zone ${zone.zone}`;
  if (index.length === 0) {
    return figure(rank, [`${name}: no block was counted`], [source(census)]);
  }
  const states = statesOf(data);
  const map = new BlockMap(census, zone, data, states, name);
  const counted = index.length;
  const sum = (wanted: (state: State) => boolean) =>
    states.states.reduce((blocks, state, at) => (wanted(state) ? blocks + states.blocks[at]! : blocks), 0);
  const polluted = sum(({ marked, key }) => marked && key !== "unknown");
  const doubtful = sum(({ key }) => key === "unknown");
  const says =
    `${name}: ${census.sample === null ? "" : "of the sample, "}${format.count(polluted)} of ` +
    `${format.count(counted)} pageblocks are polluted` +
    (doubtful === 0 ? "" : `, ${format.count(doubtful)} possibly`);
  const whole = figure(
    rank,
    [says],
    [source(census)],
    legend(states, census, map),
    map.element,
    details("The numbers", ...tables(data, states, census)),
  );
  whole.classList.add("blocks");
  map.watch();
  return whole;
}

function source(census: Census): string {
  return `Source: /proc/kpageflags, read in ${format.nanoseconds(census.scan_ns)}.`;
}

/** States of blocks as buttons: the pressed one is highlighted in the picture. */
function legend(states: States, census: Census, map: BlockMap): HTMLElement {
  const buttons = states.states.map((state, at) => {
    const blocks = states.blocks[at]!;
    const amount = format.bytes(blocks * census.block_bytes);
    const button = el(
      "button",
      { type: "button", class: "kind", "aria-pressed": "false" },
      swatch(state),
      el("span", { class: "kind-words" }, state.words),
      el("span", { class: "kind-count" }, `${format.count(blocks)} · ${amount}`),
    );
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      for (const other of buttons) other.setAttribute("aria-pressed", "false");
      button.setAttribute("aria-pressed", String(on));
      map.highlight(on ? at : null);
    });
    return button;
  });
  return el("div", { class: "legend", role: "group", "aria-label": "States of blocks" }, ...buttons);
}

function swatch(state: State): HTMLElement {
  const colour = `var(--class-${state.key}, var(--class-other))`;
  return vars(el("span", { class: state.marked ? "swatch marked" : "swatch", "aria-hidden": "true" }), {
    colour,
  });
}

function tables(data: Zone, states: States, census: Census): HTMLElement[] {
  const blocks = data.index.length;
  const kinds = states.states.map((state, at) => [
    state.words,
    format.count(states.blocks[at]!),
    format.bytes(states.blocks[at]! * census.block_bytes),
    format.percent(states.blocks[at]! / blocks),
  ]);
  const classes = data.classes.map((one, at) => {
    let pages = 0;
    let holding = 0;
    for (let block = 0; block < blocks; block++) {
      const here = data.counts[at * blocks + block]!;
      pages += here;
      if (here > 0) holding += 1;
    }
    return [one.words, format.count(pages), format.bytes(pages * census.page_bytes), format.count(holding)];
  });
  return [
    table(
      "Counted blocks by state",
      [
        { text: "kind", names: true },
        { text: "blocks", right: true },
        { text: "memory", right: true },
        { text: "share", right: true },
      ],
      kinds,
    ),
    table(
      "Pages in the counted blocks by class",
      [
        { text: "class", names: true },
        { text: "pages", right: true },
        { text: "memory", right: true },
        { text: "blocks with it", right: true },
      ],
      classes,
    ),
  ];
}
