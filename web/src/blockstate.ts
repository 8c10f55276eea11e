// State of each pageblock, derived from its pages: pure, with the same rules as the supply of huge pages
// (crates/pagelab-metrics/src/supply/unit.rs), so that the picture adds up to the numbers beside it.

import type { PageClass } from "./data";

/** State of a block. `class` is an index into the zone's classes if the state has one. */
export interface State {
  key: string;
  /** Display name. */
  words: string;
  /** Drawn with a mark: the block cannot become a huge page, whatever moves. */
  marked: boolean;
}

export interface Zone {
  classes: PageClass[];
  /** Index of each counted block, ascending. */
  index: ArrayLike<number>;
  /** Pages of class c in counted block i: counts[c * blocks + i]. */
  counts: ArrayLike<number>;
  oneFolio: ArrayLike<number>;
  blockPages: number;
}

export interface States {
  states: State[];
  /** For each counted block, an index into `states`. */
  of: Uint8Array;
  /** Blocks of each state. */
  blocks: number[];
}

const FREE = { key: "free", words: "free, available as a huge page", marked: false };
const DEFERRED = { key: "deferred", words: "free, not initialised yet", marked: false };
const HUGE = { key: "huge", words: "huge page in use or in a pool", marked: false };
const UNKNOWN = { key: "unknown", words: "possibly polluted: pages without flags", marked: true };
const EMPTY = { key: "hole", words: "no memory", marked: false };

function movable(of: PageClass): State {
  return { key: of.name, words: `can be emptied: mostly ${of.words}`, marked: false };
}

function pollutedBy(of: PageClass): State {
  return { key: of.name, words: `polluted, mostly by ${of.words}`, marked: true };
}

/** States of a zone's counted blocks, without states that do not occur. */
export function statesOf(zone: Zone): States {
  const blocks = zone.index.length;
  const place = (name: string) => zone.classes.findIndex((one) => one.name === name);
  const [free, deferred, unknown, hugetlb, anonHuge, hole, offline] = [
    "free",
    "deferred",
    "unknown",
    "hugetlb",
    "anon_huge",
    "hole",
    "offline",
  ].map(place) as [number, number, number, number, number, number, number];
  const pollutingClasses = indices(zone.classes, (one) => one.pollutes);
  const movers = indices(zone.classes, (one) => one.movable);
  const folios = new Set<number>();
  for (let at = 0; at < zone.oneFolio.length; at++) folios.add(zone.oneFolio[at]!);

  const states: State[] = [];
  const known = new Map<string, number>();
  const number = (state: State) => {
    const key = `${state.key} ${state.marked}`;
    let found = known.get(key);
    if (found === undefined) {
      found = states.push(state) - 1;
      known.set(key, found);
    }
    return found;
  };
  const stateByClass = zone.classes.map(pollutedBy);
  const emptied = zone.classes.map(movable);
  const of = new Uint8Array(blocks);
  for (let block = 0; block < blocks; block++) {
    const pages = (which: number) => (which < 0 ? 0 : zone.counts[which * blocks + block]!);
    const polluter = most(pollutingClasses, pages);
    let state: State;
    if (pages(hole) + pages(offline) >= zone.blockPages) state = EMPTY;
    else if (polluter >= 0) state = stateByClass[polluter]!;
    else if (pages(unknown) > 0) state = UNKNOWN;
    else if (pages(hugetlb) > 0) state = HUGE;
    else if (pages(anonHuge) >= zone.blockPages && folios.has(zone.index[block]!)) state = HUGE;
    else if (pages(free) >= zone.blockPages) state = FREE;
    else if (pages(free) + pages(deferred) >= zone.blockPages) state = DEFERRED;
    else {
      const mover = most(movers, pages);
      state = mover >= 0 ? emptied[mover]! : UNKNOWN;
    }
    of[block] = number(state);
  }
  return sorted({ states, of, blocks: countStates(of, states.length) });
}

function indices(classes: PageClass[], wanted: (one: PageClass) => boolean): number[] {
  return classes.flatMap((one, at) => (wanted(one) ? [at] : []));
}

/** The class with the most pages, -1 if none has any. */
function most(among: number[], pages: (which: number) => number): number {
  let best = -1;
  let count = 0;
  for (const which of among) {
    const here = pages(which);
    if (here > count) {
      best = which;
      count = here;
    }
  }
  return best;
}

function countStates(of: Uint8Array, states: number): number[] {
  const blocks = new Array<number>(states).fill(0);
  for (const state of of) blocks[state]! += 1;
  return blocks;
}

const ORDER = ["free", "deferred", "huge"];

/** Free blocks first, then those that can be emptied, then polluted ones; the largest of each first. */
function sorted(found: States): States {
  const rank = (at: number) => {
    const state = found.states[at]!;
    const fixed = ORDER.indexOf(state.key);
    if (fixed >= 0 && !state.marked) return fixed;
    if (state === EMPTY) return 9;
    return state.marked ? (state === UNKNOWN ? 8 : 7) : 6;
  };
  const order = found.states
    .map((_, at) => at)
    .sort((a, b) => rank(a) - rank(b) || found.blocks[b]! - found.blocks[a]!);
  const place = new Uint8Array(order.length);
  order.forEach((old, fresh) => {
    place[old] = fresh;
  });
  return {
    states: order.map((old) => found.states[old]!),
    of: found.of.map((old) => place[old]!),
    blocks: order.map((old) => found.blocks[old]!),
  };
}

/** Layout of a zone in cells. */
export interface Layout {
  /** Cells in a row: a power of two, so that rows begin at round addresses. */
  columns: number;
  rows: number;
  /** Width and height of a cell, in CSS pixels. */
  cell: number;
  /** Blocks in a cell: a power of two, 1 unless the zone does not fit on the screen. */
  merge: number;
  /** Blocks of the first row before the zone. */
  before: number;
}

const CELL_MIN = 3;
const CELL_MAX = 14;
const HEIGHT_MAX = 600;

/** The layout with the largest cells that fits. `first` is the number of the zone's first block in memory. */
export function layout(spanned: number, first: number, width: number): Layout {
  for (let merge = 1; ; merge *= 2) {
    for (let columns = 8; columns * CELL_MIN <= Math.max(width, 8 * CELL_MIN); columns *= 2) {
      const cell = Math.min(CELL_MAX, Math.max(CELL_MIN, Math.floor(width / columns)));
      const before = first % (columns * merge);
      const rows = Math.ceil((before + spanned) / (columns * merge));
      if (rows * cell <= HEIGHT_MAX && (rows < 4 || columns * cell * 2 > width || columns >= 32))
        return { columns, rows, cell, merge, before };
    }
  }
}
