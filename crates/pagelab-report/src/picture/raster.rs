//! From frames to pixels: how many frames share a pixel, which category it shows, and where it lies.

use pagelab_model::{Order, Pfn};

use super::curve::{Path, PixelOrder, tile_of};
use super::drawing::Drawing;
use super::{Category, Rgb};

/// A picture has at most this many pixels.
pub const PIXELS_MAX: u64 = 1 << 26;

/// A picture is at most this wide and high, unless its width was asked for.
pub const SIDE_MAX: u64 = 4 << 10;

/// A pixel in which nothing is drawn: behind the last frame.
pub const NOTHING: u8 = u8::MAX;

/// What a pixel of several frames shows. Frames without memory only count where there are no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blend {
    /// The category that most of its frames have; of equals the one of higher rank.
    Majority,
    /// The mean of its frames' colours, as light adds up.
    Mix,
    /// The category of highest rank among its frames.
    Worst,
}

impl Blend {
    /// All of them.
    pub const ALL: [Blend; 3] = [Blend::Majority, Blend::Mix, Blend::Worst];

    /// Its name on the command line and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Blend::Majority => "majority",
            Blend::Mix => "mix",
            Blend::Worst => "worst",
        }
    }
}

/// How frames become pixels.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Where pixels lie.
    pub order: PixelOrder,
    /// Frames that share a pixel, as an order of two.
    pub pixel: Order,
    /// Pixels in a row; `None`: a power of two that makes the picture about square.
    pub width: Option<u64>,
    /// What a pixel shows.
    pub blend: Blend,
    /// Whether the edges of pageblocks are shaded.
    pub grid: bool,
}

/// Pixels.
#[derive(Clone, Debug)]
pub struct Raster<'a> {
    /// What the indices mean.
    pub legend: &'a [Category],
    /// Size and way.
    pub path: Path,
    /// Frames that share a pixel.
    pub pixel: Order,
    /// Pixels that show frames; behind them nothing is drawn.
    pub drawn: u64,
    /// Index into `legend` of each pixel, row by row; [`NOTHING`] behind the last frame.
    pub cells: Vec<u8>,
    /// The colours, where pixels are a mixture.
    pub mixed: Option<Vec<Rgb>>,
    /// Whether a pixel is at the edge of its pageblock; empty without a grid.
    pub edges: Vec<bool>,
}

/// The smallest order at which a picture of so many frames is at most so wide and so high. A width that was
/// asked for is not limited.
pub fn auto_pixel(
    frames: u64,
    pageblock: Order,
    order: PixelOrder,
    width: Option<u64>,
    (wide, high): (u64, u64),
) -> Order {
    let fits = |pixel: &Order| {
        let pixels = frames.div_ceil(pixel.pages().0);
        let path = path(pixels, pageblock, *pixel, order, width);
        pixels <= PIXELS_MAX && path.height <= high && (width.is_some() || path.width <= wide)
    };
    (0..40).map(Order).find(fits).unwrap_or(Order(40))
}

fn path(pixels: u64, pageblock: Order, pixel: Order, order: PixelOrder, width: Option<u64>) -> Path {
    let square = || {
        let log = pixels.max(1).ilog2();
        1u64 << (log / 2)
    };
    match order {
        PixelOrder::Rows => Path::rows(pixels, width.unwrap_or_else(square).max(1)),
        PixelOrder::Hilbert => Path::hilbert(pixels),
        PixelOrder::Tiles => {
            let tile = 1u64 << pageblock.0.saturating_sub(pixel.0).min(30);
            let across = width.unwrap_or_else(square) / tile_of(tile).0;
            Path::tiles(pixels, tile, across.max(1))
        }
    }
}

/// Puts a drawing into pixels; `None` where there would be more than [`PIXELS_MAX`]. The extents of the
/// drawing must begin at multiples of a pixel.
pub fn raster<'a>(drawing: &Drawing<'a>, shape: &Shape) -> Option<Raster<'a>> {
    let per_pixel = shape.pixel.pages().0;
    let pixels = drawing.frames().div_ceil(per_pixel);
    let pageblock = drawing.layout.pageblock_order;
    let mut path = path(pixels, pageblock, shape.pixel, shape.order, shape.width);
    if path.width.saturating_mul(path.height) <= 4 * PIXELS_MAX {
        path = path.trimmed(pixels);
    }
    let area = path.width.checked_mul(path.height).filter(|area| *area <= PIXELS_MAX)?;
    let area = usize::try_from(area).ok()?;
    let mut raster = Raster {
        legend: drawing.legend,
        path,
        pixel: shape.pixel,
        drawn: pixels,
        cells: vec![NOTHING; area],
        mixed: (shape.blend == Blend::Mix).then(|| vec![[255; 3]; area]),
        edges: Vec::new(),
    };
    let light = Light::of(drawing.legend);
    let chunks = drawing.categories.chunks(usize::try_from(per_pixel).unwrap_or(usize::MAX));
    for (at, frames) in chunks.enumerate() {
        let index = raster.index(at as u64);
        let counts = Counts::of(frames, drawing);
        raster.cells[index] = counts.category(shape.blend, drawing);
        if let Some(mixed) = &mut raster.mixed {
            mixed[index] = light.mean(&counts);
        }
    }
    if shape.grid {
        raster.edges = edges(&raster, drawing);
    }
    Some(raster)
}

impl Raster<'_> {
    fn index(&self, at: u64) -> usize {
        let (x, y) = self.path.place(at);
        (y * self.path.width + x) as usize
    }

    /// The colour of a pixel; `None` where nothing is drawn.
    pub fn colour(&self, index: usize) -> Option<Rgb> {
        let cell = *self.cells.get(index)?;
        let category = self.legend.get(usize::from(cell))?;
        let colour = self.mixed.as_ref().and_then(|mixed| mixed.get(index)).copied();
        let colour = colour.unwrap_or(category.colour);
        Some(if self.edges.get(index).copied().unwrap_or(false) { shaded(colour) } else { colour })
    }
}

/// The colour of a pixel at a pageblock's edge: nearer to a grey of middle lightness, so that it shows on
/// light and on dark.
pub fn shaded(colour: Rgb) -> Rgb {
    let dark = colour.iter().map(|&value| u32::from(value)).sum::<u32>() < 150;
    let toward = if dark { 150 } else { 64 };
    colour.map(|value| ((u32::from(value) * 5 + toward * 3) / 8) as u8)
}

/// How many of a pixel's frames have each category.
struct Counts([u32; 32]);

impl Counts {
    fn of(frames: &[u8], drawing: &Drawing<'_>) -> Counts {
        let mut counts = [0; 32];
        for &category in frames {
            counts[usize::from(category) % 32] += 1;
        }
        let hole = usize::from(drawing.hole) % 32;
        if counts[hole] as usize != frames.len() {
            counts[hole] = 0;
        }
        Counts(counts)
    }

    fn category(&self, blend: Blend, drawing: &Drawing<'_>) -> u8 {
        let held = drawing.legend.iter().zip(self.0).enumerate().filter(|(_, (_, count))| *count > 0);
        let weight = |(_, (category, count)): &(usize, (&Category, u32))| match blend {
            Blend::Worst => (u32::from(category.rank), 0),
            Blend::Majority | Blend::Mix => (*count, u32::from(category.rank)),
        };
        held.max_by_key(weight).map_or(NOTHING, |(at, _)| at as u8)
    }
}

/// Colours as amounts of light, which add up where sRGB values do not.
struct Light {
    colours: Vec<[f32; 3]>,
}

impl Light {
    fn of(legend: &[Category]) -> Light {
        let linear = |value: u8| {
            let value = f32::from(value) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        Light { colours: legend.iter().map(|category| category.colour.map(linear)).collect() }
    }

    fn mean(&self, counts: &Counts) -> Rgb {
        let all: u32 = counts.0.iter().sum();
        let mut sum = [0f32; 3];
        for (colour, count) in self.colours.iter().zip(counts.0) {
            sum.iter_mut().zip(colour).for_each(|(sum, value)| *sum += value * count as f32);
        }
        sum.map(|value| {
            let value = value / all.max(1) as f32;
            let value =
                if value <= 0.003_130_8 { value * 12.92 } else { 1.055 * value.powf(1.0 / 2.4) - 0.055 };
            (value * 255.0).round() as u8
        })
    }
}

/// Pixels whose left neighbour in the picture is of another pageblock, and, where pageblocks are high
/// enough for it, those whose upper neighbour is.
fn edges(raster: &Raster<'_>, drawing: &Drawing<'_>) -> Vec<bool> {
    let per_block = drawing.layout.pageblock_order.0.saturating_sub(raster.pixel.0);
    let width = raster.path.width as usize;
    let mut block = vec![u64::MAX; raster.cells.len()];
    for at in 0..raster.drawn {
        block[raster.index(at)] = at >> per_block;
    }
    let is_high = raster.path.order != PixelOrder::Rows;
    let differs = |index: usize| {
        let left = !index.is_multiple_of(width) && block[index - 1] != block[index];
        let up = is_high && index >= width && block[index - width] != block[index];
        block[index] != u64::MAX && (left || up)
    };
    (0..block.len()).map(differs).collect()
}

/// The zone, the memory block and the first frame that a pixel shows.
pub fn frame_of(drawing: &Drawing<'_>, pixel: Order, at: u64) -> Option<Pfn> {
    drawing.frame(at.checked_mul(pixel.pages().0)?)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::picture::scheme::Scheme;
    use pagelab_model::page_map::MapZone;
    use pagelab_model::{Frames, MapLayout, NodeId, PageClass, PageMap, PageSize, Pages, ZoneKey};

    /// A map of runs of classes, with pageblocks of 4 pages, and one zone over all of it.
    pub(crate) fn map_of(runs: &[(u64, &[PageClass])]) -> PageMap {
        let frames = |first: u64, count: usize| Frames { first: Pfn(first), count: Pages(count as u64) };
        let spans: Vec<Frames> = runs.iter().map(|(first, classes)| frames(*first, classes.len())).collect();
        let end = spans.last().map_or(0, |span| span.end().0);
        let key = ZoneKey { node: NodeId(0), zone: "Normal".to_owned() };
        let first = spans.first().map_or(0, |span| span.first.0);
        let zones = vec![MapZone { key, frames: frames(first, (end - first) as usize) }];
        let layout = MapLayout {
            page_size: PageSize::USUAL,
            pageblock_order: Order(2),
            pmd_order: Order(2),
            spans,
            zones,
            blocks: Vec::new(),
        };
        let classes = runs.iter().flat_map(|(_, classes)| classes.iter().copied()).collect();
        PageMap { started_ns: 0, ended_ns: 1_000_000, layout, classes }
    }

    fn letters(classes: &[PageClass], pixel: u8, blend: Blend) -> String {
        let map = map_of(&[(0, classes)]);
        let drawing = Drawing::of_map(&map, Scheme::Full, Order(pixel));
        let shape =
            Shape { order: PixelOrder::Rows, pixel: Order(pixel), width: Some(3), blend, grid: false };
        let raster = raster(&drawing, &shape).unwrap();
        let letter = |&cell: &u8| raster.legend.get(usize::from(cell)).map_or('/', |one| one.letter);
        raster.cells.iter().map(letter).collect()
    }

    #[test]
    fn a_pixel_of_several_frames_shows_what_its_blend_says() {
        use PageClass::{Anon, Free, Hole, Slab};
        let classes =
            [Free, Free, Free, Slab, Anon, Anon, Free, Free, Hole, Hole, Hole, Free, Hole, Hole, Hole, Hole];
        assert_eq!(letters(&classes, 0, Blend::Majority), "...saa..   .    //");
        assert_eq!(letters(&classes, 2, Blend::Majority), ".a. //"[..3].to_owned() + " //");
        assert_eq!(letters(&classes, 2, Blend::Worst), "sa. //");
        assert_eq!(letters(&classes, 2, Blend::Mix), ".a. //");
    }

    #[test]
    fn a_mixture_is_the_mean_of_the_light() {
        let map = map_of(&[(0, &[PageClass::Free, PageClass::Free, PageClass::Kernel, PageClass::Kernel])]);
        let drawing = Drawing::of_map(&map, Scheme::Classic, Order(2));
        let shape =
            Shape { order: PixelOrder::Rows, pixel: Order(2), width: None, blend: Blend::Mix, grid: false };
        // Half of the light of white is 188 of 255 in sRGB.
        assert_eq!(raster(&drawing, &shape).unwrap().colour(0), Some([188; 3]));
    }

    #[test]
    fn the_scale_grows_until_the_picture_fits() {
        let auto = |frames, order, width| auto_pixel(frames, Order(9), order, width, (SIDE_MAX, SIDE_MAX)).0;
        for order in PixelOrder::ALL {
            assert_eq!(auto(6 << 20, order, None), 0, "24 GiB: {order:?}");
            assert_eq!(auto(1 << 28, order, None), 4, "1 TiB: {order:?}");
            assert_eq!(auto(1, order, None), 0);
        }
        assert_eq!(auto(6 << 20, PixelOrder::Rows, Some(1)), 11);
    }

    #[test]
    fn the_grid_marks_the_edges_of_pageblocks() {
        let map = map_of(&[(0, &[PageClass::Free; 16])]);
        let drawing = Drawing::of_map(&map, Scheme::Full, Order(0));
        let marks = |order, width| {
            let shape = Shape { order, pixel: Order(0), width, blend: Blend::Majority, grid: true };
            let raster = raster(&drawing, &shape).unwrap();
            raster.edges.iter().map(|&edge| if edge { '+' } else { '.' }).collect::<String>()
        };
        assert_eq!(marks(PixelOrder::Rows, Some(8)), "....+.......+...");
        assert_eq!(marks(PixelOrder::Tiles, Some(4)), "..+...+.++++..+.");
        assert_eq!(marks(PixelOrder::Hilbert, None), "..+...+.++++..+.");
    }
}
