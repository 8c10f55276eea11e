//! Counts of one image by mapping: its events are replayed, and counts before an event belong to the mapping
//! of that time.

use std::collections::{BTreeMap, HashMap};

use pagelab_model::Bytes;
use pagelab_model::profile::{
    CellCounts, MappingIdentity, MappingKind, MappingProfile, OwnAdvice, ReuseHistograms, ScenarioRegion,
};
use pagelab_tlb::engine::account_layout::{BUCKETS, chunk, events, image};
use pagelab_tlb::engine::mapping_table::{MappedKind, MappingId, MappingTable};

use super::super::ExactProfileRequest;
use super::super::account::{ImageRecord, MappingEvent};
use crate::own_advice::{AdvisedRange, sum_advice};
use crate::supervisor::to_mapping_identity;

/// Mapping; `None`: not reported by any call.
type Owner = Option<MappingId>;

#[derive(Clone, Copy, Default)]
struct Cell {
    misses: u64,
    accesses: u64,
    written: bool,
}

#[derive(Default)]
struct MappingCounts {
    cells: BTreeMap<u64, Cell>,
    lines: BTreeMap<u64, [u64; BUCKETS as usize]>,
    /// By pass (0 is the one of base pages) and region of a huge page.
    regions: Vec<BTreeMap<u64, u64>>,
}

/// Memory on which the program advised: by mapping and first offset, the end and whether it was against huge
/// pages.
type AdvisedParts = BTreeMap<(MappingId, u64), (u64, bool)>;

/// Replay of the account of one image.
struct AccountReplay<'a> {
    request: &'a ExactProfileRequest,
    table: MappingTable,
    advised: AdvisedParts,
    disables_thp: bool,
    counts: HashMap<Owner, MappingCounts>,
    passes: usize,
}

/// The counts of an image by mapping.
pub struct CountsByMapping {
    /// The mappings with all that was counted.
    pub mappings: Vec<MappingProfile>,
    /// The misses of each pass by region; `image` of the regions is the caller's.
    pub regions: Vec<Vec<ScenarioRegion>>,
    /// The program's own advice on huge pages.
    pub advice: OwnAdvice,
}

/// Counts of an image by mapping.
pub fn count_by_mapping(
    request: &ExactProfileRequest,
    images: &[ImageRecord],
    index: usize,
) -> CountsByMapping {
    let table = inherit_mappings(images, index);
    let passes = request.what_ifs.len() + 1;
    let (advised, disables_thp) = (AdvisedParts::new(), false);
    let mut replay = AccountReplay { request, table, advised, disables_thp, counts: HashMap::new(), passes };
    let image_record = &images[index];
    let closing_event = |words: &[u64]| words[chunk::CLOSED as usize];
    let mut by_end: BTreeMap<u64, Vec<&Vec<u64>>> = BTreeMap::new();
    for words in &image_record.chunks {
        let end = closing_event(words);
        by_end.entry(if end == 0 { u64::MAX } else { end - 1 }).or_default().push(words);
    }
    for (number, event) in (0u64..).zip(&image_record.events) {
        by_end.remove(&number).unwrap_or_default().into_iter().for_each(|words| replay.add_chunk(words));
        replay.record_advice(event);
        apply_event(&mut replay.table, event);
    }
    by_end.into_values().flatten().for_each(|words| replay.add_chunk(words));
    replay.finish()
}

/// State that an image inherits at a fork.
fn inherit_mappings(images: &[ImageRecord], index: usize) -> MappingTable {
    // From the image up to the one that was not forked, with the events of each before the next fork.
    let mut lineage = Vec::new();
    let (mut at, mut image) = (index, &images[index]);
    while image.field(image::START_KIND) == 1 {
        let Some(parent) = images[..at].iter().position(|one| one.position == image.field(image::PARENT))
        else {
            break;
        };
        lineage.push((parent, image.field(image::PARENT_EVENTS) as usize));
        (at, image) = (parent, &images[parent]);
    }
    let mut table = MappingTable::new();
    for (parent, count) in lineage.into_iter().rev() {
        images[parent].events.iter().take(count).for_each(|event| apply_event(&mut table, event));
    }
    table
}

fn apply_event(table: &mut MappingTable, event: &MappingEvent) {
    let [a, b, c, d] = event.numbers;
    // The program can have written into the account.
    let is_reversed = match event.kind {
        events::MMAP | events::MUNMAP | events::STACK | events::ADVISE => a > b,
        events::MREMAP => a > b || c > d,
        _ => false,
    };
    if is_reversed {
        return;
    }
    match event.kind {
        events::MMAP => {
            match c {
                events::SHARED => table.record_mmap(a..b, MappedKind::Shared),
                events::FILE => table.record_file_mmap(a..b, event.text.clone(), d),
                _ => table.record_mmap(a..b, MappedKind::Anonymous),
            };
        }
        events::MUNMAP => table.record_munmap(a..b),
        events::MREMAP => drop(table.record_mremap(a..b, c..d)),
        events::BRK => drop(table.record_brk(a)),
        events::STACK => drop(table.record_stack(a..b)),
        _ => {}
    }
}

impl AccountReplay<'_> {
    /// The mapping of a page now, and its offset there.
    fn find_owner(&self, address: u64) -> (Owner, u64) {
        self.table.find(address).map_or((None, address), |(mapping, offset)| (Some(mapping), offset))
    }

    /// Takes in advice on anonymous memory; the last one on a part counts.
    fn record_advice(&mut self, event: &MappingEvent) {
        self.disables_thp |= event.kind == events::DISABLE_THP;
        let [from, to, is_against, _] = event.numbers;
        if event.kind != events::ADVISE || from > to {
            return;
        }
        for (addresses, mapping, offset) in self.table.spans_in(&(from..to)) {
            let is_private =
                matches!(self.table.mapping(mapping).key.kind, MappedKind::Anonymous | MappedKind::Heap);
            if is_private {
                let end = offset + (addresses.end - addresses.start);
                self.advised.insert((mapping, offset), (end, is_against == 1));
            }
        }
    }

    /// The sums of the advice; memory that was accessed is mapped.
    fn sum_own_advice(&self) -> OwnAdvice {
        let shift = self.request.page_size.shift();
        let range = |(&(mapping, from), &(to, is_refused)): (&(MappingId, u64), &(u64, bool))| {
            let counts = self.counts.get(&Some(mapping));
            let pages = counts.map_or(0, |counts| counts.cells.range(from >> shift..to >> shift).count());
            let (mapped, has_userfaultfd) = ((pages as u64) << shift, false);
            AdvisedRange { addresses: from..to, is_refused, has_userfaultfd, mapped }
        };
        let ranges: Vec<AdvisedRange> = self.advised.iter().map(range).collect();
        OwnAdvice { disables_thp: self.disables_thp, ..sum_advice(&ranges, self.request.huge.0) }
    }

    fn owner_counts(&mut self, owner: Owner) -> &mut MappingCounts {
        let passes = self.passes;
        self.counts.entry(owner).or_insert_with(|| MappingCounts {
            regions: vec![BTreeMap::new(); passes],
            ..MappingCounts::default()
        })
    }

    fn add_chunk(&mut self, words: &[u64]) {
        let shift = self.request.page_size.shift();
        let first = words[chunk::NUMBER as usize] << chunk::PAGES_BITS;
        for page in 0..chunk::PAGES {
            let (packed_accesses, misses) =
                (words[chunk::page_cell(page) as usize], words[chunk::page_cell(page) as usize + 1]);
            let (accesses, written) =
                (packed_accesses & !chunk::WRITTEN, packed_accesses & chunk::WRITTEN != 0);
            let other_misses =
                |pass: usize| read_u32(words, chunk::OTHER_PASSES, (pass as u64 - 1) * chunk::PAGES + page);
            let has_other_misses = (1..self.passes).any(|pass| other_misses(pass) > 0);
            if accesses == 0 && misses == 0 && !has_other_misses {
                continue;
            }
            let address = (first + page) << shift;
            let (owner, offset) = self.find_owner(address);
            let huge = self.request.huge.0;
            // On the run's own grid of huge pages, counted from the mapping's first byte.
            let region = offset.saturating_sub(address % huge);
            let passes = self.passes;
            let counts = self.owner_counts(owner);
            let cell = counts.cells.entry(offset >> shift).or_default();
            cell.misses += misses;
            cell.accesses += accesses;
            cell.written |= written;
            for pass in 0..passes {
                let misses = if pass == 0 { misses } else { other_misses(pass) };
                if misses > 0 {
                    *counts.regions[pass].entry(region).or_default() += misses;
                }
            }
        }
        for line in 0..chunk::PAGES / chunk::LINE_PAGES {
            self.add_line(words, first, line);
        }
    }

    /// A line belongs to the mapping of the page of it that was missed most.
    fn add_line(&mut self, words: &[u64], first: u64, line: u64) {
        let walks = |bucket: u64| read_u32(words, chunk::reuse_histogram(line * chunk::LINE_PAGES), bucket);
        if (0..BUCKETS).all(|bucket| walks(bucket) == 0) {
            return;
        }
        let misses = |page: u64| words[chunk::page_cell(line * chunk::LINE_PAGES + page) as usize + 1];
        let most = (0..chunk::LINE_PAGES).max_by_key(|&page| (misses(page), page)).unwrap_or(0);
        let shift = self.request.page_size.shift();
        let (owner, offset) = self.find_owner((first + line * chunk::LINE_PAGES + most) << shift);
        let bytes = chunk::LINE_PAGES << shift;
        let start = offset.saturating_sub(most << shift);
        let lines = &mut self.owner_counts(owner).lines;
        let counts = lines.entry((start + bytes / 2) / bytes).or_insert([0; BUCKETS as usize]);
        for (bucket, count) in (0..).zip(counts) {
            *count += walks(bucket);
        }
    }

    fn finish(mut self) -> CountsByMapping {
        let advice = self.sum_own_advice();
        let mut order: Vec<Owner> = self.counts.keys().copied().collect();
        // In the order in which they were mapped; the unknown one is last.
        order.sort_by_key(|owner| owner.map_or(u32::MAX, |mapping| mapping.0));
        let mut regions = vec![Vec::new(); self.passes];
        let mut mappings = Vec::new();
        for (number, owner) in (0u32..).zip(order) {
            let Some(counts) = self.counts.remove(&owner) else { continue };
            for (pass_regions, counted) in regions.iter_mut().zip(&counts.regions) {
                let region =
                    |(&offset, &misses)| ScenarioRegion { image: 0, mapping: number, offset, misses };
                pass_regions.extend(counted.iter().map(region));
            }
            mappings.push(self.build_mapping(owner, &counts));
        }
        CountsByMapping { mappings, regions, advice }
    }

    fn build_mapping(&self, owner: Owner, counts: &MappingCounts) -> MappingProfile {
        let shift = self.request.page_size.shift();
        let grain = Bytes(self.request.page_size.bytes());
        let end = counts.cells.last_key_value().map_or(0, |(&at, _)| (at + 1) << shift);
        let (key, start, bytes) = match owner {
            None => (MappingIdentity { kind: MappingKind::Placed, bytes: Bytes(0), nth: 0 }, 0, end),
            Some(mapping) => {
                let record = self.table.mapping(mapping);
                (to_mapping_identity(&record.key), record.start, record.bytes)
            }
        };
        let mut cells = CellCounts::default();
        for (&at, cell) in &counts.cells {
            cells.at.push(at);
            cells.misses.push(cell.misses);
            cells.accesses.push(cell.accesses);
            cells.written.push(u8::from(cell.written));
        }
        let mut reuse =
            ReuseHistograms { line: Bytes(chunk::LINE_PAGES << shift), ..ReuseHistograms::default() };
        for (&at, walks) in &counts.lines {
            reuse.at.push(at);
            reuse.counts.push(super::build_histogram(|bucket| walks[bucket as usize]));
        }
        MappingProfile { key, start, bytes: Bytes(bytes), grain, cells, reuse, unseen: Vec::new() }
    }
}

/// The `number`th number of 32 bits from word `word` on.
fn read_u32(words: &[u64], word: u64, number: u64) -> u64 {
    let bytes = words[(word + number / 2) as usize].to_ne_bytes();
    let (halves, _) = bytes.as_chunks::<4>();
    u64::from(u32::from_ne_bytes(halves[(number % 2) as usize]))
}
