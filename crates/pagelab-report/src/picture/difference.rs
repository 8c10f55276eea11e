//! Two maps of one machine: what each frame became from the one to the other.

use pagelab_model::{Frames, MapLayout, Order, PageClass, PageMap, Pages, Pfn};

use super::Category;
use super::drawing::Drawing;

/// What a frame became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Change {
    /// Free in both.
    StayedFree = 0,
    /// Movable or huge in both, and of the same class.
    StayedUsed = 1,
    /// Not movable in both, or without flags in both.
    StayedUnmovable = 2,
    /// Free in the second.
    BecameFree = 3,
    /// From free to movable.
    BecameUsed = 4,
    /// From free or movable to what cannot be moved.
    BecameUnmovable = 5,
    /// From what cannot be moved to movable.
    BecameMovable = 6,
    /// To a huge page or a large folio.
    BecameHuge = 7,
    /// Between classes of the same kind, from huge to small pages, or to and from frames without flags.
    ChangedClass = 8,
    /// Memory in only one of the two, or offline in one.
    CameOrWent = 9,
    /// No memory in both.
    Absent = 10,
}

const fn category(
    name: &'static str,
    label: &'static str,
    letter: char,
    rank: u8,
    colour: [u8; 3],
) -> Category {
    Category { name, label, letter, colour, rank }
}

/// The legend: what did not change is faded.
pub const LEGEND: &[Category] = &[
    category("stayed_free", "stayed free", '.', 1, [0xFF, 0xFF, 0xFF]),
    category("stayed_used", "stayed movable or huge", '-', 2, [0xDD, 0xDD, 0xDD]),
    category("stayed_unmovable", "stayed unmovable or unknown", '=', 3, [0xA6, 0xA6, 0xA6]),
    category("became_free", "became free", 'F', 6, [0x0B, 0x9A, 0x6D]),
    category("became_used", "became used, movable", 'U', 7, [0x1F, 0x78, 0xC8]),
    category("became_unmovable", "became unmovable", 'X', 10, [0xC4, 0x26, 0x1D]),
    category("became_movable", "unmovable became movable", 'M', 5, [0xF0, 0xDC, 0x3C]),
    category("became_huge", "became huge", 'H', 8, [0x5B, 0x2A, 0x86]),
    category("changed_class", "changed otherwise", 'c', 4, [0xE8, 0xA3, 0x3D]),
    category("came_or_went", "came or went (hotplug, balloon)", 'o', 9, [0x22, 0x22, 0x22]),
    category("absent", "no memory", ' ', 0, [0xBB, 0xD3, 0xEE]),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Free,
    Movable,
    Huge,
    Unmovable,
    /// No flags: per-CPU lists, vmalloc, stacks.
    Unknown,
    Gone,
}

const fn kind(class: PageClass) -> Kind {
    match class {
        PageClass::Free | PageClass::Deferred => Kind::Free,
        PageClass::Anon | PageClass::File | PageClass::MovableOther => Kind::Movable,
        PageClass::AnonHuge | PageClass::Hugetlb => Kind::Huge,
        PageClass::Slab | PageClass::PageTable | PageClass::Reserved | PageClass::Kernel => Kind::Unmovable,
        PageClass::Unknown => Kind::Unknown,
        PageClass::Hole | PageClass::Offline | PageClass::Poisoned => Kind::Gone,
    }
}

/// What a frame of class `before` became if it is of class `after`.
pub const fn change(before: PageClass, after: PageClass) -> Change {
    match (kind(before), kind(after)) {
        (Kind::Gone, Kind::Gone) => Change::Absent,
        (Kind::Gone, _) | (_, Kind::Gone) => Change::CameOrWent,
        (Kind::Free, Kind::Free) => Change::StayedFree,
        (_, Kind::Free) => Change::BecameFree,
        (Kind::Unmovable, Kind::Unmovable) | (Kind::Unknown, Kind::Unknown) => {
            if before as u8 == after as u8 { Change::StayedUnmovable } else { Change::ChangedClass }
        }
        (Kind::Unknown, _) | (_, Kind::Unknown) => Change::ChangedClass,
        (_, Kind::Unmovable) => Change::BecameUnmovable,
        (Kind::Huge, Kind::Huge) | (Kind::Movable, Kind::Movable) => {
            if before as u8 == after as u8 {
                Change::StayedUsed
            } else {
                Change::ChangedClass
            }
        }
        (_, Kind::Huge) => Change::BecameHuge,
        (Kind::Free, Kind::Movable) => Change::BecameUsed,
        (Kind::Unmovable, Kind::Movable) => Change::BecameMovable,
        (Kind::Huge, Kind::Movable) => Change::ChangedClass,
    }
}

/// Two maps, frame by frame.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The frames of either map.
    pub layout: MapLayout,
    /// The class of each of them before and after; [`PageClass::Hole`] where a map does not have the frame.
    pub classes: Vec<(PageClass, PageClass)>,
    /// Frames by class before and class after.
    pub transitions: Box<[[u64; PageClass::COUNT]; PageClass::COUNT]>,
    /// Frames that only the first map has.
    pub only_before: Vec<Frames>,
    /// Frames that only the second map has.
    pub only_after: Vec<Frames>,
}

/// Why two maps cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unlike {
    /// Frames are of another size.
    PageSize,
    /// No frame is in both.
    NoFrameInCommon,
}

impl Difference {
    /// Compares two maps of one machine. If memory was plugged in between, the frames of either are compared.
    pub fn of(before: &PageMap, after: &PageMap) -> Result<Difference, Unlike> {
        if before.layout.page_size != after.layout.page_size {
            return Err(Unlike::PageSize);
        }
        let mut transitions = Box::new([[0; PageClass::COUNT]; PageClass::COUNT]);
        let layout = both(&before.layout, &after.layout);
        let mut classes = Vec::with_capacity(usize::try_from(layout.frames()).unwrap_or(0));
        let (mut one, mut other) = (Cursor::new(before), Cursor::new(after));
        let (mut only_before, mut only_after, mut common) = (Vec::new(), Vec::new(), false);
        for span in &layout.spans {
            let mut at = span.first.0;
            while at < span.end().0 {
                let (a, b) = (one.run(at, span.end().0), other.run(at, span.end().0));
                let length = a.length.min(b.length).max(1);
                let frames = Frames { first: Pfn(at), count: Pages(length) };
                match (a.classes, b.classes) {
                    (Some(_), None) => add(&mut only_before, frames),
                    (None, Some(_)) => add(&mut only_after, frames),
                    (found, _) => common |= found.is_some(),
                }
                for index in 0..usize::try_from(length).unwrap_or(usize::MAX) {
                    let class = |run: Option<&[PageClass]>| {
                        run.and_then(|run| run.get(index)).copied().unwrap_or(PageClass::Hole)
                    };
                    let pair = (class(a.classes), class(b.classes));
                    transitions[pair.0.index()][pair.1.index()] += 1;
                    classes.push(pair);
                }
                at += length;
            }
        }
        if !common {
            return Err(Unlike::NoFrameInCommon);
        }
        Ok(Difference { layout, classes, transitions, only_before, only_after })
    }

    /// The frames in the colours of what they became.
    pub fn drawing(&self, pixel: Order) -> Drawing<'_> {
        let absent = Change::Absent as u8;
        let mut drawing = Drawing::empty(&self.layout, LEGEND, pixel, absent);
        drawing.fill(self.classes.iter().map(|&(before, after)| change(before, after) as u8), absent);
        drawing
    }

    /// Frames by what they became, in the order of [`LEGEND`].
    pub fn counts(&self) -> Vec<u64> {
        let mut counts = vec![0; LEGEND.len()];
        for (from, row) in PageClass::ALL.into_iter().zip(self.transitions.iter()) {
            for (to, count) in PageClass::ALL.into_iter().zip(row) {
                counts[change(from, to) as usize] += count;
            }
        }
        counts
    }

    /// Frames of the two maps that have another class than before.
    pub fn changed(&self) -> u64 {
        let all: u64 = self.transitions.iter().flatten().sum();
        all - (0..PageClass::COUNT).map(|at| self.transitions[at][at]).sum::<u64>()
    }
}

fn add(runs: &mut Vec<Frames>, frames: Frames) {
    match runs.last_mut() {
        Some(last) if last.end() == frames.first => last.count.0 += frames.count.0,
        _ => runs.push(frames),
    }
}

/// The second layout with the frames of either.
fn both(before: &MapLayout, after: &MapLayout) -> MapLayout {
    if before == after {
        return after.clone();
    }
    let mut spans: Vec<Frames> = before.spans.iter().chain(&after.spans).copied().collect();
    spans.sort_by_key(|span| span.first);
    let mut joined: Vec<Frames> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.first <= last.end() => {
                last.count.0 = last.end().0.max(span.end().0) - last.first.0;
            }
            _ => joined.push(span),
        }
    }
    MapLayout { spans: joined, ..after.clone() }
}

/// A way through the spans of a map, forward only.
struct Cursor<'a> {
    spans: Vec<(Pfn, &'a [PageClass])>,
    next: usize,
}

/// The frames from one on: those of a span, or those of a gap between spans.
struct Part<'a> {
    classes: Option<&'a [PageClass]>,
    length: u64,
}

impl<'a> Cursor<'a> {
    fn new(map: &'a PageMap) -> Cursor<'a> {
        Cursor { spans: map.spans().collect(), next: 0 }
    }

    fn run(&mut self, at: u64, end: u64) -> Part<'a> {
        while self.spans.get(self.next).is_some_and(|(first, own)| first.0 + own.len() as u64 <= at) {
            self.next += 1;
        }
        let Some(&(first, own)) = self.spans.get(self.next) else {
            return Part { classes: None, length: end - at };
        };
        if first.0 > at {
            return Part { classes: None, length: end.min(first.0) - at };
        }
        let rest = own.get(usize::try_from(at - first.0).unwrap_or(usize::MAX)..).unwrap_or_default();
        Part { classes: Some(rest), length: (rest.len() as u64).min(end - at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::raster::tests::map_of;

    #[test]
    fn every_pair_of_classes_is_some_change_and_no_class_changes_into_itself() {
        for (at, category) in LEGEND.iter().enumerate() {
            assert!(
                LEGEND[..at]
                    .iter()
                    .all(|other| other.letter != category.letter && other.rank != category.rank)
            );
        }
        for class in PageClass::ALL {
            let same = change(class, class);
            let stayed = [Change::StayedFree, Change::StayedUsed, Change::StayedUnmovable, Change::Absent];
            assert!(stayed.contains(&same), "{class:?} {same:?}");
            assert!(!stayed[1..].contains(&change(class, PageClass::Free)));
        }
        let cases = [
            (PageClass::Free, PageClass::Slab, Change::BecameUnmovable),
            (PageClass::File, PageClass::Slab, Change::BecameUnmovable),
            (PageClass::Slab, PageClass::Free, Change::BecameFree),
            (PageClass::Free, PageClass::Anon, Change::BecameUsed),
            (PageClass::Anon, PageClass::AnonHuge, Change::BecameHuge),
            (PageClass::AnonHuge, PageClass::Anon, Change::ChangedClass),
            (PageClass::Free, PageClass::Unknown, Change::ChangedClass),
            (PageClass::Slab, PageClass::Anon, Change::BecameMovable),
            (PageClass::Free, PageClass::Offline, Change::CameOrWent),
            (PageClass::Hole, PageClass::Free, Change::CameOrWent),
        ];
        for (before, after, expected) in cases {
            assert_eq!(change(before, after), expected, "{before:?} {after:?}");
        }
    }

    #[test]
    fn plugged_memory_is_compared_and_named() {
        use PageClass::{Anon, Free, Slab};
        let before = map_of(&[(0, &[Free, Free, Slab, Anon]), (8, &[Free; 4])]);
        let after = map_of(&[(0, &[Anon, Free, Free, Anon, Free, Free]), (20, &[Free; 2])]);
        let difference = Difference::of(&before, &after).unwrap();
        let drawing = difference.drawing(Order(0));
        let letters: String = drawing.categories.iter().map(|&at| LEGEND[usize::from(at)].letter).collect();
        assert_eq!(letters, "U.F-oo  oooooo  ");
        let runs = |frames: &[Frames]| frames.iter().map(|f| (f.first.0, f.count.0)).collect::<Vec<_>>();
        assert_eq!(runs(&difference.only_before), [(8, 4)]);
        assert_eq!(runs(&difference.only_after), [(4, 2), (20, 2)]);
        assert_eq!(difference.counts(), [1, 1, 0, 1, 1, 0, 0, 0, 0, 8, 0]);
        assert_eq!(difference.changed(), 10);
        let elsewhere = map_of(&[(100, &[Free])]);
        assert_eq!(Difference::of(&before, &elsewhere).unwrap_err(), Unlike::NoFrameInCommon);
    }
}
