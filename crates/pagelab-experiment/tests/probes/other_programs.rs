//! Tests that compare probes with perf and time on the same trials.

use std::process::{Command, Stdio};

use pagelab_experiment::probe::ProbeSelection;

use crate::trial::{run, task};

const FAULTS: &str = "fault 30000";

/// Standard error of a program that is given our task to run; `None` where there is no such program.
fn watched_by(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(arguments).args(task(FAULTS)).stdout(Stdio::null()).stdin(Stdio::null());
    Some(String::from_utf8_lossy(&command.output().ok()?.stderr).into_owned())
}

#[test]
fn perf_counts_the_same_events() {
    let events = "page-faults,minor-faults,major-faults,kmem:mm_page_alloc";
    let Some(said) = watched_by("perf", &["stat", "-x,", "-e", events, "--"]) else {
        println!("skipped: no-perf: perf is not installed");
        return;
    };
    let wanted = ProbeSelection::from_names(["software", "kmem:mm_page_alloc"]).unwrap();
    let outcome = run(&task(FAULTS), &wanted, None);
    let mut compared = 0;
    for event in events.split(',') {
        // `30412,,page-faults,52034567,100.00,,`; a tracepoint has the name `kmem:mm_page_alloc`.
        let line = said.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let theirs =
            line.filter(|fields| fields.get(2).is_some_and(|name| name.trim_end_matches(":u") == event));
        let theirs = theirs.filter_map(|fields| fields[0].parse::<f64>().ok()).next();
        let ours = outcome.reading(&format!("counter.{event}"));
        let (Some(theirs), Ok(ours)) = (theirs, ours.clone()) else {
            assert!(event.contains(':') || !said.contains(",page-faults,"), "{event}: {said} {ours:?}");
            continue;
        };
        compared += 1;
        // The same program twice: only the addresses of the loader and the heap differ.
        let allowed = (0.03 * theirs).max(60.0);
        assert!((ours - theirs).abs() <= allowed, "{event}: {ours} by us, {theirs} by perf");
    }
    if compared == 0 {
        println!("skipped: no-perf-events: perf counts nothing here: {said}");
    }
}

#[test]
fn time_sees_the_rusage_that_we_see() {
    let format = "child: maxrss %M\nchild: majflt %F\nchild: minflt %R\nchild: nvcsw %w";
    let Some(said) = watched_by("/usr/bin/time", &["-f", format]) else {
        println!("skipped: time-absent: GNU time is not installed");
        return;
    };
    let mut outcome = run(&task(FAULTS), &ProbeSelection::always_on(), None);
    outcome.said = said;
    let (minor, theirs) = (outcome.value("rusage.minflt"), outcome.child_value("minflt"));
    assert!((minor - theirs).abs() <= 0.02 * theirs, "{minor} by us, {theirs} by time");
    let (most, theirs) = (outcome.value("rusage.maxrss"), 1024.0 * outcome.child_value("maxrss"));
    // Ours begins with what this process had when it forked.
    assert!(most >= 0.95 * theirs && most <= 1.3 * theirs, "{most} by us, {theirs} by time");
    assert!(outcome.value("rusage.nvcsw") >= 1.0 && outcome.child_value("nvcsw") >= 1.0, "it slept");
}

#[test]
fn hardware_counters_are_counted_or_their_absence_says_why() {
    let wanted = ProbeSelection::from_names(["hardware"]).unwrap();
    let outcome = run(&task(FAULTS), &wanted, None);
    let cycles = outcome.reading("counter.cycles");
    let perf = watched_by("perf", &["stat", "-x,", "-e", "cycles", "--"]);
    if let Some(said) = perf.filter(|said| said.contains("cycles")) {
        assert_eq!(said.contains("<not supported>"), cycles.is_err(), "{said} {cycles:?}");
    }
    match cycles {
        Ok(cycles) => assert!(cycles > 1e6, "{cycles}"),
        Err(absence) => {
            assert!(absence.reason().starts_with("no PMU:") || absence.hint.is_some(), "{absence:?}");
            for name in ["L1-dcache-loads", "dTLB-load-misses", "iTLB-load-misses", "LLC-store-misses"] {
                assert_eq!(outcome.reading(&format!("counter.{name}")).unwrap_err(), absence, "{name}");
            }
        }
    }
    let walks = outcome.found.measures.iter().filter(|measure| measure.name.contains("walk"));
    assert!(walks.count() >= 3, "cycles of page walks are told or said to be absent");
}

#[test]
fn a_tracepoint_that_is_not_there_says_so_and_the_others_count() {
    let wanted = ProbeSelection::from_names(["kmem:mm_page_alloc", "kmem:no_such_event"]).unwrap();
    let outcome = run(&task("fault 5000"), &wanted, None);
    assert!(outcome.reading("counter.kmem:no_such_event").is_err());
    match outcome.reading("counter.kmem:mm_page_alloc") {
        Ok(pages) => assert!(pages >= 5000.0, "{pages} pages"),
        Err(absence) => println!("skipped: no-tracepoints: {}", absence.reason()),
    }
}
