//! Tests of `pagelab tune` on programs that exit with a code, and on programs that accessed bits cannot
//! observe.
#![allow(clippy::print_stderr, reason = "a skipped check says so")]

mod support;

use std::path::Path;

use pagelab_model::experiment::TrialEnd;
use pagelab_model::profile::ProfileSource;
use pagelab_model::run::Run;
use support::{Lab, binary};

fn read(path: &Path) -> Run {
    pagelab_runfile::read_run_file(path).expect("a run file that can be read")
}

/// The error names the exit code and the option that accepts it; with the option the program is tuned.
#[test]
fn a_failing_program_is_refused_or_accepted_by_its_exit_code() {
    let lab = Lab::new();
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; exit 3";
    let line = |more: &[&str]| {
        let mut line = vec!["tune", "--quick", "--source", "accessed", "-o", "e.pagelab"];
        line.extend(more);
        line.extend(["--", "/bin/sh", "-c", script]);
        lab.run(&line)
    };
    let ran = line(&[]);
    assert_eq!(ran.code, Some(5), "{}", ran.err);
    for said in ["it exited with code 3", "use --exit-codes 0,3"] {
        assert!(ran.err.contains(said), "{said}: {}", ran.err);
    }
    assert!(!ran.err.contains("said above"), "{}", ran.err);
    let ran = line(&["--exit-codes", "0,3"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let run = read(&lab.path().join("e.pagelab"));
    assert!(run.experiment.expect("trials").trials.iter().all(|trial| trial.end == TrialEnd::Done));
}

/// The program exits before its budget allows a sweep; the modelled TLB observes it.
#[test]
fn memory_without_accessed_bits_is_tuned_by_the_exact_source() {
    let lab = Lab::new();
    let binary = binary();
    let mut line = vec!["tune", "--quick", "-n", "3", "-o", "b.pagelab", "--", binary, "workload"];
    line.extend(["hot-regions", "--size", "32M", "--hot", "3", "--rounds", "20000", "--advise", "nohuge"]);
    let mut command = lab.command(&line);
    for name in ["PATH", "HOME", "XDG_CACHE_HOME"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    let ran = command.output().expect("started");
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    if err.contains("cannot profile with --source exact: QEMU") {
        eprintln!("skipped: qemu-user-not-to-be-had: {}", err.trim());
        return;
    }
    assert_eq!(ran.status.code(), Some(0), "{err}");
    assert!(
        err.contains("continuing with --source exact") && err.contains("for a program that took"),
        "{err}"
    );
    let run = read(&lab.path().join("b.pagelab"));
    let profile = run.profile.expect("a profile");
    assert_eq!(profile.source, ProfileSource::Exact);
    assert!(
        profile.notes.iter().any(|note| note.starts_with("--source auto continued")),
        "{:?}",
        profile.notes
    );
    let planned: usize = run
        .tune
        .expect("arms")
        .plan
        .programs
        .iter()
        .flat_map(|of| &of.mappings)
        .map(|of| of.regions.len())
        .sum();
    assert_eq!(planned, 3);
    assert!(out.contains("not recounted") && !out.contains("--source exact recounts"), "{out}");
}
