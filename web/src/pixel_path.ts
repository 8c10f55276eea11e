// Path along the pixels of a picture of memory: from a pixel's place to its number, as the inverse of
// crates/pagelab-report/src/memory_picture/pixel_path.rs.

export interface PixelPath {
  pixel_layout: "rows" | "tiles" | "hilbert";
  /** Pixels across and down. */
  width: number;
  height: number;
  /** Rectangle in which the order restarts. */
  tile: [number, number];
}

/** The number of the pixel at a place. */
export function numberAt(path: PixelPath, x: number, y: number): number {
  const [tileWidth, tileHeight] = path.tile;
  const across = Math.ceil(path.width / tileWidth);
  const tile = Math.floor(y / tileHeight) * across + Math.floor(x / tileWidth);
  const [left, top] = [x % tileWidth, y % tileHeight];
  const inside = path.pixel_layout === "hilbert" ? hilbert(tileWidth, left, top) : top * tileWidth + left;
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

/** The frame at a position in a sequence of runs of frames. */
export function frameAt(extents: Frames[], position: number): number | null {
  for (const { first_frame, frames } of extents) {
    if (position < frames) return first_frame + position;
    position -= frames;
  }
  return null;
}

/** Number of frames of these runs below a frame, whether it is in one of them or not. */
function framesBelow(extents: Frames[], frame: number): number {
  return extents.reduce(
    (sum, { first_frame, frames }) => sum + Math.min(frames, Math.max(0, frame - first_frame)),
    0,
  );
}

/** The first row of pixels of a run of frames, and the row after its last; in complete tiles. */
export function rowsOf(
  path: PixelPath & { extents: Frames[]; pages_per_pixel: number },
  { first_frame, frames }: Frames,
): [number, number] {
  const [tileWidth, tileHeight] = path.tile;
  const perRow = Math.ceil(path.width / tileWidth) * tileWidth * tileHeight * path.pages_per_pixel;
  const first = framesBelow(path.extents, first_frame);
  const end = framesBelow(path.extents, first_frame + frames);
  if (end <= first) return [0, 0];
  return [Math.floor(first / perRow) * tileHeight, Math.ceil(end / perRow) * tileHeight];
}

/** The run that contains a frame. */
export function findRun<T extends Frames>(runs: T[], frame: number): T | undefined {
  return runs.find((run) => frame >= run.first_frame && frame < run.first_frame + run.frames);
}
