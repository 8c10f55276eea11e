//! Where the pixels of a picture lie: along rows, in tiles of one pageblock each, or along a Hilbert curve.

/// The order in which the pixels of a picture follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PixelOrder {
    /// Row by row.
    Rows,
    /// Each pageblock is a rectangle, filled row by row; the rectangles stand row by row.
    Tiles,
    /// A Hilbert curve in each of some squares from left to right: what is near in memory is near in the
    /// picture, and the curve never leaps.
    Hilbert,
}

impl PixelOrder {
    /// All of them.
    pub const ALL: [PixelOrder; 3] = [PixelOrder::Rows, PixelOrder::Tiles, PixelOrder::Hilbert];

    /// Its name on the command line and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            PixelOrder::Rows => "rows",
            PixelOrder::Tiles => "tiles",
            PixelOrder::Hilbert => "hilbert",
        }
    }
}

/// The size of a picture, and the way along its pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The order.
    pub order: PixelOrder,
    /// Pixels across.
    pub width: u64,
    /// Pixels down.
    pub height: u64,
    /// Of a rectangle in which the order begins anew: a row, a tile, a square of the Hilbert curve.
    pub tile: (u64, u64),
}

impl Path {
    /// Rows of `width`, which is not 0.
    pub fn rows(pixels: u64, width: u64) -> Path {
        Path { order: PixelOrder::Rows, width, height: pixels.div_ceil(width).max(1), tile: (width, 1) }
    }

    /// Tiles of `tile_pixels`, a power of two, of which `across` stand side by side.
    pub fn tiles(pixels: u64, tile_pixels: u64, across: u64) -> Path {
        let tile = tile_of(tile_pixels);
        let down = pixels.div_ceil(tile_pixels).div_ceil(across).max(1);
        Path { order: PixelOrder::Tiles, width: tile.0 * across, height: tile.1 * down, tile }
    }

    /// Squares of the Hilbert curve: as few as leave little of the last one empty, at most 4.
    pub fn hilbert(pixels: u64) -> Path {
        let pixels = pixels.max(1);
        let mut side = 1u64 << (pixels.ilog2() / 2).min(30);
        if pixels.div_ceil(side * side) == 4 {
            side *= 2;
        }
        let squares = pixels.div_ceil(side * side);
        Path { order: PixelOrder::Hilbert, width: side * squares, height: side, tile: (side, side) }
    }

    /// The same without the columns and rows at the end of a Hilbert curve in which nothing is drawn.
    pub fn trimmed(mut self, pixels: u64) -> Path {
        if self.order == PixelOrder::Hilbert {
            let places = (0..pixels).map(|at| self.place(at));
            let ends = places.fold((1, 1), |ends, (x, y)| (ends.0.max(x + 1), ends.1.max(y + 1)));
            (self.width, self.height) = ends;
        }
        self
    }

    /// The place of a pixel, by its number along the way.
    pub fn place(&self, at: u64) -> (u64, u64) {
        let (tile_width, tile_height) = self.tile;
        let per_tile = tile_width * tile_height;
        let (tile, inside) = (at / per_tile, at % per_tile);
        let across = self.width.div_ceil(tile_width);
        let (left, top) = (tile % across * tile_width, tile / across * tile_height);
        let (x, y) = match self.order {
            PixelOrder::Hilbert => hilbert(tile_width, inside),
            PixelOrder::Rows | PixelOrder::Tiles => (inside % tile_width, inside / tile_width),
        };
        (left + x, top + y)
    }
}

/// Width and height of a tile of so many pixels, a power of two: a square or two squares side by side.
pub fn tile_of(pixels: u64) -> (u64, u64) {
    let log = pixels.max(1).ilog2();
    (1 << log.div_ceil(2), 1 << (log / 2))
}

/// The place on the Hilbert curve of order log2(`side`) at distance `at` from its start: from (0, 0) to
/// (`side` - 1, 0). From the smallest square to the largest, each quadrant is put where it belongs, turned.
fn hilbert(side: u64, at: u64) -> (u64, u64) {
    let (mut x, mut y, mut rest) = (0, 0, at);
    let mut size = 1;
    while size < side {
        let right = (rest >> 1) & 1;
        let down = (rest ^ right) & 1;
        if down == 0 {
            if right == 1 {
                (x, y) = (size - 1 - x, size - 1 - y);
            }
            (x, y) = (y, x);
        }
        (x, y) = (x + size * right, y + size * down);
        rest >>= 2;
        size *= 2;
    }
    (x, y)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each way is a bijection onto the picture's pixels, as far as there are any.
    fn check(path: Path, pixels: u64) -> Vec<(u64, u64)> {
        let places: Vec<(u64, u64)> = (0..pixels).map(|at| path.place(at)).collect();
        let mut seen = places.clone();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len() as u64, pixels, "{path:?}");
        assert!(seen.iter().all(|&(x, y)| x < path.width && y < path.height), "{path:?}");
        assert!(path.width * path.height >= pixels);
        places
    }

    #[test]
    fn every_way_meets_every_pixel_once() {
        for pixels in [1, 2, 3, 4, 7, 63, 64, 65, 255, 256, 700, 1023, 1024, 3000] {
            for width in [1, 3, 64, 1000] {
                check(Path::rows(pixels, width), pixels);
            }
            for (tile, across) in [(1, 5), (2, 1), (8, 3), (32, 4), (512, 1)] {
                check(Path::tiles(pixels, tile, across), pixels);
            }
            check(Path::hilbert(pixels), pixels);
            check(Path::hilbert(pixels).trimmed(pixels), pixels);
        }
    }

    #[test]
    fn the_hilbert_curve_never_leaps_and_keeps_aligned_runs_together() {
        for pixels in [16, 64, 1024, 2048, 3000, 4096, 12_000] {
            let places = check(Path::hilbert(pixels), pixels);
            for pair in places.windows(2) {
                let step = pair[0].0.abs_diff(pair[1].0) + pair[0].1.abs_diff(pair[1].1);
                assert_eq!(step, 1, "{pair:?} of {pixels}");
            }
            // Each aligned run of 4^k pixels is a square: a definition of the curve that is not ours.
            for order in 1..=3 {
                for run in places.chunks_exact(1 << (2 * order)) {
                    let spread = |of: fn(&(u64, u64)) -> u64| {
                        run.iter().map(of).max().unwrap() - run.iter().map(of).min().unwrap()
                    };
                    assert_eq!((spread(|p| p.0), spread(|p| p.1)), ((1 << order) - 1, (1 << order) - 1));
                }
            }
        }
        let first: Vec<_> = (0..16).map(|at| hilbert(4, at)).collect();
        let as_drawn_in_1891 = [
            (0, 0),
            (1, 0),
            (1, 1),
            (0, 1),
            (0, 2),
            (0, 3),
            (1, 3),
            (1, 2),
            (2, 2),
            (2, 3),
            (3, 3),
            (3, 2),
            (3, 1),
            (2, 1),
            (2, 0),
            (3, 0),
        ];
        assert_eq!(first, as_drawn_in_1891);
    }

    #[test]
    fn a_picture_of_24_gib_is_not_mostly_empty() {
        let path = Path::hilbert(6 << 20);
        assert_eq!((path.width, path.height), (4096, 2048));
        assert_eq!((tile_of(512), tile_of(1), tile_of(4)), ((32, 16), (1, 1), (2, 2)));
    }
}
