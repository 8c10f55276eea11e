//! Tests of the probe on this machine, with little memory.

use std::fs;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::*;

/// One probe at a time: the tests compare memory before and after.
static ALONE: Mutex<()> = Mutex::new(());

fn lock_probe() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kib(field: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Anonymous memory of this process, independent of other processes' changes of free memory.
fn own_kib() -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

fn facts() -> ProbeFacts {
    let pmd = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    let absent = |e: std::io::Error| Absence::new("hpage_pmd_size", AbsenceReason::NotThere, e.to_string());
    ProbeFacts {
        page_size: pagelab_host::machine::live_page_size().unwrap(),
        pmd_size: pmd.map_err(absent).map(|text| Bytes(text.trim().parse().unwrap())),
        total: Bytes::from_kib(kib("MemTotal:")),
        free: Bytes::from_kib(kib("MemFree:")),
        available: Some(Bytes::from_kib(kib("MemAvailable:"))),
        high_watermarks: None,
        cgroup: None,
        thp_mode: Some("madvise".to_owned()),
        virtual_machine: Some(true),
    }
}

fn small_options() -> ProbeOptions {
    ProbeOptions { huge_pages: 4, region_max: Bytes(16 << 20), repeats: 3, ..ProbeOptions::default() }
}

/// Returns whether no other test runs in this process. Otherwise starts a process for this test, which must
/// succeed.
fn is_alone_in_its_process(test: &str) -> bool {
    const MARK: &str = "PAGELAB_TEST_ALONE";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture"]).env(MARK, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    false
}

#[test]
fn huge_pages_that_came_are_read_back_and_given_back() {
    let _alone = lock_probe();
    if !is_alone_in_its_process("probe::tests::huge_pages_that_came_are_read_back_and_given_back") {
        return;
    }
    let facts = facts();
    if let Err(absence) = &facts.pmd_size {
        eprintln!("skipped: thp-absent: {}", absence.reason());
        return;
    }
    let options = small_options();
    assert_eq!(collapses_max(&options, &facts), 4 + 2 * (16 << 20) / facts.pmd_size.clone().unwrap().0);
    let before_kib = own_kib();
    let results = probe(&options, &facts, &|_, _| {});
    let after_kib = own_kib();
    match &results.huge {
        Ok(huge) => {
            assert_eq!(huge.requested, 4);
            assert_eq!(huge.latency_ns.len(), 4);
            assert_eq!(huge.allocated, huge.succeeded, "what was answered is what is there: {huge:?}");
            assert_eq!(huge.first_error.is_some(), huge.succeeded < huge.requested);
        }
        Err(absence) => eprintln!("skipped: thp-absent: {}: {}", absence.source, absence.reason()),
    }
    assert!(
        after_kib.saturating_sub(before_kib) < 4 << 10,
        "{before_kib} kB of anonymous memory before, {after_kib} after"
    );
    let access = results.access.unwrap();
    assert!(access.base_curve.len() >= 10 && access.pairs.len() == 1);
    for point in access.base_curve.iter().chain(access.pairs.iter().map(|pair| &pair.base)) {
        assert_eq!(point.huge_backed, Ok(Bytes(0)), "base pages only at {:?}", point.size);
        assert!([12, 24].contains(&point.ps_per_access.len()));
        assert!(point.ps_per_access.iter().all(|ps| (100..10_000_000).contains(ps)), "{point:?}");
    }
    assert!(results.notes.iter().any(|note| note.contains("virtual machine")), "{:?}", results.notes);
}

#[test]
fn both_ways_of_reading_back_agree() {
    let _alone = lock_probe();
    let Ok(size) = facts().pmd_size else {
        eprintln!("skipped: thp-absent: no hpage_pmd_size");
        return;
    };
    use pagelab_sys::mapping::{Advice, Mapping};
    let mut map = Mapping::anonymous(Bytes(size.0 * 3), size).unwrap();
    map.advise(0..size.0 * 3, Advice::NoHugePage).unwrap();
    map.touch_for_writing(0..size.0 * 3).unwrap();
    map.advise(size.0..size.0 * 2, Advice::HugePage).unwrap();
    let is_collapsed = map.advise(size.0..size.0 * 2, Advice::Collapse).is_ok();
    let smaps = HugeReadback::Smaps.count_huge_bytes(map.addresses()).unwrap();
    assert_eq!(smaps, Bytes(if is_collapsed { size.0 } else { 0 }));
    assert_eq!(HugeReadback::open().count_huge_bytes(map.addresses()).unwrap(), smaps);
}

#[test]
fn refusals_are_results() {
    let _alone = lock_probe();
    let options = small_options();
    let poor = ProbeFacts { free: Bytes(1 << 20), available: Some(Bytes(1 << 20)), ..facts() };
    assert_eq!(collapses_max(&options, &poor), 0);
    let results = probe(&options, &poor, &|_, _| {});
    assert!(results.access.unwrap_err().reason().starts_with("only 0 B is allowed, but at least 32"));
    let without = ProbeFacts { pmd_size: Err(Absence::new("THP", AbsenceReason::NotThere, "")), ..facts() };
    assert_eq!(collapses_max(&options, &without), 0);
    let access = probe(&options, &without, &|_, _| {}).access.unwrap();
    assert!(access.huge_curve.is_empty() && access.pairs[0].huge.is_err());
    assert!(
        access
            .knee
            .unwrap_err()
            .reason()
            .starts_with("without huge pages, cache misses and TLB misses cannot be distinguished")
    );
}

#[test]
fn huge_pages_switched_off_by_a_parent_are_the_reason() {
    let _alone = lock_probe();
    let before = thp_disable::read_thp_disable();
    if before != ThpDisable::Off || facts().pmd_size.is_err() {
        eprintln!("skipped: thp-absent: {before:?}");
        return;
    }
    thp_disable::set_thp_disable(true).unwrap();
    let options = small_options();
    let asks = collapses_max(&options, &facts());
    let results = probe(&options, &facts(), &|_, _| {});
    thp_disable::set_thp_disable(false).unwrap();
    assert_eq!(thp_disable::read_thp_disable(), ThpDisable::Off);
    assert_eq!(asks, 0);
    assert!(results.huge.unwrap_err().reason().contains("PR_SET_THP_DISABLE"));
    assert!(results.access.unwrap().pairs[0].huge.is_err());
}

#[test]
fn a_probe_without_time_ends_at_once() {
    let _alone = lock_probe();
    let options = ProbeOptions { time_ns: 0, ..ProbeOptions::default() };
    let started_ns = clock::monotonic_ns();
    let results = probe(&options, &facts(), &|_, _| {});
    assert!(clock::monotonic_ns() - started_ns < 2_000_000_000);
    assert!(results.access.is_err());
}
