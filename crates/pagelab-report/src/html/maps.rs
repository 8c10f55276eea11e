//! The maps of a recording in its page: small pictures of some of them, one data block each.
//!
//! A map of a large machine takes as many bytes as the machine has page frames. So that never more than one
//! of them is in memory, each is made into a [`MapPicture`] as it is read, and the page is made of those.

use pagelab_model::run::MapHead;
use pagelab_model::{Order, PageClass, PageMap};
use serde_json::Value;

use super::blocks::Blocks;
use super::picture::ground;
use crate::json::object::{Object, array};
use crate::map::scale_text;
use crate::picture::curve::PixelOrder;
use crate::picture::drawing::{Drawing, extents};
use crate::picture::raster::{Blend, Shape, auto_pixel, raster};
use crate::picture::scheme::Scheme;

/// Maps in one page, at most.
pub const MAPS_MAX: usize = 30;

/// A picture in the page is so many pixels wide, and at most as many high.
const SIDE: u64 = 256;

/// A map as the page shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct MapPicture {
    /// When the scan began, in nanoseconds since the start of the run.
    at_ns: u64,
    /// How long it took.
    took_ns: u64,
    /// Size, way and frames of the picture, as the page's program wants them.
    ground: Value,
    /// Class of each pixel, row by row.
    cells: Vec<u8>,
    /// Page frames of each class.
    pages: [u64; PageClass::COUNT],
}

/// What a page shows of the maps of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Maps {
    /// The pictures, by time.
    pub pictures: Vec<MapPicture>,
    /// Why there are not more, where some could not be read: a phrase without a trailing dot.
    pub problem: Option<String>,
}

/// Places of the maps that a page shows, ascending: the first one, the last one, and some in between at
/// about even distances. A key frame near one of these is taken in its stead, since reading any other map
/// means decoding all from its key frame on.
pub fn chosen(maps: &[MapHead], most: usize) -> Vec<usize> {
    let Some(last) = maps.len().checked_sub(1) else { return Vec::new() };
    if maps.len() <= most {
        return (0..=last).collect();
    }
    let steps = most.saturating_sub(1).max(1);
    let near = |place: usize| {
        let reach = last / steps / 2;
        let is_key = |at: &usize| maps[*at].is_key;
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
    /// The picture of a map: pixels of the class that is most frequent among their pages, row by row.
    pub fn of(map: &PageMap) -> MapPicture {
        let frames = extents(&map.layout, Order(0)).last().map_or(0, |last| last.at + last.frames.count.0);
        let (order, block) = (PixelOrder::Rows, map.layout.pageblock_order);
        let pixel = auto_pixel(frames, block, order, Some(SIDE), (SIDE, SIDE));
        let drawing = Drawing::of_map(map, Scheme::Full, pixel);
        let blend = Blend::Majority;
        let shape = Shape { order, pixel, width: Some(SIDE), blend, grid: false };
        let mut pages = [0; PageClass::COUNT];
        for class in &map.classes {
            pages[class.index()] += 1;
        }
        let raster = raster(&drawing, &shape);
        let ground = raster.as_ref().map_or(Value::Null, |raster| {
            ground(&drawing, raster, blend).put("scale", scale_text(&drawing, raster, blend)).into()
        });
        MapPicture {
            at_ns: map.started_ns,
            took_ns: map.ended_ns.saturating_sub(map.started_ns),
            ground,
            cells: raster.map(|raster| raster.cells).unwrap_or_default(),
            pages,
        }
    }
}

/// The maps of a run as the page's program wants them. Pictures of the same frames share their description.
pub(super) fn maps(recorded: usize, maps: &Maps, blocks: &mut Blocks) -> Object {
    let mut grounds: Vec<&Value> = Vec::new();
    let shown: Vec<Value> = maps
        .pictures
        .iter()
        .filter(|picture| !picture.ground.is_null())
        .map(|picture| {
            let known = grounds.iter().position(|ground| **ground == picture.ground);
            let ground = known.unwrap_or_else(|| {
                grounds.push(&picture.ground);
                grounds.len() - 1
            });
            Object::new()
                .put("at_ns", picture.at_ns)
                .put("took_ns", picture.took_ns)
                .put("ground", ground)
                .put("pages", picture.pages.to_vec())
                .put("cells", blocks.bytes(&picture.cells))
                .into()
        })
        .collect();
    let grounds: Vec<Value> = grounds.into_iter().cloned().collect();
    Object::new()
        .put("recorded", recorded)
        .put("problem", maps.problem.as_deref())
        .put("legend", array(Scheme::Full.legend(), super::picture::category))
        .put("grounds", grounds)
        .put("shown", shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::raster::tests::map_of;

    /// Key frames every `every` maps.
    fn heads(count: usize, every: usize) -> Vec<MapHead> {
        (0..count).map(|at| MapHead { at_ns: at as u64, is_key: at.is_multiple_of(every) }).collect()
    }

    #[test]
    fn maps_are_chosen_evenly_and_key_frames_where_they_are_near() {
        assert_eq!(chosen(&[], 30), Vec::<usize>::new());
        for count in 1..=30 {
            assert_eq!(chosen(&heads(count, 60), 30), (0..count).collect::<Vec<_>>());
        }
        for (count, every) in [(31, 60), (61, 60), (100, 60), (1440, 60), (5000, 60), (1440, 1), (99, 1000)] {
            let maps = heads(count, every);
            let places = chosen(&maps, 30);
            let step = (count - 1) as f64 / 29.0;
            assert_eq!((places[0], places[places.len() - 1]), (0, count - 1), "{count}");
            assert!((20..=30).contains(&places.len()), "{count}: {places:?}");
            for pair in places.windows(2) {
                assert!(pair[0] < pair[1], "{count}: {places:?}");
                assert!((pair[1] - pair[0]) as f64 <= 2.0 * step + 1.0, "{count}: {places:?}");
            }
        }
        // A day of one a minute: what is decoded for each place that is no key frame.
        let decoded: usize = chosen(&heads(1440, 60), 30).iter().map(|place| place % 60 + 1).sum();
        assert!(decoded < 400, "{decoded}");
        assert_eq!(chosen(&heads(3, 60), 2), [0, 2]);
        assert_eq!(chosen(&heads(3, 60), 1), [0, 2]);
    }

    #[test]
    fn a_picture_has_few_pixels_and_counts_every_page() {
        let classes = vec![PageClass::Free; 200_000];
        let mut map = map_of(&[(0, &classes), (1 << 20, &[PageClass::Slab; 64])]);
        map.classes[7] = PageClass::Anon;
        let picture = MapPicture::of(&map);
        assert!(picture.cells.len() as u64 <= SIDE * SIDE && picture.cells.len() > 10_000);
        assert_eq!(picture.pages[PageClass::Free.index()], 199_999);
        assert_eq!(picture.pages[PageClass::Slab.index()], 64);
        assert_eq!(picture.pages.iter().sum::<u64>(), 200_064);
        let slab = picture.cells.iter().filter(|cell| **cell == PageClass::Slab as u8).count();
        assert_eq!(slab as u64 * picture.ground["pages_per_pixel"].as_u64().unwrap_or(0), 64);
        // Nothing at all is a picture, too.
        assert_eq!(MapPicture::of(&map_of(&[])).pages.iter().sum::<u64>(), 0);
    }

    #[test]
    fn pictures_of_the_same_frames_share_their_description() {
        let one = MapPicture::of(&map_of(&[(0, &[PageClass::Free; 8])]));
        let other = MapPicture::of(&map_of(&[(0, &[PageClass::Anon; 16])]));
        let all = Maps { pictures: vec![one.clone(), other, one], problem: None };
        let object = Value::from(maps(5, &all, &mut Blocks::default()));
        let grounds: Vec<_> =
            object["shown"].as_array().into_iter().flatten().map(|m| &m["ground"]).collect();
        assert_eq!(grounds, [0, 1, 0]);
        assert_eq!(object["grounds"].as_array().map(Vec::len), Some(2));
        assert_eq!(object["recorded"], 5);
    }
}
