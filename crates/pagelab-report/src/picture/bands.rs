//! What stretches of a picture belong to: zones and memory blocks, as ranges of pixels.

use pagelab_model::page_map::{MapBlock, MapZone};
use pagelab_model::{Frames, MapLayout};

use super::Rgb;
use super::curve::PixelOrder;
use super::drawing::Drawing;
use super::raster::Raster;

/// A stretch of pixels along the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Band {
    /// `node 0 Normal`, `memory32`.
    pub label: String,
    /// First pixel.
    pub first: u64,
    /// The one behind the last.
    pub end: u64,
    /// Whether it is in use; memory blocks may not be.
    pub is_online: bool,
}

/// The zones of a picture.
pub fn zones(drawing: &Drawing<'_>, raster: &Raster<'_>) -> Vec<Band> {
    let layout = drawing.layout;
    let band = |zone: &MapZone| band(drawing, raster, zone.frames, zone_label(layout, zone), true);
    layout.zones.iter().filter_map(band).collect()
}

/// A zone by its name, and by its node where there are several.
pub fn zone_label(layout: &MapLayout, zone: &MapZone) -> String {
    let several = layout.zones.iter().any(|other| other.key.node != zone.key.node);
    match several {
        true => format!("node {} {}", zone.key.node.0, zone.key.zone),
        false => zone.key.zone.clone(),
    }
}

/// The memory blocks of a picture.
pub fn blocks(drawing: &Drawing<'_>, raster: &Raster<'_>) -> Vec<Band> {
    let blocks = drawing.layout.blocks.iter();
    let band = |block: &MapBlock| {
        let state = if block.is_online { "" } else { " offline" };
        band(drawing, raster, block.frames, format!("memory{}{state}", block.number), block.is_online)
    };
    blocks.filter_map(band).collect()
}

fn band(
    drawing: &Drawing<'_>,
    raster: &Raster<'_>,
    frames: Frames,
    label: String,
    is_online: bool,
) -> Option<Band> {
    let per_pixel = raster.pixel.pages().0;
    let (first, end) = (drawing.below(frames.first), drawing.below(frames.end()));
    let (first, end) = (first / per_pixel, end.div_ceil(per_pixel).min(raster.drawn));
    (first < end).then_some(Band { label, first, end, is_online })
}

/// First and last row of a band, where rows are in the order of frames.
pub fn rows(raster: &Raster<'_>, band: &Band) -> Option<(u64, u64)> {
    let row = |at: u64| raster.path.place(at).1;
    (raster.path.order != PixelOrder::Hilbert).then(|| (row(band.first), row(band.end - 1)))
}

/// A colour for each row of pixels, by turns for each band; empty where rows are not in the order of frames.
pub fn strip(raster: &Raster<'_>, bands: &[Band], colours: [Rgb; 2]) -> Vec<Rgb> {
    let mut strip = Vec::new();
    for (index, band) in bands.iter().enumerate() {
        let Some((first, last)) = rows(raster, band) else { return Vec::new() };
        strip.resize(strip.len().max(last as usize + 1), [255; 3]);
        strip[first as usize..=last as usize].fill(colours[index % 2]);
    }
    strip
}
