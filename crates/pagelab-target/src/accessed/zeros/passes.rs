//! Which entries are dropped next: a run of each region in turn, and then one more of the regions that may be
//! the hottest.
//!
//! Most regions of a program are cold, which one short run tells. What matters is the order of the hot ones,
//! so after each pass over all regions follows one over the eighth of them whose rate may be highest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;

use pagelab_model::seed::SplitMix64;
use pagelab_sys::pagemap_scan;

use super::Zeros;

/// Pages of a run, at most: in a pass over all regions, and in one over those that may be the hottest.
pub const RUN_OF_ALL: u64 = 16;
pub const RUN_OF_HOTTEST: u64 = 32;

/// Of so many regions one has a second turn, where there are more than so many.
const HOTTEST_PART: usize = 8;
const HOTTEST_FROM: usize = 64;

/// What is left of a pass, and what the next one is.
#[derive(Clone, Debug, Default)]
pub struct Passes {
    /// Numbers of the regions at the last listing.
    numbers: BTreeSet<u64>,
    /// Of them, those that are still to be drawn from in this pass.
    left: Vec<u64>,
    /// It is one over the regions that may be the hottest.
    is_of_hottest: bool,
    /// Passes over all regions that were begun.
    begun: u64,
}

impl Passes {
    /// There are these regions now.
    pub fn have(&mut self, numbers: BTreeSet<u64>) {
        self.left.retain(|number| numbers.contains(number));
        self.numbers = numbers;
    }

    /// Pages of a run of this pass, at most.
    pub fn run_pages(&self) -> u64 {
        if self.is_of_hottest { RUN_OF_HOTTEST } else { RUN_OF_ALL }
    }

    /// The next region of this pass.
    pub fn next(&mut self) -> Option<u64> {
        self.left.pop()
    }

    /// Begins the next pass where this one is over; `rates` are the highest that regions may have.
    fn go_on(&mut self, rates: &BTreeMap<u64, f64>, draws: &mut SplitMix64) {
        if !self.left.is_empty() {
            return;
        }
        let is_of_hottest = self.begun > 0 && !self.is_of_hottest && self.numbers.len() > HOTTEST_FROM;
        self.left = self.numbers.iter().copied().collect();
        if is_of_hottest {
            let rate = |number: &u64| rates.get(number).copied().unwrap_or(0.0);
            self.left.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
            self.left.truncate(self.numbers.len() / HOTTEST_PART);
        } else {
            self.begun += 1;
        }
        self.is_of_hottest = is_of_hottest;
        shuffle(&mut self.left, draws);
    }
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

impl Zeros {
    /// Pages of the runs that are drawn next, at most.
    pub fn run_pages(&mut self) -> u64 {
        self.go_on();
        self.passes.run_pages()
    }

    fn go_on(&mut self) {
        let mut rates: BTreeMap<u64, f64> = BTreeMap::new();
        if self.passes.left.is_empty() {
            for region in self.regions.values() {
                let (rate, error) = (region.seen.page_rate(), region.seen.error());
                let most = if error.is_finite() { rate * (1.0 + error) } else { rate };
                let known = rates.entry(region.number).or_default();
                *known = known.max(most);
            }
        }
        self.passes.go_on(&rates, &mut self.draws);
    }

    /// Draws a run of each of the next regions of a pass, `most` at most.
    pub fn draw(&mut self, pagemap: &File, most: usize, page: u64, huge: u64) -> io::Result<Vec<Drawn>> {
        self.go_on();
        let (mut drawn, run_pages) = (Vec::new(), self.passes.run_pages());
        while drawn.len() < most {
            let Some(number) = self.passes.next() else { break };
            let region = number.saturating_mul(huge)..number.saturating_add(1).saturating_mul(huge);
            let first = self.eligible.partition_point(|range| range.end <= region.start);
            let within = self.eligible[first..].iter().take_while(|range| range.start < region.end);
            // Of several mappings in one region, one.
            let within: Vec<Range<u64>> =
                within.map(|range| range.start.max(region.start)..range.end.min(region.end)).collect();
            let Some(region) = within.get(self.draws.below(within.len() as u64) as usize) else { continue };
            let parts = self.parts_in(pagemap, region)?;
            if let Some(run) = run(&parts, page, run_pages, &mut self.draws) {
                let pages = parts.iter().map(|part| (part.end - part.start) / page).sum();
                drawn.push(Drawn { run, region: region.clone(), pages });
            }
        }
        Ok(drawn)
    }
}

impl Zeros {
    /// Where base pages of zeros are in a region: as they were listed, which costs nothing, or as they are
    /// now. What is no page of zeros any more is left alone when its turn comes.
    fn parts_in(&self, pagemap: &File, region: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let mut parts = Vec::new();
        match &self.parts {
            Some(listed) => {
                let first = listed.partition_point(|part| part.end <= region.start);
                let within = listed[first..].iter().take_while(|part| part.start < region.end);
                parts.extend(within.map(|part| part.start.max(region.start)..part.end.min(region.end)));
            }
            None => pagemap_scan::zero_base_pages(pagemap, region.clone(), |part| parts.push(part))?,
        }
        Ok(parts)
    }
}

/// A run around a page that is drawn evenly among those of all parts: what lies in its block of so many
/// pages, without a gap.
fn run(parts: &[Range<u64>], page: u64, run_pages: u64, draws: &mut SplitMix64) -> Option<Range<u64>> {
    let pages = |part: &Range<u64>| (part.end - part.start) / page;
    let mut nth = draws.below(parts.iter().map(pages).sum());
    for part in parts {
        if nth < pages(part) {
            let block = run_pages * page;
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
        const RUN: u64 = 32;
        let mut draws = SplitMix64::new(3);
        let parts = [10 * PAGE..50 * PAGE, 60 * PAGE..61 * PAGE, 96 * PAGE..200 * PAGE];
        let mut met = BTreeMap::new();
        for _ in 0..20_000 {
            let run = run(&parts, PAGE, RUN, &mut draws).unwrap();
            let (from, to) = (run.start / PAGE, run.end / PAGE);
            assert!(from / RUN == (to - 1) / RUN && from < to, "{run:?}");
            assert!(parts.iter().any(|part| part.start <= run.start && run.end <= part.end), "{run:?}");
            (from..to).for_each(|page| *met.entry(page).or_insert(0u64) += 1);
        }
        assert_eq!(met.len(), 145);
        // As often as a page of its part of a block is drawn: a page alone as often as it is drawn itself.
        let (alone, full) = (met[&60], met[&100]);
        assert!((80..220).contains(&alone) && (3800..5100).contains(&full), "{alone} {full}");
        assert_eq!(run(&[], PAGE, RUN, &mut draws), None);
    }

    #[test]
    fn each_region_has_its_turn_and_then_those_that_may_be_the_hottest() {
        let (mut passes, mut draws) = (Passes::default(), SplitMix64::new(5));
        let rates: BTreeMap<u64, f64> = (0..512).map(|number| (number, (number % 97) as f64)).collect();
        let mut take = |passes: &mut Passes, count: usize| {
            let mut taken = BTreeSet::new();
            for _ in 0..count {
                passes.go_on(&rates, &mut draws);
                taken.extend(passes.next());
            }
            taken
        };
        passes.have((0..512).collect());
        for begun in 1..4 {
            assert_eq!(take(&mut passes, 512), (0..512).collect(), "{begun}");
            assert_eq!((passes.begun, passes.run_pages()), (begun, 16));
            let hottest = take(&mut passes, 64);
            assert_eq!(passes.run_pages(), 32);
            // Numbers 96, 193, 290, … have the highest rate.
            assert!(hottest.len() == 64 && hottest.iter().all(|number| number % 97 >= 84), "{hottest:?}");
        }
        // Of few regions all have their turn again.
        let mut few = Passes::default();
        few.have((0..64).collect());
        take(&mut few, 64);
        assert!(take(&mut few, 64).len() == 64 && few.begun == 2);
    }
}
