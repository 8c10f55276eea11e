//! The frames that a picture shows, one after the other, with a category for each.

use pagelab_model::{Frames, MapLayout, Order, PageClass, PageMap, Pages, Pfn};

use super::Category;
use super::scheme::Scheme;

/// Offline memory is drawn up to this many frames; a tree that was made to could claim any number.
const OFFLINE_MAX: u64 = 1 << 30;

/// A run of frames in a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The frames.
    pub frames: Frames,
    /// How many frames of the picture come before.
    pub at: u64,
}

/// Frames to draw. Stretches of addresses without memory are left out; what is drawn begins and ends with
/// whole pageblocks, so that pageblocks stay pageblocks in the picture.
#[derive(Clone, Debug)]
pub struct Drawing<'a> {
    /// What the frames belong to.
    pub layout: &'a MapLayout,
    /// The runs, ascending.
    pub extents: Vec<Extent>,
    /// Index into `legend` for each frame of the extents.
    pub categories: Vec<u8>,
    /// What the indices mean.
    pub legend: &'a [Category],
    /// The category of frames without memory.
    pub hole: u8,
}

impl<'a> Drawing<'a> {
    /// A map in the colours of `scheme`. Extents begin and end at multiples of a pageblock and of `pixel`.
    pub fn of_map(map: &'a PageMap, scheme: Scheme, pixel: Order) -> Drawing<'a> {
        let table: [u8; PageClass::COUNT] = std::array::from_fn(|at| scheme.of(PageClass::ALL[at]));
        let frames = map.classes.iter().map(|class| table[class.index()]);
        let offline = scheme.of(PageClass::Offline);
        let mut drawing = Drawing::empty(&map.layout, scheme.legend(), pixel, scheme.of(PageClass::Hole));
        drawing.fill(frames, offline);
        drawing
    }

    /// A drawing without memory in it yet.
    pub fn empty(layout: &'a MapLayout, legend: &'a [Category], pixel: Order, hole: u8) -> Drawing<'a> {
        let extents = extents(layout, pixel);
        let frames = extents.last().map_or(0, |last| last.at + last.frames.count.0);
        let categories = vec![hole; usize::try_from(frames).unwrap_or(0)];
        Drawing { layout, extents, categories, legend, hole }
    }

    /// Gives the frames of the layout's spans their categories, and those of blocks that are offline
    /// `offline`.
    pub fn fill(&mut self, mut categories: impl Iterator<Item = u8>, offline: u8) {
        let layout = self.layout;
        for block in layout.blocks.iter().filter(|block| !block.is_online) {
            self.places(block.frames).fill(offline);
        }
        for span in &layout.spans {
            for (place, category) in self.places(*span).iter_mut().zip(&mut categories) {
                *place = category;
            }
        }
    }

    fn places(&mut self, frames: Frames) -> &mut [u8] {
        let at = self.position(frames.first).and_then(|at| usize::try_from(at).ok()).unwrap_or(usize::MAX);
        let count = usize::try_from(frames.count.0).unwrap_or(usize::MAX);
        let rest = self.categories.get_mut(at..).unwrap_or_default();
        let count = count.min(rest.len());
        &mut rest[..count]
    }

    /// How many frames of the picture come before this one; `None` if it is not drawn.
    pub fn position(&self, frame: Pfn) -> Option<u64> {
        let index = self.extents.partition_point(|extent| extent.frames.end() <= frame);
        let extent = self.extents.get(index)?;
        Some(extent.at + frame.0.checked_sub(extent.frames.first.0)?)
    }

    /// How many frames of the picture lie below this address, drawn itself or not.
    pub fn below(&self, frame: Pfn) -> u64 {
        let index = self.extents.partition_point(|extent| extent.frames.end() <= frame);
        match self.extents.get(index) {
            Some(extent) => extent.at + frame.0.saturating_sub(extent.frames.first.0),
            None => self.frames(),
        }
    }

    /// The frame at a position.
    pub fn frame(&self, position: u64) -> Option<Pfn> {
        let index = self.extents.partition_point(|extent| extent.at + extent.frames.count.0 <= position);
        let extent = self.extents.get(index)?;
        Some(Pfn(extent.frames.first.0 + (position - extent.at)))
    }

    /// Frames drawn.
    pub fn frames(&self) -> u64 {
        self.categories.len() as u64
    }
}

/// The runs of frames of a layout that are drawn.
pub fn extents(layout: &MapLayout, pixel: Order) -> Vec<Extent> {
    let unit = layout.pageblock_order.max(pixel).pages().0.min(1 << 40);
    let offline = layout.blocks.iter().filter(|block| !block.is_online).map(|block| block.frames);
    let all: u64 = offline.clone().map(|frames| frames.count.0).fold(0, u64::saturating_add);
    let offline = offline.filter(|_| all <= OFFLINE_MAX);
    let mut runs: Vec<(u64, u64)> =
        layout.spans.iter().copied().chain(offline).map(|f| (f.first.0, f.end().0)).collect();
    runs.retain(|run| run.0 < run.1);
    runs.sort_unstable();
    let mut extents: Vec<Extent> = Vec::new();
    let mut at = 0;
    for (first, end) in runs {
        let (first, end) = (first / unit * unit, end.checked_next_multiple_of(unit).unwrap_or(end));
        let first = extents.last().map_or(first, |last| first.max(last.frames.end().0));
        if first >= end {
            continue;
        }
        match extents.last_mut() {
            Some(last) if last.frames.end().0 == first => last.frames.count.0 += end - first,
            _ => {
                let frames = Frames { first: Pfn(first), count: Pages(end - first) };
                extents.push(Extent { frames, at });
            }
        }
        at += end - first;
    }
    extents
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::raster::tests::map_of;

    #[test]
    fn gaps_are_left_out_and_edges_are_whole_pageblocks() {
        let map = map_of(&[(5, &[PageClass::Anon; 6]), (40, &[PageClass::Free; 3])]);
        let drawing = Drawing::of_map(&map, Scheme::Full, Order(0));
        let runs: Vec<_> =
            drawing.extents.iter().map(|e| (e.frames.first.0, e.frames.count.0, e.at)).collect();
        assert_eq!(runs, [(4, 8, 0), (40, 4, 8)]);
        let letters: String =
            drawing.categories.iter().map(|&at| drawing.legend[usize::from(at)].letter).collect();
        assert_eq!(letters, " aaaaaa ... ");
        assert_eq!(drawing.position(Pfn(41)), Some(9));
        assert_eq!(drawing.position(Pfn(20)), None);
        assert_eq!([0, 6, 20, 41, 99].map(|frame| drawing.below(Pfn(frame))), [0, 2, 8, 9, 12]);
        assert!((0..12).all(|at| drawing.position(drawing.frame(at).unwrap()) == Some(at)));
        assert_eq!(drawing.frame(12), None);
    }
}
