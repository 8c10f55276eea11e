//! What one process image had mapped where, and what was sampled there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use pagelab_formats::perf_data::{About, Mapping};
use pagelab_model::profile::{Begun, MappingKind};

/// A mapping, as far as records tell: where it was, as large as it ever was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    pub kind: MappingKind,
    pub start: u64,
    pub bytes: u64,
    /// Of its first byte in the file; 0 otherwise.
    pub offset: u64,
}

/// The address space. A fork has the same one until it changes.
#[derive(Clone, Debug, Default)]
struct Space {
    /// By first address: end and mapping; never overlapping.
    spans: BTreeMap<u64, (u64, usize)>,
    mappings: Vec<Mapped>,
}

/// What was sampled in one page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    pub misses: u64,
    pub node: Option<u32>,
}

/// One process image.
#[derive(Clone, Debug)]
pub(super) struct Image {
    pub pid: u32,
    pub parent: Option<usize>,
    pub begun: Begun,
    /// What the kernel calls it.
    pub name: String,
    /// Its program: the first file that it mapped.
    pub path: String,
    pub build_id: Option<String>,
    space: Rc<Space>,
    /// By mapping, and by page number in it: offsets count in the file, or are addresses.
    pub pages: BTreeMap<usize, BTreeMap<u64, Page>>,
    /// By page number, outside of known mappings.
    pub strays: BTreeMap<u64, Page>,
    /// In the range that was given, by page number.
    pub ranged: BTreeMap<u64, Page>,
    /// Mappings with samples outside of the range, and stray pages there.
    pub outside: BTreeMap<usize, u64>,
    pub outside_strays: BTreeMap<u64, u64>,
    pub misses: u64,
    pub samples: u64,
}

impl Image {
    /// One that ran already.
    pub(super) fn attached(pid: u32) -> Image {
        Image {
            pid,
            parent: None,
            begun: Begun::Attached,
            name: String::new(),
            path: String::new(),
            build_id: None,
            space: Rc::default(),
            pages: BTreeMap::new(),
            strays: BTreeMap::new(),
            ranged: BTreeMap::new(),
            outside: BTreeMap::new(),
            outside_strays: BTreeMap::new(),
            misses: 0,
            samples: 0,
        }
    }

    /// One that began by an exec.
    pub(super) fn executed(pid: u32, parent: Option<usize>, name: String) -> Image {
        let begun = if parent.is_some() { Begun::Executed } else { Begun::Attached };
        Image { parent, begun, name, ..Image::attached(pid) }
    }

    /// One that began by a fork of this one.
    pub(super) fn forked(&self, pid: u32, place: usize) -> Image {
        Image {
            parent: Some(place),
            begun: Begun::Forked,
            name: self.name.clone(),
            path: self.path.clone(),
            build_id: self.build_id.clone(),
            space: Rc::clone(&self.space),
            ..Image::attached(pid)
        }
    }

    /// The mapping at this place.
    pub(super) fn mapping(&self, place: usize) -> Option<&Mapped> {
        self.space.mappings.get(place)
    }

    /// It ended: what nothing was sampled in is forgotten. Returns how many mappings that were.
    pub(super) fn end(&mut self) -> usize {
        if self.samples > 0 {
            return 0;
        }
        let space = std::mem::take(&mut self.space);
        if Rc::strong_count(&space) == 1 { space.mappings.len() } else { 0 }
    }

    /// Memory was mapped, or was found mapped. Returns how many mappings more are kept now.
    pub(super) fn map(&mut self, mapping: &Mapping, about: &About) -> usize {
        let Some(end) = mapping.start.checked_add(mapping.bytes).filter(|&end| end > mapping.start) else {
            return 0;
        };
        let kind = kind_of(&mapping.name);
        if self.path.is_empty()
            && let MappingKind::File(path) = &kind
        {
            self.path.clone_from(path);
            self.build_id = mapping.build_id.clone().or_else(|| about.build_id(path).map(str::to_owned));
        }
        let before = if Rc::strong_count(&self.space) > 1 { 0 } else { self.space.mappings.len() };
        let space = Rc::make_mut(&mut self.space);
        space.put(mapping.start..end, kind, mapping.offset);
        space.mappings.len() - before
    }

    /// Counts what was sampled at an address.
    pub(super) fn count(
        &mut self,
        address: u64,
        page: u64,
        misses: u64,
        node: Option<u32>,
        range: Option<&Range<u64>>,
    ) {
        self.samples += 1;
        self.misses = self.misses.saturating_add(misses);
        let found = self.space.find(address);
        let cell = match (range, found) {
            (Some(range), _) if range.contains(&address) => self.ranged.entry(address / page),
            (Some(_), Some((mapping, _))) => {
                *self.outside.entry(mapping).or_default() += 1;
                return;
            }
            (Some(_), None) => {
                *self.outside_strays.entry(address / page).or_default() += 1;
                return;
            }
            (None, Some((mapping, offset))) => self.pages.entry(mapping).or_default().entry(offset / page),
            (None, None) => self.strays.entry(address / page),
        };
        let cell = cell.or_default();
        cell.misses = cell.misses.saturating_add(misses);
        cell.node = node.or(cell.node);
    }
}

impl Space {
    fn put(&mut self, range: Range<u64>, kind: MappingKind, offset: u64) {
        if let Some(place) = self.grows(&range, &kind) {
            let mapping = &mut self.mappings[place];
            let end = range.end.max(mapping.start + mapping.bytes);
            mapping.start = mapping.start.min(range.start);
            mapping.bytes = end - mapping.start;
            self.cut(&range);
            self.spans.insert(range.start, (range.end, place));
            return;
        }
        self.cut(&range);
        let place = self.mappings.len();
        let offset = if matches!(kind, MappingKind::File(_)) { offset } else { 0 };
        self.mappings.push(Mapped { kind, start: range.start, bytes: range.end - range.start, offset });
        self.spans.insert(range.start, (range.end, place));
    }

    /// The mapping that this is more of: the kernel tells the whole of an area each time that it grows, and
    /// offsets in anonymous memory are addresses anyway.
    fn grows(&self, range: &Range<u64>, kind: &MappingKind) -> Option<usize> {
        let (_, &(end, place)) = self.spans.range(..range.end).next_back()?;
        let mapping = self.mappings.get(place).filter(|mapping| mapping.kind == *kind)?;
        let touches = end >= range.start && !matches!(kind, MappingKind::File(_));
        // Offsets in a heap count from its start, which never moves.
        let keeps = *kind != MappingKind::Heap || range.start >= mapping.start;
        (touches && keeps).then_some(place)
    }

    fn cut(&mut self, range: &Range<u64>) {
        let from = self.spans.range(..range.start).next_back().map_or(range.start, |(&start, _)| start);
        let hit: Vec<u64> = self.spans.range(from..range.end).map(|(&start, _)| start).collect();
        for start in hit {
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
    fn find(&self, address: u64) -> Option<(usize, u64)> {
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

/// What perf and the kernel call mappings (kernel/events/core.c, `perf_event_mmap_event`;
/// tools/perf/util/map.c,
/// `is_anon_memory`, `is_no_dso_memory`).
fn kind_of(name: &str) -> MappingKind {
    const NO_FILE: [&str; 6] = ["//", "/dev/zero", "/anon_hugepage", "/SYSV", "/[aio]", "/dmabuf:"];
    match name {
        "[heap]" => MappingKind::Heap,
        _ if name.starts_with('/') && !NO_FILE.iter().any(|start| name.starts_with(start)) => {
            MappingKind::File(name.to_owned())
        }
        _ => MappingKind::Placed,
    }
}
