//! Two maps of one machine: the change of each frame from one to the other.

use pagelab_model::{FrameSpan, Order, PageClass, PageMap, PageMapLayout, Pages, Pfn};

use super::Category;
use super::drawing::Drawing;

/// Change of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameChange {
    /// Free in both.
    StayedFree = 0,
    /// Movable or huge in both, and of the same class.
    StayedUsed = 1,
    /// Unmovable in both, or without flags in both.
    StayedUnmovable = 2,
    /// Free in the second.
    BecameFree = 3,
    /// From free to movable.
    BecameUsed = 4,
    /// From free or movable to unmovable.
    BecameUnmovable = 5,
    /// From unmovable to movable.
    BecameMovable = 6,
    /// To a huge page or a large folio.
    BecameHuge = 7,
    /// Between classes of the same mobility, from huge to small pages, or to and from frames without flags.
    ChangedClass = 8,
    /// Memory in only one map, or offline in one.
    Hotplugged = 9,
    /// No memory in both.
    Absent = 10,
}

/// Legend: unchanged frames have faded colours.
pub const LEGEND: &[Category] = &[
    Category::new("stayed_free", "stayed free", '.', 1, 0xFF_FF_FF),
    Category::new("stayed_used", "remained movable or huge", '-', 2, 0xDD_DD_DD),
    Category::new("stayed_unmovable", "remained unmovable or unknown", '=', 3, 0xA6_A6_A6),
    Category::new("became_free", "became free", 'F', 6, 0x0B_9A_6D),
    Category::new("became_used", "became used, movable", 'U', 7, 0x1F_78_C8),
    Category::new("became_unmovable", "became unmovable", 'X', 10, 0xC4_26_1D),
    Category::new("became_movable", "unmovable became movable", 'M', 5, 0xF0_DC_3C),
    Category::new("became_huge", "became huge", 'H', 8, 0x5B_2A_86),
    Category::new("changed_class", "other change", 'c', 4, 0xE8_A3_3D),
    Category::new("added_or_removed", "added or removed (hotplug, balloon)", 'o', 9, 0x22_22_22),
    Category::new("absent", "no memory", ' ', 0, 0xBB_D3_EE),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum FrameGroup {
    Free,
    Movable,
    Huge,
    Unmovable,
    /// Without flags: per-CPU lists, vmalloc, stacks.
    Unknown,
    Unplugged,
}

const fn frame_group(class: PageClass) -> FrameGroup {
    match class {
        PageClass::Free | PageClass::Deferred => FrameGroup::Free,
        PageClass::Anon | PageClass::File | PageClass::MovableOther => FrameGroup::Movable,
        PageClass::AnonHuge | PageClass::Hugetlb => FrameGroup::Huge,
        PageClass::Slab | PageClass::PageTable | PageClass::Reserved | PageClass::Kernel => {
            FrameGroup::Unmovable
        }
        PageClass::Unknown => FrameGroup::Unknown,
        PageClass::Hole | PageClass::Offline | PageClass::Poisoned => FrameGroup::Unplugged,
    }
}

/// Returns the change of a frame from class `before` to class `after`.
pub const fn classify_change(before: PageClass, after: PageClass) -> FrameChange {
    match (frame_group(before), frame_group(after)) {
        (FrameGroup::Unplugged, FrameGroup::Unplugged) => FrameChange::Absent,
        (FrameGroup::Unplugged, _) | (_, FrameGroup::Unplugged) => FrameChange::Hotplugged,
        (FrameGroup::Free, FrameGroup::Free) => FrameChange::StayedFree,
        (_, FrameGroup::Free) => FrameChange::BecameFree,
        (FrameGroup::Unmovable, FrameGroup::Unmovable) | (FrameGroup::Unknown, FrameGroup::Unknown) => {
            if before as u8 == after as u8 {
                FrameChange::StayedUnmovable
            } else {
                FrameChange::ChangedClass
            }
        }
        (FrameGroup::Unknown, _) | (_, FrameGroup::Unknown) => FrameChange::ChangedClass,
        (_, FrameGroup::Unmovable) => FrameChange::BecameUnmovable,
        (FrameGroup::Huge, FrameGroup::Huge) | (FrameGroup::Movable, FrameGroup::Movable) => {
            if before as u8 == after as u8 { FrameChange::StayedUsed } else { FrameChange::ChangedClass }
        }
        (_, FrameGroup::Huge) => FrameChange::BecameHuge,
        (FrameGroup::Free, FrameGroup::Movable) => FrameChange::BecameUsed,
        (FrameGroup::Unmovable, FrameGroup::Movable) => FrameChange::BecameMovable,
        (FrameGroup::Huge, FrameGroup::Movable) => FrameChange::ChangedClass,
    }
}

/// Comparison of two maps, frame by frame.
#[derive(Clone, Debug)]
pub struct MapDifference {
    /// Frames of either map.
    pub layout: PageMapLayout,
    /// Class of each frame before and after; [`PageClass::Hole`] if a map does not have the frame.
    pub classes: Vec<(PageClass, PageClass)>,
    /// Frames by class before and after.
    pub transitions: Box<[[u64; PageClass::COUNT]; PageClass::COUNT]>,
    /// Frames that only the first map has.
    pub only_before: Vec<FrameSpan>,
    /// Frames that only the second map has.
    pub only_after: Vec<FrameSpan>,
}

impl MapDifference {
    /// Compares two maps of one machine. If memory was hotplugged between them, it compares the frames of
    /// either. `Err`: why they cannot be compared.
    pub fn compare_maps(before: &PageMap, after: &PageMap) -> Result<MapDifference, &'static str> {
        if before.layout.page_size != after.layout.page_size {
            return Err("they have different page sizes");
        }
        let mut transitions = Box::new([[0; PageClass::COUNT]; PageClass::COUNT]);
        let layout = merge_layouts(&before.layout, &after.layout);
        let mut classes = Vec::with_capacity(usize::try_from(layout.count_frames()).unwrap_or(0));
        let (mut one, mut other) = (SpanCursor::new(before), SpanCursor::new(after));
        let (mut only_before, mut only_after, mut common_layout) = (Vec::new(), Vec::new(), false);
        for span in &layout.spans {
            let mut frame = span.first.0;
            while frame < span.end().0 {
                let (before_part, after_part) =
                    (one.advance(frame, span.end().0), other.advance(frame, span.end().0));
                let length = before_part.length.min(after_part.length).max(1);
                let frames = FrameSpan { first: Pfn(frame), count: Pages(length) };
                match (before_part.classes, after_part.classes) {
                    (Some(_), None) => push_frames(&mut only_before, frames),
                    (None, Some(_)) => push_frames(&mut only_after, frames),
                    (found, _) => common_layout |= found.is_some(),
                }
                for index in 0..usize::try_from(length).unwrap_or(usize::MAX) {
                    let class = |run: Option<&[PageClass]>| {
                        run.and_then(|run| run.get(index)).copied().unwrap_or(PageClass::Hole)
                    };
                    let pair = (class(before_part.classes), class(after_part.classes));
                    transitions[pair.0.index()][pair.1.index()] += 1;
                    classes.push(pair);
                }
                frame += length;
            }
        }
        if !common_layout {
            return Err("they have no page frame in common");
        }
        Ok(MapDifference { layout, classes, transitions, only_before, only_after })
    }

    /// Returns the frames in the colours of their changes.
    pub fn to_drawing(&self, pixel: Order) -> Drawing<'_> {
        let absent = FrameChange::Absent as u8;
        let mut drawing = Drawing::without_memory(&self.layout, LEGEND, pixel, absent);
        drawing.fill_categories(
            self.classes.iter().map(|&(before, after)| classify_change(before, after) as u8),
            absent,
        );
        drawing
    }

    /// Returns frames by change, in the order of [`LEGEND`].
    pub fn count_by_change(&self) -> Vec<u64> {
        let mut counts = vec![0; LEGEND.len()];
        for (from, row) in PageClass::ALL.into_iter().zip(self.transitions.iter()) {
            for (to, count) in PageClass::ALL.into_iter().zip(row) {
                counts[classify_change(from, to) as usize] += count;
            }
        }
        counts
    }

    /// Returns the frames whose class differs between the maps.
    pub fn changed_frames(&self) -> u64 {
        let all: u64 = self.transitions.iter().flatten().sum();
        all - (0..PageClass::COUNT).map(|at| self.transitions[at][at]).sum::<u64>()
    }
}

fn push_frames(runs: &mut Vec<FrameSpan>, frames: FrameSpan) {
    match runs.last_mut() {
        Some(last) if last.end() == frames.first => last.count.0 += frames.count.0,
        _ => runs.push(frames),
    }
}

/// The second layout with the frames of either map.
fn merge_layouts(before: &PageMapLayout, after: &PageMapLayout) -> PageMapLayout {
    if before == after {
        return after.clone();
    }
    let mut spans: Vec<FrameSpan> = before.spans.iter().chain(&after.spans).copied().collect();
    spans.sort_by_key(|span| span.first);
    let mut joined: Vec<FrameSpan> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.first <= last.end() => {
                last.count.0 = last.end().0.max(span.end().0) - last.first.0;
            }
            _ => joined.push(span),
        }
    }
    PageMapLayout { spans: joined, ..after.clone() }
}

/// Forward iterator over the spans of a map.
struct SpanCursor<'a> {
    spans: Vec<(Pfn, &'a [PageClass])>,
    next_span: usize,
}

/// Range of frames at the cursor: of a span, or of a gap between spans.
struct SpanPart<'a> {
    classes: Option<&'a [PageClass]>,
    length: u64,
}

impl<'a> SpanCursor<'a> {
    fn new(map: &'a PageMap) -> SpanCursor<'a> {
        SpanCursor { spans: map.spans().collect(), next_span: 0 }
    }

    fn advance(&mut self, frame: u64, end: u64) -> SpanPart<'a> {
        while self.spans.get(self.next_span).is_some_and(|(first, own)| first.0 + own.len() as u64 <= frame) {
            self.next_span += 1;
        }
        let Some(&(first, own)) = self.spans.get(self.next_span) else {
            return SpanPart { classes: None, length: end - frame };
        };
        if first.0 > frame {
            return SpanPart { classes: None, length: end.min(first.0) - frame };
        }
        let rest = own.get(usize::try_from(frame - first.0).unwrap_or(usize::MAX)..).unwrap_or_default();
        SpanPart { classes: Some(rest), length: (rest.len() as u64).min(end - frame) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_picture::raster::tests::map_of;

    #[test]
    fn every_pair_of_classes_is_some_change_and_no_class_changes_into_itself() {
        for (frame, category) in LEGEND.iter().enumerate() {
            assert!(
                LEGEND[..frame]
                    .iter()
                    .all(|other| other.letter != category.letter && other.rank != category.rank)
            );
        }
        for class in PageClass::ALL {
            let same = classify_change(class, class);
            let stayed = [
                FrameChange::StayedFree,
                FrameChange::StayedUsed,
                FrameChange::StayedUnmovable,
                FrameChange::Absent,
            ];
            assert!(stayed.contains(&same), "{class:?} {same:?}");
            assert!(!stayed[1..].contains(&classify_change(class, PageClass::Free)));
        }
        let cases = [
            (PageClass::Free, PageClass::Slab, FrameChange::BecameUnmovable),
            (PageClass::File, PageClass::Slab, FrameChange::BecameUnmovable),
            (PageClass::Slab, PageClass::Free, FrameChange::BecameFree),
            (PageClass::Free, PageClass::Anon, FrameChange::BecameUsed),
            (PageClass::Anon, PageClass::AnonHuge, FrameChange::BecameHuge),
            (PageClass::AnonHuge, PageClass::Anon, FrameChange::ChangedClass),
            (PageClass::Free, PageClass::Unknown, FrameChange::ChangedClass),
            (PageClass::Slab, PageClass::Anon, FrameChange::BecameMovable),
            (PageClass::Free, PageClass::Offline, FrameChange::Hotplugged),
            (PageClass::Hole, PageClass::Free, FrameChange::Hotplugged),
        ];
        for (before, after, expected) in cases {
            assert_eq!(classify_change(before, after), expected, "{before:?} {after:?}");
        }
    }

    #[test]
    fn plugged_memory_is_compared_and_named() {
        use PageClass::{Anon, Free, Slab};
        let before = map_of(&[(0, &[Free, Free, Slab, Anon]), (8, &[Free; 4])]);
        let after = map_of(&[(0, &[Anon, Free, Free, Anon, Free, Free]), (20, &[Free; 2])]);
        let difference = MapDifference::compare_maps(&before, &after).unwrap();
        let drawing = difference.to_drawing(Order(0));
        let letters: String = drawing.categories.iter().map(|&at| LEGEND[usize::from(at)].letter).collect();
        assert_eq!(letters, "U.F-oo  oooooo  ");
        let runs = |frames: &[FrameSpan]| frames.iter().map(|f| (f.first.0, f.count.0)).collect::<Vec<_>>();
        assert_eq!(runs(&difference.only_before), [(8, 4)]);
        assert_eq!(runs(&difference.only_after), [(4, 2), (20, 2)]);
        assert_eq!(difference.count_by_change(), [1, 1, 0, 1, 1, 0, 0, 0, 0, 8, 0]);
        assert_eq!(difference.changed_frames(), 10);
        let elsewhere = map_of(&[(100, &[Free])]);
        assert_eq!(
            MapDifference::compare_maps(&before, &elsewhere).unwrap_err(),
            "they have no page frame in common"
        );
    }
}
