// The data of a page, as pagelab-report writes it (crates/pagelab-report/src/html.rs): the contract between
// the two. Documents of `--json` (docs/json.md) stand in it unchanged.

/** A typed array in a block of its own: `<script type="application/octet-stream" id=block>`, base64 of gzip. */
export interface Block {
  block: string;
  /** Little-endian element type. */
  type: "f64" | "u32" | "u16" | "u8";
  length: number;
}

/** The document in the block called `page`. */
export interface Page {
  page: 1;
  title: string;
  runs: Run[];
}

/** One run file. */
export interface Run {
  name: string;
  /** The manifest and the ending: the `run` object of `pagelab report --json`. */
  run: Record<string, unknown>;
  /** The document of `pagelab checkup --json`, in a run of checkup. */
  checkup: Record<string, unknown> | null;
  census: Census | null;
  series: Series[];
  streams: Stream[];
  events: { at_ns: number; kind: string; text: string }[];
  not_shown: string[];
  /** The report as the terminal shows it. */
  text: string;
}

/** The picture of physical memory by pageblock. */
export interface Census {
  block_bytes: number;
  block_pages: number;
  /** null: every block was counted. */
  sample: { seed: number; blocks: number; blocks_total: number } | null;
  zones: CensusZone[];
}

export interface CensusZone {
  node: number;
  zone: string;
  first_pfn: number;
  blocks_total: number;
  /** Index of each counted block in its zone, ascending. */
  index: Block;
  /** Classes of pages that occur here. */
  classes: string[];
  /** Pages of each class, class after class, a value for each counted block. */
  counts: Block;
}

/** Values that were read together. Where `decimated_from` is not null, times and values are extremes in order. */
export interface Series {
  name: string;
  source: string;
  columns: SeriesColumn[];
}

export interface SeriesColumn {
  name: string;
  unit: string;
  is_counter: boolean;
  /** A column that never changed; null in it is a reading that failed. */
  constant: { value: number | null } | null;
  /** Seconds since the start. */
  at_s: Block | null;
  /** NaN is a reading that failed. */
  values: Block | null;
  decimated_from: number | null;
}

/** Raw samples of one thing. */
export interface Stream {
  name: string;
  unit: string;
  labels: [string, string][];
  at_s: Block;
  values: Block;
  decimated_from: number | null;
}
