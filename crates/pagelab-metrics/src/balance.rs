//! Whether the free lists hold what the free counter says, and if not, why.
//!
//! `MemFree` and the sum of buddyinfo count the same pages, up to the per-CPU drift of the counter and to
//! what moved between two reads. On a kernel with deferred initialisation (CONFIG_DEFERRED_STRUCT_PAGE_INIT,
//! since 4.2) memory that has not been handed to the allocator yet may count as free and stand on no list:
//! it is present and not managed in zoneinfo. On a confidential guest (CONFIG_UNACCEPTED_MEMORY, since 6.5)
//! the same holds for memory that has not been accepted from the host: `Unaccepted` in meminfo.

use pagelab_model::{BuddyInfo, Meminfo, OffLists, PageSize, Pages, Snapshot, Zoneinfo};

/// Free memory by two counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeBalance {
    /// Pages on the free lists (buddyinfo).
    pub on_lists: u64,
    /// Pages that the counter calls free (MemFree).
    pub counted: u64,
    /// Pages that are present and not managed, of all zones; `None` where zoneinfo does not say.
    pub unmanaged: Option<u64>,
    /// What this machine's counters may differ by without meaning anything.
    pub tolerance: u64,
    /// The judgement.
    pub verdict: FreeVerdict,
}

/// What the difference means.
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
}

impl FreeBalance {
    /// Compares the two counts of a snapshot, as far as they could be read.
    pub fn of_snapshot(snapshot: &Snapshot) -> Option<FreeBalance> {
        let (buddy, meminfo) = (snapshot.buddyinfo.as_ref().ok()?, snapshot.meminfo.as_ref().ok()?);
        let zoneinfo = snapshot.zoneinfo.as_ref().ok();
        FreeBalance::of(buddy, meminfo, zoneinfo, snapshot.machine.page_size, snapshot.free_moved)
    }

    /// Compares the two counts. `moved` is what buddyinfo itself changed by while the counter was read.
    pub fn of(
        buddy: &BuddyInfo,
        meminfo: &Meminfo,
        zoneinfo: Option<&Zoneinfo>,
        page_size: PageSize,
        moved: Pages,
    ) -> Option<FreeBalance> {
        let on_lists = u64::try_from(buddy.free_pages()).unwrap_or(u64::MAX);
        let counted = meminfo.bytes("MemFree")?.pages(page_size).0;
        let zones = zoneinfo.map_or(&[][..], |info| &info.zones);
        let unmanaged = zones
            .iter()
            .map(|zone| Some(zone.present?.0.saturating_sub(zone.managed?.0)))
            .reduce(|sum, next| Some(sum?.saturating_add(next?)))
            .flatten();
        let lists = zones.iter().map(|zone| zone.pagesets.len().max(1) as u64).sum::<u64>().max(1);
        let tolerance = DRIFT_PER_LIST * lists + moved.0;
        let ahead = counted.saturating_sub(on_lists);
        let unaccepted = meminfo.bytes("Unaccepted").unwrap_or_default().pages(page_size);
        let verdict = match unmanaged {
            _ if counted.abs_diff(on_lists) <= tolerance => FreeVerdict::Agree,
            _ if counted > on_lists && ahead.abs_diff(unaccepted.0) <= tolerance => {
                FreeVerdict::Unaccepted(unaccepted)
            }
            Some(unmanaged) if ahead >= DEFERRED_MIN && ahead <= unmanaged.saturating_add(tolerance) => {
                FreeVerdict::Deferred(Pages(ahead))
            }
            _ => FreeVerdict::Unexplained,
        };
        Some(FreeBalance { on_lists, counted, unmanaged, tolerance, verdict })
    }

    /// The judgement as a census needs it.
    pub fn off_lists(&self) -> OffLists {
        match self.verdict {
            FreeVerdict::Deferred(pages) | FreeVerdict::Unaccepted(pages) => OffLists::Pages(pages.0),
            FreeVerdict::Agree => OffLists::None,
            FreeVerdict::Unexplained => OffLists::CannotTell,
        }
    }

    /// Pages that are free and not on the lists yet.
    pub fn deferred(&self) -> Pages {
        match self.verdict {
            FreeVerdict::Deferred(pages) | FreeVerdict::Unaccepted(pages) => pages,
            FreeVerdict::Agree | FreeVerdict::Unexplained => Pages(0),
        }
    }
}

/// Deferred memory is handed over by whole sections (mm/mm_init.c, `deferred_grow_zone`); a section is 2^15
/// base pages on x86-64 and at least half of that elsewhere. What is less is movement between two reads.
const DEFERRED_MIN: u64 = 1 << 14;

/// A zone's counter may lag by at most this many pages for each CPU (mm/vmstat.c,
/// `calculate_normal_threshold`: at most 125).
const DRIFT_PER_LIST: u64 = 125;

#[cfg(test)]
mod tests {
    use super::*;
    use pagelab_model::{Counters, FreeAreas, NodeId, ZoneFree, ZoneInfo, ZoneKey};

    fn balance(
        listed: u64,
        counted_kib: u64,
        present: u64,
        managed: u64,
        unaccepted_kib: u64,
    ) -> FreeVerdict {
        let key = ZoneKey { node: NodeId(0), zone: "Normal".to_owned() };
        let areas = FreeAreas::new(vec![listed]).unwrap();
        let buddy = BuddyInfo { zones: vec![ZoneFree { key: key.clone(), areas }] };
        let fields = [("MemFree", counted_kib), ("Unaccepted", unaccepted_kib)];
        let meminfo = Meminfo { fields: fields.into_iter().collect::<Counters>(), in_kib: vec![true; 2] };
        let mut zone = ZoneInfo::empty(key);
        (zone.present, zone.managed) = (Some(Pages(present)), Some(Pages(managed)));
        let zones = Zoneinfo { nodes: Vec::new(), zones: vec![zone] };
        FreeBalance::of(&buddy, &meminfo, Some(&zones), PageSize::USUAL, Pages(0)).unwrap().verdict
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
            let found = balance(listed, counted, present, managed, unaccepted);
            assert_eq!(found, verdict, "{listed} {counted} {unaccepted}");
        }
    }
}
