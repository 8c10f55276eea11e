//! A map of physical memory: the class of every page frame, at about one moment.

use crate::free_areas::ZoneKey;
use crate::pageflags::PageClass;
use crate::{Order, PageSize, Pages, Pfn};

use serde::{Deserialize, Serialize};

/// The class of every page frame that memory stands behind, and what the frames belong to. A scan is not
/// atomic: memory moved between its first and its last frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageMap {
    /// When the scan began, in nanoseconds on the clock of its source (a run: since the start).
    pub started_ns: u64,
    /// When it ended, on the same clock.
    pub ended_ns: u64,
    /// What the frames belong to: constant as long as no memory is plugged.
    pub layout: MapLayout,
    /// The classes of the frames of `layout.spans`, one span after the other.
    pub classes: Vec<PageClass>,
}

/// The frames of a map, and the zones and memory blocks that they belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapLayout {
    /// The base page size.
    pub page_size: PageSize,
    /// Order of a pageblock: the grid of the map.
    pub pageblock_order: Order,
    /// Order of a huge page of PMD size.
    pub pmd_order: Order,
    /// Runs of frames that are in the map, ascending, not touching each other.
    pub spans: Vec<Frames>,
    /// The zones, by their first frame, without overlap: a zone whose frames lie on both sides of another's,
    /// as where nodes interleave, stands once for each part.
    pub zones: Vec<MapZone>,
    /// The memory blocks (banks), by their first frame; empty where the kernel has none.
    pub blocks: Vec<MapBlock>,
}

/// A run of page frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frames {
    /// The first one.
    pub first: Pfn,
    /// How many.
    pub count: Pages,
}

impl Frames {
    /// The frame behind the last one.
    pub fn end(&self) -> Pfn {
        self.first.plus(self.count)
    }
}

/// A zone in a map, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapZone {
    /// Which one.
    pub key: ZoneKey,
    /// From its first to its last frame in the map, holes included.
    pub frames: Frames,
}

/// A memory block in a map: what can be switched off and on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapBlock {
    /// The number in its name, `memory12`.
    pub number: u64,
    /// Its frames.
    pub frames: Frames,
    /// Whether the kernel uses it.
    pub is_online: bool,
}

impl MapLayout {
    /// Frames in the map.
    pub fn frames(&self) -> u64 {
        self.spans.iter().map(|span| span.count.0).sum()
    }
}

impl PageMap {
    /// The spans with their classes.
    pub fn spans(&self) -> impl Iterator<Item = (Pfn, &[PageClass])> {
        let mut rest = &self.classes[..];
        self.layout.spans.iter().map(move |span| {
            let count = rest.len().min(usize::try_from(span.count.0).unwrap_or(usize::MAX));
            let (these, others) = rest.split_at(count);
            rest = others;
            (span.first, these)
        })
    }

    /// The class of one frame; `None` outside the map.
    pub fn class(&self, pfn: Pfn) -> Option<PageClass> {
        let of = |(first, classes): (Pfn, &[PageClass])| {
            pfn.0.checked_sub(first.0).and_then(|at| classes.get(usize::try_from(at).ok()?).copied())
        };
        self.spans().find_map(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_found_in_its_span() {
        let span = |first, count| Frames { first: Pfn(first), count: Pages(count) };
        let layout = MapLayout {
            page_size: PageSize::USUAL,
            pageblock_order: Order(1),
            pmd_order: Order(1),
            spans: vec![span(1, 2), span(8, 1)],
            zones: Vec::new(),
            blocks: Vec::new(),
        };
        let classes = vec![PageClass::Free, PageClass::Anon, PageClass::Slab];
        let map = PageMap { started_ns: 0, ended_ns: 1, layout, classes };
        let found: Vec<_> = (0..10).map(|pfn| map.class(Pfn(pfn))).collect();
        let mut wanted = [None; 10];
        (wanted[1], wanted[2], wanted[8]) =
            (Some(PageClass::Free), Some(PageClass::Anon), Some(PageClass::Slab));
        assert_eq!(found, wanted);
        assert_eq!(map.layout.frames(), 3);
    }
}
