// Memory over time: a picture with a slider and playback, and the owners of pageblocks.

import type { Category, Sim, SimMemory, SimPicture } from "./data";
import { type Numbers, numbers } from "./decode";
import { type Child, details, el, figure, newId, table, vars } from "./dom";
import * as format from "./format";
import { legend, PictureView } from "./picture";

/** Milliseconds per picture during playback. */
const STAY_MS = 400;
/** Pageblocks in a row. */
const BLOCKS_ACROSS = 128;
/** Colours of lists, by number, in both themes; names are beside them. */
const LISTS = ["#b5502a", "#5a9bd6", "#e0a33a", "#7a3f98", "#3b8e5a", "#8a8a8a", "#1f4e8c", "#b8338a"];

/** A slider with a play button, whose timer ends with the last step. */
export class Scrubber {
  readonly element: HTMLElement;
  private readonly slider: HTMLInputElement;
  private readonly button: HTMLButtonElement;
  private timer: number | null = null;

  constructor(
    label: string,
    private last: number,
    private readonly show: (at: number) => string,
    private readonly stayMs: number = STAY_MS,
  ) {
    this.slider = el("input", { type: "range", id: newId("at"), min: 0, max: last, step: 1, value: 0 });
    this.button = el("button", { type: "button" });
    this.slider.addEventListener("input", () => {
      this.stop();
      this.go(this.at);
    });
    this.button.addEventListener("click", () => (this.timer === null ? this.play() : this.stop()));
    this.element = el(
      "div",
      { class: "map-time" },
      el("label", { for: this.slider.id }, label),
      this.slider,
      this.button,
    );
    this.stop();
  }

  /** Current step. */
  get at(): number {
    return Number(this.slider.value);
  }

  /** Goes to a step, within the range. */
  go(at: number): void {
    this.slider.value = String(Math.min(this.last, Math.max(0, at)));
    this.slider.setAttribute("aria-valuetext", this.show(this.at));
  }

  /** Sets the number of steps. */
  resize(last: number): void {
    this.stop();
    this.last = last;
    this.slider.max = String(last);
    this.go(this.at);
  }

  private play(): void {
    if (this.at === this.last) this.go(0);
    this.button.textContent = "Stop";
    this.button.setAttribute("aria-label", "Stop playing");
    this.timer = window.setInterval(() => {
      this.go(this.at + 1);
      if (this.at === this.last) this.stop();
    }, this.stayMs);
  }

  private stop(): void {
    if (this.timer !== null) window.clearInterval(this.timer);
    this.timer = null;
    this.button.textContent = "Play";
    this.button.setAttribute("aria-label", "Play from here");
  }
}

function listName(lists: string[], list: number): string {
  return lists[list] ?? `list ${list}`;
}

/** Number of pageblocks of each list. */
export function shares(owners: ArrayLike<number>): number[] {
  const counts: number[] = [];
  for (let at = 0; at < owners.length; at++) {
    const list = owners[at]!;
    while (counts.length <= list) counts.push(0);
    counts[list]! += 1;
  }
  return counts;
}

/** Pageblocks by owner list, a square each, with the numbers. */
class Owners {
  readonly element: HTMLElement;
  private readonly canvas = el("canvas", { role: "img", class: "owners" });
  private readonly words = el("p", {});
  private readonly key = el("div", { class: "legend" });

  constructor() {
    this.element = el("div", {}, this.words, this.canvas, this.key);
  }

  show(owners: ArrayLike<number>, lists: string[]): void {
    const counts = shares(owners);
    const present = counts.flatMap((count, list) => (count > 0 ? [{ list, count }] : []));
    const said = present.map(({ list, count }) => `${format.count(count)} ${listName(lists, list)}`);
    this.words.textContent = `Pageblocks by list: ${said.join(", ")}`;
    // All on one list: nothing to draw.
    this.canvas.hidden = present.length < 2;
    this.canvas.setAttribute("aria-label", this.words.textContent);
    this.key.replaceChildren(
      ...present.map(({ list, count }) =>
        el(
          "div",
          { class: "kind" },
          vars(el("span", { class: "swatch" }), { colour: LISTS[list % LISTS.length]! }),
          el("span", { class: "kind-words" }, listName(lists, list)),
          el("span", { class: "kind-count" }, format.percent(count / Math.max(1, owners.length))),
        ),
      ),
    );
    this.draw(owners);
  }

  private draw(owners: ArrayLike<number>): void {
    const [across, side] = [Math.min(BLOCKS_ACROSS, Math.max(1, owners.length)), 6];
    this.canvas.width = across * side;
    this.canvas.height = Math.ceil(owners.length / across) * side;
    const context = this.canvas.getContext("2d");
    if (context === null) return;
    for (let at = 0; at < owners.length; at++) {
      const [x, y] = [(at % across) * side, Math.floor(at / across) * side];
      context.fillStyle = LISTS[owners[at]! % LISTS.length]!;
      context.fillRect(x, y, side - 1, side - 1);
      // Distinguishable without colour: lists with a higher number have a larger notch.
      context.clearRect(x, y, Math.min(side - 2, owners[at]!), 1);
    }
  }
}

/** Pages of each use, for one picture. */
function amounts({ pages, layout }: SimPicture, categories: Category[]): Child[][] {
  const all = pages.reduce((sum, count) => sum + count, 0);
  return categories.map(({ label }, at) => [
    label,
    format.bytes((pages[at] ?? 0) * layout.page_size_bytes),
    format.percent((pages[at] ?? 0) / Math.max(1, all)),
  ]);
}

/** The section. */
export async function timelapse(sim: Sim, memory: SimMemory, rank: number) {
  const loaded = await Promise.all(
    memory.pictures.map(async (of) => ({
      of,
      cells: await numbers(of.cells),
      owners: await numbers(of.owners),
    })),
  );
  const present = [...new Set(memory.pictures.map(({ scheme }) => scheme))].sort((a, b) => a - b);
  const byScheme = present.map((scheme) => loaded.filter(({ of }) => of.scheme === scheme));
  let chosen = byScheme[0]!;
  const pixels = ({ of, cells }: { of: SimPicture; cells: Numbers }) => ({
    layout: of.layout,
    legend: memory.legend,
    cells,
    colours: null,
  });
  const some =
    loaded.length === memory.recorded
      ? `${format.count(loaded.length)} pictures`
      : `${format.count(loaded.length)} of ${format.count(memory.recorded)} pictures`;
  const says = `Use of memory by address: ${some}`;
  const view = new PictureView(says, pixels(chosen[0]!));
  const owners = new Owners();
  const when = el("output", { class: "map-when" });
  const key = el("div", {});
  const numbersOf = el("div", {});
  const show = (at: number): string => {
    const picture = chosen[at]!;
    const { of } = picture;
    const name = sim.schemes[of.scheme]?.name ?? "";
    const words = [
      name,
      of.phase,
      `step ${format.count(of.step)}`,
      `picture ${at + 1} of ${chosen.length}`,
    ]
      .filter((part) => part !== "")
      .join(" · ");
    when.textContent = words;
    view.show(pixels(picture));
    owners.show(picture.owners, sim.schemes[of.scheme]?.lists ?? []);
    key.replaceChildren(legend(memory.legend, of.pages, of.layout.page_size_bytes));
    const columns = [
      { text: "use", names: true },
      { text: "memory", right: true },
      { text: "share", right: true },
    ];
    numbersOf.replaceChildren(table("Memory by use", columns, amounts(of, memory.legend)));
    return words;
  };
  const scrubber = new Scrubber("Time of the picture", chosen.length - 1, show);
  const choose = el("select", { id: newId("scheme") });
  for (const [at, scheme] of present.entries())
    choose.append(el("option", { value: at }, sim.schemes[scheme]?.name ?? ""));
  choose.addEventListener("change", () => {
    chosen = byScheme[Number(choose.value)]!;
    scrubber.resize(chosen.length - 1);
  });
  scrubber.go(0);
  const picker =
    present.length < 2 ? null : el("p", {}, el("label", { for: choose.id }, "Scheme "), choose);
  const shown = figure(
    rank,
    [says],
    [
      "Source: simulations of this page. Addresses grow from left to right and downward; where a pixel ",
      "represents several pages, it shows their most frequent use.",
    ],
    picker,
    scrubber.element,
    when,
    view.element,
    key,
    owners.element,
    details("The numbers", numbersOf),
  );
  return { title: "Memory over time", content: [shown] };
}
