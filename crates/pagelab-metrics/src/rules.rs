//! From numbers to findings: one function for each rule, nothing but comparisons with a threshold.

use pagelab_model::process::ProcessMemory;
use pagelab_model::snapshot::{OomKill, OomScope};
use pagelab_model::{Bytes, Choice, Pages, Snapshot};

use crate::balance::FreeVerdict;
use crate::checkup::{Checkup, ZoneIndex};
use crate::findings::{Finding, FindingKind, NoHugePages, Thresholds, Weight};

/// All findings, in the order in which the rules are asked.
pub(crate) fn all(snapshot: &Snapshot, checkup: &Checkup, limits: &Thresholds) -> Vec<Finding> {
    let context = Context { snapshot, checkup, limits };
    let rules: [fn(&Context) -> Vec<Finding>; 18] = [
        allocation_failures,
        oom_kills,
        cgroup_oom_kills,
        pressure,
        cgroup_tight,
        swap_full,
        free_memory_unusable,
        spoiled_blocks,
        thp_refused,
        compaction_fails,
        processes_without_huge,
        hugetlb_idle,
        host_takes_free,
        page_tables,
        slab_unreclaimable,
        probe,
        index_differs,
        free_unexplained,
    ];
    rules.iter().flat_map(|rule| rule(&context)).collect()
}

struct Context<'a> {
    snapshot: &'a Snapshot,
    checkup: &'a Checkup,
    limits: &'a Thresholds,
}

impl Context<'_> {
    fn total(&self) -> Option<Bytes> {
        self.checkup.usage.and_then(|usage| usage.total)
    }

    /// Free memory that counts as whole blocks although it is on no list yet.
    fn deferred(&self) -> Bytes {
        let page_size = self.snapshot.machine.page_size;
        self.checkup.balance.map_or(Bytes(0), |balance| balance.deferred().bytes(page_size))
    }
}

fn one(weight: Weight, kind: FindingKind) -> Vec<Finding> {
    vec![Finding { weight, kind }]
}

fn none() -> Vec<Finding> {
    Vec::new()
}

fn allocation_failures(c: &Context) -> Vec<Finding> {
    let Ok(log) = &c.snapshot.alloc_failures else { return none() };
    // Old run files have the heads of out-of-memory reports among them.
    let failed = || log.reports.iter().filter(|report| !report.detail.starts_with("invoked oom-killer"));
    let Some(last) = failed().next_back() else { return none() };
    let kind = FindingKind::AllocationFailures {
        reports: failed().count() as u64,
        order_max: failed().filter_map(|report| report.order).max(),
        last_process: last.process.clone(),
    };
    one(Weight::Failure, kind)
}

/// Kills of the scope in the kernel's log.
fn kills_of<'a>(c: &'a Context, scope: OomScope) -> impl DoubleEndedIterator<Item = &'a OomKill> {
    let kills = c.snapshot.alloc_failures.as_ref().map_or(&[][..], |log| &log.kills);
    kills.iter().filter(move |kill| kill.scope == scope)
}

/// The counter since boot counts kills of control groups too (mm/oom_kill.c, `__oom_kill_process`). What the
/// log does not name may have been either.
fn oom_kills(c: &Context) -> Vec<Finding> {
    let counted = c.checkup.history.and_then(|history| history.oom_kills).unwrap_or(0);
    let of_machine = kills_of(c, OomScope::Machine).count() as u64;
    let of_groups = kills_of(c, OomScope::ControlGroup).count() as u64;
    let unexplained = counted.saturating_sub(of_machine).saturating_sub(of_groups);
    let kills = of_machine.saturating_add(unexplained);
    if kills == 0 {
        return none();
    }
    let last = kills_of(c, OomScope::Machine).next_back();
    let last_process = last.map(|kill| kill.process.clone());
    one(Weight::Failure, FindingKind::OomKills { kills, unexplained, last_process })
}

fn cgroup_oom_kills(c: &Context) -> Vec<Finding> {
    let Some(last) = kills_of(c, OomScope::ControlGroup).next_back() else { return none() };
    let kind = FindingKind::CgroupOomKills {
        kills: kills_of(c, OomScope::ControlGroup).count() as u64,
        last_process: last.process.clone(),
        group: last.group.clone(),
        limit: last.limit,
    };
    one(Weight::Failure, kind)
}

fn pressure(c: &Context) -> Vec<Finding> {
    let Ok(pressure) = &c.snapshot.pressure else { return none() };
    let some = pressure.some;
    if some.avg10_centipercent < c.limits.pressure_centipercent {
        return none();
    }
    let kind = FindingKind::Pressure {
        some_avg10_centipercent: some.avg10_centipercent,
        some_avg60_centipercent: some.avg60_centipercent,
    };
    one(Weight::Failure, kind)
}

/// A notice only: page cache is charged too, fills any limit in time, and is dropped before anything fails.
fn cgroup_tight(c: &Context) -> Vec<Finding> {
    let Ok(cgroup) = &c.snapshot.machine.cgroup else { return none() };
    match (cgroup.memory_used, cgroup.memory_limit) {
        (Some(used), Some(limit)) if used.0 as f64 >= limit.0 as f64 * c.limits.cgroup_share => {
            one(Weight::Notice, FindingKind::CgroupTight { used, limit })
        }
        _ => none(),
    }
}

fn swap_full(c: &Context) -> Vec<Finding> {
    let Some(usage) = c.checkup.usage else { return none() };
    match (usage.swap_used, usage.swap_total) {
        (Some(used), Some(total))
            if total.0 > 0 && used.0 as f64 >= total.0 as f64 * c.limits.swap_used_share =>
        {
            one(Weight::Failure, FindingKind::SwapFull { used, total })
        }
        _ => none(),
    }
}

/// Judged over all zones: a small zone in pieces beside a large whole one is no finding. Memory that is not
/// initialised yet comes in whole blocks, so it counts as usable.
fn free_memory_unusable(c: &Context) -> Vec<Finding> {
    let order = c.snapshot.pmd_order.index();
    let unusable_of =
        |zone: &ZoneIndex| zone.free.0 as f64 * zone.unusable.get(order).copied().unwrap_or(1.0);
    let listed: f64 = c.checkup.zones.iter().map(|zone| zone.free.0 as f64).sum();
    let free = listed + c.deferred().0 as f64;
    let unusable: f64 = c.checkup.zones.iter().map(unusable_of).sum();
    let enough = c.total().is_some_and(|total| free >= total.0 as f64 * c.limits.free_share);
    if !enough || unusable < free * c.limits.unusable {
        return none();
    }
    let worst = c.checkup.zones.iter().max_by(|a, b| unusable_of(a).total_cmp(&unusable_of(b)));
    let Some(zone) = worst else { return none() };
    let kind = FindingKind::FreeMemoryUnusable {
        zone: zone.key.clone(),
        unusable: zone.unusable.get(order).copied().unwrap_or(1.0),
        free: zone.free,
        huge_now: zone.huge_now,
    };
    one(Weight::Cost, kind)
}

/// Judged by the low end, less the error of a sample: pages without a flag accuse nobody.
fn spoiled_blocks(c: &Context) -> Vec<Finding> {
    let Ok(supply) = &c.checkup.supply else { return none() };
    let total = supply.total.units.value;
    let low = supply.total.spoiled.low;
    let certain = low.value.saturating_sub(low.plus_minus.unwrap_or(0));
    if total == 0 || (certain as f64) < total as f64 * c.limits.spoiled_share {
        return none();
    }
    let named = supply.total.culprits.iter().filter(|culprit| culprit.class.spoils());
    let worst = named.max_by_key(|culprit| culprit.holding.value);
    let kind = FindingKind::SpoiledBlocks {
        spoiled: supply.total.spoiled,
        total,
        culprit: worst.map(|culprit| (culprit.class, culprit.holding)),
    };
    one(Weight::Cost, kind)
}

fn thp_refused(c: &Context) -> Vec<Finding> {
    match c.checkup.history.and_then(|history| history.thp_refusal()) {
        Some((wanted, share)) if wanted >= c.limits.events_min && share >= c.limits.thp_refused_share => {
            one(Weight::Cost, FindingKind::ThpRefused { wanted, share })
        }
        _ => none(),
    }
}

fn compaction_fails(c: &Context) -> Vec<Finding> {
    match c.checkup.history.and_then(|history| history.compaction_failure()) {
        Some((ended, share)) if ended >= c.limits.events_min && share >= c.limits.compaction_failed_share => {
            one(Weight::Cost, FindingKind::CompactionFails { ended, share })
        }
        _ => none(),
    }
}

fn processes_without_huge(c: &Context) -> Vec<Finding> {
    let Ok(coverage) = &c.snapshot.processes else { return none() };
    let Some(mode) = thp_mode(c.snapshot) else { return none() };
    let least = c.total().map_or(0.0, |total| total.0 as f64 * c.limits.process_share);
    let large = |process: &&ProcessMemory| {
        let anonymous = process.anonymous.0 as f64;
        anonymous >= least.max(c.limits.process_bytes_min.0 as f64)
            && (process.anon_huge.0 as f64) < anonymous * c.limits.coverage_share
    };
    let finding = |process: &ProcessMemory| {
        let why = match (process.thp_enabled, mode) {
            (Some(false), _) => NoHugePages::SwitchedOff,
            (_, "never") => NoHugePages::ModeNever,
            (_, "madvise") => NoHugePages::NeverAsks,
            _ => NoHugePages::NotGiven,
        };
        let kind = FindingKind::ProcessWithoutHuge {
            pid: process.pid,
            name: process.name.clone(),
            anonymous: process.anonymous,
            huge: process.anon_huge,
            why,
        };
        Finding { weight: Weight::Notice, kind }
    };
    coverage.processes.iter().filter(large).take(PROCESSES_NAMED).map(finding).collect()
}

/// The mode that decides about huge pages of PMD size: that of the size (6.8 and later), else the global one.
fn thp_mode(snapshot: &Snapshot) -> Option<&str> {
    let thp = snapshot.settings.thp.as_ref().ok()?;
    let size = snapshot.machine.page_size.block(snapshot.pmd_order);
    let of_size = thp.sizes.iter().find(|one| one.size == size).and_then(|one| one.enabled.as_ref().ok());
    let own = of_size.map(Choice::selected).filter(|&mode| mode != "inherit");
    own.or_else(|| thp.enabled.as_ref().ok().map(Choice::selected))
}

/// More processes than this are a table, not findings.
const PROCESSES_NAMED: usize = 3;

fn hugetlb_idle(c: &Context) -> Vec<Finding> {
    let Ok(pools) = &c.snapshot.settings.hugetlb else { return none() };
    let Some(total) = c.total() else { return none() };
    let mut found = Vec::new();
    for pool in pools {
        let idle = pool.free.saturating_sub(pool.reserved);
        let bytes = idle.saturating_mul(pool.page_size.0);
        if idle > 0 && bytes as f64 >= total.0 as f64 * c.limits.hugetlb_idle_share {
            let kind = FindingKind::HugetlbIdle { page_size: pool.page_size, idle, total: pool.total };
            found.push(Finding { weight: Weight::Cost, kind });
        }
    }
    found
}

fn host_takes_free(c: &Context) -> Vec<Finding> {
    let Some(of) = &c.snapshot.machine.page_reporting else { return none() };
    let kind = FindingKind::HostTakesFree {
        order: of.order,
        asked: of.asked,
        device: of.device.clone(),
        reported: of.reported,
    };
    one(Weight::Notice, kind)
}

fn page_tables(c: &Context) -> Vec<Finding> {
    let Some(usage) = c.checkup.usage else { return none() };
    match (usage.page_tables, usage.share(usage.page_tables)) {
        (Some(bytes), Some(share)) if share >= c.limits.page_tables_share => {
            one(Weight::Cost, FindingKind::PageTables { bytes, share })
        }
        _ => none(),
    }
}

fn slab_unreclaimable(c: &Context) -> Vec<Finding> {
    let Some(usage) = c.checkup.usage else { return none() };
    let fixed = usage.slab.zip(usage.slab_reclaimable).map(|(all, soft)| Bytes(all.0.saturating_sub(soft.0)));
    match (fixed, usage.share(fixed)) {
        (Some(bytes), Some(share)) if share >= c.limits.slab_share => {
            let page_size = c.snapshot.machine.page_size;
            let caches = c.snapshot.slabs.as_ref().map_or(&[][..], |caches| caches);
            let largest = caches.iter().max_by_key(|cache| cache.pages());
            let largest = largest.map(|cache| (cache.name.clone(), cache.bytes(page_size)));
            one(Weight::Cost, FindingKind::SlabUnreclaimable { bytes, share, largest })
        }
        _ => none(),
    }
}

/// What the probe measured is an answer, not a finding; that huge pages do not come is one.
fn probe(c: &Context) -> Vec<Finding> {
    let Some(Ok(huge)) = c.snapshot.probe.as_ref().map(|probe| &probe.huge) else { return none() };
    if huge.came as f64 >= huge.asked as f64 * c.limits.probe_came_share {
        return none();
    }
    one(Weight::Cost, FindingKind::ProbeRefused { asked: huge.asked, came: huge.came })
}

fn index_differs(c: &Context) -> Vec<Finding> {
    match c.checkup.comparison {
        Some(comparison) if comparison.differ > 0 => {
            let kind = FindingKind::IndexDiffers { cells: comparison.differ, compared: comparison.cells };
            one(Weight::Failure, kind)
        }
        _ => none(),
    }
}

fn free_unexplained(c: &Context) -> Vec<Finding> {
    // A saved tree's files may have been read at different moments; only a live machine is judged.
    let Some(balance) = c.checkup.balance.filter(|_| c.snapshot.taken.euid.is_some()) else { return none() };
    if balance.verdict != FreeVerdict::Unexplained {
        return none();
    }
    let kind =
        FindingKind::FreeUnexplained { on_lists: Pages(balance.on_lists), counted: Pages(balance.counted) };
    one(Weight::Notice, kind)
}

#[cfg(test)]
mod tests;
