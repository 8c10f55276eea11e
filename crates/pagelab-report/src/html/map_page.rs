//! A picture of memory as a page: its pixels as data, with all that the page needs to describe each of them.

use serde_json::Value;

use super::{DataBlocks, make_page};
use crate::json::map::{frames_json, memory_block_json};
use crate::json::object::{JsonObject, to_array};
use crate::memory_picture;
use crate::memory_picture::Category;
use crate::memory_picture::drawing::Drawing;
use crate::memory_picture::raster::{PixelBlend, Raster};

/// Text around a picture.
pub struct PageContext<'a> {
    /// Subject of the picture.
    pub title: &'a str,
    /// Scale, order, time.
    pub subtitle: &'a [String],
    /// Categories of the legend, with their pages.
    pub legend: &'a [(usize, u64)],
    /// Colour of a pixel that represents several pages.
    pub blend: PixelBlend,
    /// The same as on a terminal, for readers without scripts.
    pub text: &'a str,
}

/// Renders the page.
pub fn render_page(
    drawing: &Drawing<'_>,
    raster: &Raster<'_>,
    context: &PageContext<'_>,
) -> Result<String, serde_json::Error> {
    let mut data_blocks = DataBlocks::default();
    let picture = picture_json(drawing, raster, context, &mut data_blocks);
    make_page(context.title, context.text, Vec::new(), Some(("picture", picture)), data_blocks)
}

fn picture_json(
    drawing: &Drawing<'_>,
    raster: &Raster<'_>,
    context: &PageContext<'_>,
    data_blocks: &mut DataBlocks,
) -> JsonObject {
    let has_colours = raster.blended.is_some() || !raster.edge_pixels.is_empty();
    let colours: Option<Vec<u8>> = has_colours.then(|| {
        (0..raster.cells.len()).flat_map(|index| raster.pixel_colour(index).unwrap_or([255; 3])).collect()
    });
    base_json(drawing, raster, context.blend)
        .field("title", context.title)
        .field("subtitle", context.subtitle.to_vec())
        .field(
            "legend",
            to_array(raster.legend.iter().enumerate(), |(at, one)| {
                let pages =
                    context.legend.iter().find(|(known, _)| *known == at).map_or(0, |(_, pages)| *pages);
                category_json(one).field("pages", pages)
            }),
        )
        .field("cells", data_blocks.push_bytes(&raster.cells))
        .field("colours", colours.map(|colours| Value::from(data_blocks.push_bytes(&colours))))
        .field("text", context.text)
}

/// Returns the description of a picture besides its pixels: its size and path, and the zones and blocks of
/// its frames.
pub(super) fn base_json(drawing: &Drawing<'_>, raster: &Raster<'_>, blend: PixelBlend) -> JsonObject {
    let layout = drawing.layout;
    JsonObject::new()
        .field("width", raster.path.width)
        .field("height", raster.path.height)
        .field("pixel_layout", raster.path.layout.option_name())
        .field("tile", vec![raster.path.tile.0, raster.path.tile.1])
        .field("blend", blend.option_name())
        .field("pages_per_pixel", raster.pixel_order.to_pages().0)
        .field("page_size_bytes", layout.page_size.bytes())
        .field("pageblock_pages", layout.pageblock_order.to_pages().0)
        .field("extents", to_array(&drawing.extents, |extent| frames_json(extent.frames)))
        .field(
            "zones",
            to_array(&layout.zones, |zone| {
                frames_json(zone.frames).field("name", memory_picture::zone_label(layout, zone))
            }),
        )
        .field("memory_blocks", to_array(&layout.blocks, memory_block_json))
}

/// Returns the meaning of an index of the pixels.
pub(super) fn category_json(category: &Category) -> JsonObject {
    JsonObject::new()
        .field("label", category.label)
        .field("letter", category.letter.to_string())
        .field("colour", category.colour.to_vec())
}
