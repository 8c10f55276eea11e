//! Memory of an image that was read and never written: all of it is the kernel's page of zeros, whose entries
//! tell nothing of accesses. So a few entries at a time are dropped, while nobody can write there, and those
//! that are back after a while were accessed. Contents are zeros before, between and after.

pub mod eligible;
pub mod looks;
pub mod passes;
pub mod reach;
pub mod standing;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use pagelab_model::process::Mapping;
use pagelab_model::seed::SplitMix64;
use pagelab_sys::pagemap_scan;
use pagelab_tlb::engine::ledger::MappingId;

use super::budget::Growth;
use super::estimate::Seen;
use crate::drops::{TaskClock, Used};
use passes::Passes;

/// Less never-written memory is not worth a scan.
pub const LEAST: u64 = 4 << 20;

/// What lies where is listed again after so long, but not before that part of the program's time, nor so many
/// times as long as the last listing took.
const LISTED_FOR: Duration = Duration::from_secs(1);
const LISTED_PART: u32 = 4;
const LISTED_TIMES: u32 = 400;

/// Where page tables have grown by more than one part of so many, it is listed again after so many times.
const TABLES_GREW: u64 = 12;
const LISTED_TIMES_GROWN: u32 = 100;

/// After a refusal it is tried again so late, and twice as late each time, up to the second.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_MOST: Duration = Duration::from_secs(60);

/// Memory that grows by more than one part of so many makes what was seen before worth little, until so many
/// batches have been looked at.
const GROWTH: u64 = 10;
const BATCHES_KEPT: u64 = 16;

/// Parts that are kept from one listing to the next, at most.
const PARTS_MOST: usize = 1 << 16;

/// Why the huge page of zeros is left alone.
const OF_HUGE_PAGE: &str = "of the huge page of zeros";

/// One region of never-written memory.
#[derive(Clone, Debug, Default)]
struct Region {
    seen: Seen,
    /// Pages of zeros that it had when it was drawn from, on average: what does not come back is none.
    pages: u64,
    /// How often that was.
    draws: u64,
    /// Its number in the address space, by huge pages.
    number: u64,
}

impl Region {
    /// It was drawn from, and had so many pages of zeros.
    fn had(&mut self, pages: u64) {
        let all = self.pages.saturating_mul(self.draws).saturating_add(pages);
        self.draws += 1;
        self.pages = (all + self.draws / 2) / self.draws;
    }
}

/// Where a region lies: in a mapping whose name holds in the next run, or at an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Offsets in a mapping.
    Named(MappingId, u64, u64),
    /// Addresses.
    At(u64, u64),
}

/// When what lies where was listed.
#[derive(Clone, Copy, Debug)]
struct Listed {
    at: Instant,
    took: Duration,
    /// Bytes of page tables then.
    tables: u64,
}

/// What is known of an image's never-written memory.
#[derive(Debug)]
pub struct Zeros {
    regions: BTreeMap<Place, Region>,
    /// Parts of mappings whose entries may be dropped, ascending.
    eligible: Vec<Range<u64>>,
    /// Base pages of zeros in them at the last listing, ascending; `None`: they were too many to be kept.
    parts: Option<Vec<Range<u64>>>,
    passes: Passes,
    /// In how many listings a region was there.
    there: BTreeMap<u64, u64>,
    listings: u64,
    listed: Option<Listed>,
    /// Bytes of page tables now, and how they grew: never-written memory is in no other account.
    tables: u64,
    growth: Growth,
    draws: SplitMix64,
    pause_ns: u64,
    /// What part of the time the program's CPU time was, and from when on.
    usual: Option<(Used, f64)>,
    /// Its CPU time between ticks, from the first drop on; `Some(None)`: it cannot be had.
    task_clock: Option<Option<TaskClock>>,
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
            parts: None,
            passes: Passes::default(),
            there: BTreeMap::new(),
            listings: 0,
            listed: None,
            tables: 0,
            growth: Growth::default(),
            draws: SplitMix64::new(seed),
            pause_ns: looks::FIRST_PAUSE_NS,
            usual: None,
            task_clock: None,
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

    /// It has so many bytes of page tables after so much of its time: whether it is filled by now.
    pub fn is_filled(&mut self, lived: Duration, tables: u64) -> bool {
        self.tables = tables;
        let is_filled = self.growth.is_over(lived, tables);
        if is_filled {
            self.growth.sweeps(lived);
        }
        is_filled
    }

    /// Whether what lies where is to be listed again, after so much of the program's time.
    pub fn is_stale(&self, lived: Duration) -> bool {
        let Some(listed) = self.listed else { return true };
        let age = listed.at.elapsed();
        let has_grown = self.tables.abs_diff(listed.tables) > listed.tables / TABLES_GREW;
        age >= LISTED_FOR.min(lived / LISTED_PART).max(listed.took * LISTED_TIMES)
            || has_grown && age >= listed.took * LISTED_TIMES_GROWN
    }

    /// How often it was listed since its memory is as large as it is.
    pub fn listings(&self) -> u64 {
        self.listings
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
    /// dropped; `told` hears of all parts. A kernel before 6.7 answers `ENOTTY`.
    pub fn list(
        &mut self,
        pagemap: &File,
        mappings: &[Mapping],
        huge: u64,
        mut told: impl FnMut(Range<u64>),
    ) -> io::Result<()> {
        let begun = Instant::now();
        self.eligible.clear();
        let (mut bytes, mut numbers) = (0u64, BTreeSet::new());
        let mut parts: Option<Vec<Range<u64>>> = Some(Vec::new());
        let mut kept: BTreeMap<&'static str, u64> = BTreeMap::new();
        for mapping in mappings.iter().filter(|mapping| eligible::is_anonymous(mapping)) {
            let addresses = mapping.start..mapping.end;
            let why = eligible::kept(mapping);
            pagemap_scan::zero_parts(pagemap, addresses.clone(), |part| {
                let at = part.addresses;
                let length = at.end.saturating_sub(at.start);
                match why.filter(|_| part.is_base).or(part.is_huge.then_some(OF_HUGE_PAGE)) {
                    Some(why) => *kept.entry(why).or_default() += length,
                    None if part.is_base => {
                        bytes += length;
                        numbers.extend(at.start / huge..at.end.div_ceil(huge));
                        parts = parts.take().filter(|parts| parts.len() < PARTS_MOST);
                        parts.iter_mut().for_each(|parts| parts.push(at.clone()));
                    }
                    None => {}
                }
                told(at);
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
            self.passes = Passes::default();
        }
        (self.bytes, self.most, self.parts) = (bytes, self.most.max(bytes), parts);
        self.listings += 1;
        numbers.iter().for_each(|number| *self.there.entry(*number).or_default() += 1);
        self.passes.have(numbers);
        self.listed = Some(Listed { at: Instant::now(), took: begun.elapsed(), tables: self.tables });
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

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 1 << 12;

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

    /// 512 regions of which 15 are 15 times as hot, one cycle of passes: the 15 come first, and the sum of
    /// the rates is right, though who looks hottest is looked at more.
    #[test]
    fn after_one_cycle_the_hot_regions_come_first_and_the_sum_is_right() {
        let (mut right, mut sums) = (0, 0.0);
        for seed in 0..40 {
            let mut zeros = Zeros::new(seed);
            let mut draws = SplitMix64::new(seed + 1000);
            let rate = |number: u64| if number.is_multiple_of(34) && number < 510 { 15e-6 } else { 1e-6 };
            zeros.passes.have((0..512).collect());
            zeros.listings = 1;
            zeros.there = (0..512).map(|number| (number, 1)).collect();
            for _ in 0..512 + 64 {
                let mut left = zeros.run_pages();
                let number = zeros.passes.next().unwrap();
                let region = zeros.regions.entry(Place::At(number, number + 1)).or_default();
                (region.pages, region.number) = (512, number);
                // Looks after 70 and 280 µs of CPU time.
                for (lag, is_told) in [(70_000, false), (210_000, true)] {
                    let odds = 1.0 - (-rate(number) * lag as f64).exp();
                    let back =
                        (0..left).filter(|_| (draws.below(1 << 52) as f64) < odds * (1u64 << 52) as f64);
                    let back = back.count() as u64;
                    region.seen.add(left, back, lag);
                    if is_told || back * 4 >= left {
                        break;
                    }
                    left -= back;
                }
            }
            let mut rates: Vec<(u64, u64)> =
                zeros.walks(1_000_000, Some(0.0)).map(|(place, walks, _)| (walks, at(place))).collect();
            rates.sort_unstable_by(|a, b| b.cmp(a));
            right += u64::from(rates.iter().take(15).all(|(_, number)| rate(*number) > 2e-6));
            let wanted = 512.0 * (15.0 * 15.0 + 497.0);
            sums += rates.iter().map(|(walks, _)| *walks as f64).sum::<f64>() / wanted / 40.0;
        }
        assert!(right >= 39, "all 15 first in {right} of 40");
        assert!((0.95..1.05).contains(&sums), "{sums} of what is right");
    }

    fn at(place: &Place) -> u64 {
        match place {
            Place::At(from, _) | Place::Named(_, from, _) => *from,
        }
    }
}
