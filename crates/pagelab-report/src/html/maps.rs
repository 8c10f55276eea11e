//! The maps of a recording in its page: small pictures of some of them, one data block each.
//!
//! A map of a large machine takes as many bytes as the machine has page frames. To keep only one of them in
//! memory at a time, each becomes a [`MapPicture`] when it is read, and the page consists of those.

use pagelab_model::run::MapHeader;
use pagelab_model::{Order, PageClass, PageMap};
use serde_json::Value;

use super::DataBlocks;
use super::map_page::base_json;
use crate::json::object::{JsonObject, to_array};
use crate::map::format_scale;
use crate::memory_picture::colour_scheme::ColourScheme;
use crate::memory_picture::drawing::{Drawing, drawn_extents};
use crate::memory_picture::pixel_path::PixelLayout;
use crate::memory_picture::raster::{PixelBlend, RasterOptions, auto_pixel_order, rasterize};

/// Maps in one page, at most.
pub const MAPS_MAX: usize = 30;

/// Width of a picture in pixels, and its maximum height.
const PICTURE_SIDE: u64 = 256;

/// Map as the page shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct MapPicture {
    /// Start of the scan, in nanoseconds since the start of the run.
    at_ns: u64,
    /// Duration of the scan.
    scan_ns: u64,
    /// Size, path and frames of the picture, in the form of the page's program.
    base_json: Value,
    /// Class of each pixel, row by row.
    pixels: Vec<u8>,
    /// Page frames of each class.
    pages: [u64; PageClass::COUNT],
}

/// Maps of one run as a page shows them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunMaps {
    /// The pictures, by time.
    pub pictures: Vec<MapPicture>,
    /// Reason why some could not be read: a phrase without a trailing dot.
    pub problem: Option<String>,
}

/// Returns the places of the maps that a page shows, ascending: the first, the last, and some between them at
/// about even distances. A key frame near one of these replaces it, because reading any other map requires
/// decoding all from its key frame on.
pub fn choose_maps(maps: &[MapHeader], maps_max: usize) -> Vec<usize> {
    let Some(last) = maps.len().checked_sub(1) else { return Vec::new() };
    if maps.len() <= maps_max {
        return (0..=last).collect();
    }
    let steps = maps_max.saturating_sub(1).max(1);
    let near = |place: usize| {
        let reach = last / steps / 2;
        let is_key = |at: &usize| maps[*at].is_keyframe;
        let candidates = place.saturating_sub(reach)..=(place + reach).min(last);
        candidates.filter(is_key).min_by_key(|at| at.abs_diff(place)).unwrap_or(place)
    };
    let even = (0..steps).map(|step| near(step * last / steps));
    let mut places: Vec<usize> = [0].into_iter().chain(even.filter(|place| *place < last)).collect();
    places.dedup();
    places.push(last);
    places
}

impl MapPicture {
    /// Makes the picture of a map: pixels of the most frequent class among their pages, row by row.
    pub fn from_map(map: &PageMap) -> MapPicture {
        let frames = drawn_extents(&map.layout, Order(0))
            .last()
            .map_or(0, |last| last.first_position + last.frames.count.0);
        let (layout, block) = (PixelLayout::Rows, map.layout.pageblock_order);
        let pixel = auto_pixel_order(frames, block, layout, Some(PICTURE_SIDE), (PICTURE_SIDE, PICTURE_SIDE));
        let drawing = Drawing::from_map(map, ColourScheme::Full, pixel);
        let blend = PixelBlend::Majority;
        let shape =
            RasterOptions { layout, pixel_order: pixel, width: Some(PICTURE_SIDE), blend, has_grid: false };
        let mut pages = [0; PageClass::COUNT];
        for class in &map.classes {
            pages[class.index()] += 1;
        }
        let raster = rasterize(&drawing, &shape);
        let base = raster.as_ref().map_or(Value::Null, |raster| {
            base_json(&drawing, raster, blend).field("scale", format_scale(&drawing, raster, blend)).into()
        });
        MapPicture {
            at_ns: map.started_ns,
            scan_ns: map.ended_ns.saturating_sub(map.started_ns),
            base_json: base,
            pixels: raster.map(|raster| raster.cells).unwrap_or_default(),
            pages,
        }
    }
}

/// Returns the maps of a run in the form of the page's program. Pictures of the same frames share their
/// description.
pub(super) fn maps_json(maps_recorded: usize, maps: &RunMaps, data_blocks: &mut DataBlocks) -> JsonObject {
    let mut bases: Vec<&Value> = Vec::new();
    let pictures_json: Vec<Value> = maps
        .pictures
        .iter()
        .filter(|picture| !picture.base_json.is_null())
        .map(|picture| {
            let known = bases.iter().position(|base| **base == picture.base_json);
            let layout = known.unwrap_or_else(|| {
                bases.push(&picture.base_json);
                bases.len() - 1
            });
            JsonObject::new()
                .field("at_ns", picture.at_ns)
                .field("elapsed_ns", picture.scan_ns)
                .field("layout", layout)
                .field("pages", picture.pages.to_vec())
                .field("cells", data_blocks.push_bytes(&picture.pixels))
                .into()
        })
        .collect();
    let bases: Vec<Value> = bases.into_iter().cloned().collect();
    JsonObject::new()
        .field("recorded", maps_recorded)
        .field("problem", maps.problem.as_deref())
        .field("legend", to_array(ColourScheme::Full.legend(), super::map_page::category_json))
        .field("layouts", bases)
        .field("shown", pictures_json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_picture::raster::tests::map_of;

    /// Key frames every `every` maps.
    fn heads(count: usize, every: usize) -> Vec<MapHeader> {
        (0..count).map(|at| MapHeader { at_ns: at as u64, is_keyframe: at.is_multiple_of(every) }).collect()
    }

    #[test]
    fn maps_are_chosen_evenly_and_key_frames_where_they_are_near() {
        assert_eq!(choose_maps(&[], 30), Vec::<usize>::new());
        for count in 1..=30 {
            assert_eq!(choose_maps(&heads(count, 60), 30), (0..count).collect::<Vec<_>>());
        }
        for (count, every) in [(31, 60), (61, 60), (100, 60), (1440, 60), (5000, 60), (1440, 1), (99, 1000)] {
            let maps = heads(count, every);
            let places = choose_maps(&maps, 30);
            let step = (count - 1) as f64 / 29.0;
            assert_eq!((places[0], places[places.len() - 1]), (0, count - 1), "{count}");
            assert!((20..=30).contains(&places.len()), "{count}: {places:?}");
            for pair in places.windows(2) {
                assert!(pair[0] < pair[1], "{count}: {places:?}");
                assert!((pair[1] - pair[0]) as f64 <= 2.0 * step + 1.0, "{count}: {places:?}");
            }
        }
        // A day of one map per minute: the number of maps decoded for each place without a key frame.
        let decoded: usize = choose_maps(&heads(1440, 60), 30).iter().map(|place| place % 60 + 1).sum();
        assert!(decoded < 400, "{decoded}");
        assert_eq!(choose_maps(&heads(3, 60), 2), [0, 2]);
        assert_eq!(choose_maps(&heads(3, 60), 1), [0, 2]);
    }

    #[test]
    fn a_picture_has_few_pixels_and_counts_every_page() {
        let classes = vec![PageClass::Free; 200_000];
        let mut map = map_of(&[(0, &classes), (1 << 20, &[PageClass::Slab; 64])]);
        map.classes[7] = PageClass::Anon;
        let picture = MapPicture::from_map(&map);
        assert!(picture.pixels.len() as u64 <= PICTURE_SIDE * PICTURE_SIDE && picture.pixels.len() > 10_000);
        assert_eq!(picture.pages[PageClass::Free.index()], 199_999);
        assert_eq!(picture.pages[PageClass::Slab.index()], 64);
        assert_eq!(picture.pages.iter().sum::<u64>(), 200_064);
        let slab = picture.pixels.iter().filter(|cell| **cell == PageClass::Slab as u8).count();
        assert_eq!(slab as u64 * picture.base_json["pages_per_pixel"].as_u64().unwrap_or(0), 64);
        // An empty layout has a picture, too.
        assert_eq!(MapPicture::from_map(&map_of(&[])).pages.iter().sum::<u64>(), 0);
    }

    #[test]
    fn pictures_of_the_same_frames_share_their_description() {
        let one = MapPicture::from_map(&map_of(&[(0, &[PageClass::Free; 8])]));
        let other = MapPicture::from_map(&map_of(&[(0, &[PageClass::Anon; 16])]));
        let all = RunMaps { pictures: vec![one.clone(), other, one], problem: None };
        let object = Value::from(maps_json(5, &all, &mut DataBlocks::default()));
        let bases: Vec<_> = object["shown"].as_array().into_iter().flatten().map(|m| &m["layout"]).collect();
        assert_eq!(bases, [0, 1, 0]);
        assert_eq!(object["layouts"].as_array().map(Vec::len), Some(2));
        assert_eq!(object["recorded"], 5);
    }
}
