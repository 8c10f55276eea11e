// The data of a page, as pagelab-report writes it (crates/pagelab-report/src/html.rs): the contract between
// the two. It contains documents of `--json` (docs/json.md) unchanged.
//
// A page is the built page.html with three places filled: the title, the text for readers without scripts,
// and data blocks: `<script type="application/octet-stream" id=ID>`, base64 of gzip. The block with the id
// `page` is a JSON document, `Page` below; every other block is a typed array that the document names. A new
// field may be added at any time; removing one or changing its meaning increases `page`.

/** A typed array in a separate block. Its bytes are in planes: all lowest bytes, then all second ones … */
export interface Block {
  /** The id of the script element. */
  block: string;
  /** Little-endian element type. */
  type: "f64" | "u32" | "u16" | "u8";
  /** Elements. */
  length: number;
}

/** The document in the block called `page`. */
export interface Page {
  /** Version of this contract. */
  page: 2;
  title: string;
  runs: Run[];
  /** A picture of memory (`pagelab map`), in a page of its own without runs. */
  picture?: Picture;
  /** Simulations (`pagelab sim`), in a page of their own without runs. */
  sim?: Sim;
  /** A demonstration (`pagelab sim demo`), in a page of its own without runs. */
  demo?: Demo;
}

/** Simulations side by side. */
export interface Sim {
  title: string;
  facts: string[];
  /** Memory management schemes; `lists`: names of the numbers of pageblock owners. */
  schemes: { name: string; lists: string[] }[];
  figures: SimFigure[];
  series: SimSeries[];
  /** The share of a zone that must be freed for a block of an order, in random order. */
  reclaim: { order: number; share: number }[];
  memory: SimMemory | null;
  /** Conclusions from the figures: differences, influences, the points of a sweep. */
  tables: SimTable[];
  notes: string[];
  /** The same in lines of text. */
  text: string;
}

/** A table of formatted cells, as on the terminal. */
export interface SimTable {
  title: string;
  /** Answers the question of the command, and precedes the charts. */
  leads: boolean;
  /** Subtitle, if several tables have the same title; may be empty. */
  of: string;
  /** Explanation; may be empty. */
  words: string;
  /** Empty: there is only text. */
  columns: string[];
  /** Number of leading columns with names; the others have numbers. */
  names: number;
  /** A row of a single cell is the heading of those below. */
  rows: string[][];
}

export interface SimFigure {
  phase: string;
  name: string;
  /** null: of the entire machine. */
  zone: string | null;
  /** `blocks`, `pages`, `share` of 1, or one that the page does not know. */
  unit: string;
  /** For each scheme the median over the seeds; null: not measured. */
  values: (SimValue | null)[];
  /** The paper's value for each scheme. */
  paper: (number | null)[];
  /** The same as the terminal rounds. */
  paper_shown: (string | null)[];
}

export interface SimValue {
  middle: number;
  /** null: there is no interval, as below 6 seeds, or it has no width. */
  low: number | null;
  high: number | null;
  seeds: number;
  /** The middle as the terminal rounds: `120.5`. */
  shown: string;
  /** The same with its interval: `120.5 (118…122)`. */
  text: string;
}

export interface SimSeries {
  name: string;
  /** Quantity along the axis. */
  over: string;
  scheme: number;
  at: Block;
  values: Block;
}

export interface SimMemory {
  /** How many pictures there were. */
  recorded: number;
  legend: Category[];
  /** By scheme and step. */
  pictures: SimPicture[];
}

export interface SimPicture {
  scheme: number;
  step: number;
  phase: string;
  /** Pages of each category of the legend. */
  pages: number[];
  layout: PictureLayout;
  /** Index into the legend for each pixel, row by row; 255 behind the last frame. */
  cells: Block;
  /** The list of each pageblock. */
  owners: Block;
}

/** A small memory step by step, under several policies. */
export interface Demo {
  title: string;
  facts: string[];
  block_frames: number;
  goal_order: number;
  lanes: { policy: string; lists: string[]; steps: DemoStep[] }[];
  text: string;
}

export interface DemoStep {
  request: string;
  actions: string[];
  /** A character per page: a dot is free. */
  frames: string;
  owners: number[];
  /** First pages of free blocks by list and order. */
  free: number[][][];
  unusable: number[];
  touched: number[];
}

/** One run file, or one snapshot of a machine. */
export interface Run {
  /** The file's name, or `this machine`. */
  name: string;
  /** The first line of the terminal's report: the machine's name and properties, a phrase each. */
  head: { name: string; facts: string[] };
  run: Manifest;
  /** The document of `pagelab checkup --json`, in a run of checkup. */
  checkup: Json | null;
  census: Census | null;
  series: Series[];
  /** Series that were computed from these: `unusable_index` by zone and order, and `use` (docs/usage.md). */
  derived: Series[];
  streams: Stream[];
  events: Event[];
  /**
   * `experiment` of `pagelab report --json`, in a run of an experiment; without the measures of each trial,
   * and without `ratio_by_bootstrap` and `permutation_p`.
   */
  experiment?: Json | null;
  /** `tune` of `pagelab report --json`, in a run of `pagelab tune`. */
  tune?: Json | null;
  /** null: no maps were recorded, or none was read for this page. */
  maps: Maps | null;
  /** Content that the writer of the page did not recognise and left out, in words. */
  not_shown: string[];
  /** The log that belongs to the file, if the last records are there, or may be where it is not beside it. */
  log: { path: string; is_there: boolean } | null;
  /** The report as the terminal shows it. */
  text: string;
}

/** Description of a picture of physical memory besides its pixels. */
export interface PictureLayout {
  width: number;
  height: number;
  pixel_layout: "rows" | "tiles" | "hilbert";
  /** Rectangle of pixels in which the order restarts. */
  tile: [number, number];
  blend: "majority" | "mix" | "worst";
  pages_per_pixel: number;
  page_size_bytes: number;
  pageblock_pages: number;
  /** Runs of frames drawn, in sequence. */
  extents: { first_frame: number; frames: number }[];
  zones: { name: string; first_frame: number; frames: number }[];
  memory_blocks: { number: number; online: boolean; first_frame: number; frames: number }[];
}

/** Meaning of an index of pixels. */
export interface Category {
  label: string;
  letter: string;
  /** Red, green and blue. */
  colour: number[];
}

/** A picture of physical memory in a page of its own. */
export interface Picture extends PictureLayout {
  title: string;
  subtitle: string[];
  legend: (Category & { pages: number })[];
  /** Index into `legend` for each pixel, row by row; 255 behind the last frame. */
  cells: Block;
  /** Red, green and blue of each pixel, where they are not those of the legend. */
  colours: Block | null;
  /** As the terminal shows it. */
  text: string;
}

/** Maps of physical memory in a recording. */
export interface Maps {
  /** How many the file has. */
  recorded: number;
  /** Reason why others could not be read, a phrase; null: all could. */
  problem: string | null;
  legend: Category[];
  /** `scale`: meaning of a pixel, in words. */
  layouts: (PictureLayout & { scale: string })[];
  /** Some of the maps, by time: the first one, the last one, and others at about even distances. */
  shown: RecordedMap[];
}

export interface RecordedMap {
  /** Start of its scan, in nanoseconds since the start of the run. */
  at_ns: number;
  /** Duration of the scan. */
  elapsed_ns: number;
  /** Index in `grounds`. */
  layout: number;
  /** Pages of each category of the legend. */
  pages: number[];
  /** Index into the legend for each pixel, row by row; 255 behind the last frame. */
  cells: Block;
}

/** Command, time and ending of a run: the `run` object of `pagelab report --json`. */
export interface Manifest {
  kind: string;
  tool_version: string;
  command_line: string[];
  seed: number | null;
  started_realtime_ns: number;
  /** null: imported files do not contain it. */
  started_boottime_ns: number | null;
  ending: "complete" | "stopped" | "not_closed";
  ended_after_ns: number | null;
  end_reason: string | null;
  /** As in the document of `pagelab checkup --json`. */
  machine: Json;
  settings: Json;
}

/** Event with its time. */
export interface Event {
  /** Nanoseconds since the start of the run. */
  at_ns: number;
  kind: string;
  text: string;
}

/** The picture of physical memory by pageblock. */
export interface Census {
  block_bytes: number;
  /** Base pages of a block. */
  block_pages: number;
  page_bytes: number;
  scan_ns: number;
  /** null: every block was counted. */
  sample: { seed: number; blocks: number; blocks_total: number } | null;
  zones: CensusZone[];
}

export interface CensusZone {
  node: number;
  zone: string;
  /** First frame of the block with index 0. */
  first_pfn: number;
  /** Blocks that hold memory, counted or not. */
  blocks_total: number;
  /** Blocks from the first to the last, holes included: every index is below it. */
  blocks_spanned: number;
  /** Index of each counted block in its zone, ascending. */
  index: Block;
  /** Indices of counted blocks that are one compound page or a part of one, ascending. */
  one_folio: Block;
  /** Classes of pages that occur here. */
  classes: PageClass[];
  /** Pages of each class, class after class, a value for each counted block. */
  counts: Block;
}

export interface PageClass {
  /** As in the JSON documents: `slab`, `anon` … */
  name: string;
  /** Display name. */
  words: string;
  /** One page of it prevents a block from becoming a huge page. */
  pollutes: boolean;
  /** Compaction can move it. */
  movable: boolean;
}

/** Values that were read together repeatedly. */
export interface Series {
  name: string;
  /** Source file or call of the values. */
  source: string;
  readings: number;
  /** Seconds since the start of the first and the last reading; null without readings. */
  from_s: number | null;
  to_s: number | null;
  columns: SeriesColumn[];
}

export interface SeriesColumn {
  name: string;
  /** `bytes`, `pages`, `ns`, `us`, `count`, `permille`, or one that the page does not know. */
  unit: string;
  /** Values only grow: the page shows their rate. */
  is_counter: boolean;
  /** A column that never changed; null in it is a reading that failed. `at_s` and `values` are null then. */
  constant: { value: number | null } | null;
  /** Seconds since the start, ascending. Columns in full share one block. */
  at_s: Block | null;
  /** NaN is a reading that failed. */
  values: Block | null;
  /** Readings of which these are the extremes in order, with first, last and gaps; null: all are here. */
  decimated_from: number | null;
}

/** Raw samples of one quantity, by time. */
export interface Stream {
  name: string;
  unit: string;
  /** Distinguishes it from streams of the same name. */
  labels: [string, string][];
  /**
   * Of all samples, whether shown or not, by the same definition as in the terminal's table
   * (pagelab_metrics::statistics): the median of an even number is the mean of the two in the middle, and
   * between two samples a percentile is interpolated.
   */
  summary: Summary | null;
  at_s: Block;
  values: Block;
  decimated_from: number | null;
}

export interface Summary {
  count: number;
  min: number;
  p5: number;
  median: number;
  p95: number;
  max: number;
}

/** A JSON value of a document that docs/json.md describes. */
export type JsonValue = null | boolean | number | string | JsonValue[] | Json;
export interface Json {
  [key: string]: JsonValue;
}
