//! Rules from numbers to findings: one function per rule, only comparisons with a threshold.

use pagelab_model::process::ProcessMemory;
use pagelab_model::settings::HugetlbPool;
use pagelab_model::snapshot::{OomKill, OomScope};
use pagelab_model::{Bytes, Pages, Snapshot, SysfsChoice};

use crate::balance::FreeVerdict;
use crate::checkup::{Checkup, IndexComparison, ZoneFragmentation};
use crate::findings::{Finding, FindingKind, NoHugePagesReason, thresholds};

/// A rule; `None`: no finding.
type Rule = fn(&RuleContext) -> Option<FindingKind>;

/// All findings, most important first; those of equal weight in the order of the rules.
pub(crate) fn apply_rules(snapshot: &Snapshot, checkup: &Checkup) -> Vec<Finding> {
    let context = RuleContext { snapshot, checkup };
    let before: [Rule; 10] = [
        allocation_failures,
        oom_kills,
        cgroup_oom_kills,
        pressure,
        cgroup_near_limit,
        swap_nearly_full,
        free_memory_unusable,
        polluted_blocks,
        thp_fallback,
        compaction_fails,
    ];
    let after: [Rule; 6] = [
        free_page_reporting,
        page_tables,
        slab_unreclaimable,
        probe_fallback,
        index_differs,
        free_memory_unexplained,
    ];
    let apply = |rule: Rule| rule(&context);
    let mut findings: Vec<Finding> = before
        .into_iter()
        .filter_map(apply)
        .chain(processes_without_huge_pages(&context))
        .chain(idle_hugetlb(&context))
        .chain(after.into_iter().filter_map(apply))
        .map(|kind| Finding { weight: kind.weight(), kind })
        .collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.weight));
    findings
}

struct RuleContext<'a> {
    snapshot: &'a Snapshot,
    checkup: &'a Checkup,
}

impl RuleContext<'_> {
    fn total_memory(&self) -> Option<Bytes> {
        self.checkup.usage.and_then(|usage| usage.total)
    }

    /// Free memory that counts as whole blocks although it is on no list yet.
    fn deferred_memory(&self) -> Bytes {
        let page_size = self.snapshot.machine.page_size;
        self.checkup.balance.map_or(Bytes(0), |balance| balance.deferred_pages().to_bytes(page_size))
    }
}

fn allocation_failures(c: &RuleContext) -> Option<FindingKind> {
    let log = c.snapshot.alloc_failures.as_ref().ok()?;
    // Old run files have the heads of out-of-memory reports among them.
    let failed = || log.reports.iter().filter(|report| !report.detail.starts_with("invoked oom-killer"));
    Some(FindingKind::AllocationFailures {
        reports: failed().count() as u64,
        order_max: failed().filter_map(|report| report.order).max(),
        last_process: failed().next_back()?.process.clone(),
    })
}

fn oom_kills_in_scope<'a>(
    c: &'a RuleContext,
    scope: OomScope,
) -> impl DoubleEndedIterator<Item = &'a OomKill> {
    let kills = c.snapshot.alloc_failures.as_ref().map_or(&[][..], |log| &log.kills);
    kills.iter().filter(move |kill| kill.scope == scope)
}

/// The counter since boot counts kills of control groups too (mm/oom_kill.c, `__oom_kill_process`). A kill
/// that the log does not attribute may have been either.
fn oom_kills(c: &RuleContext) -> Option<FindingKind> {
    let counted = c.checkup.history.and_then(|history| history.oom_kills).unwrap_or(0);
    let of_machine = oom_kills_in_scope(c, OomScope::Machine).count() as u64;
    let of_groups = oom_kills_in_scope(c, OomScope::ControlGroup).count() as u64;
    let unexplained = counted.saturating_sub(of_machine).saturating_sub(of_groups);
    let kills = of_machine.saturating_add(unexplained);
    let last = oom_kills_in_scope(c, OomScope::Machine).next_back();
    let last_process = last.map(|kill| kill.process.clone());
    (kills > 0).then_some(FindingKind::OomKills { kills, unexplained, last_process })
}

fn cgroup_oom_kills(c: &RuleContext) -> Option<FindingKind> {
    let last = oom_kills_in_scope(c, OomScope::ControlGroup).next_back()?;
    Some(FindingKind::CgroupOomKills {
        kills: oom_kills_in_scope(c, OomScope::ControlGroup).count() as u64,
        last_process: last.process.clone(),
        group: last.group.clone(),
        limit: last.limit,
        limit_file: last.limit_file.clone(),
    })
}

fn pressure(c: &RuleContext) -> Option<FindingKind> {
    let some = c.snapshot.pressure.as_ref().ok()?.some;
    (some.avg10_centipercent >= thresholds::PRESSURE_CENTIPERCENT).then_some(FindingKind::Pressure {
        some_avg10_centipercent: some.avg10_centipercent,
        some_avg60_centipercent: some.avg60_centipercent,
    })
}

/// A notice only: page cache is charged too, fills any limit in time, and is dropped before anything fails.
fn cgroup_near_limit(c: &RuleContext) -> Option<FindingKind> {
    let cgroup = c.snapshot.machine.cgroup.as_ref().ok()?;
    let (used, limit) = (cgroup.memory_used?, cgroup.memory_limit?);
    let is_near = used.0 as f64 >= limit.0 as f64 * thresholds::CGROUP_SHARE;
    is_near.then_some(FindingKind::CgroupNearLimit { used, limit })
}

fn swap_nearly_full(c: &RuleContext) -> Option<FindingKind> {
    let usage = c.checkup.usage?;
    let (used, total) = (usage.swap_used?, usage.swap_total?);
    let is_full = total.0 > 0 && used.0 as f64 >= total.0 as f64 * thresholds::SWAP_USED_SHARE;
    is_full.then_some(FindingKind::SwapNearlyFull { used, total })
}

/// Judged over all zones: a small zone in pieces beside a large whole one is no finding. Memory that is not
/// initialised yet comes in whole blocks, so it counts as usable.
fn free_memory_unusable(c: &RuleContext) -> Option<FindingKind> {
    let order = c.snapshot.pmd_order.index();
    let unusable_bytes_of =
        |zone: &ZoneFragmentation| zone.free.0 as f64 * zone.unusable.get(order).copied().unwrap_or(1.0);
    let listed: f64 = c.checkup.zones.iter().map(|zone| zone.free.0 as f64).sum();
    let free = listed + c.deferred_memory().0 as f64;
    let unusable: f64 = c.checkup.zones.iter().map(unusable_bytes_of).sum();
    let enough = c.total_memory().is_some_and(|total| free >= total.0 as f64 * thresholds::FREE_SHARE);
    if !enough || unusable < free * thresholds::UNUSABLE {
        return None;
    }
    let worst = c.checkup.zones.iter().max_by(|a, b| unusable_bytes_of(a).total_cmp(&unusable_bytes_of(b)));
    worst.map(|zone| FindingKind::FreeMemoryUnusable {
        zone: zone.key.clone(),
        unusable: zone.unusable.get(order).copied().unwrap_or(1.0),
        free: zone.free,
        free_huge_pages: zone.free_huge_pages,
    })
}

/// Judged by the low end, less the error of a sample: pages without a flag do not count.
fn polluted_blocks(c: &RuleContext) -> Option<FindingKind> {
    let supply = c.checkup.supply.as_ref().ok()?;
    let total = supply.total.units.value;
    let low = supply.total.polluted.low;
    let certain_blocks = low.value.saturating_sub(low.margin.unwrap_or(0));
    let is_much = total > 0 && certain_blocks as f64 >= total as f64 * thresholds::POLLUTED_SHARE;
    let polluting_classes = supply.total.polluting_classes.iter().filter(|culprit| culprit.class.pollutes());
    let worst = polluting_classes.max_by_key(|culprit| culprit.units_with.value);
    is_much.then(|| FindingKind::PollutedBlocks {
        polluted: supply.total.polluted,
        total,
        largest_class: worst.map(|culprit| (culprit.class, culprit.units_with)),
    })
}

fn thp_fallback(c: &RuleContext) -> Option<FindingKind> {
    let (faults, share) = c.checkup.history?.thp_fallback_share()?;
    let is_much = faults >= thresholds::FAULT_COUNT_MIN && share >= thresholds::THP_FALLBACK_SHARE;
    is_much.then_some(FindingKind::ThpFallback { faults, share })
}

fn compaction_fails(c: &RuleContext) -> Option<FindingKind> {
    let (ended, share) = c.checkup.history?.compaction_failure_share()?;
    let is_much = ended >= thresholds::FAULT_COUNT_MIN && share >= thresholds::COMPACTION_FAILED_SHARE;
    is_much.then_some(FindingKind::CompactionFails { ended, share })
}

fn processes_without_huge_pages(c: &RuleContext) -> Vec<FindingKind> {
    let (Ok(coverage), Some(mode)) = (&c.snapshot.processes, effective_thp_mode(c.snapshot)) else {
        return Vec::new();
    };
    let least = c.total_memory().map_or(0.0, |total| total.0 as f64 * thresholds::PROCESS_SHARE);
    let large = |process: &&ProcessMemory| {
        let anonymous = process.anonymous.0 as f64;
        anonymous >= least.max(thresholds::PROCESS_BYTES_MIN.0 as f64)
            && (process.anon_huge.0 as f64) < anonymous * thresholds::COVERAGE_SHARE
    };
    let finding = |process: &ProcessMemory| {
        let why = match (process.thp_enabled, mode) {
            (Some(false), _) => NoHugePagesReason::SwitchedOff,
            (_, "never") => NoHugePagesReason::ModeNever,
            (_, "madvise") => NoHugePagesReason::NotAdvised,
            _ => NoHugePagesReason::NotAllocated,
        };
        FindingKind::ProcessWithoutHugePages {
            pid: process.pid,
            name: process.name.clone(),
            anonymous: process.anonymous,
            huge: process.anon_huge,
            reason: why,
        }
    };
    coverage.processes.iter().filter(large).take(PROCESS_FINDINGS_MAX).map(finding).collect()
}

/// The mode that decides about huge pages of PMD size: that of the size (6.8 and later), else the global one.
fn effective_thp_mode(snapshot: &Snapshot) -> Option<&str> {
    let thp = snapshot.settings.thp.as_ref().ok()?;
    let size = snapshot.machine.page_size.block_bytes(snapshot.pmd_order);
    let of_size = thp.sizes.iter().find(|one| one.size == size).and_then(|one| one.enabled.as_ref().ok());
    let size_mode = of_size.map(SysfsChoice::selected).filter(|&mode| mode != "inherit");
    size_mode.or_else(|| thp.enabled.as_ref().ok().map(SysfsChoice::selected))
}

/// More processes than this are a table, not findings.
const PROCESS_FINDINGS_MAX: usize = 3;

fn idle_hugetlb(c: &RuleContext) -> Vec<FindingKind> {
    let (Ok(pools), Some(total)) = (&c.snapshot.settings.hugetlb, c.total_memory()) else {
        return Vec::new();
    };
    let idle = |pool: &HugetlbPool| {
        let idle_pages = pool.free.saturating_sub(pool.reserved);
        let bytes = idle_pages.saturating_mul(pool.page_size.0);
        let is_much = idle_pages > 0 && bytes as f64 >= total.0 as f64 * thresholds::HUGETLB_IDLE_SHARE;
        let (page_size, total) = (pool.page_size, pool.total);
        is_much.then_some(FindingKind::IdleHugetlb { page_size, idle_pages, total })
    };
    pools.iter().filter_map(idle).collect()
}

fn free_page_reporting(c: &RuleContext) -> Option<FindingKind> {
    let reporting = c.snapshot.machine.page_reporting.as_ref()?;
    Some(FindingKind::FreePageReporting {
        order: reporting.order,
        requested_order: reporting.requested_order,
        device: reporting.device.clone(),
        reported: reporting.reported,
    })
}

fn page_tables(c: &RuleContext) -> Option<FindingKind> {
    let usage = c.checkup.usage?;
    let (bytes, share) = (usage.page_tables?, usage.share(usage.page_tables)?);
    (share >= thresholds::PAGE_TABLES_SHARE).then_some(FindingKind::PageTables { bytes, share })
}

fn slab_unreclaimable(c: &RuleContext) -> Option<FindingKind> {
    let usage = c.checkup.usage?;
    let bytes = Bytes(usage.slab?.0.saturating_sub(usage.slab_reclaimable?.0));
    let share = usage.share(Some(bytes)).filter(|share| *share >= thresholds::SLAB_SHARE)?;
    let page_size = c.snapshot.machine.page_size;
    let caches = c.snapshot.slabs.as_ref().map_or(&[][..], |caches| caches);
    let largest = caches.iter().max_by_key(|cache| cache.pages());
    let largest = largest.map(|cache| (cache.name.clone(), cache.bytes(page_size)));
    Some(FindingKind::SlabUnreclaimable { bytes, share, largest })
}

/// A measured value of the probe is not a finding; missing huge pages are one.
fn probe_fallback(c: &RuleContext) -> Option<FindingKind> {
    let huge = c.snapshot.probe.as_ref()?.huge.as_ref().ok()?;
    let (requested, allocated) = (huge.requested, huge.allocated);
    let is_short = (allocated as f64) < requested as f64 * thresholds::PROBE_ALLOCATED_SHARE;
    is_short.then_some(FindingKind::ProbeFallback { requested, allocated })
}

fn index_differs(c: &RuleContext) -> Option<FindingKind> {
    let IndexComparison { cells: compared, differing: cells, .. } = c.checkup.index_comparison?;
    (cells > 0).then_some(FindingKind::IndexDiffers { cells, compared })
}

fn free_memory_unexplained(c: &RuleContext) -> Option<FindingKind> {
    // A saved tree's files may have been read at different moments; only a live machine is judged.
    let balance = c.checkup.balance.filter(|_| c.snapshot.taken.euid.is_some())?;
    (balance.verdict == FreeVerdict::Unexplained).then_some(FindingKind::FreeMemoryUnexplained {
        on_lists: Pages(balance.pages_on_lists),
        counted: Pages(balance.nr_free_pages),
    })
}

#[cfg(test)]
mod tests;
