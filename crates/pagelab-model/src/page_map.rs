//! Map of physical memory: the class of every page frame, at approximately one time.

use crate::free_areas::ZoneKey;
use crate::pageflags::PageClass;
use crate::{Order, PageSize, Pages, Pfn};

use serde::{Deserialize, Serialize};

/// The class of every page frame of memory, with zones and memory blocks. A scan is not atomic: memory
/// changed between its first and its last frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageMap {
    /// When the scan began, in nanoseconds on the clock of its source (a run: since the start).
    pub started_ns: u64,
    /// When it ended, on the same clock.
    pub ended_ns: u64,
    /// Zones and blocks of the frames: constant as long as no memory is plugged.
    pub layout: PageMapLayout,
    /// The classes of the frames of `layout.spans`, one span after the other.
    pub classes: Vec<PageClass>,
}

/// The frames of a map, and the zones and memory blocks that they belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageMapLayout {
    /// The base page size.
    pub page_size: PageSize,
    /// Order of a pageblock: the grid of the map.
    pub pageblock_order: Order,
    /// Order of a huge page of PMD size.
    pub pmd_order: Order,
    /// Runs of frames that are in the map, ascending, not touching each other.
    pub spans: Vec<FrameSpan>,
    /// The zones, by their first frame, without overlap: a zone whose frames are on both sides of another's,
    /// as with interleaved nodes, has one entry for each part.
    pub zones: Vec<PageMapZone>,
    /// The memory blocks (banks), by their first frame; empty if the kernel has none.
    pub blocks: Vec<MemoryBlock>,
}

/// A run of page frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameSpan {
    /// The first one.
    pub first: Pfn,
    /// Number of frames.
    pub count: Pages,
}

impl FrameSpan {
    /// The frame after the last one.
    pub fn end(&self) -> Pfn {
        self.first.saturating_add(self.count)
    }
}

/// A zone in a map, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageMapZone {
    /// Its node and name.
    pub key: ZoneKey,
    /// From its first to its last frame in the map, including holes.
    pub frames: FrameSpan,
}

/// A memory block in a map: the unit of offline and online.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryBlock {
    /// The number in its name, `memory12`.
    pub number: u64,
    /// Its frames.
    pub frames: FrameSpan,
    /// Whether it is online.
    pub is_online: bool,
}

impl PageMapLayout {
    /// Frames in the map.
    pub fn count_frames(&self) -> u64 {
        self.spans.iter().map(|span| span.count.0).sum()
    }
}

impl PageMap {
    /// The spans with their classes.
    pub fn spans(&self) -> impl Iterator<Item = (Pfn, &[PageClass])> {
        let mut rest = &self.classes[..];
        self.layout.spans.iter().map(move |span| {
            let count = rest.len().min(usize::try_from(span.count.0).unwrap_or(usize::MAX));
            let (span_classes, rest_classes) = rest.split_at(count);
            rest = rest_classes;
            (span.first, span_classes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_span_has_its_classes() {
        let span = |first, count| FrameSpan { first: Pfn(first), count: Pages(count) };
        let layout = PageMapLayout {
            page_size: PageSize::DEFAULT,
            pageblock_order: Order(1),
            pmd_order: Order(1),
            spans: vec![span(1, 2), span(8, 1)],
            zones: Vec::new(),
            blocks: Vec::new(),
        };
        let classes = vec![PageClass::Free, PageClass::Anon, PageClass::Slab];
        let map = PageMap { started_ns: 0, ended_ns: 1, layout, classes };
        let spans: Vec<(Pfn, &[PageClass])> = map.spans().collect();
        assert_eq!(
            spans,
            [(Pfn(1), &[PageClass::Free, PageClass::Anon][..]), (Pfn(8), &[PageClass::Slab][..])]
        );
        assert_eq!(map.layout.count_frames(), 3);
    }
}
