//! Text of `pagelab map --check`: free blocks rebuilt from kpageflags, compared with the kernel's own count.
//!
//! The kernel counts free blocks as it splits and merges them; a scan reads which pages are free and merges
//! them again. A scan is not atomic: the machine runs on in the meantime. So a rebuilt count agrees exactly
//! if it is between the kernel's counts before and after; it agrees within the changes if its distance from
//! these is at most the number of pages allocated and freed in between: each of them changes the count of an
//! order by at most one.

use pagelab_model::{PageSize, Pages, ZoneKey};

use super::MapSource;
use crate::style::{TextStyle, format_bytes, format_count, format_percent};
use crate::text_report::{RowTable, TextReport};

/// Tolerance for a saved tree, in percent of a zone's free memory that may be in blocks of another order,
/// because nothing records what changed between its files.
const SAVED_TREE_TOLERANCE_PERCENT: u128 = 10;

/// Counts of one zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneCheck {
    /// The zone.
    pub key: ZoneKey,
    /// Rebuilt free blocks by order.
    pub from_pageflags: Vec<u64>,
    /// Kernel's counts before the scan.
    pub buddyinfo_before: Vec<u64>,
    /// Kernel's counts after the scan; `None` in a saved tree.
    pub buddyinfo_after: Option<Vec<u64>>,
    /// Pages allocated from the zone, freed to any zone, or moved between free lists and per-CPU lists
    /// between the two; `None` if unknown.
    pub pages_moved: Option<u64>,
    /// Pages on per-CPU lists, which are on no free list and not marked free.
    pub pcp_pages: u64,
}

/// Agreement of the counts of a zone, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckVerdict {
    /// Each rebuilt count is between the kernel's two, or equals its only one.
    Exact,
    /// Within the changes during the scan.
    WithinChurn,
    /// Farther apart than the changes explain.
    Disagrees,
}

impl CheckVerdict {
    /// Name in text and JSON.
    pub const fn verdict_name(self) -> &'static str {
        match self {
            CheckVerdict::Exact => "exact",
            CheckVerdict::WithinChurn => "within_changes",
            CheckVerdict::Disagrees => "disagrees",
        }
    }
}

impl ZoneCheck {
    /// Number of orders.
    pub fn order_count(&self) -> usize {
        self.from_pageflags.len().max(self.buddyinfo_before.len())
    }

    fn count_at(counts: &[u64], order: usize) -> u64 {
        counts.get(order).copied().unwrap_or(0)
    }

    /// Distance of the rebuilt count from the kernel's: above it (positive) or below.
    pub fn deviation(&self, order: usize) -> i128 {
        let rebuilt = i128::from(ZoneCheck::count_at(&self.from_pageflags, order));
        let before = i128::from(ZoneCheck::count_at(&self.buddyinfo_before, order));
        let after = self
            .buddyinfo_after
            .as_ref()
            .map_or(before, |after| i128::from(ZoneCheck::count_at(after, order)));
        let (low, high) = (before.min(after), before.max(after));
        if rebuilt > high { rebuilt - high } else { (rebuilt - low).min(0) }
    }

    /// Returns the pages in blocks by which the counts differ.
    pub fn deviation_pages(&self) -> u128 {
        let pages = |order| self.deviation(order).unsigned_abs() << order.min(63);
        (0..self.order_count()).map(pages).sum()
    }

    /// Returns the rebuilt free pages.
    pub fn free_pages(&self) -> u128 {
        self.from_pageflags.iter().enumerate().map(|(order, &count)| u128::from(count) << order.min(63)).sum()
    }

    /// Returns the agreement.
    pub fn judge(&self) -> CheckVerdict {
        let most =
            (0..self.order_count()).map(|order| self.deviation(order).unsigned_abs()).max().unwrap_or(0);
        let within = match self.pages_moved {
            Some(churn) => most <= u128::from(churn),
            None => self.deviation_pages() * 100 <= self.free_pages() * SAVED_TREE_TOLERANCE_PERCENT,
        };
        match (most, within) {
            (0, _) => CheckVerdict::Exact,
            (_, true) => CheckVerdict::WithinChurn,
            (_, false) => CheckVerdict::Disagrees,
        }
    }
}

/// Counts of all zones.
#[derive(Debug)]
pub struct CheckReport {
    /// Source of the numbers.
    pub source: MapSource,
    /// Base page size.
    pub page_size: PageSize,
    /// Zones.
    pub zones: Vec<ZoneCheck>,
    /// Duration of the scan.
    pub scan_ns: u64,
    /// Number of scans; the one with the fewest changes is kept.
    pub tries: u32,
    /// Caveats, in sentences without a trailing dot.
    pub notes: Vec<String>,
}

impl CheckReport {
    /// Returns the worst agreement of the zones.
    pub fn worst_verdict(&self) -> CheckVerdict {
        self.zones.iter().map(ZoneCheck::judge).max().unwrap_or(CheckVerdict::Exact)
    }

    /// Returns the answer in one sentence.
    pub fn format_headline(&self) -> String {
        let is_saved = self.zones.iter().any(|zone| zone.buddyinfo_after.is_none());
        let outside: u128 = self.zones.iter().map(ZoneCheck::deviation_pages).sum();
        let free: u128 = self.zones.iter().map(ZoneCheck::free_pages).sum();
        let share = format_percent(outside as f64 / free.max(1) as f64);
        match self.worst_verdict() {
            CheckVerdict::Exact if is_saved => {
                "yes: free blocks derived from kpageflags match buddyinfo".to_owned()
            }
            CheckVerdict::Exact => {
                "yes: free blocks derived from kpageflags lie between buddyinfo before and after the scan"
                    .to_owned()
            }
            CheckVerdict::WithinChurn if is_saved => format!(
                "yes, nearly: {share} of the free memory is in blocks of a different order than in \
                 buddyinfo, which was saved at a different time"
            ),
            CheckVerdict::WithinChurn => format!(
                "yes: derived free blocks match buddyinfo within the changes between its two readings; \
                 {share} of the free memory is outside"
            ),
            CheckVerdict::Disagrees => format!(
                "no: {share} of the free memory is in blocks of a different order than in buddyinfo, more \
                 than the changes explain"
            ),
        }
    }

    /// Renders the complete text.
    pub fn to_text(&self, style: &TextStyle) -> String {
        let mut output = TextReport::new(*style);
        output.add_bold_text(&self.format_headline());
        let tries =
            if self.tries > 1 { format!(", the most stable of {} scans", self.tries) } else { String::new() };
        let took = self.scan_ns as f64 / 1e6;
        let about = format!("{} {}, read in {took:.0} ms{tries}", self.source.file, self.source.taken_text());
        output.add_dim_indented(&about);
        output.add_notes(&self.notes);
        for zone in &self.zones {
            self.write_zone(&mut output, zone);
        }
        output.add_gap();
        let why = "difference: distance of the derived count from the interval of the two readings. Pages on \
                   pcp lists are on no free list and not flagged as free, so neither count includes them; \
                   allocations through pcp lists first change order 0 and the orders split for it";
        output.add_dim_indented(why);
        output.into_text()
    }

    fn write_zone(&self, output: &mut TextReport, zone: &ZoneCheck) {
        let said = match zone.judge() {
            CheckVerdict::Exact => "agrees exactly",
            CheckVerdict::WithinChurn => "agrees within the changes",
            CheckVerdict::Disagrees => "does not agree",
        };
        output.add_heading(&format!("  node {}, zone {}: {said}", zone.key.node.0, zone.key.zone));
        let mut facts = vec![
            format!(
                "free {}",
                format_bytes(
                    Pages(u64::try_from(zone.free_pages()).unwrap_or(u64::MAX)).to_bytes(self.page_size)
                )
            ),
            format!("{} pages on pcp lists", format_count(u128::from(zone.pcp_pages))),
        ];
        facts.extend(zone.pages_moved.map(|churn| {
            format!("{} pages allocated, freed or migrated during the scan", format_count(u128::from(churn)))
        }));
        output.add_facts("  ", &facts, " · ");
        let after = zone.buddyinfo_after.as_deref();
        let count = |counts: &[u64], order| format_count(u128::from(ZoneCheck::count_at(counts, order)));
        RowTable::<usize>::new()
            .right("order", usize::to_string)
            .right("rebuilt", |&order| count(&zone.from_pageflags, order))
            .right("before", |&order| count(&zone.buddyinfo_before, order))
            .right_if(after.is_some(), "after", |&order| count(after.unwrap_or_default(), order))
            .right("difference", |&order| format_signed(zone.deviation(order)))
            .add_to(output, 2, 0..zone.order_count());
    }
}

fn format_signed(number: i128) -> String {
    match number {
        0 => "0".to_owned(),
        number => format!("{}{}", if number > 0 { "+" } else { "−" }, format_count(number.unsigned_abs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::NodeId;

    /// Rebuilt, before, after, changed pages, and the expected agreement.
    type Case<'a> = (&'a [u64], &'a [u64], Option<&'a [u64]>, Option<u64>, CheckVerdict);

    #[test]
    fn a_count_agrees_between_the_readings_and_as_far_outside_as_pages_moved() {
        let key = ZoneKey { node: NodeId(0), zone: "Normal".to_owned() };
        let cases: [Case<'_>; 7] = [
            (&[5, 3], &[4, 3], Some(&[6, 3]), Some(0), CheckVerdict::Exact),
            (&[5, 3], &[6, 3], Some(&[4, 3]), Some(0), CheckVerdict::Exact),
            (&[7, 3], &[6, 3], Some(&[4, 3]), Some(1), CheckVerdict::WithinChurn),
            (&[2, 3], &[6, 3], Some(&[4, 3]), Some(1), CheckVerdict::Disagrees),
            (&[100, 10], &[100, 10], None, None, CheckVerdict::Exact),
            (&[109, 10], &[100, 10], None, None, CheckVerdict::WithinChurn),
            (&[100, 10], &[120, 0], None, None, CheckVerdict::Disagrees),
        ];
        for (rebuilt, before, after, churn, expected) in cases {
            let zone = ZoneCheck {
                key: key.clone(),
                from_pageflags: rebuilt.to_vec(),
                buddyinfo_before: before.to_vec(),
                buddyinfo_after: after.map(<[u64]>::to_vec),
                pages_moved: churn,
                pcp_pages: 0,
            };
            assert_eq!(zone.judge(), expected, "{zone:?}");
        }
    }
}
