// Reduction of many values to few points: the minimum and maximum of each stretch of time, so that no
// peak is lost. A scan of a million values takes a few milliseconds; no preparation is necessary.

/** First index whose time is not before `at`. */
export function lowerBound(times: ArrayLike<number>, at: number): number {
  let low = 0;
  let high = times.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (times[middle]! < at) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Index of the value nearest in time, -1 without values. */
export function nearest(times: ArrayLike<number>, at: number): number {
  const after = lowerBound(times, at);
  if (after === 0) return times.length > 0 ? 0 : -1;
  if (after === times.length) return after - 1;
  return times[after]! - at < at - times[after - 1]! ? after : after - 1;
}

/** A point of a line: a value, `null` for a gap, `undefined` if this line has no point. */
export type Point = number | null | undefined;

export interface Line {
  at: Float64Array;
  /** NaN is a gap. */
  values: Float64Array;
}

/** Indices of the window, with one more on each side, so that lines extend over the edge. */
export function windowIndices(line: Line, from: number, to: number): [number, number] {
  const start = Math.max(0, lowerBound(line.at, from) - 1);
  let end = lowerBound(line.at, to);
  while (end < line.at.length && line.at[end]! <= to) end += 1;
  return [start, Math.min(line.at.length, end + 1)];
}

/**
 * Extremes of one line in `buckets` stretches of [from, to], two points each in the order of time, into
 * `out` at index 2 × bucket. A stretch of failed readings alone is a gap; one without readings has no point.
 */
export function extremes(line: Line, from: number, to: number, buckets: number, out: Point[]): void {
  const [start, end] = windowIndices(line, from, to);
  const scale = buckets / (to - from);
  const { at, values } = line;
  let bucket = -1;
  let low = 0;
  let high = 0;
  let lowAt = -1;
  let highAt = -1;
  let gap = false;
  const flush = () => {
    if (bucket < 0) return;
    const place = 2 * bucket;
    if (lowAt < 0) {
      out[place] = gap ? null : undefined;
      out[place + 1] = out[place];
    } else if (lowAt === highAt) {
      out[place] = low;
      out[place + 1] = undefined;
    } else {
      out[place] = lowAt < highAt ? low : high;
      out[place + 1] = lowAt < highAt ? high : low;
    }
  };
  for (let i = start; i < end; i++) {
    const raw = Math.floor((at[i]! - from) * scale);
    const mine = raw < 0 ? 0 : raw >= buckets ? buckets - 1 : raw;
    if (mine !== bucket) {
      flush();
      bucket = mine;
      lowAt = highAt = -1;
      gap = false;
    }
    const value = values[i]!;
    if (value !== value) {
      gap = true;
    } else if (lowAt < 0) {
      low = high = value;
      lowAt = highAt = i;
    } else if (value < low) {
      low = value;
      lowAt = i;
    } else if (value > high) {
      high = value;
      highAt = i;
    }
  }
  flush();
}

/** Times and, for each line, points of a window: what a chart of this many stretches draws. */
export function windowPoints(
  lines: Line[],
  from: number,
  to: number,
  buckets: number,
): [number[], ...Point[][]] {
  const ranges = lines.map((line) => windowIndices(line, from, to));
  const most = Math.max(0, ...ranges.map(([start, end]) => end - start));
  if (most <= 2 * buckets) return joinTimes(lines, ranges);
  const width = (to - from) / buckets;
  // Both extremes of a stretch are at its middle: a line between them is vertical, and a band has no
  // notches.
  const times = Array.from(
    { length: 2 * buckets },
    (_, at) => from + (Math.floor(at / 2) + 0.5 + (at % 2) * 1e-3) * width,
  );
  const points = lines.map((line) => {
    const out: Point[] = new Array<Point>(2 * buckets).fill(undefined);
    extremes(line, from, to, buckets, out);
    return out;
  });
  return [times, ...points];
}

/** All values of the ranges on one row of times. */
function joinTimes(lines: Line[], ranges: [number, number][]): [number[], ...Point[][]] {
  const all = new Set<number>();
  lines.forEach((line, which) => {
    const [start, end] = ranges[which]!;
    for (let i = start; i < end; i++) all.add(line.at[i]!);
  });
  const times = [...all].sort((a, b) => a - b);
  const place = new Map(times.map((time, at) => [time, at]));
  const points = lines.map((line, which) => {
    const out: Point[] = new Array<Point>(times.length).fill(undefined);
    const [start, end] = ranges[which]!;
    for (let i = start; i < end; i++) {
      const value = line.values[i]!;
      out[place.get(line.at[i]!)!] = Number.isNaN(value) ? null : value;
    }
    return out;
  });
  return [times, ...points];
}

/** Growth of a counter up to each reading, per second. The first reading, and one at which the counter
 * fell (it was reset), have no rate. */
export function rates(line: Line): Line {
  const values = new Float64Array(line.values.length);
  values[0] = NaN;
  for (let i = 1; i < values.length; i++) {
    const grown = line.values[i]! - line.values[i - 1]!;
    const passed = line.at[i]! - line.at[i - 1]!;
    values[i] = grown >= 0 && passed > 0 ? grown / passed : NaN;
  }
  return { at: line.at, values };
}
