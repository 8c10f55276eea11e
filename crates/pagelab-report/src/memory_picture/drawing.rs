//! The frames in a picture, in sequence, with a category for each.

use pagelab_model::{FrameSpan, Order, PageClass, PageMap, PageMapLayout, Pages, Pfn};

use super::Category;
use super::colour_scheme::ColourScheme;

/// Maximum of drawn frames of offline memory; a manipulated tree could claim any number.
const OFFLINE_FRAMES_MAX: u64 = 1 << 30;

/// Run of frames in a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The frames.
    pub frames: FrameSpan,
    /// Frames of the picture before this run.
    pub first_position: u64,
}

/// Frames to draw. Ranges of addresses without memory are left out; the drawing begins and ends with complete
/// pageblocks, so that pageblocks remain intact in the picture.
#[derive(Clone, Debug)]
pub struct Drawing<'a> {
    /// Layout of the frames.
    pub layout: &'a PageMapLayout,
    /// Runs, ascending.
    pub extents: Vec<Extent>,
    /// Index into `legend` for each frame of the extents.
    pub categories: Vec<u8>,
    /// Categories that the indices refer to.
    pub legend: &'a [Category],
    /// Category of frames without memory.
    pub hole_category: u8,
}

impl<'a> Drawing<'a> {
    /// Draws a map in the colours of `scheme`. Extents begin and end at multiples of a pageblock and of
    /// `pixel_order`.
    pub fn from_map(map: &'a PageMap, scheme: ColourScheme, pixel_order: Order) -> Drawing<'a> {
        let table: [u8; PageClass::COUNT] =
            std::array::from_fn(|at| scheme.category_index(PageClass::ALL[at]));
        let frames = map.classes.iter().map(|class| table[class.index()]);
        let offline_category = scheme.category_index(PageClass::Offline);
        let mut drawing = Drawing::without_memory(
            &map.layout,
            scheme.legend(),
            pixel_order,
            scheme.category_index(PageClass::Hole),
        );
        drawing.fill_categories(frames, offline_category);
        drawing
    }

    /// Makes a drawing without any memory.
    pub fn without_memory(
        layout: &'a PageMapLayout,
        legend: &'a [Category],
        pixel_order: Order,
        hole_category: u8,
    ) -> Drawing<'a> {
        let extents = drawn_extents(layout, pixel_order);
        let frames = extents.last().map_or(0, |last| last.first_position + last.frames.count.0);
        let categories = vec![hole_category; usize::try_from(frames).unwrap_or(0)];
        Drawing { layout, extents, categories, legend, hole_category }
    }

    /// Assigns the frames of the layout's spans their categories, and those of offline blocks
    /// `offline_category`.
    pub fn fill_categories(&mut self, mut categories: impl Iterator<Item = u8>, offline_category: u8) {
        let layout = self.layout;
        for block in layout.blocks.iter().filter(|block| !block.is_online) {
            self.categories_of(block.frames).fill(offline_category);
        }
        for span in &layout.spans {
            for (place, category) in self.categories_of(*span).iter_mut().zip(&mut categories) {
                *place = category;
            }
        }
    }

    fn categories_of(&mut self, frames: FrameSpan) -> &mut [u8] {
        let next_position =
            self.position(frames.first).and_then(|at| usize::try_from(at).ok()).unwrap_or(usize::MAX);
        let count = usize::try_from(frames.count.0).unwrap_or(usize::MAX);
        let rest = self.categories.get_mut(next_position..).unwrap_or_default();
        let count = count.min(rest.len());
        &mut rest[..count]
    }

    /// Returns the number of frames in the picture before this one; `None` if it is not in the picture.
    pub fn position(&self, frame: Pfn) -> Option<u64> {
        let index = self.extents.partition_point(|extent| extent.frames.end() <= frame);
        let extent = self.extents.get(index)?;
        Some(extent.first_position + frame.0.checked_sub(extent.frames.first.0)?)
    }

    /// Returns the number of frames in the picture below this address.
    pub fn frames_below(&self, frame: Pfn) -> u64 {
        let index = self.extents.partition_point(|extent| extent.frames.end() <= frame);
        match self.extents.get(index) {
            Some(extent) => extent.first_position + frame.0.saturating_sub(extent.frames.first.0),
            None => self.frame_count(),
        }
    }

    /// Returns the frame at a position.
    pub fn frame_at(&self, position: u64) -> Option<Pfn> {
        let index =
            self.extents.partition_point(|extent| extent.first_position + extent.frames.count.0 <= position);
        let extent = self.extents.get(index)?;
        Some(Pfn(extent.frames.first.0 + (position - extent.first_position)))
    }

    /// Number of frames in the picture.
    pub fn frame_count(&self) -> u64 {
        self.categories.len() as u64
    }
}

/// Returns the runs of a layout that are in the picture.
pub fn drawn_extents(layout: &PageMapLayout, pixel_order: Order) -> Vec<Extent> {
    let unit = layout.pageblock_order.max(pixel_order).to_pages().0.min(1 << 40);
    let offline_category = layout.blocks.iter().filter(|block| !block.is_online).map(|block| block.frames);
    let all: u64 = offline_category.clone().map(|frames| frames.count.0).fold(0, u64::saturating_add);
    let offline_category = offline_category.filter(|_| all <= OFFLINE_FRAMES_MAX);
    let mut runs: Vec<(u64, u64)> =
        layout.spans.iter().copied().chain(offline_category).map(|f| (f.first.0, f.end().0)).collect();
    runs.retain(|run| run.0 < run.1);
    runs.sort_unstable();
    let mut extents: Vec<Extent> = Vec::new();
    let mut next_position = 0;
    for (first, end) in runs {
        let (first, end) = (first / unit * unit, end.checked_next_multiple_of(unit).unwrap_or(end));
        let first = extents.last().map_or(first, |last| first.max(last.frames.end().0));
        if first >= end {
            continue;
        }
        match extents.last_mut() {
            Some(last) if last.frames.end().0 == first => last.frames.count.0 += end - first,
            _ => {
                let frames = FrameSpan { first: Pfn(first), count: Pages(end - first) };
                extents.push(Extent { frames, first_position: next_position });
            }
        }
        next_position += end - first;
    }
    extents
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_picture::raster::tests::map_of;

    #[test]
    fn gaps_are_left_out_and_edges_are_whole_pageblocks() {
        let map = map_of(&[(5, &[PageClass::Anon; 6]), (40, &[PageClass::Free; 3])]);
        let drawing = Drawing::from_map(&map, ColourScheme::Full, Order(0));
        let runs: Vec<_> =
            drawing.extents.iter().map(|e| (e.frames.first.0, e.frames.count.0, e.first_position)).collect();
        assert_eq!(runs, [(4, 8, 0), (40, 4, 8)]);
        let letters: String =
            drawing.categories.iter().map(|&at| drawing.legend[usize::from(at)].letter).collect();
        assert_eq!(letters, " aaaaaa ... ");
        assert_eq!(drawing.position(Pfn(41)), Some(9));
        assert_eq!(drawing.position(Pfn(20)), None);
        assert_eq!([0, 6, 20, 41, 99].map(|frame| drawing.frames_below(Pfn(frame))), [0, 2, 8, 9, 12]);
        assert!((0..12).all(|at| drawing.position(drawing.frame_at(at).unwrap()) == Some(at)));
        assert_eq!(drawing.frame_at(12), None);
    }
}
