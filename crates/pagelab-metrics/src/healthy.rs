//! Healthy machine for tests: 16 GiB, a quarter of it free and not fragmented, no findings.

use pagelab_model::pressure::{Pressure, PressureLine};
use pagelab_model::process::{HugePageCoverage, ProcessMemory};
use pagelab_model::settings::{HugetlbPool, ThpSettings};
use pagelab_model::snapshot::AllocFailures;
use pagelab_model::{
    Absence, BuddyInfo, Bytes, Counters, FreeAreas, Meminfo, NodeId, PageSize, Pages, Snapshot, SysfsChoice,
    ZoneFreeAreas, ZoneKey,
};

/// Free pages of the healthy machine: 4 GiB.
pub(crate) const FREE_PAGES: u64 = 1 << 20;

/// The healthy machine.
pub(crate) fn healthy() -> Snapshot {
    let mut snapshot = Snapshot::new_unread("a healthy machine", PageSize::DEFAULT);
    snapshot.meminfo = Ok(meminfo(&[
        ("MemTotal", 16 << 20),
        ("MemFree", 4 << 20),
        ("MemAvailable", 10 << 20),
        ("Buffers", 1 << 10),
        ("Cached", 6 << 20),
        ("AnonPages", 5 << 20),
        ("Shmem", 1 << 10),
        ("Slab", 512 << 10),
        ("SReclaimable", 400 << 10),
        ("PageTables", 30 << 10),
        ("KernelStack", 10 << 10),
        ("SwapTotal", 1000),
        ("SwapFree", 1000),
    ]));
    snapshot.buddyinfo = Ok(buddyinfo(&[&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, FREE_PAGES >> 10]]));
    snapshot.free_moved = Ok(Pages(0));
    snapshot.vmstat = Ok(vmstat(&[
        ("thp_fault_alloc", 1000),
        ("thp_fault_fallback", 1),
        ("compact_success", 1000),
        ("compact_fail", 1),
        ("oom_kill", 0),
    ]));
    let line =
        PressureLine { avg10_centipercent: 0, avg60_centipercent: 0, avg300_centipercent: 0, total_us: 0 };
    snapshot.pressure = Ok(Pressure { some: line, full: Some(line) });
    snapshot.settings.thp = Ok(ThpSettings {
        enabled: Ok(choice("always")),
        defrag: Ok(choice("madvise")),
        shmem_enabled: Err(Absence::not_read()),
        pmd_size: Ok(Bytes(2 << 20)),
        use_zero_page: Err(Absence::not_read()),
        sizes: Vec::new(),
        khugepaged: Counters::default(),
    });
    let pool = |size, total| HugetlbPool {
        page_size: Bytes(size),
        total,
        free: 0,
        reserved: 0,
        surplus: 0,
        overcommit: 0,
    };
    snapshot.settings.hugetlb = Ok(vec![pool(2 << 20, 100), pool(1 << 30, 0)]);
    let processes = vec![process(4 << 30, 4 << 30)];
    snapshot.processes =
        Ok(HugePageCoverage { processes, processes_total: 1, ..HugePageCoverage::default() });
    snapshot.alloc_failures = Ok(AllocFailures::default());
    snapshot
}

/// A meminfo of these fields: counts where the kernel prints counts, kB otherwise.
pub(crate) fn meminfo(fields: &[(&str, u64)]) -> Meminfo {
    let in_kib = fields.iter().map(|(name, _)| !name.starts_with("HugePages_")).collect();
    Meminfo { fields: fields.iter().copied().collect::<Counters>(), in_kib }
}

/// A vmstat of these counters.
pub(crate) fn vmstat(counters: &[(&str, u64)]) -> Counters {
    counters.iter().copied().collect()
}

/// Zones of node 0 with these free blocks.
pub(crate) fn buddyinfo(zones: &[&[u64]]) -> BuddyInfo {
    let zone = |(at, counts): (usize, &&[u64])| ZoneFreeAreas {
        key: ZoneKey { node: NodeId(0), zone: format!("zone{at}") },
        areas: FreeAreas::new(counts.to_vec()).unwrap(),
    };
    BuddyInfo { zones: zones.iter().enumerate().map(zone).collect() }
}

/// A mode of transparent huge pages.
pub(crate) fn choice(word: &str) -> SysfsChoice {
    SysfsChoice { options: vec![word.to_owned()], selected: 0 }
}

/// A process of this much anonymous memory, so much of it in huge pages.
pub(crate) fn process(anonymous: u64, huge: u64) -> ProcessMemory {
    ProcessMemory {
        pid: 7,
        name: Some("java".to_owned()),
        rss: Bytes(anonymous),
        anonymous: Bytes(anonymous),
        anon_huge: Bytes(huge),
        shmem_huge: Bytes(0),
        file_huge: Bytes(0),
        hugetlb: Bytes(0),
        thp_enabled: Some(true),
        eligible: None,
        read_ns: 0,
    }
}
