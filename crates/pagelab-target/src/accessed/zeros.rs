//! Memory of an image that was read and never written: all of it is the kernel's page of zeros, whose entries
//! tell nothing of accesses. So a few entries at a time are dropped, while nobody can write there, and those
//! that are back after a while were accessed. Contents are zeros before, between and after.
//!
//! A return is a page fault. Of each region a run of [`RUN_PAGES`] at most is dropped at once, which the
//! kernel flushes page by page (arch/x86/mm/tlb.c, `tlb_single_page_flush_ceiling` is 33).

pub mod eligible;
pub mod reach;
pub mod standing;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use pagelab_model::process::Mapping;
use pagelab_model::seed::SplitMix64;
use pagelab_sys::{clock, pagemap_scan};
use pagelab_tlb::engine::ledger::MappingId;

use super::estimate::{self, Seen};
use super::names::Names;

/// Pages of a region that are dropped at once, at most.
pub const RUN_PAGES: u64 = 32;

/// Less never-written memory is not worth a scan.
pub const LEAST: u64 = 4 << 20;

/// What lies where is listed again after so long, and after so many times as long as that took.
const LISTED_FOR: Duration = Duration::from_secs(1);
const LISTED_TIMES: u32 = 100;

/// The first pause; later ones follow what is found.
const FIRST_PAUSE_NS: u64 = 1_000_000;

/// After a refusal it is tried again so late, and twice as late each time, up to the second.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_MOST: Duration = Duration::from_secs(60);

/// Memory that grows by more than one part of so many makes what was seen before worth little, until so many
/// batches have been looked at.
const GROWTH: u64 = 10;
const BATCHES_KEPT: u64 = 16;

/// One region of never-written memory.
#[derive(Clone, Debug, Default)]
struct Region {
    seen: Seen,
    /// Most pages of zeros that it had.
    pages: u64,
    /// Its number in the address space, by huge pages.
    number: u64,
}

/// Where a region lies: in a mapping whose name holds in the next run, or at an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Offsets in a mapping.
    Named(MappingId, u64, u64),
    /// Addresses.
    At(u64, u64),
}

/// A run that was drawn of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// The addresses to be dropped.
    pub run: Range<u64>,
    /// The region, as far as one mapping goes.
    pub region: Range<u64>,
    /// Pages of zeros in it.
    pub pages: u64,
}

/// What is known of an image's never-written memory.
#[derive(Debug)]
pub struct Zeros {
    regions: BTreeMap<Place, Region>,
    /// Parts of mappings whose entries may be dropped, ascending.
    eligible: Vec<Range<u64>>,
    /// Numbers of regions that are still to be drawn from before each has its turn again.
    pass: Vec<u64>,
    /// In how many listings a region was there.
    there: BTreeMap<u64, u64>,
    listings: u64,
    listed: Option<(Instant, Duration)>,
    draws: SplitMix64,
    pause_ns: u64,
    /// Bytes that may be dropped, at the last listing.
    pub bytes: u64,
    /// The same at most.
    pub most: u64,
    /// Bytes that are kept for a reason, at most.
    pub kept: BTreeMap<&'static str, u64>,
    /// Why nothing was dropped the last time, and when it is tried again.
    refused: Option<(Instant, Duration)>,
    /// Stops of all threads in which entries were dropped.
    pub batches: u64,
    /// Entries that were.
    pub dropped: u64,
    /// Of them, those that were back when it was looked.
    pub returned: u64,
    /// What one run took of a stop the last time.
    pub run_stop: Duration,
}

impl Zeros {
    /// Nothing is known yet; runs are drawn after this seed.
    pub fn new(seed: u64) -> Zeros {
        Zeros {
            regions: BTreeMap::new(),
            eligible: Vec::new(),
            pass: Vec::new(),
            there: BTreeMap::new(),
            listings: 0,
            listed: None,
            draws: SplitMix64::new(seed),
            pause_ns: FIRST_PAUSE_NS,
            bytes: 0,
            most: 0,
            kept: BTreeMap::new(),
            refused: None,
            batches: 0,
            dropped: 0,
            returned: 0,
            run_stop: Duration::from_micros(40),
        }
    }

    /// Whether what lies where is to be listed again.
    pub fn is_stale(&self) -> bool {
        self.listed.is_none_or(|(when, took)| when.elapsed() >= LISTED_FOR.max(took * LISTED_TIMES))
    }

    /// Whether it was refused a short while ago.
    pub fn is_resting(&self) -> bool {
        self.refused.is_some_and(|(when, wait)| when.elapsed() < wait)
    }

    /// It was refused: later, then.
    pub fn rests(&mut self) {
        let wait = self.refused.map_or(AGAIN, |(_, wait)| (wait * 2).min(AGAIN_MOST));
        self.refused = Some((Instant::now(), wait));
    }

    /// Takes in which mappings there are, and lists the never-written parts of those whose entries may be
    /// dropped. A kernel before 6.7 answers `ENOTTY`.
    pub fn list(&mut self, pagemap: &File, mappings: &[Mapping], huge: u64) -> io::Result<()> {
        let begun = Instant::now();
        self.eligible.clear();
        let (mut bytes, mut numbers) = (0u64, BTreeSet::new());
        let mut kept: BTreeMap<&'static str, u64> = BTreeMap::new();
        for mapping in mappings.iter().filter(|mapping| eligible::is_anonymous(mapping)) {
            let addresses = mapping.start..mapping.end;
            let why = eligible::kept(mapping);
            pagemap_scan::zero_base_pages(pagemap, addresses.clone(), |part| {
                let length = part.end.saturating_sub(part.start);
                match why {
                    Some(why) => *kept.entry(why).or_default() += length,
                    None => {
                        bytes += length;
                        numbers.extend(part.start / huge..part.end.div_ceil(huge));
                    }
                }
            })?;
            pagemap_scan::huge_parts(pagemap, addresses.clone(), |part| {
                if part.is_zero {
                    *kept.entry("of the huge page of zeros").or_default() +=
                        part.addresses.end.saturating_sub(part.addresses.start);
                }
            })?;
            if why.is_none() {
                self.eligible.push(addresses);
            }
        }
        for (why, length) in kept {
            let known = self.kept.entry(why).or_default();
            *known = (*known).max(length);
        }
        if self.batches < BATCHES_KEPT && bytes > self.most + self.most / GROWTH {
            // It was still filled.
            self.regions.clear();
            self.there.clear();
            self.listings = 0;
        }
        (self.bytes, self.most) = (bytes, self.most.max(bytes));
        self.listings += 1;
        numbers.iter().for_each(|number| *self.there.entry(*number).or_default() += 1);
        self.pass.retain(|number| numbers.contains(number));
        if self.pass.is_empty() {
            self.pass = numbers.into_iter().collect();
            shuffle(&mut self.pass, &mut self.draws);
        }
        self.listed = Some((Instant::now(), begun.elapsed()));
        Ok(())
    }

    /// Draws a run of each of the next regions, `most` at most; each region has its turn once in a pass.
    pub fn draw(&mut self, pagemap: &File, most: usize, page: u64, huge: u64) -> io::Result<Vec<Drawn>> {
        let mut drawn = Vec::new();
        while drawn.len() < most {
            let Some(number) = self.pass.pop() else { break };
            let region = number.saturating_mul(huge)..number.saturating_add(1).saturating_mul(huge);
            let first = self.eligible.partition_point(|range| range.end <= region.start);
            let within = self.eligible[first..].iter().take_while(|range| range.start < region.end);
            // Of several mappings in one region, one.
            let within: Vec<Range<u64>> =
                within.map(|range| range.start.max(region.start)..range.end.min(region.end)).collect();
            let Some(region) = within.get(self.draws.below(within.len() as u64) as usize) else { continue };
            let mut parts = Vec::new();
            pagemap_scan::zero_base_pages(pagemap, region.clone(), |part| parts.push(part))?;
            if let Some(run) = run(&parts, page, &mut self.draws) {
                let pages = parts.iter().map(|part| (part.end - part.start) / page).sum();
                drawn.push(Drawn { run, region: region.clone(), pages });
            }
        }
        Ok(drawn)
    }

    /// How long after a drop it is looked.
    pub fn pause(&self) -> Duration {
        Duration::from_nanos(self.pause_ns)
    }

    /// Looks what is back of runs that were dropped when the process had so much CPU time; adapts the pause.
    pub fn look(
        &mut self,
        pagemap: &File,
        pid: u32,
        dropped: &[(Drawn, u64)],
        names: &Names,
        (page, huge, most): (u64, u64, Duration),
    ) -> io::Result<()> {
        let mut shares = Vec::new();
        for (drawn, cpu_ns) in dropped {
            let mut back = 0;
            let now_ns = clock::process_cpu_ns(pid)?;
            pagemap_scan::populated(pagemap, drawn.run.clone(), |part| back += part.end - part.start)?;
            let (pages, back) = ((drawn.run.end - drawn.run.start) / page, back / page);
            let region = self.regions.entry(place(drawn, names)).or_default();
            region.seen.add(pages, back, now_ns.saturating_sub(*cpu_ns).max(1));
            region.pages = region.pages.max(drawn.pages);
            region.number = drawn.run.start / huge;
            self.dropped += pages;
            self.returned += back;
            shares.push(back * 1000 / pages.max(1));
        }
        shares.sort_unstable_by(|a, b| b.cmp(a));
        let counted = shares.len().div_ceil(16).max(1).min(shares.len());
        let hottest = shares.iter().take(counted).sum::<u64>() / (counted as u64).max(1);
        let most_ns = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        self.pause_ns = estimate::next_pause_ns(self.pause_ns, hottest, most_ns);
        self.batches += 1;
        self.refused = None;
        Ok(())
    }

    /// (pages, accesses of one in a nanosecond) of each region.
    pub fn rates(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        self.regions.values().map(|region| (region.pages, region.seen.page_rate()))
    }

    /// Each region with its walks in so much time, and how far these may be off; of the part of the time in
    /// which it was there. Translations stay in the TLB for so long.
    pub fn walks(
        &self,
        time_ns: u64,
        residence_ns: Option<f64>,
    ) -> impl Iterator<Item = (&Place, u64, f64)> + '_ {
        self.regions.iter().map(move |(place, region)| {
            let there = self.there.get(&region.number).copied().unwrap_or(0).min(self.listings);
            let part = there as f64 / self.listings.max(1) as f64;
            let rate = region.seen.page_rate();
            let walks = rate * reach::walking(rate, residence_ns) * region.pages as f64;
            (place, (walks * time_ns as f64 * part) as u64, region.seen.error())
        })
    }

    /// The parts of a range of which no region was looked at.
    pub fn unvisited(&self, range: &Range<u64>, huge: u64) -> Vec<Range<u64>> {
        let visited: BTreeSet<u64> = self.regions.values().map(|region| region.number).collect();
        let mut parts: Vec<Range<u64>> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let number = at / huge;
            let next = (number + 1).saturating_mul(huge).min(range.end);
            match parts.last_mut() {
                _ if visited.contains(&number) => {}
                Some(last) if last.end == at => last.end = next,
                _ => parts.push(at..next),
            }
            at = next;
        }
        parts
    }
}

fn place(drawn: &Drawn, names: &Names) -> Place {
    let parts = names.parts(&drawn.region);
    let is_it = |(at, ..): &&(Range<u64>, MappingId, u64)| at.contains(&drawn.run.start);
    match parts.iter().find(is_it) {
        Some((at, mapping, offset)) => Place::Named(*mapping, *offset, offset + (at.end - at.start)),
        None => Place::At(drawn.region.start, drawn.region.end),
    }
}

/// A run around a page that is drawn evenly among those of all parts: what lies in its block of
/// [`RUN_PAGES`], without a gap.
fn run(parts: &[Range<u64>], page: u64, draws: &mut SplitMix64) -> Option<Range<u64>> {
    let pages = |part: &Range<u64>| (part.end - part.start) / page;
    let mut nth = draws.below(parts.iter().map(pages).sum());
    for part in parts {
        if nth < pages(part) {
            let block = RUN_PAGES * page;
            let from = (part.start + nth * page) / block * block;
            return Some(from.max(part.start)..(from + block).min(part.end));
        }
        nth -= pages(part);
    }
    None
}

/// Fisher and Yates.
pub fn shuffle(numbers: &mut [u64], draws: &mut SplitMix64) {
    for at in (1..numbers.len()).rev() {
        numbers.swap(at, draws.below(at as u64 + 1) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 1 << 12;

    #[test]
    fn runs_lie_in_one_block_and_one_part_and_each_page_has_its_turn() {
        let mut draws = SplitMix64::new(3);
        let parts = [10 * PAGE..50 * PAGE, 60 * PAGE..61 * PAGE, 96 * PAGE..200 * PAGE];
        let mut met = BTreeMap::new();
        for _ in 0..20_000 {
            let run = run(&parts, PAGE, &mut draws).unwrap();
            let (from, to) = (run.start / PAGE, run.end / PAGE);
            assert!(from / RUN_PAGES == (to - 1) / RUN_PAGES && from < to, "{run:?}");
            assert!(parts.iter().any(|part| part.start <= run.start && run.end <= part.end), "{run:?}");
            (from..to).for_each(|page| *met.entry(page).or_insert(0u64) += 1);
        }
        assert_eq!(met.len(), 145);
        // As often as a page of its part of a block is drawn: a page alone as often as it is drawn itself.
        let (alone, full) = (met[&60], met[&100]);
        assert!((80..220).contains(&alone) && (3800..5100).contains(&full), "{alone} {full}");
        assert_eq!(run(&[], PAGE, &mut draws), None);
    }

    #[test]
    fn what_was_looked_at_is_seen_and_the_rest_is_told() {
        let huge = 2 << 20;
        let mut zeros = Zeros::new(1);
        for number in [5, 6] {
            let region = Region { number, pages: 512, ..Region::default() };
            zeros.regions.insert(Place::At(number * huge, (number + 1) * huge), region);
        }
        let parts = zeros.unvisited(&(3 * huge + PAGE..9 * huge), huge);
        assert_eq!(parts, [3 * huge + PAGE..5 * huge, 7 * huge..9 * huge]);
    }

    #[test]
    fn a_region_that_came_late_has_its_part_of_the_time() {
        let mut zeros = Zeros::new(1);
        zeros.listings = 4;
        for (number, there) in [(1, 4), (2, 1)] {
            let mut region = Region { number, pages: 512, ..Region::default() };
            (0..100).for_each(|_| region.seen.add(32, 16, 1_000_000));
            zeros.regions.insert(Place::At(number, number + 1), region);
            zeros.there.insert(number, there);
        }
        let walks: Vec<u64> = zeros.walks(1_000_000, Some(0.0)).map(|(_, walks, _)| walks).collect();
        // ln 2 × 512 in a millisecond.
        assert!(walks[0].abs_diff(355) <= 1 && walks[1].abs_diff(89) <= 1, "{walks:?}");
    }
}
