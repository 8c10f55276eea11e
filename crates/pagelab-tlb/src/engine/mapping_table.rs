//! The mapping of each address, from the system calls that create, move and remove mappings.
//!
//! A mapping is identified by its kind, its requested length, and its number among those of equal kind and
//! length: the same in every run of a program, wherever the kernel maps it. QEMU's plugin and the supervisor
//! see the same calls, and so build the same table.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Kinds of mappings that the table distinguishes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MappedKind {
    /// Private and anonymous.
    Anonymous,
    /// Shared and anonymous.
    Shared,
    /// The heap, which brk grows.
    Heap,
    /// The first thread's stack.
    Stack,
    /// Of a file: its path, or another name that the caller chooses.
    File(String),
}

/// The identity of a mapping in every run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MappingKey {
    /// Its kind.
    pub kind: MappedKind,
    /// The requested length; 0 for heap and stack.
    pub bytes: u64,
    /// Its number among those of equal kind and length, from 0 on.
    pub nth: u32,
}

/// The index of a mapping in [`MappingTable::mappings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MappingId(pub u32);

/// One mapping, with its largest size so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingRecord {
    /// Its identity.
    pub key: MappingKey,
    /// The address of its offset 0, which for a file may be below its first byte; the latest one if it was
    /// moved.
    pub start: u64,
    /// One more than its largest offset so far.
    pub bytes: u64,
}

/// Contiguous addresses of one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MappedSpan {
    end: u64,
    mapping: MappingId,
    /// Offset of the span's first byte in its mapping.
    offset: u64,
}

/// The mappings of one process image. A fork clones it; an exec begins with a new one.
#[derive(Clone, Debug, Default)]
pub struct MappingTable {
    /// By first address; never overlapping.
    spans: BTreeMap<u64, MappedSpan>,
    mappings: Vec<MappingRecord>,
    counts: HashMap<(MappedKind, u64), u32>,
    heap: Option<Heap>,
}

#[derive(Clone, Copy, Debug)]
struct Heap {
    mapping: MappingId,
    start: u64,
    end: u64,
}

impl MappingTable {
    /// A table without mappings.
    pub fn new() -> MappingTable {
        MappingTable::default()
    }

    /// All mappings so far, also those that are unmapped.
    pub fn mappings(&self) -> &[MappingRecord] {
        &self.mappings
    }

    /// Memory was mapped at `range` (mmap). Anonymous memory over a part of an anonymous mapping stays that
    /// mapping: programs use parts of a reservation in this way.
    pub fn record_mmap(&mut self, range: Range<u64>, kind: MappedKind) -> MappingId {
        if range.start < range.end
            && kind == MappedKind::Anonymous
            && let Some((mapping, _)) = self.find_enclosing(&range)
            && self.mapping(mapping).key.kind == MappedKind::Anonymous
        {
            return mapping;
        }
        let bytes = length_of(&range);
        let mapping = self.add_mapping(kind, bytes, range.start, bytes);
        self.insert_span(range, mapping, 0);
        mapping
    }

    /// A file was mapped at `range` (mmap), from this offset on: offsets in the mapping are those in the
    /// file, as in `/proc/PID/maps` and in samples.
    pub fn record_file_mmap(&mut self, range: Range<u64>, name: String, offset: u64) -> MappingId {
        let bytes = length_of(&range);
        let start = range.start.wrapping_sub(offset);
        let mapping = self.add_mapping(MappedKind::File(name), bytes, start, offset.saturating_add(bytes));
        self.insert_span(range, mapping, offset);
        mapping
    }

    /// Memory was unmapped at `range` (munmap).
    pub fn record_munmap(&mut self, range: Range<u64>) {
        self.remove_range(&range);
    }

    /// A mapping was moved, grown or shrunk (mremap). Returns it, if it is known.
    pub fn record_mremap(&mut self, old: Range<u64>, new: Range<u64>) -> Option<MappingId> {
        let (mapping, offset) = self.find(old.start)?;
        self.remove_range(&old);
        self.record_late_mremap(mapping, offset, &old, new);
        Some(mapping)
    }

    /// As [`MappingTable::record_mremap`] for a call whose end is seen late, so that another thread may have
    /// mapped the old addresses meanwhile: they began with this offset of this mapping before the call.
    pub fn record_late_mremap(&mut self, mapping: MappingId, offset: u64, old: &Range<u64>, new: Range<u64>) {
        // An old length of 0 duplicates a shared mapping and leaves the old one.
        for (part, owner, _) in self.spans_in(old) {
            if owner == mapping {
                self.remove_range(&part);
            }
        }
        self.insert_span(new.clone(), mapping, offset);
        self.mappings[mapping.0 as usize].start = new.start.wrapping_sub(offset);
    }

    /// The program break is at `end` now (brk). The first call defines the heap's start.
    pub fn record_brk(&mut self, end: u64) -> Option<MappingId> {
        let Some(heap) = self.heap else {
            let mapping = self.add_mapping(MappedKind::Heap, 0, end, 0);
            self.heap = Some(Heap { mapping, start: end, end });
            return None;
        };
        if end > heap.end {
            self.insert_span(heap.end..end, heap.mapping, heap.end - heap.start);
        } else if end >= heap.start {
            self.remove_range(&(end..heap.end));
        }
        self.heap = Some(Heap { end: end.max(heap.start), ..heap });
        Some(heap.mapping)
    }

    /// The first thread's stack; offsets count from the lowest address.
    pub fn record_stack(&mut self, range: Range<u64>) -> MappingId {
        let mapping = self.add_mapping(MappedKind::Stack, 0, range.start, length_of(&range));
        self.insert_span(range, mapping, 0);
        mapping
    }

    /// The mapping that the address belongs to, and the offset in it.
    pub fn find(&self, address: u64) -> Option<(MappingId, u64)> {
        let (&start, span) = self.spans.range(..=address).next_back()?;
        (address < span.end).then(|| (span.mapping, span.offset + (address - start)))
    }

    /// The mapped parts of a range: (addresses, mapping, offset of the first byte), by address.
    pub fn spans_in(&self, range: &Range<u64>) -> Vec<(Range<u64>, MappingId, u64)> {
        let first = self.spans.range(..=range.start).next_back().map_or(range.start, |(&start, _)| start);
        let clip = |(&start, span): (&u64, &MappedSpan)| {
            let (from, to) = (start.max(range.start), span.end.min(range.end));
            (from < to).then(|| (from..to, span.mapping, span.offset + (from - start)))
        };
        self.spans.range(first..range.end.max(first)).filter_map(clip).collect()
    }

    /// Whether all of a range is mapped, by mappings of kinds that `is_kind` accepts.
    pub fn is_covered_by(&self, range: Range<u64>, is_kind: impl Fn(&MappedKind) -> bool) -> bool {
        let mut at = range.start;
        while at < range.end {
            match self.spans.range(..=at).next_back() {
                Some((_, span)) if at < span.end && is_kind(&self.mapping(span.mapping).key.kind) => {
                    at = span.end
                }
                _ => return false,
            }
        }
        true
    }

    /// A mapping by its id.
    pub fn mapping(&self, mapping: MappingId) -> &MappingRecord {
        &self.mappings[mapping.0 as usize]
    }

    /// The addresses of a mapping now: (addresses, offset of the first), by address.
    pub fn spans_of(&self, mapping: MappingId) -> impl Iterator<Item = (Range<u64>, u64)> + '_ {
        let to_span = move |(&start, span): (&u64, &MappedSpan)| {
            (span.mapping == mapping).then_some((start..span.end, span.offset))
        };
        self.spans.iter().filter_map(to_span)
    }

    /// The key of the next mapping of this kind and length.
    pub fn next_key(&self, kind: MappedKind, bytes: u64) -> MappingKey {
        let nth = self.counts.get(&(kind.clone(), bytes)).copied().unwrap_or(0);
        MappingKey { kind, bytes, nth }
    }

    fn add_mapping(&mut self, kind: MappedKind, requested: u64, start: u64, bytes: u64) -> MappingId {
        debug_assert!(u32::try_from(self.mappings.len()).is_ok(), "too many mappings");
        let nth = self.counts.entry((kind.clone(), requested)).or_insert(0);
        let key = MappingKey { kind, bytes: requested, nth: *nth };
        *nth += 1;
        let id = MappingId(self.mappings.len() as u32);
        self.mappings.push(MappingRecord { key, start, bytes });
        id
    }

    /// The mapping of all of a range, with the offset of its first byte.
    fn find_enclosing(&self, range: &Range<u64>) -> Option<(MappingId, u64)> {
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

    fn insert_span(&mut self, range: Range<u64>, mapping: MappingId, offset: u64) {
        if range.start >= range.end {
            return;
        }
        self.remove_range(&range);
        let record = &mut self.mappings[mapping.0 as usize];
        record.bytes = record.bytes.max(offset.saturating_add(range.end - range.start));
        self.spans.insert(range.start, MappedSpan { end: range.end, mapping, offset });
    }

    /// Removes all spans from a range.
    fn remove_range(&mut self, range: &Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let first = self.spans.range(..=range.start).next_back().map(|(&start, _)| start);
        let touched: Vec<(u64, MappedSpan)> = self
            .spans
            .range(first.unwrap_or(range.start)..range.end)
            .filter(|(_, span)| span.end > range.start)
            .map(|(&start, &span)| (start, span))
            .collect();
        for (start, span) in touched {
            self.spans.remove(&start);
            if start < range.start {
                self.spans.insert(start, MappedSpan { end: range.start, ..span });
            }
            if range.end < span.end {
                let offset = span.offset + (range.end - start);
                self.spans.insert(range.end, MappedSpan { end: span.end, offset, ..span });
            }
        }
    }
}

/// The length of a range. Callers check the arguments of a program: a reversed range would count as a
/// mapping.
fn length_of(range: &Range<u64>) -> u64 {
    debug_assert!(range.start <= range.end, "reversed range: {range:x?}");
    range.end.saturating_sub(range.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_keeps_its_key_at_all_addresses() {
        let mut table = MappingTable::new();
        let next = table.next_key(MappedKind::Anonymous, 0x4000);
        let a = table.record_mmap(0x1000..0x5000, MappedKind::Anonymous);
        assert_eq!(table.mapping(a).key, next);
        let b = table.record_mmap(0x8000..0xc000, MappedKind::Anonymous);
        assert_eq!((table.mapping(a).key.nth, table.mapping(b).key.nth), (0, 1));
        // Moved and grown; the offset stays, and the old addresses are free.
        assert_eq!(table.record_mremap(0x8000..0xc000, 0x20000..0x28000), Some(b));
        assert_eq!(table.find(0x27fff), Some((b, 0x7fff)));
        assert_eq!(table.find(0x8000), None);
        assert_eq!((table.mapping(b).start, table.mapping(b).bytes), (0x20000, 0x8000));
        // A hole, and memory mapped over a part.
        table.record_munmap(0x2000..0x3000);
        assert_eq!((table.find(0x1fff), table.find(0x2000)), (Some((a, 0xfff)), None));
        assert_eq!(table.find(0x3000), Some((a, 0x2000)));
        assert_eq!(table.record_mmap(0x3000..0x4000, MappedKind::Anonymous), a);
        let file = table.record_file_mmap(0x3000..0x4000, "f".into(), 0x2000);
        assert_eq!((table.find(0x3000), table.find(0x4000)), (Some((file, 0x2000)), Some((a, 0x3000))));
        assert_eq!((table.mapping(file).start, table.mapping(file).bytes), (0x1000, 0x3000));
        assert_eq!(table.mapping(file).key.bytes, 0x1000);
        assert_eq!(table.spans_of(a).collect::<Vec<_>>(), [(0x1000..0x2000, 0), (0x4000..0x5000, 0x3000)]);
        let within = table.spans_in(&(0x1800..0x4800));
        let expected =
            [(0x1800..0x2000, a, 0x800), (0x3000..0x4000, file, 0x2000), (0x4000..0x4800, a, 0x3000)];
        assert_eq!(within, expected);
        assert_eq!(table.spans_in(&(0x2000..0x3000)), []);
    }

    #[test]
    fn a_late_mremap_leaves_the_mapping_of_another_thread() {
        let mut table = MappingTable::new();
        let a = table.record_mmap(0x1000..0x5000, MappedKind::Anonymous);
        // The kernel has moved it; another thread maps a part of the old addresses, and is seen first.
        table.record_munmap(0x2000..0x3000);
        let b = table.record_mmap(0x2000..0x3000, MappedKind::Anonymous);
        table.record_late_mremap(a, 0, &(0x1000..0x5000), 0x9000..0xf000);
        assert_eq!(table.spans_of(b).collect::<Vec<_>>(), [(0x2000..0x3000, 0)]);
        assert_eq!(table.spans_of(a).collect::<Vec<_>>(), [(0x9000..0xf000, 0)]);
    }

    #[test]
    fn a_heap_counts_from_its_first_break() {
        let mut table = MappingTable::new();
        assert_eq!(table.record_brk(0x10000), None);
        let heap = table.record_brk(0x12000).unwrap();
        table.record_brk(0x11000);
        assert_eq!((table.find(0x10fff), table.find(0x11000)), (Some((heap, 0xfff)), None));
        table.record_brk(0x20000);
        assert_eq!(table.find(0x1ffff), Some((heap, 0xffff)));
        assert_eq!(table.mapping(heap).bytes, 0x10000);
    }

    /// Against an array with the mapping of each page.
    #[test]
    fn the_table_equals_a_flat_array() {
        let mut state = 7u64;
        let mut random_below = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut table = MappingTable::new();
        let mut flat: Vec<Option<(MappingId, u64)>> = vec![None; 64];
        for _ in 0..20_000 {
            let from = random_below(64);
            let to = (from + 1 + random_below(12)).min(64);
            let pages = from as usize..to as usize;
            match random_below(3) {
                0 => {
                    let id = table.record_mmap(from..to, MappedKind::Shared);
                    pages.for_each(|page| flat[page] = Some((id, page as u64 - from)));
                }
                1 => {
                    table.record_munmap(from..to);
                    flat[pages].fill(None);
                }
                _ => {
                    let (at, long) = (random_below(64), to - from);
                    let new = at..(at + long).min(64);
                    // mremap refuses what overlaps.
                    if new.start < to && from < new.end {
                        continue;
                    }
                    let head = flat[from as usize];
                    table.record_mremap(from..to, new.clone());
                    if let Some((id, offset)) = head {
                        flat[pages].fill(None);
                        for page in new.clone() {
                            flat[page as usize] = Some((id, offset + (page - new.start)));
                        }
                    }
                }
            }
            for (page, expected) in flat.iter().enumerate() {
                assert_eq!(table.find(page as u64), *expected);
            }
        }
    }
}
