// The canvas of one zone's pageblocks: drawing, pointer and keyboard.

import { type Layout, type States, type Zone, layout } from "./blockstate";
import type { Census, CensusZone } from "./data";
import { colour, el, newId, onWidth } from "./dom";
import * as format from "./format";
import { onTheme } from "./theme";

/** Room for addresses left of the cells, in CSS pixels. */
const MARGIN = 76;
const MARGIN_NARROW = 64;
const LABEL_EVERY = 34;

export class BlockMap {
  readonly element: HTMLElement;
  private readonly canvas: HTMLCanvasElement;
  private readonly readout: HTMLOutputElement;
  private readonly frame: HTMLElement;
  private readonly note: HTMLElement;
  private layout: Layout = { columns: 1, rows: 1, cell: 1, merge: 1, before: 0 };
  private margin = MARGIN;
  private cursor: number | null = null;
  private chosen: number | null = null;
  /** Counted block of each index, -1 if it was not counted. */
  private readonly placeOf: Int32Array;

  constructor(
    private readonly census: Census,
    private readonly zone: CensusZone,
    private readonly data: Zone,
    private readonly states: States,
    name: string,
  ) {
    this.placeOf = new Int32Array(zone.blocks_spanned).fill(-1);
    for (let at = 0; at < data.index.length; at++) this.placeOf[data.index[at]!] = at;
    const help = newId("help");
    this.canvas = el("canvas", {
      tabindex: 0,
      role: "img",
      "aria-roledescription": "map of pageblocks",
      "aria-label": `Pageblocks of ${name}`,
      "aria-describedby": help,
    });
    this.readout = el("output", { class: "readout", "aria-live": "polite" });
    this.frame = el("div", { class: "map" }, this.canvas);
    this.note = el("p", { class: "source" });
    this.element = el(
      "div",
      {},
      this.frame,
      el(
        "p",
        { id: help, class: "hidden-help" },
        "Arrow keys move a cursor from block to block, Page Up and Page Down by eight rows, ",
        "Home and End to the ends of a row, Escape removes it. The counts are announced.",
      ),
      this.readout,
      this.note,
    );
    this.readout.textContent = "Point at a block, or focus the picture and use the arrow keys.";
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    onTheme(() => this.draw());
  }

  /** Lays out and draws at once and whenever the width changes. */
  watch(): void {
    onWidth(this.frame, (width) => this.resize(width));
  }

  /** Highlights one state, or none. */
  highlight(state: number | null): void {
    this.chosen = state;
    this.draw();
  }

  private resize(width: number): void {
    this.margin = width < 500 ? MARGIN_NARROW : MARGIN;
    const first = Math.round(this.zone.first_pfn / this.census.block_pages);
    this.layout = layout(this.zone.blocks_spanned, first, Math.max(96, width - this.margin));
    const { columns, rows, cell, merge } = this.layout;
    const row = format.bytes(columns * merge * this.census.block_bytes);
    this.note.textContent =
      merge === 1
        ? `A row is ${row}.`
        : `A row is ${row}. A cell is ${merge} pageblocks, in the colour of the most frequent counted state.`;
    this.canvas.style.width = `${this.margin + columns * cell}px`;
    this.canvas.style.height = `${rows * cell}px`;
    const scale = Math.max(1, devicePixelRatio);
    this.canvas.width = Math.round((this.margin + columns * cell) * scale);
    this.canvas.height = Math.round(rows * cell * scale);
    this.draw();
  }

  /** The state that a cell of merged blocks shows: the most frequent one. -1: none was counted. */
  private stateOf(cell: number): number {
    const { merge, before } = this.layout;
    const start = cell * merge - before;
    if (merge === 1) {
      const place = this.placeOf[start] ?? -1;
      return place < 0 ? -1 : this.states.of[place]!;
    }
    const votes = new Array<number>(this.states.states.length).fill(0);
    for (let block = Math.max(0, start); block < start + merge; block++) {
      const place = this.placeOf[block] ?? -1;
      if (place >= 0) votes[this.states.of[place]!]! += 1;
    }
    const best = Math.max(...votes);
    return best === 0 ? -1 : votes.lastIndexOf(best);
  }

  private draw(): void {
    const context = this.canvas.getContext("2d");
    if (context === null || this.canvas.width === 0) return;
    const scale = Math.max(1, devicePixelRatio);
    const { columns, rows, cell } = this.layout;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const colours = this.states.states.map((state) =>
      colour(`var(--class-${state.key}, var(--class-other))`),
    );
    const ground = colour("var(--map-ground)");
    const faded = colour("var(--map-faded)");
    const mark = colour("var(--map-mark)");
    const gap = cell >= 5 ? 1 : 0;
    for (let at = 0; at < columns * rows; at++) {
      const x = this.margin + (at % columns) * cell;
      const y = Math.floor(at / columns) * cell;
      const state = this.stateOf(at);
      if (state < 0) {
        context.fillStyle = ground;
        if (this.isInside(at)) context.fillRect(x, y, cell - gap, cell - gap);
        continue;
      }
      const stands = this.chosen === null || this.chosen === state;
      context.fillStyle = stands ? colours[state]! : faded;
      context.fillRect(x, y, cell - gap, cell - gap);
      if (stands && this.states.states[state]!.marked && cell >= 5) {
        context.fillStyle = mark;
        const size = Math.max(2, Math.floor((cell - gap) * 0.45));
        context.beginPath();
        context.moveTo(x, y);
        context.lineTo(x + size, y);
        context.lineTo(x, y + size);
        context.fill();
      }
    }
    this.drawAddresses(context);
    this.drawCursor(context);
  }

  private isInside(cell: number): boolean {
    const { merge, before } = this.layout;
    const end = (cell + 1) * merge - before;
    return end > 0 && end - merge < this.zone.blocks_spanned;
  }

  private drawAddresses(context: CanvasRenderingContext2D): void {
    const { columns, rows, cell, merge } = this.layout;
    const perRow = columns * merge * this.census.block_bytes;
    const firstRow = Math.floor((this.zone.first_pfn * this.census.page_bytes) / perRow);
    let every = 1;
    while (every * cell < LABEL_EVERY) every *= 2;
    context.fillStyle = colour("var(--ink-soft)");
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "top";
    context.textAlign = "right";
    let last = -Infinity;
    for (let row = 0; row < rows; row++) {
      const round = (firstRow + row) % every === 0;
      if (!round && !(row === 0 && rows <= every)) continue;
      if (row * cell - last < 14 || row * cell + 12 > Math.max(14, rows * cell)) continue;
      last = row * cell;
      const text =
        firstRow + row === 0
          ? "0"
          : format
              .bytes((firstRow + row) * perRow)
              .replace(/(\.\d*?)0+ /, "$1 ")
              .replace(". ", " ");
      context.fillText(text, this.margin - 8, row * cell + 1);
    }
  }

  private drawCursor(context: CanvasRenderingContext2D): void {
    if (this.cursor === null) return;
    const { columns, cell } = this.layout;
    const x = this.margin + (this.cursor % columns) * cell;
    const y = Math.floor(this.cursor / columns) * cell;
    context.lineWidth = 2;
    context.strokeStyle = colour("var(--paper)");
    context.strokeRect(x - 2.5, y - 2.5, cell + 4, cell + 4);
    context.strokeStyle = colour("var(--ink)");
    context.strokeRect(x - 1, y - 1, cell + 1, cell + 1);
  }

  private point(event: PointerEvent): void {
    const box = this.canvas.getBoundingClientRect();
    const { columns, rows, cell } = this.layout;
    const column = Math.floor((event.clientX - box.left - this.margin) / cell);
    const row = Math.floor((event.clientY - box.top) / cell);
    if (column < 0 || column >= columns || row < 0 || row >= rows) return;
    this.move(row * columns + column);
  }

  private key(event: KeyboardEvent): void {
    const { columns, rows } = this.layout;
    const at = this.cursor;
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const steps: Record<string, number> = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: -columns,
      ArrowDown: columns,
      PageUp: -8 * columns,
      PageDown: 8 * columns,
    };
    let next: number | null;
    if (event.key === "Escape") next = null;
    else if (event.key === "Home") next = at === null ? this.start() : at - (at % columns);
    else if (event.key === "End") next = at === null ? this.start() : at - (at % columns) + columns - 1;
    else if (event.key in steps) next = at === null ? this.start() : at + steps[event.key]!;
    else return;
    event.preventDefault();
    if (next !== null && (next < 0 || next >= columns * rows)) return;
    this.move(next);
  }

  /** The first cell of the zone. */
  private start(): number {
    return Math.floor(this.layout.before / this.layout.merge);
  }

  private move(cell: number | null): void {
    if (cell === this.cursor) return;
    this.cursor = cell;
    this.draw();
    this.readout.textContent = cell === null ? "" : this.say(cell);
  }

  private say(cell: number): string {
    const { merge, before } = this.layout;
    const start = Math.max(0, cell * merge - before);
    const end = Math.min(this.zone.blocks_spanned, (cell + 1) * merge - before);
    const { block_pages: pages, page_bytes: bytes } = this.census;
    const pfn = this.zone.first_pfn + start * pages;
    const pfnEnd = this.zone.first_pfn + Math.max(end, start + 1) * pages - 1;
    const where =
      `${end - start > 1 ? `blocks ${start} to ${end - 1}` : `block ${start}`} · ` +
      `PFN ${pfn} to ${pfnEnd} · ` +
      `${format.address(pfn * bytes)} to ${format.address((pfnEnd + 1) * bytes - 1)}`;
    if (end <= start) return "outside the zone";
    const state = this.stateOf(cell);
    if (state < 0) {
      return `${where} · ${this.census.sample === null ? "no memory" : "not read, or no memory"}`;
    }
    const blocks = this.data.index.length;
    const sums = this.data.classes.map((one, which) => {
      let sum = 0;
      for (let block = start; block < end; block++) {
        const place = this.placeOf[block] ?? -1;
        if (place >= 0) sum += this.data.counts[which * blocks + place]!;
      }
      return { words: one.words, sum };
    });
    const held = sums.filter(({ sum }) => sum > 0).sort((a, b) => b.sum - a.sum);
    const list = held.map(({ words, sum }) => `${words} ${format.count(sum)}`).join(", ");
    return `${where} · ${this.states.states[state]!.words} · pages: ${list}`;
  }
}
