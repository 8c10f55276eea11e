//! Which mapping an address belongs to, told by the system calls that make, move and end mappings.
//!
//! A mapping is known by its kind, the length that was asked for, and which one of these it is: the same in
//! every run of a program, wherever the kernel puts it. What lies where is the same account whether the calls
//! are seen by QEMU's plugin or by the supervisor.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Kinds of mappings that the ledger tells apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Private and anonymous.
    Anonymous,
    /// Shared and anonymous.
    Shared,
    /// What brk grows.
    Heap,
    /// The first thread's stack.
    Stack,
    /// Of a file: its path, or whatever names it for the caller.
    File(String),
}

/// What a mapping is in every run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Its kind.
    pub kind: Kind,
    /// The length that was asked for; 0 for heap and stack.
    pub bytes: u64,
    /// Which of those with equal kind and length, from 0 on.
    pub nth: u32,
}

/// A mapping that was made, by its place in [`Ledger::mappings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MappingId(pub u32);

/// One mapping, as it was made and as large as it ever was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// What it is.
    pub key: Key,
    /// The address of its offset 0, which of a file may lie below its first byte; the last one if it was
    /// moved.
    pub start: u64,
    /// One more than the largest offset that it ever had.
    pub bytes: u64,
}

/// A stretch of addresses that belongs to one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    end: u64,
    mapping: MappingId,
    /// Offset of the span's first byte in its mapping.
    offset: u64,
}

/// The account of one process image. Clone it for a fork; begin anew at an exec.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// By their first address; never overlapping.
    spans: BTreeMap<u64, Span>,
    mappings: Vec<Made>,
    counts: HashMap<(Kind, u64), u32>,
    heap: Option<Heap>,
}

#[derive(Clone, Copy, Debug)]
struct Heap {
    mapping: MappingId,
    start: u64,
    end: u64,
}

impl Ledger {
    /// Nothing is mapped.
    pub fn new() -> Ledger {
        Ledger::default()
    }

    /// All mappings that were ever made.
    pub fn mappings(&self) -> &[Made] {
        &self.mappings
    }

    /// Memory was mapped at `range` (mmap). Anonymous memory that is laid over a part of one anonymous
    /// mapping goes on being that mapping: so programs use a part of what they have reserved.
    pub fn mapped(&mut self, range: Range<u64>, kind: Kind) -> MappingId {
        if range.start < range.end
            && kind == Kind::Anonymous
            && let Some((mapping, _)) = self.whole_inside(&range)
            && self.made(mapping).key.kind == Kind::Anonymous
        {
            return mapping;
        }
        let bytes = range.end.saturating_sub(range.start);
        let mapping = self.make(kind, bytes, range.start, bytes);
        self.put(range, mapping, 0);
        mapping
    }

    /// A file was mapped at `range` (mmap), from this offset of it on: offsets in the mapping are those in
    /// the file, as `/proc/PID/maps` and samples tell them.
    pub fn file_mapped(&mut self, range: Range<u64>, name: String, offset: u64) -> MappingId {
        let bytes = range.end.saturating_sub(range.start);
        let start = range.start.wrapping_sub(offset);
        let mapping = self.make(Kind::File(name), bytes, start, offset.saturating_add(bytes));
        self.put(range, mapping, offset);
        mapping
    }

    /// Memory was unmapped at `range` (munmap).
    pub fn unmapped(&mut self, range: Range<u64>) {
        self.cut(&range);
    }

    /// Memory was moved, grown or shrunk (mremap): it stays what it was. Returns the mapping, if it is known.
    pub fn moved(&mut self, old: Range<u64>, new: Range<u64>) -> Option<MappingId> {
        let (mapping, offset) = self.find(old.start)?;
        self.cut(&old);
        self.moved_as(mapping, offset, &old, new);
        Some(mapping)
    }

    /// As [`Ledger::moved`], where it is told late what happened, and another thread may have been given the
    /// old place meanwhile: what lay there at the call's begin was this offset of this mapping.
    pub fn moved_as(&mut self, mapping: MappingId, offset: u64, old: &Range<u64>, new: Range<u64>) {
        // An old length of 0 duplicates a shared mapping and leaves the old one.
        for (part, of, _) in self.within(old) {
            if of == mapping {
                self.cut(&part);
            }
        }
        self.put(new.clone(), mapping, offset);
        let made = &mut self.mappings[mapping.0 as usize];
        made.start = new.start.wrapping_sub(offset);
    }

    /// The break is at `end` now (brk). The first call tells where it began.
    pub fn break_at(&mut self, end: u64) -> Option<MappingId> {
        let Some(heap) = self.heap else {
            let mapping = self.make(Kind::Heap, 0, end, 0);
            self.heap = Some(Heap { mapping, start: end, end });
            return None;
        };
        if end > heap.end {
            self.put(heap.end..end, heap.mapping, heap.end - heap.start);
        } else if end >= heap.start {
            self.cut(&(end..heap.end));
        }
        self.heap = Some(Heap { end: end.max(heap.start), ..heap });
        Some(heap.mapping)
    }

    /// The first thread's stack lies here; offsets count from the lowest address.
    pub fn stack_at(&mut self, range: Range<u64>) -> MappingId {
        let mapping = self.make(Kind::Stack, 0, range.start, range.end.saturating_sub(range.start));
        self.put(range, mapping, 0);
        mapping
    }

    /// The mapping that the address belongs to, and the offset in it.
    pub fn find(&self, address: u64) -> Option<(MappingId, u64)> {
        let (&start, span) = self.spans.range(..=address).next_back()?;
        (address < span.end).then(|| (span.mapping, span.offset + (address - start)))
    }

    /// The stretches of the range that belong to a mapping: (addresses, mapping, offset of the first byte),
    /// by address.
    pub fn within(&self, range: &Range<u64>) -> Vec<(Range<u64>, MappingId, u64)> {
        let first = self.spans.range(..=range.start).next_back().map_or(range.start, |(&start, _)| start);
        let of = |(&start, span): (&u64, &Span)| {
            let (from, to) = (start.max(range.start), span.end.min(range.end));
            (from < to).then(|| (from..to, span.mapping, span.offset + (from - start)))
        };
        self.spans.range(first..range.end.max(first)).filter_map(of).collect()
    }

    /// Whether all of the range belongs to mappings of kinds that `wanted` says.
    pub fn covered(&self, range: Range<u64>, wanted: impl Fn(&Kind) -> bool) -> bool {
        let mut at = range.start;
        while at < range.end {
            match self.spans.range(..=at).next_back() {
                Some((_, span)) if at < span.end && wanted(&self.made(span.mapping).key.kind) => {
                    at = span.end
                }
                _ => return false,
            }
        }
        true
    }

    /// A mapping by its id.
    pub fn made(&self, mapping: MappingId) -> &Made {
        &self.mappings[mapping.0 as usize]
    }

    /// The stretches of addresses that a mapping has now: (addresses, offset of the first), by address.
    pub fn places(&self, mapping: MappingId) -> impl Iterator<Item = (Range<u64>, u64)> + '_ {
        let of = move |(&start, span): (&u64, &Span)| {
            (span.mapping == mapping).then_some((start..span.end, span.offset))
        };
        self.spans.iter().filter_map(of)
    }

    /// The key that the next mapping of this kind and length gets.
    pub fn next_key(&self, kind: Kind, bytes: u64) -> Key {
        let nth = self.counts.get(&(kind.clone(), bytes)).copied().unwrap_or(0);
        Key { kind, bytes, nth }
    }

    fn make(&mut self, kind: Kind, asked: u64, start: u64, bytes: u64) -> MappingId {
        let nth = self.counts.entry((kind.clone(), asked)).or_insert(0);
        let key = Key { kind, bytes: asked, nth: *nth };
        *nth += 1;
        let id = MappingId(u32::try_from(self.mappings.len()).unwrap_or(u32::MAX));
        self.mappings.push(Made { key, start, bytes });
        id
    }

    /// The mapping that all of the range belongs to, with the offset of its first byte.
    fn whole_inside(&self, range: &Range<u64>) -> Option<(MappingId, u64)> {
        let found = self.find(range.start)?;
        let mut at = range.start;
        while at < range.end {
            let (_, span) = self.spans.range(..=at).next_back()?;
            if at >= span.end || self.find(at)? != (found.0, found.1 + (at - range.start)) {
                return None;
            }
            at = span.end;
        }
        Some(found)
    }

    fn put(&mut self, range: Range<u64>, mapping: MappingId, offset: u64) {
        if range.start >= range.end {
            return;
        }
        self.cut(&range);
        let made = &mut self.mappings[mapping.0 as usize];
        made.bytes = made.bytes.max(offset.saturating_add(range.end - range.start));
        self.spans.insert(range.start, Span { end: range.end, mapping, offset });
    }

    /// Nothing is mapped at `range` any more.
    fn cut(&mut self, range: &Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let first = self.spans.range(..=range.start).next_back().map(|(&start, _)| start);
        let touched: Vec<(u64, Span)> = self
            .spans
            .range(first.unwrap_or(range.start)..range.end)
            .filter(|(_, span)| span.end > range.start)
            .map(|(&start, &span)| (start, span))
            .collect();
        for (start, span) in touched {
            self.spans.remove(&start);
            if start < range.start {
                self.spans.insert(start, Span { end: range.start, ..span });
            }
            if range.end < span.end {
                let offset = span.offset + (range.end - start);
                self.spans.insert(range.end, Span { end: span.end, offset, ..span });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_keeps_its_key_wherever_it_lies() {
        let mut ledger = Ledger::new();
        let next = ledger.next_key(Kind::Anonymous, 0x4000);
        let a = ledger.mapped(0x1000..0x5000, Kind::Anonymous);
        assert_eq!(ledger.made(a).key, next);
        let b = ledger.mapped(0x8000..0xc000, Kind::Anonymous);
        assert_eq!((ledger.made(a).key.nth, ledger.made(b).key.nth), (0, 1));
        // Moved and grown; the offset stays, and the old place is free.
        assert_eq!(ledger.moved(0x8000..0xc000, 0x20000..0x28000), Some(b));
        assert_eq!(ledger.find(0x27fff), Some((b, 0x7fff)));
        assert_eq!(ledger.find(0x8000), None);
        assert_eq!((ledger.made(b).start, ledger.made(b).bytes), (0x20000, 0x8000));
        // A hole, and memory laid over a part.
        ledger.unmapped(0x2000..0x3000);
        assert_eq!((ledger.find(0x1fff), ledger.find(0x2000)), (Some((a, 0xfff)), None));
        assert_eq!(ledger.find(0x3000), Some((a, 0x2000)));
        assert_eq!(ledger.mapped(0x3000..0x4000, Kind::Anonymous), a);
        let file = ledger.file_mapped(0x3000..0x4000, "f".into(), 0x2000);
        assert_eq!((ledger.find(0x3000), ledger.find(0x4000)), (Some((file, 0x2000)), Some((a, 0x3000))));
        assert_eq!((ledger.made(file).start, ledger.made(file).bytes), (0x1000, 0x3000));
        assert_eq!(ledger.made(file).key.bytes, 0x1000);
        assert_eq!(ledger.places(a).collect::<Vec<_>>(), [(0x1000..0x2000, 0), (0x4000..0x5000, 0x3000)]);
        let within = ledger.within(&(0x1800..0x4800));
        let wanted =
            [(0x1800..0x2000, a, 0x800), (0x3000..0x4000, file, 0x2000), (0x4000..0x4800, a, 0x3000)];
        assert_eq!(within, wanted);
        assert_eq!(ledger.within(&(0x2000..0x3000)), []);
    }

    #[test]
    fn a_move_that_is_told_late_leaves_what_another_thread_was_given() {
        let mut ledger = Ledger::new();
        let a = ledger.mapped(0x1000..0x5000, Kind::Anonymous);
        // The kernel has moved it; another thread gets a part of the old place, and is heard first.
        ledger.unmapped(0x2000..0x3000);
        let b = ledger.mapped(0x2000..0x3000, Kind::Anonymous);
        ledger.moved_as(a, 0, &(0x1000..0x5000), 0x9000..0xf000);
        assert_eq!(ledger.places(b).collect::<Vec<_>>(), [(0x2000..0x3000, 0)]);
        assert_eq!(ledger.places(a).collect::<Vec<_>>(), [(0x9000..0xf000, 0)]);
    }

    #[test]
    fn a_heap_counts_from_its_first_break() {
        let mut ledger = Ledger::new();
        assert_eq!(ledger.break_at(0x10000), None);
        let heap = ledger.break_at(0x12000).unwrap();
        ledger.break_at(0x11000);
        assert_eq!((ledger.find(0x10fff), ledger.find(0x11000)), (Some((heap, 0xfff)), None));
        ledger.break_at(0x20000);
        assert_eq!(ledger.find(0x1ffff), Some((heap, 0xffff)));
        assert_eq!(ledger.made(heap).bytes, 0x10000);
    }

    /// Against an array that says of each of some pages what it is.
    #[test]
    fn the_account_equals_a_flat_array() {
        let mut state = 7u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut ledger = Ledger::new();
        let mut flat: Vec<Option<(MappingId, u64)>> = vec![None; 64];
        for _ in 0..20_000 {
            let from = draw(64);
            let to = (from + 1 + draw(12)).min(64);
            let pages = from as usize..to as usize;
            match draw(3) {
                0 => {
                    let id = ledger.mapped(from..to, Kind::Shared);
                    pages.for_each(|page| flat[page] = Some((id, page as u64 - from)));
                }
                1 => {
                    ledger.unmapped(from..to);
                    flat[pages].fill(None);
                }
                _ => {
                    let (at, long) = (draw(64), to - from);
                    let new = at..(at + long).min(64);
                    // mremap refuses what overlaps.
                    if new.start < to && from < new.end {
                        continue;
                    }
                    let head = flat[from as usize];
                    ledger.moved(from..to, new.clone());
                    if let Some((id, offset)) = head {
                        flat[pages].fill(None);
                        for page in new.clone() {
                            flat[page as usize] = Some((id, offset + (page - new.start)));
                        }
                    }
                }
            }
            for (page, wanted) in flat.iter().enumerate() {
                assert_eq!(ledger.find(page as u64), *wanted);
            }
        }
    }
}
