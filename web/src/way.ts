// The way along the pixels of a picture of memory: from a pixel's place to its number, as
// crates/pagelab-report/src/picture/curve.rs goes from the number to the place.

export interface Way {
  order: "rows" | "tiles" | "hilbert";
  /** Pixels across and down. */
  width: number;
  height: number;
  /** The rectangle in which the order begins anew. */
  tile: [number, number];
}

/** The number of the pixel at a place. */
export function numberAt(way: Way, x: number, y: number): number {
  const [tileWidth, tileHeight] = way.tile;
  const across = Math.ceil(way.width / tileWidth);
  const tile = Math.floor(y / tileHeight) * across + Math.floor(x / tileWidth);
  const [left, top] = [x % tileWidth, y % tileHeight];
  const inside = way.order === "hilbert" ? hilbert(tileWidth, left, top) : top * tileWidth + left;
  return tile * tileWidth * tileHeight + inside;
}

/** The distance along the Hilbert curve from (0, 0) to a place in a square. */
function hilbert(side: number, x: number, y: number): number {
  let distance = 0;
  for (let size = side / 2; size >= 1; size /= 2) {
    const right = x & size ? 1 : 0;
    const down = y & size ? 1 : 0;
    distance += size * size * ((3 * right) ^ down);
    if (down === 0) {
      if (right === 1) [x, y] = [side - 1 - x, side - 1 - y];
      [x, y] = [y, x];
    }
  }
  return distance;
}

/** A run of frames. */
export interface Frames {
  first_frame: number;
  frames: number;
}

/** The frame at a position in runs of frames that stand one after the other. */
export function frameAt(extents: Frames[], position: number): number | null {
  for (const { first_frame, frames } of extents) {
    if (position < frames) return first_frame + position;
    position -= frames;
  }
  return null;
}

/** How many frames of these runs lie below a frame, whether it is in one of them or not. */
function below(extents: Frames[], frame: number): number {
  return extents.reduce(
    (sum, { first_frame, frames }) => sum + Math.min(frames, Math.max(0, frame - first_frame)),
    0,
  );
}

/** The first row of pixels that a run of frames touches, and the one behind its last; whole tiles. */
export function rowsOf(
  way: Way & { extents: Frames[]; pages_per_pixel: number },
  { first_frame, frames }: Frames,
): [number, number] {
  const [tileWidth, tileHeight] = way.tile;
  const perRow = Math.ceil(way.width / tileWidth) * tileWidth * tileHeight * way.pages_per_pixel;
  const first = below(way.extents, first_frame);
  const end = below(way.extents, first_frame + frames);
  if (end <= first) return [0, 0];
  return [Math.floor(first / perRow) * tileHeight, Math.ceil(end / perRow) * tileHeight];
}

/** The run that holds a frame. */
export function holder<T extends Frames>(runs: T[], frame: number): T | undefined {
  return runs.find((run) => frame >= run.first_frame && frame < run.first_frame + run.frames);
}
