//! Huge page and compaction counters of vmstat since boot.
//!
//! Names are those of include/linux/vm_event_item.h; some moved: `thp_fault_alloc` and the like are as of
//! 2.6.39, `compact_*` as of 2.6.35, per-kind `workingset_refault_{anon,file}` as of 5.9 (one counter
//! before).

use pagelab_model::Counters;

/// Counters since boot; `None` if this kernel does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VmstatHistory {
    /// Faults that got a huge page.
    pub thp_fault_alloc: Option<u64>,
    /// Huge page faults that fell back to base pages.
    pub thp_fault_fallback: Option<u64>,
    /// Huge pages that khugepaged and MADV_COLLAPSE got to collapse into; the collapse may still fail.
    pub thp_collapse_alloc: Option<u64>,
    /// Such attempts that got no huge page to collapse into.
    pub thp_collapse_alloc_failed: Option<u64>,
    /// Huge pages split again.
    pub thp_split: Option<u64>,
    /// Allocations that stalled in direct compaction.
    pub compact_stalls: Option<u64>,
    /// Stalls after which the allocation succeeded.
    pub compact_success: Option<u64>,
    /// Stalls after which it did not.
    pub compact_fail: Option<u64>,
    /// Pages that compaction scanned for migration.
    pub compact_migrate_scanned: Option<u64>,
    /// Pages read again soon after their reclaim (refaults).
    pub refaults: Option<u64>,
    /// Allocations that stalled in direct reclaim, of all zones.
    pub reclaim_stalls: Option<u64>,
    /// Processes killed for lack of memory.
    pub oom_kills: Option<u64>,
    /// Pages swapped in and out.
    pub swapped: Option<u64>,
}

impl VmstatHistory {
    /// Picks the counters out of vmstat.
    pub fn from_vmstat(vmstat: &Counters) -> VmstatHistory {
        let stalls = vmstat.iter().filter(|(name, _)| name.starts_with("allocstall")).map(|(_, n)| n);
        VmstatHistory {
            thp_fault_alloc: vmstat.get("thp_fault_alloc"),
            thp_fault_fallback: vmstat.get("thp_fault_fallback"),
            thp_collapse_alloc: vmstat.get("thp_collapse_alloc"),
            thp_collapse_alloc_failed: vmstat.get("thp_collapse_alloc_failed"),
            thp_split: vmstat.sum_of(&["thp_split_page", "thp_split"]),
            compact_stalls: vmstat.get("compact_stall"),
            compact_success: vmstat.get("compact_success"),
            compact_fail: vmstat.get("compact_fail"),
            compact_migrate_scanned: vmstat.get("compact_migrate_scanned"),
            refaults: vmstat.sum_of(&[
                "workingset_refault_anon",
                "workingset_refault_file",
                "workingset_refault",
            ]),
            reclaim_stalls: stalls.reduce(u64::saturating_add),
            oom_kills: vmstat.get("oom_kill"),
            swapped: vmstat.sum_of(&["pswpin", "pswpout"]),
        }
    }

    /// Huge page faults, and the share of them that fell back; `None` without any.
    pub fn thp_fallback_share(&self) -> Option<(u64, f64)> {
        total_and_share(self.thp_fault_fallback?, self.thp_fault_alloc?)
    }

    /// Stalls in compaction that ended, and the share of them that failed; `None` if none ended.
    pub fn compaction_failure_share(&self) -> Option<(u64, f64)> {
        total_and_share(self.compact_fail?, self.compact_success?)
    }
}

/// Both counts together, and `bad` as a share of them.
fn total_and_share(bad: u64, good: u64) -> Option<(u64, f64)> {
    let all = bad.saturating_add(good);
    (all > 0).then(|| (all, bad as f64 / all as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_nothing_is_undefined_and_an_unknown_counter_is_absent() {
        let vmstat: Counters = [("thp_fault_alloc", 0), ("thp_fault_fallback", 0)].into_iter().collect();
        let history = VmstatHistory::from_vmstat(&vmstat);
        assert_eq!(history.thp_fallback_share(), None);
        assert_eq!(history.compact_stalls, None);
    }

    #[test]
    fn counters_that_were_renamed_are_found_under_both_names() {
        let of = |name: &'static str| VmstatHistory::from_vmstat(&[(name, 7)].into_iter().collect());
        assert_eq!(of("workingset_refault").refaults, Some(7));
        assert_eq!(of("workingset_refault_file").refaults, Some(7));
        assert_eq!(of("allocstall").reclaim_stalls, Some(7));
        assert_eq!(of("allocstall_normal").reclaim_stalls, Some(7));
        assert_eq!(of("thp_split").thp_split, Some(7));
    }
}
