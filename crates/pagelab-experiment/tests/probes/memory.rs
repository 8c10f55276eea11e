//! Tests of faults, page tables, huge pages and the zero page, on children with known counts.

use pagelab_experiment::probe::{ProbeSelection, missing_huge_pages_flag};
use pagelab_model::experiment::{Flag, Measure};

use crate::child::pmd;
use crate::trial::{Outcome, group, run, task};

/// Whether a child gets huge pages here on request; prints a message otherwise.
fn thp(outcome: &Outcome, count: u64) -> bool {
    let got = outcome.child_value("anon") >= (count * pmd()) as f64;
    if !got {
        println!(
            "skipped: thp-absent: a child that requested {count} huge pages got {} bytes",
            outcome.child_value("anon")
        );
    }
    got
}

#[test]
fn each_page_is_one_fault() {
    let own = group("faults");
    let group = own.as_ref().map(|own| &own.group);
    let pages = 20_000.0;
    let page = rustix::param::page_size() as f64;
    let outcome = run(&task("fault 20000"), &ProbeSelection::default(), group);
    assert!(outcome.status.success(), "{}", outcome.said);
    let minor = outcome.value("rusage.minflt");
    assert!((pages..pages + 3000.0).contains(&minor), "{minor}");
    assert_eq!(minor, outcome.rusage.minflt as f64);
    for name in ["ixrss", "idrss", "isrss", "nswap", "msgsnd", "msgrcv", "nsignals"] {
        let absence = outcome.reading(&format!("rusage.{name}")).unwrap_err();
        assert_eq!(absence.reason(), "Linux does not maintain this rusage field");
    }
    assert!(outcome.value("vmstat.pgfault") >= pages);
    if let Ok(counted) = outcome.reading("counter.minor-faults") {
        assert!((pages..=minor).contains(&counted), "{counted} by perf, {minor} by rusage");
        assert!(outcome.value("counter.task-clock") > 0.0);
    }
    // A table of 512 entries of 8 bytes for each 512 pages, and the upper tables.
    let tables = outcome.value("page_tables");
    assert!((pages * 8.0..pages * 8.0 + 40.0 * page).contains(&tables), "{tables}");
    assert_eq!(outcome.value("huge.all"), 0.0);
    assert_eq!(outcome.value("huge.anon"), 0.0);
    // Other tests that run at the same time have huge pages too, which the machine's counters include.
    let mut own_alone = outcome.found.measures.clone();
    own_alone.retain(|measure| !measure.name.starts_with("vmstat."));
    let flag = missing_huge_pages_flag(&own_alone, 0.0).unwrap();
    assert_eq!(flag.kind, Flag::NO_HUGE_PAGES);
    if group.is_some() {
        let peak = outcome.value("memory.peak");
        assert!((pages * page..pages * page * 1.5).contains(&peak), "{peak}");
        assert!(outcome.value("group.pgfault") >= pages);
    } else {
        assert!(outcome.reading("memory.peak").is_err());
    }
}

#[test]
fn huge_pages_are_those_that_the_child_has() {
    for with_group in [false, true] {
        let own = if with_group { group("huge") } else { None };
        let outcome = run(&task("huge 8"), &ProbeSelection::default(), own.as_ref().map(|own| &own.group));
        assert!(outcome.status.success(), "{}", outcome.said);
        if !thp(&outcome, 8) {
            return;
        }
        for name in ["huge.anon", "huge.all"] {
            assert_eq!(
                outcome.value(name),
                outcome.child_value("anon"),
                "{name}, with a group: {with_group}"
            );
        }
        for name in ["huge.shmem", "huge.hugetlb"] {
            assert_eq!(outcome.value(name), 0.0, "{name}");
        }
        assert_eq!(missing_huge_pages_flag(&outcome.found.measures, 0.0), None);
        assert!(outcome.value("vmstat.thp_fault_alloc") >= 8.0);
    }
}

#[test]
fn probes_report_file_huge_pages_as_the_child_sees_them() {
    let own = group("file");
    let outcome = run(&task("file 8"), &ProbeSelection::default(), own.as_ref().map(|own| &own.group));
    assert!(outcome.status.success(), "{}", outcome.said);
    let child_bytes = outcome.child_value("file");
    assert_eq!(outcome.value("huge.file"), child_bytes, "{}", outcome.said);
    assert_eq!(outcome.value("huge.anon"), 0.0);
    if child_bytes == 0.0 {
        println!("skipped: no-file-thp: {}", outcome.said.lines().last().unwrap_or_default());
        return;
    }
    assert_eq!((child_bytes as u64) % pmd(), 0, "{child_bytes}");
    assert_eq!(outcome.value("huge.all"), child_bytes);
    assert_eq!(missing_huge_pages_flag(&outcome.found.measures, 0.0), None);
}

#[test]
fn the_huge_zero_page_is_reported_and_not_counted_as_a_huge_page() {
    let own = group("zero");
    let outcome = run(&task("zero 6"), &ProbeSelection::default(), own.as_ref().map(|own| &own.group));
    assert!(outcome.status.success(), "{}", outcome.said);
    assert_eq!(outcome.child_value("anon"), 0.0, "smaps does not show it");
    match outcome.reading("huge.zero") {
        Ok(bytes) if bytes > 0.0 => assert_eq!(bytes, (6 * pmd()) as f64),
        other => {
            println!("skipped: no-huge-zero-page: {other:?}");
            return;
        }
    }
    assert_eq!(outcome.value("huge.all"), 0.0);
    // On a busy machine the last scan is early, and other programs have huge pages: the flag would say so.
    let measures: Vec<Measure> =
        outcome.found.measures.into_iter().filter(|measure| measure.name != "probe.last_scan").collect();
    let flag = missing_huge_pages_flag(&measures, 0.0).unwrap();
    assert_eq!(flag.kind, Flag::NO_HUGE_PAGES);
}

#[test]
fn probes_report_their_own_cost_and_each_measure_once() {
    let own = group("cost");
    let outcome = run(&task("fault 1000"), &ProbeSelection::default(), own.as_ref().map(|own| &own.group));
    for name in ["probe.cpu", "probe.scans", "wall", "cpu", "unusable.before", "pressure.memory.some"] {
        let reading = outcome.reading(name);
        assert!(
            reading.as_ref().is_ok_and(|&value| value >= 0.0) || name.starts_with("pressure"),
            "{name}: {reading:?}"
        );
    }
    assert!(outcome.value("probe.scans") >= 2.0);
    let mut names: Vec<&str> = outcome.found.measures.iter().map(|measure| measure.name.as_str()).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    for measure in &outcome.found.measures {
        assert!(!measure.source.is_empty(), "{measure:?}");
        assert!(
            measure.value.as_ref().is_ok_and(|value| value.is_finite() && *value >= 0.0)
                || measure.value.is_err()
        );
    }
    let unasked = run(&task("fault 10"), &ProbeSelection::always_on(), None);
    let names: Vec<&str> = unasked.found.measures.iter().map(|measure| measure.name.as_str()).collect();
    assert!(!names.iter().any(|name| name.starts_with("huge") || name.starts_with("counter")), "{names:?}");
}

#[test]
fn a_program_that_does_not_exist_has_no_counts() {
    let outcome = run(&["/nonexistent/program".to_owned()], &ProbeSelection::default(), None);
    assert_eq!(outcome.status.code(), Some(127));
    match outcome.reading("counter.page-faults") {
        Err(absence) => assert!(!absence.reason().is_empty()),
        Ok(count) => panic!("{count} faults of no program"),
    }
}
