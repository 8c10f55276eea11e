//! Pictures of physical memory: a map of page frames as PNG, SVG, terminal text, or data of a page.
//!
//! Each picture is made in the same steps. A [`drawing::Drawing`] is the list of the frames drawn, with one
//! category each; a [`raster::Raster`] arranges them in pixels, several frames per pixel, along a path; and
//! the writers convert pixels into files. A map and a difference of two maps are both drawings.

pub mod colour_scheme;
pub mod difference;
pub mod drawing;
pub mod pixel_path;
pub mod png;
pub mod raster;
pub mod svg;
pub mod terminal;

use drawing::Drawing;
use pagelab_model::page_map::{MemoryBlock, PageMapZone};
use pagelab_model::{FrameSpan, PageMapLayout};
use pixel_path::PixelLayout;
use raster::Raster;

/// Colour in sRGB, with 8 bits each of red, green and blue.
pub type Rgb = [u8; 3];

/// Category of frames in a picture: a colour and a letter in the legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Category {
    /// Name in JSON.
    pub name: &'static str,
    /// Name in text.
    pub label: &'static str,
    /// Letter without colours.
    pub letter: char,
    /// Its colour.
    pub colour: Rgb,
    /// Hindrance to large contiguous memory; the highest rank wins a pixel of `worst`, and ties.
    pub rank: u8,
}

impl Category {
    /// Makes a category; the colour is 0xRRGGBB.
    pub const fn new(
        name: &'static str,
        label: &'static str,
        letter: char,
        rank: u8,
        colour: u32,
    ) -> Category {
        let colour = [(colour >> 16) as u8, (colour >> 8) as u8, colour as u8];
        Category { name, label, letter, colour, rank }
    }
}

/// Facts stored in the picture's file, so that its origin is known: names and texts.
pub type PictureMetadata = [(&'static str, String)];

/// Range of pixels along the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PixelBand {
    /// `node 0 Normal`, `memory32`.
    pub label: String,
    /// First pixel.
    pub first_pixel: u64,
    /// Pixel after the last.
    pub end_pixel: u64,
    /// Whether it is in use; memory blocks may be offline.
    pub is_online: bool,
}

/// Returns the zones of a picture.
pub fn zone_bands(drawing: &Drawing<'_>, raster: &Raster<'_>) -> Vec<PixelBand> {
    let layout = drawing.layout;
    let band = |zone: &PageMapZone| make_band(drawing, raster, zone.frames, zone_label(layout, zone), true);
    layout.zones.iter().filter_map(band).collect()
}

/// Name of a zone, with its node if there are several.
pub fn zone_label(layout: &PageMapLayout, zone: &PageMapZone) -> String {
    let several = layout.zones.iter().any(|other| other.key.node != zone.key.node);
    if several { format!("node {} {}", zone.key.node.0, zone.key.zone) } else { zone.key.zone.clone() }
}

/// Returns the memory blocks of a picture.
pub fn memory_block_bands(drawing: &Drawing<'_>, raster: &Raster<'_>) -> Vec<PixelBand> {
    let blocks = drawing.layout.blocks.iter();
    let band = |block: &MemoryBlock| {
        let state = if block.is_online { "" } else { " offline" };
        make_band(drawing, raster, block.frames, format!("memory{}{state}", block.number), block.is_online)
    };
    blocks.filter_map(band).collect()
}

fn make_band(
    drawing: &Drawing<'_>,
    raster: &Raster<'_>,
    frames: FrameSpan,
    label: String,
    is_online: bool,
) -> Option<PixelBand> {
    let per_pixel = raster.pixel_order.to_pages().0;
    let (first, end) = (drawing.frames_below(frames.first), drawing.frames_below(frames.end()));
    let (first, end) = (first / per_pixel, end.div_ceil(per_pixel).min(raster.pixels_drawn));
    (first < end).then_some(PixelBand { label, first_pixel: first, end_pixel: end, is_online })
}

/// Returns the first and last row of a band, if rows are in the order of frames.
pub fn band_rows(raster: &Raster<'_>, band: &PixelBand) -> Option<(u64, u64)> {
    let row = |at: u64| raster.path.position(at).1;
    (raster.path.layout != PixelLayout::Hilbert).then(|| (row(band.first_pixel), row(band.end_pixel - 1)))
}

/// Returns a colour for each row of pixels, alternating by band; empty if rows are not in the order of
/// frames.
pub fn strip_colours(raster: &Raster<'_>, bands: &[PixelBand], colours: [Rgb; 2]) -> Vec<Rgb> {
    let mut strip = Vec::new();
    for (index, band) in bands.iter().enumerate() {
        let Some((first, last)) = band_rows(raster, band) else { return Vec::new() };
        strip.resize(strip.len().max(last as usize + 1), [255; 3]);
        strip[first as usize..=last as usize].fill(colours[index % 2]);
    }
    strip
}
