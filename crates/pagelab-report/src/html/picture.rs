//! A picture of memory as a page: its pixels as data, with all that is needed to say what each of them is.

use pagelab_model::Frames;
use serde_json::Value;

use super::{CONTRACT, TEMPLATE, blocks::Blocks, escaped, fill};
use crate::json::object::{Object, array};
use crate::picture::Category;
use crate::picture::bands;
use crate::picture::drawing::Drawing;
use crate::picture::raster::{Blend, Raster};

/// What is written around a picture.
pub struct Around<'a> {
    /// What the picture shows.
    pub title: &'a str,
    /// Scale, order, when.
    pub subtitle: &'a [String],
    /// Categories of the legend, with their pages.
    pub legend: &'a [(usize, u64)],
    /// What a pixel of several pages shows.
    pub blend: Blend,
    /// The same as a terminal would show it, for readers without scripts.
    pub text: &'a str,
}

/// The page.
pub fn page(
    drawing: &Drawing<'_>,
    raster: &Raster<'_>,
    around: &Around<'_>,
) -> Result<String, serde_json::Error> {
    let mut blocks = Blocks::default();
    let picture = picture(drawing, raster, around, &mut blocks);
    let document: Value = Object::new()
        .put("page", CONTRACT)
        .put("title", around.title)
        .put("runs", Vec::<Value>::new())
        .put("picture", picture)
        .into();
    blocks.document("page", serde_json::to_string(&document)?.as_bytes());
    Ok(fill(TEMPLATE, &escaped(around.title), &escaped(around.text), &blocks.into_html()))
}

fn picture(drawing: &Drawing<'_>, raster: &Raster<'_>, around: &Around<'_>, blocks: &mut Blocks) -> Object {
    let legend: Vec<(usize, _)> = raster.legend.iter().enumerate().collect();
    let has_colours = raster.mixed.is_some() || !raster.edges.is_empty();
    let colours: Option<Vec<u8>> = has_colours.then(|| {
        (0..raster.cells.len()).flat_map(|index| raster.colour(index).unwrap_or([255; 3])).collect()
    });
    ground(drawing, raster, around.blend)
        .put("title", around.title)
        .put("subtitle", around.subtitle.to_vec())
        .put(
            "legend",
            array(&legend, |&(at, one)| {
                let pages =
                    around.legend.iter().find(|(known, _)| *known == at).map_or(0, |(_, pages)| *pages);
                category(one).put("pages", pages)
            }),
        )
        .put("cells", blocks.bytes(&raster.cells))
        .put("colours", colours.map(|colours| Value::from(blocks.bytes(&colours))))
        .put("text", around.text)
}

/// What is known of a picture beside its pixels: its size and way, and what its frames belong to.
pub(super) fn ground(drawing: &Drawing<'_>, raster: &Raster<'_>, blend: Blend) -> Object {
    let layout = drawing.layout;
    let extents: Vec<Frames> = drawing.extents.iter().map(|extent| extent.frames).collect();
    Object::new()
        .put("width", raster.path.width)
        .put("height", raster.path.height)
        .put("order", raster.path.order.name())
        .put("tile", vec![raster.path.tile.0, raster.path.tile.1])
        .put("blend", blend.name())
        .put("pages_per_pixel", raster.pixel.pages().0)
        .put("page_size_bytes", layout.page_size.bytes())
        .put("pageblock_pages", layout.pageblock_order.pages().0)
        .put("extents", array(&extents, |run| frames(*run)))
        .put(
            "zones",
            array(&layout.zones, |zone| frames(zone.frames).put("name", bands::zone_label(layout, zone))),
        )
        .put(
            "memory_blocks",
            array(&layout.blocks, |block| {
                frames(block.frames).put("number", block.number).put("online", block.is_online)
            }),
        )
}

/// What one index of the pixels means.
pub(super) fn category(category: &Category) -> Object {
    Object::new()
        .put("label", category.label)
        .put("letter", category.letter.to_string())
        .put("colour", category.colour.to_vec())
}

fn frames(frames: Frames) -> Object {
    Object::new().put("first_frame", frames.first.0).put("frames", frames.count.0)
}
