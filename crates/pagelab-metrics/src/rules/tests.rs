//! Tests: each rule triggers at its threshold and not just below it; a healthy machine has no findings.

use pagelab_model::machine::{Cgroup, CgroupVersion, PageReporting};
use pagelab_model::probe::{HugePageProbe, ProbeResults};
use pagelab_model::settings::ThpSize;
use pagelab_model::snapshot::{AllocFailure, ExtfragFiles};
use pagelab_model::{
    Absence, Census, CensusZone, Counters, Coverage, Order, PageClass, PageblockCounts, Pfn, SamplePlan,
};

use super::*;
use crate::findings::FindingWeight;
use crate::healthy::{FREE_PAGES, buddyinfo, choice, healthy, process, vmstat};

/// Puts a number where a rule looks.
type Set = fn(&mut Snapshot, u64);

/// Rule, field of the number, the last number without a finding, the first with one.
const CASES: &[(&str, Set, u64, u64)] = &[
    ("free_memory_unusable", pieces, FREE_PAGES / 2 - 1024, FREE_PAGES / 2),
    // 5 % of 16 GiB is free at least, else it is page cache's normal life.
    ("free_memory_unusable", |s, n| s.buddyinfo = Ok(buddyinfo(&[&[n]])), 209_715, 209_716),
    ("polluted_pageblocks", |s, n| s.census = Ok(census(n, 1000, 1000)), 249, 250),
    // A sample must be sure: 320 - 93 are, 370 - 96 are not fewer than 250.
    ("polluted_pageblocks", |s, n| s.census = Ok(census(n, 100, 1000)), 32, 37),
    ("thp_fallback", |s, n| faults(s, 950, n), 49, 50),
    ("thp_fallback", |s, n| faults(s, 0, n), 99, 100),
    ("compaction_fails", |s, n| compactions(s, 100, n), 99, 100),
    ("compaction_fails", |s, n| compactions(s, 0, n), 99, 100),
    ("process_without_huge_pages", |s, n| runs(s, n, 0), 858_993_459, 858_993_460),
    ("process_without_huge_pages", |s, n| runs(s, 1 << 30, n), 107_374_183, 107_374_182),
    ("process_without_huge_pages", on_a_small_machine, (256 << 20) - 1, 256 << 20),
    ("hugetlb_idle", |s, n| pool(s, n, 0), 81, 82),
    ("hugetlb_idle", |s, n| pool(s, 100, n), 19, 18),
    ("memory_pressure", pressed, 999, 1000),
    ("swap_full", |s, n| field(s, "SwapFree", 1000 - n), 899, 900),
    ("allocation_failures", failed, 0, 1),
    ("oom_kills", |s, n| s.vmstat = Ok(vmstat(&[("oom_kill", n)])), 0, 1),
    ("oom_kills", |s, n| killed(s, OomScope::Machine, n), 0, 1),
    ("cgroup_oom_kills", |s, n| killed(s, OomScope::ControlGroup, n), 0, 1),
    ("host_takes_free_memory", reporting, 0, 1),
    ("page_tables", |s, n| field(s, "PageTables", n), 335_544, 335_545),
    ("slab_unreclaimable", |s, n| field(s, "Slab", n + (400 << 10)), 1_677_721, 1_677_722),
    ("cgroup_tight", charged, 899, 900),
    ("index_differs", kernel_says, 0, 1),
    ("free_unexplained", |s, n| ahead(s, Some(0), n), 125, 126),
    ("probe_fallback", |s, n| s.probe = Some(probed(n)), 10, 9),
];

fn ids(snapshot: &Snapshot) -> Vec<&'static str> {
    Checkup::from_snapshot(snapshot).findings.iter().map(|finding| finding.kind.id()).collect()
}

#[test]
fn each_rule_fires_at_its_threshold_and_not_before() {
    for &(id, set, well, not_well) in CASES {
        let of = |number| {
            let mut snapshot = healthy();
            set(&mut snapshot, number);
            ids(&snapshot)
        };
        assert_eq!(of(well), [""; 0], "{id} at {well}");
        assert_eq!(of(not_well), [id], "{id} at {not_well}");
    }
}

#[test]
fn a_healthy_machine_and_an_unread_one_have_no_findings() {
    assert_eq!(ids(&healthy()), [""; 0]);
    assert_eq!(ids(&Snapshot::new_unread("", healthy().machine.page_size)), [""; 0]);
}

#[test]
fn what_fails_comes_before_what_costs_before_what_is_worth_knowing() {
    let mut snapshot = healthy();
    snapshot.probe = Some(probed(9));
    runs(&mut snapshot, 4 << 30, 0);
    pieces(&mut snapshot, FREE_PAGES);
    field(&mut snapshot, "SwapFree", 0);
    failed(&mut snapshot, 1);
    let findings = Checkup::from_snapshot(&snapshot).findings;
    let ranked: Vec<_> = findings.iter().map(|finding| (finding.weight, finding.kind.id())).collect();
    let expected = [
        (FindingWeight::Failure, "allocation_failures"),
        (FindingWeight::Failure, "swap_full"),
        (FindingWeight::Cost, "free_memory_unusable"),
        (FindingWeight::Cost, "probe_fallback"),
        (FindingWeight::Notice, "process_without_huge_pages"),
    ];
    assert_eq!(ranked, expected);
}

#[test]
fn memory_that_is_not_on_the_lists_yet_counts_as_whole() {
    let mut snapshot = healthy();
    // A quarter of the free memory in pieces, the rest not accepted yet.
    snapshot.buddyinfo = Ok(buddyinfo(&[&[FREE_PAGES / 4]]));
    assert_eq!(ids(&snapshot), ["free_memory_unusable"]);
    field(&mut snapshot, "Unaccepted", 3 << 20);
    assert_eq!(ids(&snapshot), [""; 0]);
}

#[test]
fn the_reason_for_no_huge_pages_is_the_mode_that_decides() {
    let check = |global: &str, of_size: Option<&str>, thp_enabled, expected: Option<NoHugePagesReason>| {
        let mut snapshot = healthy();
        runs(&mut snapshot, 4 << 30, 0);
        snapshot.processes.as_mut().unwrap().processes[0].thp_enabled = thp_enabled;
        let thp = snapshot.settings.thp.as_mut().unwrap();
        thp.enabled = if global.is_empty() { Err(Absence::not_read()) } else { Ok(choice(global)) };
        thp.sizes = of_size.iter().map(|&mode| size(mode)).collect();
        let found = Checkup::from_snapshot(&snapshot).findings;
        let why = found.iter().find_map(|finding| match finding.kind {
            FindingKind::ProcessWithoutHugePages { reason: why, .. } => Some(why),
            _ => None,
        });
        assert_eq!(why, expected, "{global} {of_size:?} {thp_enabled:?}");
    };
    check("always", None, Some(true), Some(NoHugePagesReason::NotAllocated));
    check("madvise", None, None, Some(NoHugePagesReason::NotAdvised));
    check("never", None, Some(true), Some(NoHugePagesReason::ModeNever));
    check("always", None, Some(false), Some(NoHugePagesReason::SwitchedOff));
    check("never", Some("always"), Some(true), Some(NoHugePagesReason::NotAllocated));
    check("madvise", Some("inherit"), Some(true), Some(NoHugePagesReason::NotAdvised));
    check("", None, Some(true), None);
}

#[test]
fn free_counts_of_a_saved_tree_accuse_nobody() {
    let mut snapshot = healthy();
    ahead(&mut snapshot, None, 100_000);
    assert_eq!(ids(&snapshot), [""; 0]);
}

/// `n` free pages alone, the other free memory in blocks of order 10.
fn pieces(snapshot: &mut Snapshot, n: u64) {
    snapshot.buddyinfo = Ok(buddyinfo(&[&[n, 0, 0, 0, 0, 0, 0, 0, 0, 0, (FREE_PAGES - n) >> 10]]));
}

/// `units` of the blocks seen, `polluted` of them by a slab page, of a zone of `total`.
fn census(polluted: u64, seen: u64, total: u64) -> Census {
    let block = |at| {
        let mut counts = PageblockCounts::default();
        counts.0[PageClass::Free.index()] = 511;
        counts.0[if at < polluted { PageClass::Slab } else { PageClass::Anon }.index()] = 1;
        (at, counts)
    };
    let sample = SamplePlan { seed: 1, blocks: seen, blocks_total: total };
    let zone = CensusZone {
        key: buddyinfo(&[&[0]]).zones[0].key.clone(),
        first: Pfn(0),
        blocks_total: total,
        blocks: (0..seen).map(block).collect(),
        one_folio: Vec::new(),
        free_blocks: None,
        per_cpu: None,
    };
    let coverage = if seen < total { Coverage::Sample(sample) } else { Coverage::Whole };
    Census { pageblock_order: Order(9), zones: vec![zone], coverage, free_blocks: None, scan_ns: 0 }
}

fn faults(snapshot: &mut Snapshot, given: u64, refused: u64) {
    snapshot.vmstat = Ok(vmstat(&[("thp_fault_alloc", given), ("thp_fault_fallback", refused)]));
}

fn compactions(snapshot: &mut Snapshot, success: u64, fail: u64) {
    snapshot.vmstat = Ok(vmstat(&[("compact_success", success), ("compact_fail", fail)]));
}

fn runs(snapshot: &mut Snapshot, anonymous: u64, huge: u64) {
    snapshot.processes.as_mut().unwrap().processes = vec![process(anonymous, huge)];
}

/// On 1 GiB, 5 % is below the threshold.
fn on_a_small_machine(snapshot: &mut Snapshot, anonymous: u64) {
    field(snapshot, "MemTotal", 1 << 20);
    field(snapshot, "Slab", 400 << 10);
    field(snapshot, "PageTables", 0);
    runs(snapshot, anonymous, 0);
}

fn pool(snapshot: &mut Snapshot, free: u64, reserved: u64) {
    let pool = &mut snapshot.settings.hugetlb.as_mut().unwrap()[0];
    (pool.free, pool.reserved) = (free, reserved);
}

fn pressed(snapshot: &mut Snapshot, centipercent: u64) {
    snapshot.pressure.as_mut().unwrap().some.avg10_centipercent = centipercent as u32;
}

/// Sets one field of meminfo.
fn field(snapshot: &mut Snapshot, name: &str, value: u64) {
    let info = snapshot.meminfo.as_mut().unwrap();
    let others = info.fields.iter().filter(|(other, _)| *other != name);
    let fields: Counters = others.chain([(name, value)]).collect();
    info.in_kib.resize(fields.len(), true);
    info.fields = fields;
}

fn failed(snapshot: &mut Snapshot, reports: u64) {
    let report =
        AllocFailure { at_us: None, process: "java".to_owned(), order: Some(4), detail: String::new() };
    snapshot.alloc_failures.as_mut().unwrap().reports = vec![report; reports as usize];
}

/// Free pages are reported, or not.
fn reporting(snapshot: &mut Snapshot, is_on: u64) {
    let of = PageReporting { order: Some(Order(9)), requested_order: None, device: None, reported: None };
    snapshot.machine.page_reporting = (is_on > 0).then_some(of);
}

/// So many kills in the log, and counted by the kernel too.
fn killed(snapshot: &mut Snapshot, scope: OomScope, kills: u64) {
    let kill = OomKill {
        at_us: None,
        scope,
        pid: Some(7),
        process: "java".to_owned(),
        group: Some("/a".to_owned()),
        limit: Some(Bytes(1 << 20)),
        limit_file: None,
    };
    snapshot.alloc_failures.as_mut().unwrap().kills = vec![kill; kills as usize];
    snapshot.vmstat = Ok(vmstat(&[("oom_kill", kills)]));
}

#[test]
fn kills_of_the_machine_of_a_group_and_of_neither_are_three_kinds() {
    let mut snapshot = healthy();
    killed(&mut snapshot, OomScope::ControlGroup, 7);
    assert_eq!(ids(&snapshot), ["cgroup_oom_kills"]);
    // Two more were counted, and the log has lost them.
    snapshot.vmstat = Ok(vmstat(&[("oom_kill", 9)]));
    let found = Checkup::from_snapshot(&snapshot).findings;
    let unknown = FindingKind::OomKills { kills: 2, unexplained: 2, last_process: None };
    assert!(found.iter().any(|finding| finding.kind == unknown), "{found:?}");
    // The head of an out-of-memory report, as old run files keep it, is no failed allocation.
    killed(&mut snapshot, OomScope::ControlGroup, 0);
    failed(&mut snapshot, 1);
    let log = snapshot.alloc_failures.as_mut().unwrap();
    log.reports[0].detail = "invoked oom-killer: gfp_mask=0xcc0".to_owned();
    assert_eq!(ids(&snapshot), [""; 0]);
}

fn charged(snapshot: &mut Snapshot, used: u64) {
    snapshot.machine.cgroup = Ok(Cgroup {
        version: CgroupVersion::V2,
        path: "/".to_owned(),
        memory_limit: Some(Bytes(1000)),
        limit_path: None,
        limit_file: None,
        memory_used: Some(Bytes(used)),
        memory_room: None,
    });
}

/// One zone of one order; the kernel's file has `thousandths` where ours is 0.
fn kernel_says(snapshot: &mut Snapshot, thousandths: u64) {
    snapshot.extfrag = Ok(ExtfragFiles {
        unusable: format!("Node 0, zone     zone0 0.00{thousandths} \n"),
        extfrag: "Node 0, zone     zone0 -1.000 \n".to_owned(),
        buddyinfo: buddyinfo(&[&[8]]),
        tries: 1,
    });
}

/// The counter is this many pages ahead of the lists.
fn ahead(snapshot: &mut Snapshot, euid: Option<u32>, pages: u64) {
    snapshot.taken.euid = euid;
    field(snapshot, "MemFree", (FREE_PAGES + pages) * 4);
}

/// `allocated` of ten huge pages, and `base_ps` with base pages where huge pages take 1000.
fn probed(allocated: u64) -> ProbeResults {
    ProbeResults {
        budget: Bytes(1 << 30),
        budget_limit: String::new(),
        huge: Ok(HugePageProbe {
            page_size: Bytes(2 << 20),
            requested: 10,
            succeeded: 10,
            allocated,
            read_back_by: String::new(),
            latency_ns: Vec::new(),
            first_error: None,
        }),
        access: Err(Absence::not_read()),
        notes: Vec::new(),
    }
}

/// The PMD size with a separate mode.
fn size(mode: &str) -> ThpSize {
    ThpSize {
        size: Bytes(2 << 20),
        enabled: Ok(choice(mode)),
        shmem_enabled: Err(Absence::not_read()),
        stats: Counters::default(),
    }
}
