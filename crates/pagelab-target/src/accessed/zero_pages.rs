//! Memory of an image that was read and never written: it maps the kernel's zero page, whose entries have no
//! accessed bits. So a few entries at a time are dropped, while nothing can write there, and those that
//! return were accessed. The contents are zeros at all times.

pub mod rescan;
pub mod run_selection;
pub mod stop_check;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use pagelab_model::process::Mapping;
use pagelab_model::random::SplitMix64;
use pagelab_sys::pagemap_scan;
use pagelab_tlb::engine::mapping_table::MappingId;

use super::budget::MemoryGrowth;
use super::estimate::AccessSamples;
use crate::dontneed::{CpuUsage, TaskClock};
use run_selection::RegionPasses;

/// Less never-written memory is not worth a scan.
pub const ZERO_BYTES_MIN: u64 = 4 << 20;

/// Zero-page ranges are listed again after so long, but not before that part of the program's time, nor so
/// many times as long as the last listing took.
const LISTING_AGE_MIN: Duration = Duration::from_secs(1);
const LISTING_AGE_DIVISOR: u32 = 4;
const LISTING_COST_FACTOR: u32 = 400;

/// If page tables have grown by more than this fraction (1/N), they are listed again after this multiple of
/// the cost of a listing.
const TABLE_GROWTH_DIVISOR: u64 = 12;
const LISTING_COST_FACTOR_GROWN: u32 = 100;

/// Delay before a retry after a refusal; it doubles each time up to the maximum.
const RETRY_DELAY: Duration = Duration::from_millis(500);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);

/// Growth by more than this fraction (1/N) discards earlier samples, until this number of batches was
/// scanned.
const GROWTH_DIVISOR: u64 = 10;
const RESTART_BATCHES_MAX: u64 = 16;

/// Parts that are kept from one listing to the next, at most.
const PARTS_MAX: usize = 1 << 16;

/// Why the huge zero page is not dropped.
const HUGE_ZERO_PAGE: &str = "of the huge zero page";

#[derive(Clone, Debug, Default)]
struct ZeroRegion {
    samples: AccessSamples,
    /// Zero-page entries that it had when it was selected, on average: others do not return.
    mean_pages: u64,
    selections: u64,
    /// Its number in the address space, by huge pages.
    number: u64,
}

impl ZeroRegion {
    /// Records a selection of the region, and the number of its zero-page entries.
    fn record_selection(&mut self, pages: u64) {
        let all = self.mean_pages.saturating_mul(self.selections).saturating_add(pages);
        self.selections += 1;
        self.mean_pages = (all + self.selections / 2) / self.selections;
    }
}

/// Location of a region: in a mapping whose name is stable across runs, or at an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RegionLocation {
    /// Offsets in a mapping.
    InMapping(MappingId, u64, u64),
    /// Addresses.
    AtAddress(u64, u64),
}

#[derive(Clone, Copy, Debug)]
struct ZeroListing {
    time: Instant,
    duration: Duration,
    page_table_bytes: u64,
}

/// The never-written memory of an image.
#[derive(Debug, Default)]
pub struct ZeroPages {
    regions: BTreeMap<RegionLocation, ZeroRegion>,
    /// Parts of mappings whose entries may be dropped, ascending.
    eligible: Vec<Range<u64>>,
    /// Base zero-page ranges in them at the last listing, ascending; `None`: they were too many.
    parts: Option<Vec<Range<u64>>>,
    passes: RegionPasses,
    /// In how many listings a region was there.
    region_listings: BTreeMap<u64, u64>,
    /// Listings since its memory last changed in size.
    pub listings: u64,
    last_listing: Option<ZeroListing>,
    /// Bytes of page tables now, and how they grew: never-written memory is in no other account.
    page_table_bytes: u64,
    growth: MemoryGrowth,
    random: SplitMix64,
    pause_ns: u64,
    /// CPU time of the program as a share of the elapsed time, and the start of the measurement.
    cpu_share: Option<(CpuUsage, f64)>,
    /// Its CPU time between ticks, from the first drop on; `Some(None)`: it is not available.
    task_clock: Option<Option<TaskClock>>,
    /// Bytes that may be dropped, at the last listing.
    pub droppable_bytes: u64,
    /// The same at most.
    pub droppable_max: u64,
    /// Bytes that are kept for a reason, at most.
    pub ineligible_bytes: BTreeMap<&'static str, u64>,
    /// Reason for the last refusal, and the time of the next attempt.
    last_refusal: Option<(Instant, Duration)>,
    /// Stops of all threads in which entries were dropped.
    pub stops: u64,
    pub dropped_entries: u64,
    /// Of them, those that had returned at a scan.
    pub returned_entries: u64,
    /// The time of a run in the last stop.
    pub run_stop_time: Duration,
}

impl ZeroPages {
    /// Without listings; runs are selected at random from this seed.
    pub fn new(seed: u64) -> ZeroPages {
        ZeroPages {
            random: SplitMix64::new(seed),
            pause_ns: rescan::FIRST_PAUSE_NS,
            run_stop_time: Duration::from_micros(40),
            ..ZeroPages::default()
        }
    }

    /// Records the size of its page tables at a point of its time. Returns whether it has stopped growing.
    pub fn check_filled(&mut self, lifetime: Duration, page_table_bytes: u64) -> bool {
        self.page_table_bytes = page_table_bytes;
        let is_filled = self.growth.check_steady(lifetime, page_table_bytes);
        if is_filled {
            self.growth.record_sweep(lifetime);
        }
        is_filled
    }

    /// Whether the mappings are to be listed again at this point of the program's time.
    pub fn is_stale(&self, lifetime: Duration) -> bool {
        let Some(listing) = self.last_listing else { return true };
        let age = listing.time.elapsed();
        let has_grown = self.page_table_bytes.abs_diff(listing.page_table_bytes)
            > listing.page_table_bytes / TABLE_GROWTH_DIVISOR;
        age >= LISTING_AGE_MIN.min(lifetime / LISTING_AGE_DIVISOR).max(listing.duration * LISTING_COST_FACTOR)
            || has_grown && age >= listing.duration * LISTING_COST_FACTOR_GROWN
    }

    /// Whether it was refused a short while ago.
    pub fn is_backing_off(&self) -> bool {
        self.last_refusal.is_some_and(|(when, wait)| when.elapsed() < wait)
    }

    /// It was refused: later, then.
    pub fn back_off(&mut self) {
        let wait = self.last_refusal.map_or(RETRY_DELAY, |(_, wait)| (wait * 2).min(RETRY_DELAY_MAX));
        self.last_refusal = Some((Instant::now(), wait));
    }

    /// Takes in which mappings there are, and lists the never-written parts of those whose entries may be
    /// dropped; `visit_part` hears of all parts. A kernel before 6.7 answers `ENOTTY`.
    pub fn list_zero_ranges(
        &mut self,
        pagemap: &File,
        mappings: &[Mapping],
        huge: u64,
        mut visit_part: impl FnMut(Range<u64>),
    ) -> io::Result<()> {
        let start = Instant::now();
        self.eligible.clear();
        let (mut bytes, mut numbers) = (0u64, BTreeSet::new());
        let mut parts: Option<Vec<Range<u64>>> = Some(Vec::new());
        let mut kept: BTreeMap<&'static str, u64> = BTreeMap::new();
        for mapping in mappings.iter().filter(|mapping| run_selection::is_anonymous(mapping)) {
            let addresses = mapping.start..mapping.end;
            let reason = run_selection::ineligible_reason(mapping);
            pagemap_scan::for_each_zero_range(pagemap, addresses.clone(), |part| {
                let part_range = part.addresses;
                let length = part_range.end.saturating_sub(part_range.start);
                match reason.filter(|_| part.is_base).or(part.is_huge.then_some(HUGE_ZERO_PAGE)) {
                    Some(reason) => *kept.entry(reason).or_default() += length,
                    None if part.is_base => {
                        bytes += length;
                        numbers.extend(part_range.start / huge..part_range.end.div_ceil(huge));
                        parts = parts.take().filter(|parts| parts.len() < PARTS_MAX);
                        parts.iter_mut().for_each(|parts| parts.push(part_range.clone()));
                    }
                    None => {}
                }
                visit_part(part_range);
            })?;
            if reason.is_none() {
                self.eligible.push(addresses);
            }
        }
        for (reason, length) in kept {
            let known = self.ineligible_bytes.entry(reason).or_default();
            *known = (*known).max(length);
        }
        if self.stops < RESTART_BATCHES_MAX
            && bytes > self.droppable_max + self.droppable_max / GROWTH_DIVISOR
        {
            // It was still filled.
            self.regions.clear();
            self.region_listings.clear();
            self.listings = 0;
            self.passes = RegionPasses::default();
        }
        (self.droppable_bytes, self.droppable_max, self.parts) =
            (bytes, self.droppable_max.max(bytes), parts);
        self.listings += 1;
        numbers.iter().for_each(|number| *self.region_listings.entry(*number).or_default() += 1);
        self.passes.set_regions(numbers);
        self.last_listing = Some(ZeroListing {
            time: Instant::now(),
            duration: start.elapsed(),
            page_table_bytes: self.page_table_bytes,
        });
        Ok(())
    }

    /// (pages, accesses of one in a nanosecond) of each region.
    pub fn rates(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        self.regions.values().map(|region| (region.mean_pages, region.samples.page_rate()))
    }

    /// Each region with its walks in so much time, and how far these may be off; of the part of the time in
    /// which it was there. Translations stay in the TLB for so long.
    pub fn estimate_walks(
        &self,
        time_ns: u64,
        residence_ns: Option<f64>,
    ) -> impl Iterator<Item = (&RegionLocation, u64, f64)> + '_ {
        self.regions.iter().map(move |(place, region)| {
            let present = self.region_listings.get(&region.number).copied().unwrap_or(0).min(self.listings);
            let part = present as f64 / self.listings.max(1) as f64;
            let rate = region.samples.page_rate();
            let walks = rate * run_selection::walk_share(rate, residence_ns) * region.mean_pages as f64;
            (place, (walks * time_ns as f64 * part) as u64, region.samples.relative_error())
        })
    }

    /// The parts of a range of which no region was scanned.
    pub fn unscanned_parts(&self, range: &Range<u64>, huge: u64) -> Vec<Range<u64>> {
        let scanned: BTreeSet<u64> = self.regions.values().map(|region| region.number).collect();
        let mut parts: Vec<Range<u64>> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let number = at / huge;
            let next = (number + 1).saturating_mul(huge).min(range.end);
            match parts.last_mut() {
                _ if scanned.contains(&number) => {}
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
    fn parts_without_a_scanned_region_are_listed() {
        let huge = 2 << 20;
        let mut zeros = ZeroPages::new(1);
        for number in [5, 6] {
            let region = ZeroRegion { number, mean_pages: 512, ..ZeroRegion::default() };
            zeros.regions.insert(RegionLocation::AtAddress(number * huge, (number + 1) * huge), region);
        }
        let parts = zeros.unscanned_parts(&(3 * huge + PAGE..9 * huge), huge);
        assert_eq!(parts, [3 * huge + PAGE..5 * huge, 7 * huge..9 * huge]);
    }

    #[test]
    fn a_region_that_came_late_has_its_part_of_the_time() {
        let mut zeros = ZeroPages::new(1);
        zeros.listings = 4;
        for (number, there) in [(1, 4), (2, 1)] {
            let mut region = ZeroRegion { number, mean_pages: 512, ..ZeroRegion::default() };
            (0..100).for_each(|_| region.samples.add_sweep(32, 16, 1_000_000));
            zeros.regions.insert(RegionLocation::AtAddress(number, number + 1), region);
            zeros.region_listings.insert(number, there);
        }
        let walks: Vec<u64> = zeros.estimate_walks(1_000_000, Some(0.0)).map(|(_, walks, _)| walks).collect();
        // ln 2 × 512 in a millisecond.
        assert!(walks[0].abs_diff(355) <= 1 && walks[1].abs_diff(89) <= 1, "{walks:?}");
    }

    /// 512 regions of which 15 are 15 times as hot, one cycle of passes: the 15 come first, and the sum of
    /// the rates is right, though hot regions are scanned more often.
    #[test]
    fn after_one_cycle_the_hot_regions_come_first_and_the_sum_is_right() {
        let (mut right, mut sums) = (0, 0.0);
        for seed in 0..40 {
            let mut zeros = ZeroPages::new(seed);
            let mut random = SplitMix64::new(seed + 1000);
            let rate = |number: u64| if number.is_multiple_of(34) && number < 510 { 15e-6 } else { 1e-6 };
            zeros.passes.set_regions((0..512).collect());
            zeros.listings = 1;
            zeros.region_listings = (0..512).map(|number| (number, 1)).collect();
            for _ in 0..512 + 64 {
                let mut left = zeros.run_pages();
                let number = zeros.passes.remaining.pop().unwrap();
                let region = zeros.regions.entry(RegionLocation::AtAddress(number, number + 1)).or_default();
                (region.mean_pages, region.number) = (512, number);
                // Scans after 70 and 280 µs of CPU time.
                for (lag, is_told) in [(70_000, false), (210_000, true)] {
                    let odds = 1.0 - (-rate(number) * lag as f64).exp();
                    let back = (0..left)
                        .filter(|_| (random.next_below(1 << 52) as f64) < odds * (1u64 << 52) as f64);
                    let back = back.count() as u64;
                    region.samples.add_sweep(left, back, lag);
                    if is_told || back * 4 >= left {
                        break;
                    }
                    left -= back;
                }
            }
            let mut rates: Vec<(u64, u64)> = zeros
                .estimate_walks(1_000_000, Some(0.0))
                .map(|(place, walks, _)| (walks, region_start(place)))
                .collect();
            rates.sort_unstable_by(|a, b| b.cmp(a));
            right += u64::from(rates.iter().take(15).all(|(_, number)| rate(*number) > 2e-6));
            let wanted = 512.0 * (15.0 * 15.0 + 497.0);
            sums += rates.iter().map(|(walks, _)| *walks as f64).sum::<f64>() / wanted / 40.0;
        }
        assert!(right >= 39, "all 15 first in {right} of 40");
        assert!((0.95..1.05).contains(&sums), "{sums} of what is right");
    }

    fn region_start(place: &RegionLocation) -> u64 {
        match place {
            RegionLocation::AtAddress(from, _) | RegionLocation::InMapping(_, from, _) => *from,
        }
    }
}
