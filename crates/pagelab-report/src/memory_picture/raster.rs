//! Conversion of frames into pixels: the number of frames per pixel, the category shown, and the place.

use pagelab_model::Order;

use super::drawing::Drawing;
use super::pixel_path::{PixelLayout, PixelPath, tile_size};
use super::{Category, Rgb};

/// Pixels of a picture, at most.
pub const PIXELS_MAX: u64 = 1 << 26;

/// Width and height of a picture, at most, unless its width was requested.
pub const SIDE_PIXELS_MAX: u64 = 4 << 10;

/// Pixel after the last frame, which shows nothing.
pub const EMPTY_PIXEL: u8 = u8::MAX;

/// Rule for a pixel of several frames. Frames without memory only count if there are no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PixelBlend {
    /// The category of most of its frames; of equals the one of higher rank.
    Majority,
    /// The mean of its frames' colours, as amounts of light.
    Mix,
    /// The category of highest rank among its frames.
    Worst,
}

impl PixelBlend {
    /// All methods.
    pub const ALL: [PixelBlend; 3] = [PixelBlend::Majority, PixelBlend::Mix, PixelBlend::Worst];

    /// Name on the command line and in JSON.
    pub const fn option_name(self) -> &'static str {
        match self {
            PixelBlend::Majority => "majority",
            PixelBlend::Mix => "mix",
            PixelBlend::Worst => "worst",
        }
    }
}

/// Parameters of the conversion.
#[derive(Clone, Copy, Debug)]
pub struct RasterOptions {
    /// Arrangement of the pixels.
    pub layout: PixelLayout,
    /// Frames per pixel, as an order of two.
    pub pixel_order: Order,
    /// Width in pixels; `None`: a power of two that makes the picture about square.
    pub width: Option<u64>,
    /// Content of a pixel.
    pub blend: PixelBlend,
    /// Whether the edges of pageblocks are shaded.
    pub has_grid: bool,
}

/// Pixels.
#[derive(Clone, Debug)]
pub struct Raster<'a> {
    /// Categories that the indices refer to.
    pub legend: &'a [Category],
    /// Size and path.
    pub path: PixelPath,
    /// Frames per pixel.
    pub pixel_order: Order,
    /// Pixels with frames; later pixels show nothing.
    pub pixels_drawn: u64,
    /// Index into `legend` of each pixel, row by row; [`EMPTY_PIXEL`] after the last frame.
    pub cells: Vec<u8>,
    /// Blended colours, if pixels are blended.
    pub blended: Option<Vec<Rgb>>,
    /// Whether a pixel is at the edge of its pageblock; empty without a grid.
    pub edge_pixels: Vec<bool>,
}

/// Returns the smallest order at which a picture of this number of frames is within the width and height
/// limits. A requested width is not limited.
pub fn auto_pixel_order(
    frames: u64,
    pageblock: Order,
    layout: PixelLayout,
    width: Option<u64>,
    (wide, high): (u64, u64),
) -> Order {
    let fits = |pixel: &Order| {
        let pixels = frames.div_ceil(pixel.to_pages().0);
        let path = build_path(pixels, pageblock, *pixel, layout, width);
        pixels <= PIXELS_MAX && path.height <= high && (width.is_some() || path.width <= wide)
    };
    (0..40).map(Order).find(fits).unwrap_or(Order(40))
}

fn build_path(
    pixels: u64,
    pageblock: Order,
    pixel_order: Order,
    layout: PixelLayout,
    width: Option<u64>,
) -> PixelPath {
    let square = || {
        let log = pixels.max(1).ilog2();
        1u64 << (log / 2)
    };
    match layout {
        PixelLayout::Rows => PixelPath::row_path(pixels, width.unwrap_or_else(square).max(1)),
        PixelLayout::Hilbert => PixelPath::hilbert_path(pixels),
        PixelLayout::Tiles => {
            let tile = 1u64 << pageblock.0.saturating_sub(pixel_order.0).min(30);
            let across = width.unwrap_or_else(square) / tile_size(tile).0;
            PixelPath::tile_path(pixels, tile, across.max(1))
        }
    }
}

/// Converts a drawing into pixels; `None` if there would be more than [`PIXELS_MAX`]. The extents of the
/// drawing must begin at multiples of a pixel.
pub fn rasterize<'a>(drawing: &Drawing<'a>, options: &RasterOptions) -> Option<Raster<'a>> {
    let frames_per_pixel = options.pixel_order.to_pages().0;
    let pixels = drawing.frame_count().div_ceil(frames_per_pixel);
    let pageblock = drawing.layout.pageblock_order;
    let mut path = build_path(pixels, pageblock, options.pixel_order, options.layout, options.width);
    if path.width.saturating_mul(path.height) <= 4 * PIXELS_MAX {
        path = path.trim(pixels);
    }
    let area = path.width.checked_mul(path.height).filter(|area| *area <= PIXELS_MAX)?;
    let area = usize::try_from(area).ok()?;
    let mut raster = Raster {
        legend: drawing.legend,
        path,
        pixel_order: options.pixel_order,
        pixels_drawn: pixels,
        cells: vec![EMPTY_PIXEL; area],
        blended: (options.blend == PixelBlend::Mix).then(|| vec![[255; 3]; area]),
        edge_pixels: Vec::new(),
    };
    let light = LinearColours::from_legend(drawing.legend);
    let chunks = drawing.categories.chunks(usize::try_from(frames_per_pixel).unwrap_or(usize::MAX));
    for (at, frames) in chunks.enumerate() {
        let index = raster.cell_at(at as u64);
        let counts = CategoryCounts::count_frames(frames, drawing);
        raster.cells[index] = counts.dominant_category(options.blend, drawing);
        if let Some(mixed) = &mut raster.blended {
            mixed[index] = light.mean_colour(&counts);
        }
    }
    if options.has_grid {
        raster.edge_pixels = find_edges(&raster, drawing);
    }
    Some(raster)
}

impl Raster<'_> {
    fn cell_at(&self, pixel_index: u64) -> usize {
        let (x, y) = self.path.position(pixel_index);
        (y * self.path.width + x) as usize
    }

    /// Returns the colour of a pixel; `None` if it shows nothing.
    pub fn pixel_colour(&self, index: usize) -> Option<Rgb> {
        let cell = *self.cells.get(index)?;
        let category = self.legend.get(usize::from(cell))?;
        let colour = self.blended.as_ref().and_then(|mixed| mixed.get(index)).copied();
        let colour = colour.unwrap_or(category.colour);
        Some(if self.edge_pixels.get(index).copied().unwrap_or(false) { shade_edge(colour) } else { colour })
    }
}

/// Returns the colour of a pixel at the edge of a pageblock: closer to medium grey, so that it is visible on
/// light and dark colours.
pub fn shade_edge(colour: Rgb) -> Rgb {
    let dark = colour.iter().map(|&value| u32::from(value)).sum::<u32>() < 150;
    let toward = if dark { 150 } else { 64 };
    colour.map(|value| ((u32::from(value) * 5 + toward * 3) / 8) as u8)
}

struct CategoryCounts([u32; 32]);

impl CategoryCounts {
    fn count_frames(frames: &[u8], drawing: &Drawing<'_>) -> CategoryCounts {
        let mut counts = [0; 32];
        for &category in frames {
            counts[usize::from(category) % 32] += 1;
        }
        let hole = usize::from(drawing.hole_category) % 32;
        if counts[hole] as usize != frames.len() {
            counts[hole] = 0;
        }
        CategoryCounts(counts)
    }

    fn dominant_category(&self, blend: PixelBlend, drawing: &Drawing<'_>) -> u8 {
        let held = drawing.legend.iter().zip(self.0).enumerate().filter(|(_, (_, count))| *count > 0);
        let weight = |(_, (category, count)): &(usize, (&Category, u32))| match blend {
            PixelBlend::Worst => (u32::from(category.rank), 0),
            PixelBlend::Majority | PixelBlend::Mix => (*count, u32::from(category.rank)),
        };
        held.max_by_key(weight).map_or(EMPTY_PIXEL, |(at, _)| at as u8)
    }
}

/// Colours as amounts of light, which are additive, unlike sRGB values.
struct LinearColours {
    colours: Vec<[f32; 3]>,
}

impl LinearColours {
    fn from_legend(legend: &[Category]) -> LinearColours {
        let linear = |value: u8| {
            let value = f32::from(value) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        LinearColours { colours: legend.iter().map(|category| category.colour.map(linear)).collect() }
    }

    fn mean_colour(&self, counts: &CategoryCounts) -> Rgb {
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

/// Marks pixels whose left neighbour in the picture is in another pageblock and, if pageblocks are high
/// enough, pixels whose upper neighbour is.
fn find_edges(raster: &Raster<'_>, drawing: &Drawing<'_>) -> Vec<bool> {
    let per_block = drawing.layout.pageblock_order.0.saturating_sub(raster.pixel_order.0);
    let width = raster.path.width as usize;
    let mut block = vec![u64::MAX; raster.cells.len()];
    for at in 0..raster.pixels_drawn {
        block[raster.cell_at(at)] = at >> per_block;
    }
    let is_high = raster.path.layout != PixelLayout::Rows;
    let differs = |index: usize| {
        let left = !index.is_multiple_of(width) && block[index - 1] != block[index];
        let up = is_high && index >= width && block[index - width] != block[index];
        block[index] != u64::MAX && (left || up)
    };
    (0..block.len()).map(differs).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::memory_picture::colour_scheme::ColourScheme;
    use pagelab_model::page_map::PageMapZone;
    use pagelab_model::{
        FrameSpan, NodeId, PageClass, PageMap, PageMapLayout, PageSize, Pages, Pfn, ZoneKey,
    };

    /// A map of runs of classes, with pageblocks of 4 pages, and one zone over all of it.
    pub(crate) fn map_of(runs: &[(u64, &[PageClass])]) -> PageMap {
        let frames = |first: u64, count: usize| FrameSpan { first: Pfn(first), count: Pages(count as u64) };
        let spans: Vec<FrameSpan> =
            runs.iter().map(|(first, classes)| frames(*first, classes.len())).collect();
        let end = spans.last().map_or(0, |span| span.end().0);
        let key = ZoneKey { node: NodeId(0), zone: "Normal".to_owned() };
        let first = spans.first().map_or(0, |span| span.first.0);
        let zones = vec![PageMapZone { key, frames: frames(first, (end - first) as usize) }];
        let layout = PageMapLayout {
            page_size: PageSize::DEFAULT,
            pageblock_order: Order(2),
            pmd_order: Order(2),
            spans,
            zones,
            blocks: Vec::new(),
        };
        let classes = runs.iter().flat_map(|(_, classes)| classes.iter().copied()).collect();
        PageMap { started_ns: 0, ended_ns: 1_000_000, layout, classes }
    }

    fn letters(classes: &[PageClass], pixel_order: u8, blend: PixelBlend) -> String {
        let map = map_of(&[(0, classes)]);
        let drawing = Drawing::from_map(&map, ColourScheme::Full, Order(pixel_order));
        let options = RasterOptions {
            layout: PixelLayout::Rows,
            pixel_order: Order(pixel_order),
            width: Some(3),
            blend,
            has_grid: false,
        };
        let raster = rasterize(&drawing, &options).unwrap();
        let letter = |&cell: &u8| raster.legend.get(usize::from(cell)).map_or('/', |one| one.letter);
        raster.cells.iter().map(letter).collect()
    }

    #[test]
    fn a_pixel_of_several_frames_shows_what_its_blend_says() {
        use PageClass::{Anon, Free, Hole, Slab};
        let classes =
            [Free, Free, Free, Slab, Anon, Anon, Free, Free, Hole, Hole, Hole, Free, Hole, Hole, Hole, Hole];
        assert_eq!(letters(&classes, 0, PixelBlend::Majority), "...saa..   .    //");
        assert_eq!(letters(&classes, 2, PixelBlend::Majority), ".a. //"[..3].to_owned() + " //");
        assert_eq!(letters(&classes, 2, PixelBlend::Worst), "sa. //");
        assert_eq!(letters(&classes, 2, PixelBlend::Mix), ".a. //");
    }

    #[test]
    fn a_mixture_is_the_mean_of_the_light() {
        let map = map_of(&[(0, &[PageClass::Free, PageClass::Free, PageClass::Kernel, PageClass::Kernel])]);
        let drawing = Drawing::from_map(&map, ColourScheme::Classic, Order(2));
        let options = RasterOptions {
            layout: PixelLayout::Rows,
            pixel_order: Order(2),
            width: None,
            blend: PixelBlend::Mix,
            has_grid: false,
        };
        // Half of the light of white is 188 of 255 in sRGB.
        assert_eq!(rasterize(&drawing, &options).unwrap().pixel_colour(0), Some([188; 3]));
    }

    #[test]
    fn the_scale_grows_until_the_picture_fits() {
        let auto = |frames, layout, width| {
            auto_pixel_order(frames, Order(9), layout, width, (SIDE_PIXELS_MAX, SIDE_PIXELS_MAX)).0
        };
        for layout in PixelLayout::ALL {
            assert_eq!(auto(6 << 20, layout, None), 0, "24 GiB: {layout:?}");
            assert_eq!(auto(1 << 28, layout, None), 4, "1 TiB: {layout:?}");
            assert_eq!(auto(1, layout, None), 0);
        }
        assert_eq!(auto(6 << 20, PixelLayout::Rows, Some(1)), 11);
    }

    #[test]
    fn the_grid_marks_the_edges_of_pageblocks() {
        let map = map_of(&[(0, &[PageClass::Free; 16])]);
        let drawing = Drawing::from_map(&map, ColourScheme::Full, Order(0));
        let marks = |layout, width| {
            let options = RasterOptions {
                layout,
                pixel_order: Order(0),
                width,
                blend: PixelBlend::Majority,
                has_grid: true,
            };
            let raster = rasterize(&drawing, &options).unwrap();
            raster.edge_pixels.iter().map(|&edge| if edge { '+' } else { '.' }).collect::<String>()
        };
        assert_eq!(marks(PixelLayout::Rows, Some(8)), "....+.......+...");
        assert_eq!(marks(PixelLayout::Tiles, Some(4)), "..+...+.++++..+.");
        assert_eq!(marks(PixelLayout::Hilbert, None), "..+...+.++++..+.");
    }
}
