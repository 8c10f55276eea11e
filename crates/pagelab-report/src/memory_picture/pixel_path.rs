//! Places of the pixels of a picture: along rows, in tiles of one pageblock each, or along a Hilbert curve.

/// Order in which the pixels of a picture follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PixelLayout {
    /// Row by row.
    Rows,
    /// Each pageblock is a rectangle, filled row by row; the rectangles are arranged row by row.
    Tiles,
    /// A Hilbert curve in each of several squares from left to right: frames that are close in memory are
    /// close in the picture, and the curve has no jumps.
    Hilbert,
}

impl PixelLayout {
    /// All layouts.
    pub const ALL: [PixelLayout; 3] = [PixelLayout::Rows, PixelLayout::Tiles, PixelLayout::Hilbert];

    /// Name on the command line and in JSON.
    pub const fn option_name(self) -> &'static str {
        match self {
            PixelLayout::Rows => "rows",
            PixelLayout::Tiles => "tiles",
            PixelLayout::Hilbert => "hilbert",
        }
    }
}

/// Size of a picture, and the path along its pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PixelPath {
    /// Order of the pixels.
    pub layout: PixelLayout,
    /// Width in pixels.
    pub width: u64,
    /// Height in pixels.
    pub height: u64,
    /// Pixels of a unit in which the order restarts: a row, a tile, a square of the Hilbert curve.
    pub tile: (u64, u64),
}

impl PixelPath {
    /// Builds rows of `width`, which is not 0.
    pub fn row_path(pixels: u64, width: u64) -> PixelPath {
        PixelPath {
            layout: PixelLayout::Rows,
            width,
            height: pixels.div_ceil(width).max(1),
            tile: (width, 1),
        }
    }

    /// Builds tiles of `tile_pixels`, a power of two, with `across` of them side by side.
    pub fn tile_path(pixels: u64, tile_pixels: u64, across: u64) -> PixelPath {
        let tile = tile_size(tile_pixels);
        let down = pixels.div_ceil(tile_pixels).div_ceil(across).max(1);
        PixelPath { layout: PixelLayout::Tiles, width: tile.0 * across, height: tile.1 * down, tile }
    }

    /// Builds squares of the Hilbert curve: as few as leave little of the last one empty, at most 4.
    pub fn hilbert_path(pixels: u64) -> PixelPath {
        let pixels = pixels.max(1);
        let mut side = 1u64 << (pixels.ilog2() / 2).min(30);
        if pixels.div_ceil(side * side) == 4 {
            side *= 2;
        }
        let squares = pixels.div_ceil(side * side);
        PixelPath { layout: PixelLayout::Hilbert, width: side * squares, height: side, tile: (side, side) }
    }

    /// Removes the empty columns and rows at the end of a Hilbert curve.
    pub fn trim(mut self, pixels: u64) -> PixelPath {
        if self.layout == PixelLayout::Hilbert {
            let places = (0..pixels).map(|at| self.position(at));
            let ends = places.fold((1, 1), |ends, (x, y)| (ends.0.max(x + 1), ends.1.max(y + 1)));
            (self.width, self.height) = ends;
        }
        self
    }

    /// Returns the place of a pixel from its number along the path.
    pub fn position(&self, index: u64) -> (u64, u64) {
        let (tile_width, tile_height) = self.tile;
        let per_tile = tile_width * tile_height;
        let (tile, inside) = (index / per_tile, index % per_tile);
        let across = self.width.div_ceil(tile_width);
        let (left, top) = (tile % across * tile_width, tile / across * tile_height);
        let (x, y) = match self.layout {
            PixelLayout::Hilbert => hilbert_position(tile_width, inside),
            PixelLayout::Rows | PixelLayout::Tiles => (inside % tile_width, inside / tile_width),
        };
        (left + x, top + y)
    }
}

/// Returns width and height of a tile of this number of pixels, a power of two: a square or two squares side
/// by side.
pub fn tile_size(pixels: u64) -> (u64, u64) {
    let log = pixels.max(1).ilog2();
    (1 << log.div_ceil(2), 1 << (log / 2))
}

/// Returns the place on the Hilbert curve of order log2(`side`) at distance `index` from its start: from (0,
/// 0) to (`side` - 1, 0). From the smallest square to the largest, each quadrant is rotated into its place.
fn hilbert_position(side: u64, index: u64) -> (u64, u64) {
    let (mut x, mut y, mut remaining) = (0, 0, index);
    let mut size = 1;
    while size < side {
        let right = (remaining >> 1) & 1;
        let down = (remaining ^ right) & 1;
        if down == 0 {
            if right == 1 {
                (x, y) = (size - 1 - x, size - 1 - y);
            }
            (x, y) = (y, x);
        }
        (x, y) = (x + size * right, y + size * down);
        remaining >>= 2;
        size *= 2;
    }
    (x, y)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each path is a bijection onto the pixels of the picture.
    fn check(path: PixelPath, pixels: u64) -> Vec<(u64, u64)> {
        let places: Vec<(u64, u64)> = (0..pixels).map(|at| path.position(at)).collect();
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
                check(PixelPath::row_path(pixels, width), pixels);
            }
            for (tile, across) in [(1, 5), (2, 1), (8, 3), (32, 4), (512, 1)] {
                check(PixelPath::tile_path(pixels, tile, across), pixels);
            }
            check(PixelPath::hilbert_path(pixels), pixels);
            check(PixelPath::hilbert_path(pixels).trim(pixels), pixels);
        }
    }

    #[test]
    fn the_hilbert_curve_never_leaps_and_keeps_aligned_runs_together() {
        for pixels in [16, 64, 1024, 2048, 3000, 4096, 12_000] {
            let places = check(PixelPath::hilbert_path(pixels), pixels);
            for pair in places.windows(2) {
                let step = pair[0].0.abs_diff(pair[1].0) + pair[0].1.abs_diff(pair[1].1);
                assert_eq!(step, 1, "{pair:?} of {pixels}");
            }
            // Each aligned run of 4^k pixels is a square: an independent definition of the curve.
            for order in 1..=3 {
                for run in places.chunks_exact(1 << (2 * order)) {
                    let spread = |of: fn(&(u64, u64)) -> u64| {
                        run.iter().map(of).max().unwrap() - run.iter().map(of).min().unwrap()
                    };
                    assert_eq!((spread(|p| p.0), spread(|p| p.1)), ((1 << order) - 1, (1 << order) - 1));
                }
            }
        }
        let first: Vec<_> = (0..16).map(|at| hilbert_position(4, at)).collect();
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
        let path = PixelPath::hilbert_path(6 << 20);
        assert_eq!((path.width, path.height), (4096, 2048));
        assert_eq!((tile_size(512), tile_size(1), tile_size(4)), ((32, 16), (1, 1), (2, 2)));
    }
}
