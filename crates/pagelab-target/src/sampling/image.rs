//! Mappings and samples of one process image.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use pagelab_formats::perf_data::{FileInfo, Mapping};
use pagelab_model::profile::{ImageStart, MappingKind};

/// A mapping from records: its addresses, with its largest size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImageMapping {
    pub kind: MappingKind,
    pub start: u64,
    pub bytes: u64,
    /// Of its first byte in the file; 0 otherwise.
    pub offset: u64,
}

/// The address space. A fork has the same one until it changes.
#[derive(Clone, Debug, Default)]
pub(super) struct AddressSpace {
    /// By first address: end and mapping; never overlapping.
    spans: BTreeMap<u64, (u64, usize)>,
    mappings: Vec<ImageMapping>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageSamples {
    pub misses: u64,
    pub node: Option<u32>,
}

/// One process image; by default it ran already.
#[derive(Clone, Debug, Default)]
pub(super) struct SampledImage {
    pub pid: u32,
    pub parent: Option<usize>,
    pub begun: ImageStart,
    /// Its name in the kernel.
    pub name: String,
    /// Its program: the first file that it mapped.
    pub path: String,
    pub build_id: Option<String>,
    pub(super) space: Rc<AddressSpace>,
    /// By mapping, and by page number in it: offsets count in the file, or are addresses.
    pub pages: BTreeMap<usize, BTreeMap<u64, PageSamples>>,
    /// By page number, outside of known mappings.
    pub unmapped_pages: BTreeMap<u64, PageSamples>,
    /// In the range that was given, by page number.
    pub range_pages: BTreeMap<u64, PageSamples>,
    /// Mappings with samples outside of the range, and stray pages there.
    pub outside_mappings: BTreeMap<usize, u64>,
    pub outside_unmapped_pages: BTreeMap<u64, u64>,
    pub misses: u64,
    pub samples: u64,
}

impl SampledImage {
    /// One that began by a fork of this one.
    pub(super) fn fork(&self, pid: u32, parent_index: usize) -> SampledImage {
        SampledImage {
            pid,
            parent: Some(parent_index),
            begun: ImageStart::Forked,
            name: self.name.clone(),
            path: self.path.clone(),
            build_id: self.build_id.clone(),
            space: Rc::clone(&self.space),
            ..SampledImage::default()
        }
    }

    /// The mapping at this place.
    pub(super) fn mapping(&self, index: usize) -> Option<&ImageMapping> {
        self.space.mappings.get(index)
    }

    /// It ended: mappings without samples are removed. Returns their number.
    pub(super) fn discard_unsampled(&mut self) -> usize {
        if self.samples > 0 {
            return 0;
        }
        let space = std::mem::take(&mut self.space);
        if Rc::strong_count(&space) == 1 { space.mappings.len() } else { 0 }
    }

    /// Memory was mapped, or was found mapped. Returns how many mappings more are kept now.
    pub(super) fn add_mapping(&mut self, mapping: &Mapping, file_info: &FileInfo) -> usize {
        let Some(end) = mapping.start.checked_add(mapping.bytes).filter(|&end| end > mapping.start) else {
            return 0;
        };
        let kind = mapping_kind(&mapping.name);
        if self.path.is_empty()
            && let MappingKind::File(path) = &kind
        {
            self.path.clone_from(path);
            self.build_id = mapping.build_id.clone().or_else(|| file_info.build_id(path).map(str::to_owned));
        }
        let before = if Rc::strong_count(&self.space) > 1 { 0 } else { self.space.mappings.len() };
        let space = Rc::make_mut(&mut self.space);
        space.insert_mapping(mapping.start..end, kind, mapping.offset);
        space.mappings.len() - before
    }

    /// Counts a sample at an address.
    pub(super) fn add_sample(
        &mut self,
        address: u64,
        page_bytes: u64,
        misses: u64,
        node: Option<u32>,
        range: Option<&Range<u64>>,
    ) {
        self.samples += 1;
        self.misses = self.misses.saturating_add(misses);
        let found = self.space.find_mapping(address);
        let cell = match (range, found) {
            (Some(range), _) if range.contains(&address) => self.range_pages.entry(address / page_bytes),
            (Some(_), Some((mapping, _))) => {
                *self.outside_mappings.entry(mapping).or_default() += 1;
                return;
            }
            (Some(_), None) => {
                *self.outside_unmapped_pages.entry(address / page_bytes).or_default() += 1;
                return;
            }
            (None, Some((mapping, offset))) => {
                self.pages.entry(mapping).or_default().entry(offset / page_bytes)
            }
            (None, None) => self.unmapped_pages.entry(address / page_bytes),
        };
        let cell = cell.or_default();
        cell.misses = cell.misses.saturating_add(misses);
        cell.node = node.or(cell.node);
    }
}

impl AddressSpace {
    fn insert_mapping(&mut self, range: Range<u64>, kind: MappingKind, offset: u64) {
        if let Some(place) = self.find_grown_mapping(&range, &kind) {
            let mapping = &mut self.mappings[place];
            let end = range.end.max(mapping.start + mapping.bytes);
            mapping.start = mapping.start.min(range.start);
            mapping.bytes = end - mapping.start;
            self.cut_spans(&range);
            self.spans.insert(range.start, (range.end, place));
            return;
        }
        self.cut_spans(&range);
        let place = self.mappings.len();
        let offset = if matches!(kind, MappingKind::File(_)) { offset } else { 0 };
        self.mappings.push(ImageMapping { kind, start: range.start, bytes: range.end - range.start, offset });
        self.spans.insert(range.start, (range.end, place));
    }

    /// The mapping that this one extends: the kernel records the whole area each time that it grows, and
    /// offsets in anonymous memory are addresses anyway.
    fn find_grown_mapping(&self, range: &Range<u64>, kind: &MappingKind) -> Option<usize> {
        let (_, &(end, place)) = self.spans.range(..range.end).next_back()?;
        let mapping = self.mappings.get(place).filter(|mapping| mapping.kind == *kind)?;
        let is_adjacent = end >= range.start && !matches!(kind, MappingKind::File(_));
        // Offsets in a heap count from its start, which never moves.
        let keeps_start = *kind != MappingKind::Heap || range.start >= mapping.start;
        (is_adjacent && keeps_start).then_some(place)
    }

    fn cut_spans(&mut self, range: &Range<u64>) {
        let from = self.spans.range(..range.start).next_back().map_or(range.start, |(&start, _)| start);
        let overlapping: Vec<u64> = self.spans.range(from..range.end).map(|(&start, _)| start).collect();
        for start in overlapping {
            let Some((end, place)) = self.spans.remove(&start) else { continue };
            if start < range.start {
                self.spans.insert(start, (end.min(range.start), place));
            }
            if end > range.end {
                self.spans.insert(range.end.max(start), (end, place));
            }
        }
    }

    /// The mapping at an address, and the offset there: in the file, from the heap's start, or the address.
    fn find_mapping(&self, address: u64) -> Option<(usize, u64)> {
        let (_, &(end, place)) = self.spans.range(..=address).next_back()?;
        let mapping = self.mappings.get(place).filter(|_| address < end)?;
        let offset = match mapping.kind {
            MappingKind::File(_) => (address - mapping.start).saturating_add(mapping.offset),
            MappingKind::Heap => address - mapping.start,
            _ => address,
        };
        Some((place, offset))
    }
}

/// Names of mappings in perf and the kernel (kernel/events/core.c, `perf_event_mmap_event`;
/// tools/perf/util/map.c, `is_anon_memory`, `is_no_dso_memory`).
fn mapping_kind(name: &str) -> MappingKind {
    const NO_FILE: [&str; 6] = ["//", "/dev/zero", "/anon_hugepage", "/SYSV", "/[aio]", "/dmabuf:"];
    match name {
        "[heap]" => MappingKind::Heap,
        _ if name.starts_with('/') && !NO_FILE.iter().any(|start| name.starts_with(start)) => {
            MappingKind::File(name.to_owned())
        }
        _ => MappingKind::Placed,
    }
}
