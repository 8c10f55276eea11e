//! A small machine with an entry in every section, for the tests of the report.

use std::borrow::Cow;

use pagelab_model::instruments::Instrument;
use pagelab_model::machine::*;
use pagelab_model::pagetype::{CappedCount, MigratetypeFreeAreas, MigratetypePageblocks, Pagetypeinfo};
use pagelab_model::pressure::{Pressure, PressureLine};
use pagelab_model::probe::*;
use pagelab_model::process::{HugePageCoverage, ProcessMemory};
use pagelab_model::settings::*;
use pagelab_model::slab::SlabCache;
use pagelab_model::snapshot::{AllocFailure, AllocFailures};
use pagelab_model::zoneinfo::PerCpuPageset;
use pagelab_model::*;

const MIB: u64 = 1 << 20;

fn absent(why: AbsenceReason, source: &str, hint: &str) -> Absence {
    Absence::new(source, why, "").with_hint(hint)
}

fn key(zone: &str) -> ZoneKey {
    ZoneKey { node: NodeId(0), zone: zone.to_owned() }
}

/// 4 GiB, live, half of it fragmented, read by root.
pub fn example() -> Snapshot {
    let mut snapshot = Snapshot::new_unread("this machine", PageSize::DEFAULT);
    snapshot.taken.euid = Some(0);
    snapshot.machine = machine();
    snapshot.settings = settings();
    let fields = [
        ("MemTotal", 4 << 20),
        ("MemFree", 2_179_072),
        ("MemAvailable", 3 << 20),
        ("Cached", 900 << 10),
        ("AnonPages", 800 << 10),
        ("Shmem", 10 << 10),
        ("Slab", 120 << 10),
        ("SReclaimable", 80 << 10),
        ("PageTables", 8 << 10),
        ("AnonHugePages", 64 << 10),
        ("Dirty", 312),
    ];
    snapshot.meminfo = Ok(Meminfo { in_kib: vec![true; fields.len()], fields: fields.into_iter().collect() });
    let counters =
        [("thp_fault_alloc", 900), ("thp_fault_fallback", 100), ("compact_stall", 7), ("pswpin", 12)];
    snapshot.vmstat = Ok(counters.into_iter().collect());
    let zone = |name, counts: &[u64]| ZoneFreeAreas {
        key: key(name),
        areas: FreeAreas::new(counts.to_vec()).unwrap(),
    };
    let zones = vec![
        zone("DMA32", &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]),
        zone("Normal", &[90_000, 60_000, 40_000, 10_000, 1000, 800, 200, 50, 10, 0, 0]),
    ];
    snapshot.buddyinfo = Ok(BuddyInfo { zones });
    snapshot.zoneinfo =
        Ok(Zoneinfo { nodes: Vec::new(), zones: vec![zone_info("DMA32"), zone_info("Normal")] });
    let line = |hundredths| PressureLine {
        avg10_centipercent: hundredths,
        avg60_centipercent: 5,
        avg300_centipercent: 0,
        total_us: 1_234_567,
    };
    snapshot.pressure = Ok(Pressure { some: line(103), full: Some(line(2)) });
    snapshot.pagetypeinfo = Ok(types());
    let slab = SlabCache {
        name: "dentry".to_owned(),
        objects_active: 1,
        objects: 1,
        object_size: Bytes(192),
        objects_per_slab: 21,
        pages_per_slab: 1,
        slabs: 5000,
    };
    snapshot.slabs = Ok(vec![slab]);
    snapshot.alloc_sites = Err(Absence::new("/proc/allocinfo", AbsenceReason::NotThere, ""));
    snapshot.free_moved = Ok(Pages(0));
    snapshot.extfrag = Err(Absence::new("debugfs", AbsenceReason::Changing, ""));
    snapshot.census = Ok(census(Coverage::Whole));
    snapshot.processes = Ok(processes());
    let (at_us, order) = (Some(12_345_678), Some(9));
    let report = AllocFailure { at_us, process: "java".to_owned(), order, detail: "mode:0x40dc0".to_owned() };
    let (reports, kills) = (vec![report], vec![]);
    snapshot.alloc_failures = Ok(AllocFailures { reports, kills, log_overwritten: true });
    let instrument = |name, state| Instrument { name: Cow::Borrowed(name), purpose: "seeing".into(), state };
    snapshot.instruments = vec![
        instrument("kpageflags", Ok("6 Mi entries".to_owned())),
        instrument(
            "hardware_counters",
            Err(absent(AbsenceReason::NotThere, "perf_event_open", "give the VM a virtual PMU")),
        ),
    ];
    snapshot
}

/// The same machine without any findings.
pub fn healthy() -> Snapshot {
    let mut snapshot = example();
    snapshot.alloc_failures = Ok(AllocFailures::default());
    snapshot.vmstat = Ok([("thp_fault_alloc", 900), ("thp_fault_fallback", 1)].into_iter().collect());
    snapshot.processes = Ok(HugePageCoverage::default());
    let areas = FreeAreas::new(vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 512]).unwrap();
    snapshot.buddyinfo = Ok(BuddyInfo { zones: vec![ZoneFreeAreas { key: key("Normal"), areas }] });
    snapshot.census = Err(absent(AbsenceReason::NotPermitted, "/proc/kpageflags", "run as root"));
    snapshot
}

/// 100 blocks of the zone Normal, of 1000 for a sample: a third polluted by slab, some uncertain.
pub fn census(coverage: Coverage) -> Census {
    let block = |at: u64| {
        let mut counts = PageblockCounts::default();
        counts.0[PageClass::Free.index()] = 312;
        counts.0[PageClass::Anon.index()] = 199;
        counts.0[match at % 30 {
            0..10 => PageClass::Slab,
            10 => PageClass::Unknown,
            _ => PageClass::File,
        }
        .index()] = 1;
        (at, counts)
    };
    let zone = CensusZone {
        key: key("Normal"),
        first: Pfn(1 << 18),
        blocks_total: if coverage == Coverage::Whole { 100 } else { 1000 },
        blocks: (0..100).map(block).collect(),
        one_folio: Vec::new(),
        free_blocks: None,
        per_cpu: Some(Pages(2)),
    };
    Census { pageblock_order: Order(9), zones: vec![zone], coverage, free_blocks: None, scan_ns: 12_300_000 }
}

/// A probe in which huge pages backed `backed` of a buffer of 64 MiB.
pub fn probe(backed: Bytes) -> ProbeResults {
    let point = |ps: [u64; 3], backed| AccessPoint {
        size: Bytes(64 * MIB),
        ps_per_access: ps.to_vec(),
        huge_backed: Ok(backed),
    };
    let pair = AccessPair {
        base: point([120_300, 121_000, 119_900], Bytes(0)),
        huge: Ok(point([80_100, 80_300, 79_800], backed)),
    };
    let none = AccessPair {
        base: point([130_000, 130_100, 130_200], Bytes(0)),
        huge: Err(Absence::new("MADV_COLLAPSE", AbsenceReason::Failed, "no memory in huge pages")),
    };
    let asked = HugePageProbe {
        page_size: Bytes(2 * MIB),
        requested: 4,
        succeeded: 4,
        allocated: backed.0 / MIB / 2 / 16,
        read_back_by: "PAGEMAP_SCAN".to_owned(),
        latency_ns: vec![300_000, 200_000, 1_900_000, 400_000],
        first_error: None,
    };
    ProbeResults {
        budget: Bytes(1 << 30),
        budget_limit: "free memory less the reserve".to_owned(),
        huge: Ok(asked),
        access: Ok(AccessProbe {
            seed: 1,
            pinned_cpu: Some(1),
            base_curve: Vec::new(),
            huge_curve: Vec::new(),
            pairs: vec![pair, none],
            knee: Ok(Bytes(6 * MIB)),
        }),
        notes: vec!["this is a virtual machine: what backs its memory on the host is unknown".to_owned()],
    }
}

fn machine() -> Machine {
    let mut machine = Machine::new_unread(PageSize::DEFAULT);
    machine.host_name = Some("kiste".to_owned());
    machine.kernel_release = Ok("6.12.1".to_owned());
    machine.page_size_source = "sysconf".to_owned();
    machine.cpu = Ok(Cpu {
        model_name: "Intel(R) Xeon(R) CPU E5 @ 2.00GHz".to_owned(),
        vendor: "GenuineIntel".to_owned(),
        family: Some(6),
        model: Some(79),
        stepping: Some(1),
        threads: 8,
        cores: Some(4),
        physical_bits: Some(46),
        virtual_bits: Some(48),
        clock_khz: Some(2_000_135),
        flags: Vec::new(),
    });
    let size = Bytes(32 << 10);
    let cache = Cache {
        level: 1,
        kind: "Data".to_owned(),
        size,
        ways: Some(8),
        line: None,
        shared_cpus: "0".to_owned(),
    };
    machine.caches = Ok(vec![cache]);
    let level = TlbLevel {
        level: 2,
        holds: TlbContent::Unified,
        page_sizes: vec![Bytes(4 << 10), Bytes(2 * MIB)],
        entries: 1536,
        ways: Some(6),
    };
    let source = TlbSource::Assumed("Broadwell; a dump".to_owned());
    machine.tlb = Ok(Tlb { source, levels: vec![level] });
    machine.nodes = Ok(vec![NodeId(0)]);
    machine.hypervisor = Ok(Hypervisor::Present { name: "KVM".to_owned(), source: "DMI".to_owned() });
    machine.direct_map = Ok(DirectMap {
        base: Bytes(10 * MIB),
        pmd: Bytes(1000 * MIB),
        pud: Bytes(3 << 30),
        pmd_splits: Some(3),
        pud_splits: Some(1),
    });
    machine.cgroup = Ok(Cgroup {
        version: CgroupVersion::V2,
        path: "/größe.slice".to_owned(),
        memory_limit: Some(Bytes(3 << 30)),
        limit_path: Some("/größe.slice".to_owned()),
        limit_file: Some("/sys/fs/cgroup/größe.slice/memory.max".to_owned()),
        memory_used: Some(Bytes(1 << 30)),
        memory_room: None,
    });
    machine.memory_block = Ok(Bytes(128 * MIB));
    machine
}

fn settings() -> Settings {
    let choice = |words: &[&str], selected| {
        Ok(SysfsChoice { options: words.iter().map(|&word| word.to_owned()).collect(), selected })
    };
    let size = |bytes, selected| ThpSize {
        size: Bytes(bytes),
        enabled: choice(&["always", "inherit", "madvise", "never"], selected),
        shmem_enabled: Err(Absence::not_read()),
        stats: Counters::default(),
    };
    let thp = ThpSettings {
        enabled: choice(&["always", "madvise", "never"], 1),
        defrag: choice(&["always", "defer", "madvise", "never"], 2),
        shmem_enabled: Err(absent(AbsenceReason::NotThere, "shmem_enabled", "CONFIG_SHMEM")),
        pmd_size: Ok(Bytes(2 * MIB)),
        use_zero_page: Ok(1),
        sizes: vec![size(64 << 10, 3), size(2 * MIB, 1)],
        khugepaged: Counters::default(),
    };
    let pool =
        HugetlbPool { page_size: Bytes(2 * MIB), total: 8, free: 0, reserved: 0, surplus: 0, overcommit: 0 };
    let vm = [("compaction_proactiveness", 20), ("extfrag_threshold", 500), ("min_free_kbytes", 11_584)];
    Settings {
        thp: Ok(thp),
        hugetlb: Ok(vec![pool]),
        vm: vm.into_iter().collect(),
        vm_absent: Vec::new(),
        swap: Ok(Vec::new()),
    }
}

fn zone_info(name: &str) -> ZoneEntry {
    let mut zone = ZoneEntry::empty(key(name));
    (zone.present, zone.managed) = (Some(Pages(520_000)), Some(Pages(490_000)));
    (zone.min, zone.low, zone.high) = (Some(Pages(1000)), Some(Pages(1250)), Some(Pages(1500)));
    zone.pagesets = vec![PerCpuPageset { count: Pages(2), ..PerCpuPageset::default() }];
    zone
}

fn types() -> Pagetypeinfo {
    let free = MigratetypeFreeAreas {
        key: key("Normal"),
        migratetype: "Movable".to_owned(),
        counts: vec![CappedCount::MoreThan(100_000), CappedCount::Exact(12)],
    };
    let blocks = MigratetypePageblocks { key: key("Normal"), counts: vec![("Movable".to_owned(), 90)] };
    Pagetypeinfo { free: vec![free], blocks: vec![blocks], ..Pagetypeinfo::default() }
}

fn processes() -> HugePageCoverage {
    let process = ProcessMemory {
        pid: 4711,
        name: Some("java".to_owned()),
        rss: Bytes(700 * MIB),
        anonymous: Bytes(600 * MIB),
        anon_huge: Bytes(2 * MIB),
        shmem_huge: Bytes(0),
        file_huge: Bytes(0),
        hugetlb: Bytes(0),
        thp_enabled: Some(true),
        eligible: Some(Bytes(590 * MIB)),
        read_ns: 1000,
    };
    HugePageCoverage {
        processes: vec![process],
        processes_total: 90,
        unreadable: Some((3, absent(AbsenceReason::NotPermitted, "smaps_rollup", "run as root"))),
        skipped_over_budget: 1,
        is_budget_spent: true,
    }
}
