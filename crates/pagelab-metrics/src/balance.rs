//! Balance of the free lists and the free counter, and the reason for a difference.
//!
//! `MemFree` and the sum of buddyinfo count the same pages, up to the per-CPU drift of the counter and to
//! changes between two reads. On a kernel with deferred initialisation (CONFIG_DEFERRED_STRUCT_PAGE_INIT,
//! since 4.2) memory that has not been given to the allocator yet may count as free but be on no list: it is
//! present and not managed in zoneinfo. On a confidential guest (CONFIG_UNACCEPTED_MEMORY, since 6.5) the
//! same holds for memory that has not been accepted from the host: `Unaccepted` in meminfo.

use pagelab_model::{BuddyInfo, Meminfo, PageSize, Pages, Snapshot, UnlistedFree, Zoneinfo};

/// Free memory by two counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeBalance {
    /// Pages on the free lists (buddyinfo).
    pub pages_on_lists: u64,
    /// Pages that the counter calls free (MemFree).
    pub nr_free_pages: u64,
    /// Pages that are present and not managed, of all zones; `None` if zoneinfo does not state it.
    pub unmanaged: Option<u64>,
    /// Insignificant difference of this machine's counters.
    pub tolerance: u64,
    /// The judgement.
    pub verdict: FreeVerdict,
}

/// Meaning of the difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeVerdict {
    /// Equal within the tolerance.
    Agree,
    /// The counter is ahead, and memory that is not initialised yet explains it: it comes whole, on first
    /// use.
    Deferred(Pages),
    /// The counter is ahead by the memory that the guest has not accepted from its host yet: it comes whole,
    /// on first use.
    Unaccepted(Pages),
    /// They differ and nothing that was read explains it.
    Unexplained,
    /// They differ, and the change of the free lists between the two reads is unknown.
    Undetermined,
}

impl FreeBalance {
    /// Compares the two counts of a snapshot, if they could be read.
    pub fn from_snapshot(snapshot: &Snapshot) -> Option<FreeBalance> {
        let (buddy, meminfo) = (snapshot.buddyinfo.as_ref().ok()?, snapshot.meminfo.as_ref().ok()?);
        let zoneinfo = snapshot.zoneinfo.as_ref().ok();
        let lists_changed = snapshot.free_moved.as_ref().ok().copied();
        FreeBalance::from_counts(buddy, meminfo, zoneinfo, snapshot.machine.page_size, lists_changed)
    }

    /// Compares the two counts. `lists_changed` is the change of buddyinfo while the counter was read; `None`
    /// if it is unknown.
    pub fn from_counts(
        buddy: &BuddyInfo,
        meminfo: &Meminfo,
        zoneinfo: Option<&Zoneinfo>,
        page_size: PageSize,
        lists_changed: Option<Pages>,
    ) -> Option<FreeBalance> {
        let on_lists = u64::try_from(buddy.free_pages()).unwrap_or(u64::MAX);
        let counted = meminfo.bytes("MemFree")?.to_pages(page_size).0;
        let zones = zoneinfo.map_or(&[][..], |info| &info.zones);
        let unmanaged = zones
            .iter()
            .map(|zone| Some(zone.present?.0.saturating_sub(zone.managed?.0)))
            .reduce(|sum, next| Some(sum?.saturating_add(next?)))
            .flatten();
        let pcp_list_count = zones.iter().map(|zone| zone.pagesets.len().max(1) as u64).sum::<u64>().max(1);
        let tolerance = STAT_DRIFT_PER_CPU * pcp_list_count + lists_changed.unwrap_or_default().0;
        let counter_excess = counted.saturating_sub(on_lists);
        let unaccepted = meminfo.bytes("Unaccepted").unwrap_or_default().to_pages(page_size);
        let verdict = match unmanaged {
            _ if counted.abs_diff(on_lists) <= tolerance => FreeVerdict::Agree,
            _ if counted > on_lists && counter_excess.abs_diff(unaccepted.0) <= tolerance => {
                FreeVerdict::Unaccepted(unaccepted)
            }
            Some(unmanaged)
                if counter_excess >= DEFERRED_PAGES_MIN
                    && counter_excess <= unmanaged.saturating_add(tolerance) =>
            {
                FreeVerdict::Deferred(Pages(counter_excess))
            }
            _ if lists_changed.is_none() => FreeVerdict::Undetermined,
            _ => FreeVerdict::Unexplained,
        };
        Some(FreeBalance { pages_on_lists: on_lists, nr_free_pages: counted, unmanaged, tolerance, verdict })
    }

    /// The judgement as a census needs it.
    pub fn unlisted_free(&self) -> UnlistedFree {
        match self.verdict {
            FreeVerdict::Deferred(pages) | FreeVerdict::Unaccepted(pages) => UnlistedFree::Pages(pages.0),
            FreeVerdict::Agree => UnlistedFree::None,
            FreeVerdict::Unexplained | FreeVerdict::Undetermined => UnlistedFree::Unknown,
        }
    }

    /// Pages that are free and not on the lists yet.
    pub fn deferred_pages(&self) -> Pages {
        match self.verdict {
            FreeVerdict::Deferred(pages) | FreeVerdict::Unaccepted(pages) => pages,
            FreeVerdict::Agree | FreeVerdict::Unexplained | FreeVerdict::Undetermined => Pages(0),
        }
    }
}

/// Deferred memory is initialised by whole sections (mm/mm_init.c, `deferred_grow_zone`); a section is 2^15
/// base pages on x86-64 and at least half of that elsewhere. A smaller difference is change between two
/// reads.
const DEFERRED_PAGES_MIN: u64 = 1 << 14;

/// A zone's counter may lag by at most this many pages for each CPU (mm/vmstat.c,
/// `calculate_normal_threshold`: at most 125).
const STAT_DRIFT_PER_CPU: u64 = 125;

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::{Counters, FreeAreas, NodeId, ZoneEntry, ZoneFreeAreas, ZoneKey};

    fn balance(
        listed: u64,
        counted_kib: u64,
        present: u64,
        managed: u64,
        unaccepted_kib: u64,
        lists_changed: Option<Pages>,
    ) -> FreeVerdict {
        let key = ZoneKey { node: NodeId(0), zone: "Normal".to_owned() };
        let areas = FreeAreas::new(vec![listed]).unwrap();
        let buddy = BuddyInfo { zones: vec![ZoneFreeAreas { key: key.clone(), areas }] };
        let fields = [("MemFree", counted_kib), ("Unaccepted", unaccepted_kib)];
        let meminfo = Meminfo { fields: fields.into_iter().collect::<Counters>(), in_kib: vec![true; 2] };
        let mut zone = ZoneEntry::empty(key);
        (zone.present, zone.managed) = (Some(Pages(present)), Some(Pages(managed)));
        let zones = Zoneinfo { nodes: Vec::new(), zones: vec![zone] };
        FreeBalance::from_counts(&buddy, &meminfo, Some(&zones), PageSize::DEFAULT, lists_changed)
            .unwrap()
            .verdict
    }

    #[test]
    fn a_gap_is_judged_by_what_explains_it() {
        let cases = [
            (1000, 4000, 2000, 2000, 0, FreeVerdict::Agree),
            (1000, 4500, 2000, 2000, 0, FreeVerdict::Agree),
            (1000, 4504, 2000, 2000, 0, FreeVerdict::Unexplained),
            (1000, 400_000, 200_000, 2000, 0, FreeVerdict::Deferred(Pages(99_000))),
            (1000, 40_000, 20_000, 2000, 0, FreeVerdict::Unexplained),
            (1000, 40_000, 2000, 2000, 0, FreeVerdict::Unexplained),
            (1000, 40_000, 20_000, 20_000, 36_400, FreeVerdict::Unaccepted(Pages(9100))),
            (1000, 40_000, 20_000, 20_000, 37_000, FreeVerdict::Unexplained),
            (9000, 4000, 20_000, 2000, 0, FreeVerdict::Unexplained),
        ];
        for (listed, counted, present, managed, unaccepted, verdict) in cases {
            let actual = balance(listed, counted, present, managed, unaccepted, Some(Pages(0)));
            assert_eq!(actual, verdict, "{listed} {counted} {unaccepted}");
            let unknown_change = balance(listed, counted, present, managed, unaccepted, None);
            let expected = match verdict {
                FreeVerdict::Unexplained => FreeVerdict::Undetermined,
                explained => explained,
            };
            assert_eq!(unknown_change, expected, "{listed} {counted} {unaccepted}");
        }
    }
}
