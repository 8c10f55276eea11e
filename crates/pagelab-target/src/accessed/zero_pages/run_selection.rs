//! Random selection of the next runs to be dropped: a run of each region in turn, then another one of each
//! region that may be the hottest.
//!
//! Most regions of a program are cold, which one short run shows. The order of the hot ones matters, so each
//! pass over all regions is followed by one over the eighth of them whose rate may be highest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;

use pagelab_model::process::Mapping;
use pagelab_model::random::SplitMix64;
use pagelab_sys::pagemap_scan;

use super::ZeroPages;

/// Pages of a run, at most: in a pass over all regions, and in one over those that may be the hottest.
pub const RUN_PAGES: u64 = 16;
pub const HOTTEST_RUN_PAGES: u64 = 32;

/// One of this many regions has a second turn, if there are more.
const HOTTEST_PART: usize = 8;
const HOTTEST_REGIONS_MIN: usize = 64;

/// The rest of a pass, and the next pass.
#[derive(Clone, Debug, Default)]
pub struct RegionPasses {
    /// Numbers of the regions at the last listing.
    regions: BTreeSet<u64>,
    /// Of them, those that remain in this pass.
    pub(super) remaining: Vec<u64>,
    /// It is one over the regions that may be the hottest.
    is_hottest_pass: bool,
    /// Started passes over all regions.
    full_passes: u64,
}

impl RegionPasses {
    /// There are these regions now.
    pub fn set_regions(&mut self, regions: BTreeSet<u64>) {
        self.remaining.retain(|number| regions.contains(number));
        self.regions = regions;
    }

    /// Pages of a run of this pass, at most.
    pub fn run_pages(&self) -> u64 {
        if self.is_hottest_pass { HOTTEST_RUN_PAGES } else { RUN_PAGES }
    }

    /// Begins the next pass where this one is over; `rates` are the highest that regions may have.
    fn advance(&mut self, rates: &BTreeMap<u64, f64>, random: &mut SplitMix64) {
        if !self.remaining.is_empty() {
            return;
        }
        let is_hottest_pass =
            self.full_passes > 0 && !self.is_hottest_pass && self.regions.len() > HOTTEST_REGIONS_MIN;
        self.remaining = self.regions.iter().copied().collect();
        if is_hottest_pass {
            let rate = |number: &u64| rates.get(number).copied().unwrap_or(0.0);
            self.remaining.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
            self.remaining.truncate(self.regions.len() / HOTTEST_PART);
        } else {
            self.full_passes += 1;
        }
        self.is_hottest_pass = is_hottest_pass;
        random.shuffle(&mut self.remaining);
    }
}

/// A run that was selected at random in a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedRun {
    /// The addresses to be dropped.
    pub run: Range<u64>,
    /// The region, within one mapping.
    pub region: Range<u64>,
    /// Zero pages in it.
    pub pages: u64,
}

impl ZeroPages {
    /// Pages of the next runs, at most.
    pub fn run_pages(&mut self) -> u64 {
        self.advance_pass();
        self.passes.run_pages()
    }

    fn advance_pass(&mut self) {
        let mut rates: BTreeMap<u64, f64> = BTreeMap::new();
        if self.passes.remaining.is_empty() {
            for region in self.regions.values() {
                let (rate, error) = (region.samples.page_rate(), region.samples.relative_error());
                let rate_max = if error.is_finite() { rate * (1.0 + error) } else { rate };
                let known = rates.entry(region.number).or_default();
                *known = known.max(rate_max);
            }
        }
        self.passes.advance(&rates, &mut self.random);
    }

    /// Selects a run at random in each of the next regions of a pass, `runs_max` at most.
    pub fn select_runs(
        &mut self,
        pagemap: &File,
        runs_max: usize,
        page: u64,
        huge: u64,
    ) -> io::Result<Vec<SelectedRun>> {
        self.advance_pass();
        let (mut selected, run_pages) = (Vec::new(), self.passes.run_pages());
        while selected.len() < runs_max {
            let Some(number) = self.passes.remaining.pop() else { break };
            let region = number.saturating_mul(huge)..number.saturating_add(1).saturating_mul(huge);
            let first = self.eligible.partition_point(|range| range.end <= region.start);
            let ranges = self.eligible[first..].iter().take_while(|range| range.start < region.end);
            // Of several mappings in one region, one.
            let ranges: Vec<Range<u64>> =
                ranges.map(|range| range.start.max(region.start)..range.end.min(region.end)).collect();
            let Some(region) = ranges.get(self.random.next_below(ranges.len() as u64) as usize) else {
                continue;
            };
            let parts = self.zero_parts_in(pagemap, region)?;
            if let Some(run) = random_run(&parts, page, run_pages, &mut self.random) {
                let pages = parts.iter().map(|part| (part.end - part.start) / page).sum();
                selected.push(SelectedRun { run, region: region.clone(), pages });
            }
        }
        Ok(selected)
    }
}

impl ZeroPages {
    /// Where base zero pages are in a region: as they were listed, which costs nothing, or as they are
    /// now. What is no zero page any more is left alone when its turn comes.
    fn zero_parts_in(&self, pagemap: &File, region: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let mut parts = Vec::new();
        match &self.parts {
            Some(listed) => {
                let first = listed.partition_point(|part| part.end <= region.start);
                let within = listed[first..].iter().take_while(|part| part.start < region.end);
                parts.extend(within.map(|part| part.start.max(region.start)..part.end.min(region.end)));
            }
            None => pagemap_scan::for_each_zero_base_range(pagemap, region.clone(), |part| parts.push(part))?,
        }
        Ok(parts)
    }
}

/// A run around a uniformly random page of all parts: the contiguous pages in its block of the given size.
fn random_run(
    parts: &[Range<u64>],
    page: u64,
    run_pages: u64,
    random: &mut SplitMix64,
) -> Option<Range<u64>> {
    let pages = |part: &Range<u64>| (part.end - part.start) / page;
    let mut nth = random.next_below(parts.iter().map(pages).sum());
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

/// Flags (`VmFlags` of smaps) of mappings whose entries are not dropped, and their meanings.
const INELIGIBLE_FLAGS: [(&str, &str); 10] = [
    ("lo", "locked in memory (mlock)"),
    ("um", "watched by a userfaultfd"),
    ("uw", "watched by a userfaultfd"),
    ("ui", "watched by a userfaultfd"),
    ("ht", "of the hugetlb pool"),
    ("io", "a device's"),
    ("pf", "a device's"),
    ("mm", "a device's"),
    ("gd", "a growing stack"),
    ("ss", "a shadow stack"),
];

/// Whether this is memory that a program had from the kernel for itself, and not a file's.
pub fn is_anonymous(mapping: &Mapping) -> bool {
    is_private_name(&mapping.name) && mapping.inode == 0 && mapping.permissions.ends_with('p')
}

/// The same by the name alone: it has none, is the heap, or was named by the program (PR_SET_VMA_ANON_NAME,
/// 5.17).
pub fn is_private_name(name: &str) -> bool {
    name.is_empty() || name == "[heap]" || name.starts_with("[anon:")
}

/// Why entries of a mapping stay. `None`: they may be dropped.
pub fn ineligible_reason(mapping: &Mapping) -> Option<&'static str> {
    if mapping.vm_flags.is_empty() {
        return Some("whose flags the kernel does not report");
    }
    let has_flag = |flag: &str| mapping.vm_flags.iter().any(|of| of == flag);
    INELIGIBLE_FLAGS.iter().find(|(flag, _)| has_flag(flag)).map(|(_, why)| *why)
}

// A returned page was accessed; an access whose translation is in the TLB needs no walk. In a
// cache of C entries with LRU, whose pages are accessed independently at the rates λ_i, a page stays for the
// time T after each access, with Σ (1 − exp(−λ_i·T)) = C; so of its accesses the part exp(−λ_i·T) walks
// (Che, Tung and Wang, "Hierarchical Web Caching Systems", IEEE JSAC 20(7), 2002). Processors of a program
// that share its accesses evenly have the same part each.

/// Halvings of the interval that contains the time.
const BISECTION_STEPS: u32 = 80;

/// Time for which a translation stays in a TLB of `entries` entries, for groups of (pages, accesses of one
/// page per nanosecond). `None`: all pages fit, and stay for good.
pub fn residence_ns(groups: &[(u64, f64)], entries: u64) -> Option<f64> {
    let used_groups = || groups.iter().filter(|(pages, rate)| *pages > 0 && *rate > 0.0);
    let pages: u64 = used_groups().map(|(pages, _)| pages).sum();
    if pages <= entries {
        return None;
    }
    let expected_entries =
        |time: f64| used_groups().map(|(pages, rate)| *pages as f64 * -(-rate * time).exp_m1()).sum::<f64>();
    let fastest = used_groups().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let slowest = used_groups().map(|(_, rate)| *rate).fold(f64::INFINITY, f64::min);
    // 1 − exp(−x) is at most x, and above 1 − 1/pages where x is ln(pages).
    let (mut low, mut high) =
        (entries as f64 / (pages as f64 * fastest) / 2.0, (pages as f64).ln().max(1.0) * 2.0 / slowest);
    for _ in 0..BISECTION_STEPS {
        let middle = (low * high).sqrt();
        if expected_entries(middle) > entries as f64 { high = middle } else { low = middle }
    }
    Some((low * high).sqrt())
}

/// The part of the accesses of a page that walk, at this rate.
pub fn walk_share(rate: f64, residence_ns: Option<f64>) -> f64 {
    residence_ns.map_or(0.0, |time| (-rate * time).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_formats::smaps;
    use pagelab_model::random::SplitMix64;
    use std::collections::{BTreeMap, HashMap};

    const PAGE: u64 = 1 << 12;

    #[test]
    fn runs_lie_in_one_block_and_one_part_and_each_page_has_its_turn() {
        const RUN: u64 = 32;
        let mut random = SplitMix64::new(3);
        let parts = [10 * PAGE..50 * PAGE, 60 * PAGE..61 * PAGE, 96 * PAGE..200 * PAGE];
        let mut met = BTreeMap::new();
        for _ in 0..20_000 {
            let run = random_run(&parts, PAGE, RUN, &mut random).unwrap();
            let (from, to) = (run.start / PAGE, run.end / PAGE);
            assert!(from / RUN == (to - 1) / RUN && from < to, "{run:?}");
            assert!(parts.iter().any(|part| part.start <= run.start && run.end <= part.end), "{run:?}");
            (from..to).for_each(|page| *met.entry(page).or_insert(0u64) += 1);
        }
        assert_eq!(met.len(), 145);
        // As often as a page of its part of a block is selected: a single page as often as itself.
        let (alone, full) = (met[&60], met[&100]);
        assert!((80..220).contains(&alone) && (3800..5100).contains(&full), "{alone} {full}");
        assert_eq!(random_run(&[], PAGE, RUN, &mut random), None);
    }

    #[test]
    fn each_region_has_its_turn_and_then_those_that_may_be_the_hottest() {
        let (mut passes, mut random) = (RegionPasses::default(), SplitMix64::new(5));
        let rates: BTreeMap<u64, f64> = (0..512).map(|number| (number, (number % 97) as f64)).collect();
        let mut take = |passes: &mut RegionPasses, count: usize| {
            let mut taken = BTreeSet::new();
            for _ in 0..count {
                passes.advance(&rates, &mut random);
                taken.extend(passes.remaining.pop());
            }
            taken
        };
        passes.set_regions((0..512).collect());
        for begun in 1..4 {
            assert_eq!(take(&mut passes, 512), (0..512).collect(), "{begun}");
            assert_eq!((passes.full_passes, passes.run_pages()), (begun, 16));
            let hottest = take(&mut passes, 64);
            assert_eq!(passes.run_pages(), 32);
            // Numbers 96, 193, 290, … have the highest rate.
            assert!(hottest.len() == 64 && hottest.iter().all(|number| number % 97 >= 84), "{hottest:?}");
        }
        // Of few regions all have their turn again.
        let mut few = RegionPasses::default();
        few.set_regions((0..64).collect());
        take(&mut few, 64);
        assert!(take(&mut few, 64).len() == 64 && few.full_passes == 2);
    }

    #[test]
    fn each_flag_that_forbids_it_is_met_and_nothing_but_own_memory_is_anonymous() {
        let one = |head: &str, flags: &str| {
            let text = format!("1000-2000 {head}\nRss: 0 kB\nVmFlags: {flags}\n");
            smaps::parse(text.as_bytes()).unwrap().remove(0)
        };
        let own = "rw-p 00000000 00:00 0 ";
        assert_eq!(ineligible_reason(&one(own, "rd wr mr mw me ac sd nh")), None);
        for (flag, why) in INELIGIBLE_FLAGS {
            assert_eq!(ineligible_reason(&one(own, &format!("rd wr {flag} ac"))), Some(why), "{flag}");
        }
        assert!(ineligible_reason(&one(own, "")).is_some());
        for head in [own, "rw-p 00000000 00:00 0 [heap]", "rw-p 00000000 00:00 0 [anon:arena]"] {
            assert!(is_anonymous(&one(head, "rd")), "{head}");
        }
        for head in [
            "rw-s 00000000 00:01 77 /dev/zero (deleted)",
            "rw-p 00000000 00:05 5 /dev/zero",
            "rw-p 00000000 08:01 99 /lib/libc.so.6",
            "rw-p 00000000 00:00 0 [stack]",
        ] {
            assert!(!is_anonymous(&one(head, "rd")), "{head}");
        }
    }

    /// Misses of each group by a plain LRU cache under random accesses: (all, missed).
    fn simulate_misses(groups: &[(u64, f64)], entries: usize, accesses: u64) -> Vec<(u64, u64)> {
        let mut random = SplitMix64::new(11);
        let weights: Vec<f64> = groups.iter().map(|(pages, rate)| *pages as f64 * rate).collect();
        let all: f64 = weights.iter().sum();
        let (mut by_time, mut by_page) = (BTreeMap::new(), HashMap::new());
        let mut counts = vec![(0, 0); groups.len()];
        for now in 0..accesses {
            let mut left = random.next_below(1 << 52) as f64 / (1u64 << 52) as f64 * all;
            let group = weights
                .iter()
                .position(|weight| {
                    left -= weight;
                    left < 0.0
                })
                .unwrap_or(0);
            let page = (group, random.next_below(groups[group].0));
            let is_counted = now > accesses / 4;
            counts[group].0 += u64::from(is_counted);
            match by_page.insert(page, now) {
                Some(before) => drop(by_time.remove(&before)),
                None => {
                    counts[group].1 += u64::from(is_counted);
                    if by_page.len() > entries
                        && let Some((_, oldest)) = by_time.pop_first()
                    {
                        by_page.remove(&oldest);
                    }
                }
            }
            by_time.insert(now, page);
        }
        counts
    }

    #[test]
    fn the_part_that_walks_is_that_of_an_lru_cache() {
        for groups in [
            vec![(1000, 3e-3), (20_000, 2e-4)],
            vec![(100, 0.1), (3000, 1e-3), (9000, 1e-4)],
            vec![(5000, 1e-6)],
        ] {
            let time = residence_ns(&groups, 1024);
            for ((pages, rate), (all, missed)) in groups.iter().zip(simulate_misses(&groups, 1024, 150_000)) {
                let (found, wanted) = (walk_share(*rate, time), missed as f64 / all as f64);
                assert!((found - wanted).abs() < 0.03, "{pages} pages: {found} is not {wanted}");
            }
        }
    }

    #[test]
    fn what_fits_never_walks_and_nothing_is_nothing() {
        assert_eq!(residence_ns(&[(1000, 1e-3), (5000, 0.0)], 1024), None);
        assert_eq!(residence_ns(&[], 1024), None);
        assert!(walk_share(1e-3, None) < f64::EPSILON);
        assert!((walk_share(0.0, Some(5.0)) - 1.0).abs() < f64::EPSILON);
    }
}
