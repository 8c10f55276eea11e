//! Ranks of the hottest regions whose order follows from the counts, and those whose order does not.
//!
//! A boundary between two ranks is known if the 95 % interval of every region before it is above that of
//! every region after it. The regions between two such boundaries are known as a set, and their order is not.

use std::cmp::Reverse;

use super::estimate::bound_error;

/// The hottest regions: one of this many, and some more.
const HOTTEST_PART: usize = 10;
const HOTTEST_MIN: usize = 8;

/// Standard errors on each side of a rate, for 95 %.
const Z_95: f64 = 1.96;

/// Ranges of ranks without a known order, at most, that a note lists.
const RANGES_MAX: usize = 3;

/// Ranks of the hottest regions without a known order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UncertainRanks {
    /// First and last rank of each set, from 1, ascending: a region more may be in the last.
    ranges: Vec<(usize, usize)>,
    /// The number of regions.
    regions: usize,
    /// Whether the hottest regions are known as a set, though in no order.
    is_set_known: bool,
}

impl UncertainRanks {
    /// Finds them from the walks of each region and the relative standard error of these.
    pub fn from_regions(regions: impl Iterator<Item = (u64, f64)>) -> UncertainRanks {
        let mut regions: Vec<(u64, f64)> = regions.filter(|(walks, _)| *walks > 0).collect();
        regions.sort_by_key(|(walks, _)| Reverse(*walks));
        let count = regions.len();
        let hottest = (count / HOTTEST_PART).max(HOTTEST_MIN).min(count);
        let end_is_known = find_boundaries(&regions);
        let (mut ranges, mut first, mut hottest_end) = (Vec::new(), 1, 0);
        for (at, _) in end_is_known.iter().enumerate().filter(|(_, is_known)| **is_known) {
            let last = at + 1;
            if first > hottest {
                break;
            }
            ranges.extend((last > first).then_some((first, last)));
            (first, hottest_end) = (last + 1, last);
        }
        // A set of most regions says little of the hottest ones.
        let is_set_known = hottest_end <= hottest.max(count / 2) && hottest_end < count;
        UncertainRanks { ranges, regions: count, is_set_known }
    }

    /// The sentence for the reader; `None` if the order is known. `exact_hint` is the way to a source that
    /// sees every access.
    pub fn describe(&self, exact_hint: &str) -> Option<String> {
        let (&(first, last), rest) = self.ranges.split_first()?;
        if self.is_set_known && first == 1 && rest.is_empty() {
            return Some(format!(
                "the order among the first {last} regions is not known; that they come before the others is"
            ));
        }
        let ranks = list_ranges(&self.ranges);
        Some(match self.is_set_known {
            true => format!(
                "the order of the regions of ranks {ranks} is not known; that they come before all later \
                 ones is"
            ),
            false => format!(
                "the order of the regions of ranks {ranks} (of {}) is not known: their rates differ by less \
                 than their errors; hint: use a longer run, a larger --duty, or {exact_hint}",
                self.regions
            ),
        })
    }
}

/// Ranges as in `1 to 2, 3 to 14 and 20 to 30`.
fn list_ranges(ranges: &[(usize, usize)]) -> String {
    let shown = ranges.iter().take(RANGES_MAX);
    let mut items: Vec<String> = shown.map(|(first, last)| format!("{first} to {last}")).collect();
    if ranges.len() > RANGES_MAX {
        items.push("some later ones".to_owned());
    }
    match items.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => items.concat(),
    }
}

/// For each rank, whether all regions up to it are known to be hotter than all after it. Regions in
/// descending order.
fn find_boundaries(regions: &[(u64, f64)]) -> Vec<bool> {
    let bounds = |&(walks, error): &(u64, f64)| {
        let error = bound_error(error);
        let logarithm = (walks as f64).ln();
        (logarithm - Z_95 * error, logarithm + Z_95 * error)
    };
    let bounds: Vec<(f64, f64)> = regions.iter().map(bounds).collect();
    let mut highest_after = f64::NEG_INFINITY;
    let mut highest: Vec<f64> = Vec::with_capacity(bounds.len());
    for (_, high) in bounds.iter().rev() {
        highest.push(highest_after);
        highest_after = highest_after.max(*high);
    }
    highest.reverse();
    let mut lowest = f64::INFINITY;
    let is_above = |((low, _), highest): (&(f64, f64), f64)| {
        lowest = lowest.min(*low);
        lowest > highest
    };
    bounds.iter().zip(highest).map(is_above).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(regions: &[(u64, f64)]) -> UncertainRanks {
        UncertainRanks::from_regions(regions.iter().copied())
    }

    fn describe(regions: &[(u64, f64)]) -> String {
        find(regions).describe("--source exact").unwrap_or_default()
    }

    /// 16 hot regions of 64, 20 times as hot as the others, with these errors.
    fn hot_and_cold(error: f64) -> Vec<(u64, f64)> {
        (0..64u64).map(|at| (if at % 4 == 0 { 20_000 + at } else { 1000 + at }, error)).collect()
    }

    #[test]
    fn a_separated_hot_set_is_known_though_its_order_is_not() {
        let text = describe(&hot_and_cold(0.2));
        assert_eq!(
            text,
            "the order among the first 16 regions is not known; that they come before the others is"
        );
        assert!(!text.contains("hint"), "{text}");
    }

    #[test]
    fn ranks_that_reach_into_the_others_are_named_with_a_hint() {
        let found = find(&hot_and_cold(1.0));
        assert_eq!((found.ranges.as_slice(), found.is_set_known), (&[(1, 64)][..], false));
        let text = found.describe("--source exact").unwrap();
        assert!(text.starts_with("the order of the regions of ranks 1 to 64 (of 64) is not known"), "{text}");
        assert!(text.contains("--source exact") && text.contains("--duty"), "{text}");
    }

    #[test]
    fn an_order_that_follows_from_the_counts_has_no_note() {
        let regions: Vec<(u64, f64)> = (0..40).map(|power| (1 << power, 0.05)).collect();
        assert_eq!(find(&regions).describe(""), None);
        assert_eq!(find(&[]).describe(""), None);
        assert_eq!(find(&[(7, f64::NAN)]).describe(""), None, "one region has an order");
    }

    #[test]
    fn ranks_in_the_middle_are_named_alone() {
        let mut regions: Vec<(u64, f64)> = (0..40).map(|power| (1 << power, 0.05)).collect();
        // The third to the fifth are alike.
        (regions[36].0, regions[35].0) = (regions[37].0 - 1, regions[37].0 - 2);
        let text = describe(&regions);
        assert_eq!(
            text,
            "the order of the regions of ranks 3 to 5 is not known; that they come before all later ones is"
        );
    }

    #[test]
    fn several_ranges_are_listed() {
        // Two alike, then twelve, then fifty.
        let walks = [(2, 100_000u64), (12, 30_000), (50, 1000)];
        let regions: Vec<(u64, f64)> =
            walks.iter().flat_map(|&(count, walks)| (0..count).map(move |at| (walks + at, 0.1))).collect();
        let text = describe(&regions);
        assert!(
            text.starts_with("the order of the regions of ranks 1 to 2 and 3 to 14 is not known"),
            "{text}"
        );
        assert_eq!(list_ranges(&[(1, 2), (3, 4), (5, 6)]), "1 to 2, 3 to 4 and 5 to 6");
        let all = [(1, 2), (3, 4), (5, 6), (7, 8)];
        assert_eq!(list_ranges(&all), "1 to 2, 3 to 4, 5 to 6 and some later ones");
    }

    /// One that was scanned too rarely may be anywhere, but a set that excludes it is known.
    #[test]
    fn the_order_of_cold_regions_does_not_matter() {
        let mut regions: Vec<(u64, f64)> = (20..40).map(|power| (1u64 << power, 0.05)).collect();
        regions.extend([(3, 0.9), (2, f64::INFINITY), (0, f64::INFINITY)]);
        assert_eq!(find(&regions).describe(""), None);
    }
}
