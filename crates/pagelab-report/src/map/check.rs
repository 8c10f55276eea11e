//! What `pagelab map --check` says: free blocks rebuilt from kpageflags beside the kernel's own count of
//! them.
//!
//! The kernel counts free blocks as it splits and merges them; a scan sees which pages are free and merges
//! them anew. A scan is not atomic: between its ends the machine goes on. So a rebuilt count agrees exactly
//! if it lies between the kernel's counts before and after, and within what changed if it lies no further
//! outside than pages were allocated and freed meanwhile: each of them changes the count of an order by one
//! at most.

use pagelab_model::{PageSize, Pages, ZoneKey};

use super::MapSource;
use crate::style::{Style, bytes, count, percent};
use crate::text::{Column, Page};

/// In a saved tree nothing says what changed between its files; so much of a zone's free memory may then
/// stand in blocks of another order, in percent.
const SAVED_PERCENT: u128 = 10;

/// One zone's counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneCheck {
    /// The zone.
    pub key: ZoneKey,
    /// Free blocks by order as rebuilt.
    pub rebuilt: Vec<u64>,
    /// As the kernel said before the scan.
    pub before: Vec<u64>,
    /// As it said after; `None` in a saved tree.
    pub after: Option<Vec<u64>>,
    /// Pages that were allocated from the zone or freed to any zone between the two, or moved between free
    /// lists and per-CPU lists; `None` where it is not known.
    pub churn: Option<u64>,
    /// Pages on per-CPU lists, which are on no free list and not marked free.
    pub per_cpu: u64,
}

/// How well the counts of a zone agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Each rebuilt count lies between the kernel's two, or is its one.
    Exact,
    /// Within what changed meanwhile.
    WithinChanges,
    /// Further apart than what changed explains.
    Disagrees,
}

impl Verdict {
    /// The same in text and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Exact => "exact",
            Verdict::WithinChanges => "within_changes",
            Verdict::Disagrees => "disagrees",
        }
    }
}

impl ZoneCheck {
    /// How many orders there are.
    pub fn orders(&self) -> usize {
        self.rebuilt.len().max(self.before.len())
    }

    fn at(counts: &[u64], order: usize) -> u64 {
        counts.get(order).copied().unwrap_or(0)
    }

    /// How far the rebuilt count lies outside of the kernel's: above it (positive) or below.
    pub fn outside(&self, order: usize) -> i128 {
        let rebuilt = i128::from(ZoneCheck::at(&self.rebuilt, order));
        let before = i128::from(ZoneCheck::at(&self.before, order));
        let after = self.after.as_ref().map_or(before, |after| i128::from(ZoneCheck::at(after, order)));
        let (low, high) = (before.min(after), before.max(after));
        if rebuilt > high { rebuilt - high } else { (rebuilt - low).min(0) }
    }

    /// Pages in blocks by which the counts differ.
    pub fn outside_pages(&self) -> u128 {
        let pages = |order| self.outside(order).unsigned_abs() << order.min(63);
        (0..self.orders()).map(pages).sum()
    }

    /// Free pages as rebuilt.
    pub fn free_pages(&self) -> u128 {
        self.rebuilt.iter().enumerate().map(|(order, &count)| u128::from(count) << order.min(63)).sum()
    }

    /// The judgement.
    pub fn verdict(&self) -> Verdict {
        let most = (0..self.orders()).map(|order| self.outside(order).unsigned_abs()).max().unwrap_or(0);
        let within = match self.churn {
            Some(churn) => most <= u128::from(churn),
            None => self.outside_pages() * 100 <= self.free_pages() * SAVED_PERCENT,
        };
        match (most, within) {
            (0, _) => Verdict::Exact,
            (_, true) => Verdict::WithinChanges,
            (_, false) => Verdict::Disagrees,
        }
    }
}

/// All zones' counts.
#[derive(Debug)]
pub struct CheckReport {
    /// Where the numbers are from.
    pub source: MapSource,
    /// The base page size.
    pub page_size: PageSize,
    /// The zones.
    pub zones: Vec<ZoneCheck>,
    /// How long the scan took.
    pub scan_ns: u64,
    /// How often it was scanned, and the calmest scan kept.
    pub tries: u32,
    /// What must be known, in sentences without a trailing dot.
    pub notes: Vec<String>,
}

impl CheckReport {
    /// The worst of the zones.
    pub fn verdict(&self) -> Verdict {
        let rank = |verdict: &Verdict| match verdict {
            Verdict::Exact => 0,
            Verdict::WithinChanges => 1,
            Verdict::Disagrees => 2,
        };
        self.zones.iter().map(ZoneCheck::verdict).max_by_key(rank).unwrap_or(Verdict::Exact)
    }

    /// The answer in one sentence.
    pub fn headline(&self) -> String {
        let is_saved = self.zones.iter().any(|zone| zone.after.is_none());
        let outside: u128 = self.zones.iter().map(ZoneCheck::outside_pages).sum();
        let free: u128 = self.zones.iter().map(ZoneCheck::free_pages).sum();
        let share = percent(outside as f64 / free.max(1) as f64);
        match self.verdict() {
            Verdict::Exact if is_saved => {
                "yes: free blocks rebuilt from kpageflags are exactly those of buddyinfo".to_owned()
            }
            Verdict::Exact => {
                "yes: free blocks rebuilt from kpageflags lie between buddyinfo before and after the scan"
                    .to_owned()
            }
            Verdict::WithinChanges if is_saved => format!(
                "yes, nearly: {share} of the free memory stands in blocks of another order than \
                 buddyinfo, which was saved at another moment"
            ),
            Verdict::WithinChanges => format!(
                "yes: rebuilt free blocks agree with buddyinfo within what changed between its two \
                 readings; {share} of the free memory lies outside of them"
            ),
            Verdict::Disagrees => format!(
                "no: {share} of the free memory stands in blocks of another order than buddyinfo says, \
                 more than what changed explains"
            ),
        }
    }

    /// The whole text.
    pub fn text(&self, style: &Style) -> String {
        let mut page = Page::new(*style);
        page.hanging_bold("", &self.headline());
        let tries =
            if self.tries > 1 { format!(", the calmest of {} scans", self.tries) } else { String::new() };
        let took = self.scan_ns as f64 / 1e6;
        let about = format!("{} {}, read in {took:.0} ms{tries}", self.source.file, self.source.taken());
        page.hanging_dim("  ", &about);
        for note in &self.notes {
            page.hanging("  ", &format!("note: {note}"));
        }
        for zone in &self.zones {
            self.zone(&mut page, zone);
        }
        page.gap();
        let why = "difference: how far the rebuilt count lies outside of the two readings. Pages on per-CPU \
                   lists are on no free list and not marked free, so they are in neither count; as they \
                   are handed out and refilled, order 0 and the orders that are split for it drift first";
        page.hanging_dim("  ", why);
        page.finish()
    }

    fn zone(&self, page: &mut Page, zone: &ZoneCheck) {
        let said = match zone.verdict() {
            Verdict::Exact => "agrees exactly",
            Verdict::WithinChanges => "agrees within what changed",
            Verdict::Disagrees => "does not agree",
        };
        page.heading(&format!("  node {}, zone {}: {said}", zone.key.node.0, zone.key.zone));
        let mut facts = vec![
            format!(
                "free {}",
                bytes(Pages(u64::try_from(zone.free_pages()).unwrap_or(u64::MAX)).bytes(self.page_size))
            ),
            format!("{} pages on per-CPU lists", count(u128::from(zone.per_cpu))),
        ];
        facts.extend(
            zone.churn.map(|churn| {
                format!("{} pages allocated, freed or moved meanwhile", count(u128::from(churn)))
            }),
        );
        page.facts("  ", &facts, " · ");
        let mut columns = vec![Column::right("order"), Column::right("rebuilt"), Column::right("before")];
        if zone.after.is_some() {
            columns.push(Column::right("after"));
        }
        columns.push(Column::right("difference"));
        let rows: Vec<Vec<String>> = (0..zone.orders())
            .map(|order| {
                let mut row = vec![order.to_string()];
                let kernel = [Some(&zone.rebuilt), Some(&zone.before), zone.after.as_ref()];
                row.extend(
                    kernel
                        .into_iter()
                        .flatten()
                        .map(|counts| count(u128::from(ZoneCheck::at(counts, order)))),
                );
                row.push(signed(zone.outside(order)));
                row
            })
            .collect();
        page.table(2, &columns, &rows);
    }
}

fn signed(number: i128) -> String {
    match number {
        0 => "0".to_owned(),
        number => format!("{}{}", if number > 0 { "+" } else { "−" }, count(number.unsigned_abs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::NodeId;

    /// Rebuilt, before, after, churn, and what is to be said.
    type Case<'a> = (&'a [u64], &'a [u64], Option<&'a [u64]>, Option<u64>, Verdict);

    #[test]
    fn a_count_agrees_between_the_readings_and_as_far_outside_as_pages_moved() {
        let key = ZoneKey { node: NodeId(0), zone: "Normal".to_owned() };
        let cases: [Case<'_>; 7] = [
            (&[5, 3], &[4, 3], Some(&[6, 3]), Some(0), Verdict::Exact),
            (&[5, 3], &[6, 3], Some(&[4, 3]), Some(0), Verdict::Exact),
            (&[7, 3], &[6, 3], Some(&[4, 3]), Some(1), Verdict::WithinChanges),
            (&[2, 3], &[6, 3], Some(&[4, 3]), Some(1), Verdict::Disagrees),
            (&[100, 10], &[100, 10], None, None, Verdict::Exact),
            (&[109, 10], &[100, 10], None, None, Verdict::WithinChanges),
            (&[100, 10], &[120, 0], None, None, Verdict::Disagrees),
        ];
        for (rebuilt, before, after, churn, expected) in cases {
            let zone = ZoneCheck {
                key: key.clone(),
                rebuilt: rebuilt.to_vec(),
                before: before.to_vec(),
                after: after.map(<[u64]>::to_vec),
                churn,
                per_cpu: 0,
            };
            assert_eq!(zone.verdict(), expected, "{zone:?}");
        }
    }
}
