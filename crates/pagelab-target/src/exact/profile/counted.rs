//! The counts of one image by mapping: its events are gone through once more, and what was closed before an
//! event belongs to what was mapped then.

use std::collections::{BTreeMap, HashMap};

use pagelab_model::Bytes;
use pagelab_model::profile::{Cells, MappingKey, MappingKind, MappingProfile, Reuse, WhatIfRegion};
use pagelab_tlb::engine::layout::{BUCKETS, chunk, events, image};
use pagelab_tlb::engine::ledger::{Kind, Ledger, MappingId};

use super::super::Ask;
use super::super::read::{Event, Image};

/// A mapping; `None`: what no call told of.
type Owner = Option<MappingId>;

#[derive(Clone, Copy, Default)]
struct Cell {
    misses: u64,
    accesses: u64,
    written: bool,
}

/// What was counted in one mapping.
#[derive(Default)]
struct Counts {
    cells: BTreeMap<u64, Cell>,
    lines: BTreeMap<u64, [u64; BUCKETS as usize]>,
    /// By pass (0 is the one of base pages) and region of a huge page.
    regions: Vec<BTreeMap<u64, u64>>,
}

/// The account of one image while it is gone through.
struct Replay<'a> {
    ask: &'a Ask,
    ledger: Ledger,
    counts: HashMap<Owner, Counts>,
    passes: usize,
}

/// The mappings of an image with all that was counted, and the misses of each pass by region; `image` of the
/// regions is the caller's.
pub fn count(ask: &Ask, images: &[Image], index: usize) -> (Vec<MappingProfile>, Vec<Vec<WhatIfRegion>>) {
    let ledger = inherited(images, index);
    let passes = ask.what_ifs.len() + 1;
    let mut replay = Replay { ask, ledger, counts: HashMap::new(), passes };
    let one = &images[index];
    let closed = |words: &[u64]| words[chunk::CLOSED as usize];
    let mut by_end: BTreeMap<u64, Vec<&Vec<u64>>> = BTreeMap::new();
    for words in &one.chunks {
        let end = closed(words);
        by_end.entry(if end == 0 { u64::MAX } else { end - 1 }).or_default().push(words);
    }
    for (number, event) in (0u64..).zip(&one.events) {
        by_end.remove(&number).unwrap_or_default().into_iter().for_each(|words| replay.take(words));
        replay.apply(event);
    }
    by_end.into_values().flatten().for_each(|words| replay.take(words));
    replay.finish()
}

/// What an image has from the one that it was forked from.
fn inherited(images: &[Image], index: usize) -> Ledger {
    // From the image up to the one that was not forked, with the events of each before the next fork.
    let mut line = Vec::new();
    let (mut at, mut image) = (index, &images[index]);
    while image.field(image::BEGUN) == 1 {
        let Some(parent) = images[..at].iter().position(|one| one.at == image.field(image::PARENT)) else {
            break;
        };
        line.push((parent, image.field(image::PARENT_EVENTS) as usize));
        (at, image) = (parent, &images[parent]);
    }
    let mut ledger = Ledger::new();
    for (parent, count) in line.into_iter().rev() {
        images[parent].events.iter().take(count).for_each(|event| change(&mut ledger, event));
    }
    ledger
}

fn change(ledger: &mut Ledger, event: &Event) {
    let [a, b, c, d] = event.numbers;
    match event.what {
        events::MAPPED => {
            match c {
                events::SHARED => ledger.mapped(a..b, Kind::Shared),
                events::FILE => ledger.file_mapped(a..b, event.text.clone(), d),
                _ => ledger.mapped(a..b, Kind::Anonymous),
            };
        }
        events::UNMAPPED => ledger.unmapped(a..b),
        events::MOVED => drop(ledger.moved(a..b, c..d)),
        events::BREAK => drop(ledger.break_at(a)),
        events::STACK => drop(ledger.stack_at(a..b)),
        _ => {}
    }
}

impl Replay<'_> {
    fn apply(&mut self, event: &Event) {
        change(&mut self.ledger, event);
    }

    /// Who a page belongs to now, and its offset there.
    fn owner(&self, address: u64) -> (Owner, u64) {
        let Some((mapping, offset)) = self.ledger.find(address) else { return (None, address) };
        (Some(mapping), offset)
    }

    fn counts(&mut self, owner: Owner) -> &mut Counts {
        let passes = self.passes;
        self.counts
            .entry(owner)
            .or_insert_with(|| Counts { regions: vec![BTreeMap::new(); passes], ..Counts::default() })
    }

    fn take(&mut self, words: &[u64]) {
        let shift = self.ask.page_size.shift();
        let first = words[chunk::NUMBER as usize] << chunk::PAGES_BITS;
        for page in 0..chunk::PAGES {
            let (counted, misses) =
                (words[chunk::cell(page) as usize], words[chunk::cell(page) as usize + 1]);
            let (accesses, written) = (counted & !chunk::WRITTEN, counted & chunk::WRITTEN != 0);
            let others = |pass: usize| half(words, chunk::OTHERS, (pass as u64 - 1) * chunk::PAGES + page);
            let any = (1..self.passes).any(|pass| others(pass) > 0);
            if accesses == 0 && misses == 0 && !any {
                continue;
            }
            let address = (first + page) << shift;
            let (owner, offset) = self.owner(address);
            let huge = self.ask.huge.0;
            // On the run's own grid of huge pages, counted from the mapping's first byte.
            let region = offset.saturating_sub(address % huge);
            let passes = self.passes;
            let counts = self.counts(owner);
            let cell = counts.cells.entry(offset >> shift).or_default();
            cell.misses += misses;
            cell.accesses += accesses;
            cell.written |= written;
            for pass in 0..passes {
                let misses = if pass == 0 { misses } else { others(pass) };
                if misses > 0 {
                    *counts.regions[pass].entry(region).or_default() += misses;
                }
            }
        }
        for line in 0..chunk::PAGES / chunk::LINE_PAGES {
            self.take_line(words, first, line);
        }
    }

    /// A line belongs to the mapping of the page of it that was missed most.
    fn take_line(&mut self, words: &[u64], first: u64, line: u64) {
        let walks = |bucket: u64| half(words, chunk::reuse(line * chunk::LINE_PAGES), bucket);
        if (0..BUCKETS).all(|bucket| walks(bucket) == 0) {
            return;
        }
        let misses = |page: u64| words[chunk::cell(line * chunk::LINE_PAGES + page) as usize + 1];
        let most = (0..chunk::LINE_PAGES).max_by_key(|&page| (misses(page), page)).unwrap_or(0);
        let shift = self.ask.page_size.shift();
        let (owner, offset) = self.owner((first + line * chunk::LINE_PAGES + most) << shift);
        let bytes = chunk::LINE_PAGES << shift;
        let start = offset.saturating_sub(most << shift);
        let counts =
            self.counts(owner).lines.entry((start + bytes / 2) / bytes).or_insert([0; BUCKETS as usize]);
        for (bucket, count) in (0..).zip(counts) {
            *count += walks(bucket);
        }
    }

    fn finish(mut self) -> (Vec<MappingProfile>, Vec<Vec<WhatIfRegion>>) {
        let mut order: Vec<Owner> = self.counts.keys().copied().collect();
        // In the order in which they were made; what is not known stands last.
        order.sort_by_key(|owner| owner.map_or(u32::MAX, |mapping| mapping.0));
        let mut regions = vec![Vec::new(); self.passes];
        let mut found = Vec::new();
        for (number, owner) in (0u32..).zip(order) {
            let Some(counts) = self.counts.remove(&owner) else { continue };
            for (of_pass, counted) in regions.iter_mut().zip(&counts.regions) {
                let each = counted.iter().map(|(&offset, &misses)| WhatIfRegion {
                    image: 0,
                    mapping: number,
                    offset,
                    misses,
                });
                of_pass.extend(each);
            }
            found.push(self.mapping(owner, &counts));
        }
        (found, regions)
    }

    fn mapping(&self, owner: Owner, counts: &Counts) -> MappingProfile {
        let shift = self.ask.page_size.shift();
        let grain = Bytes(self.ask.page_size.bytes());
        let end = counts.cells.last_key_value().map_or(0, |(&at, _)| (at + 1) << shift);
        let (key, start, bytes) = match owner {
            None => (MappingKey { kind: MappingKind::Placed, bytes: Bytes(0), nth: 0 }, 0, end),
            Some(mapping) => {
                let made = self.ledger.made(mapping);
                let kind = match &made.key.kind {
                    Kind::Anonymous => MappingKind::Anonymous,
                    Kind::Shared => MappingKind::Shared,
                    Kind::Heap => MappingKind::Heap,
                    Kind::Stack => MappingKind::Stack,
                    Kind::File(path) => MappingKind::File(path.clone()),
                };
                let key = MappingKey { kind, bytes: Bytes(made.key.bytes), nth: made.key.nth };
                (key, made.start, made.bytes)
            }
        };
        let mut cells = Cells::default();
        for (&at, cell) in &counts.cells {
            cells.at.push(at);
            cells.misses.push(cell.misses);
            cells.accesses.push(cell.accesses);
            cells.written.push(u8::from(cell.written));
        }
        let mut reuse = Reuse { line: Bytes(chunk::LINE_PAGES << shift), ..Reuse::default() };
        for (&at, walks) in &counts.lines {
            reuse.at.push(at);
            reuse.counts.push(super::histogram(|bucket| walks[bucket as usize]));
        }
        MappingProfile { key, start, bytes: Bytes(bytes), grain, cells, reuse, unseen: Vec::new() }
    }
}

/// The `number`th number of 32 bits from word `at` on.
fn half(words: &[u64], at: u64, number: u64) -> u64 {
    let bytes = words[(at + number / 2) as usize].to_ne_bytes();
    let (halves, _) = bytes.as_chunks::<4>();
    u64::from(u32::from_ne_bytes(halves[(number % 2) as usize]))
}
