//! Tests of `pagelab profile --source perf-data` and `--source pmu` on real files.
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand

mod support;

use std::fs;
use std::path::PathBuf;

use pagelab_model::TlbProfile;
use pagelab_model::profile::{ProfileSource, UnseenReason};
use support::{CommandOutput, Lab};

/// A file of the corpus, or `None` after a message that it is absent.
fn corpus(name: &str) -> Option<PathBuf> {
    support::corpus().map(|folder| folder.join("perf").join(name))
}

const GOOGLE: &str = "google_pdc_intel_skx_loadlatency_14samples.perf.data";
const NUMATOP: &str = "numatop_fork.perf.data";
const FIBO: &str = "linux-perf-data_fibo.compressed2.pipe.data";

fn profile(lab: &Lab, words: &[&str], input: &[u8]) -> (CommandOutput, Option<TlbProfile>) {
    let words = [&["profile", "--source", "perf-data", "-o", "p.pagelab"], words].concat();
    let ran = lab.run_with(&words, input);
    let path = lab.path().join("p.pagelab");
    if !path.exists() {
        return (ran, None);
    }
    let run = pagelab_runfile::read_run_file(&path).unwrap();
    fs::remove_file(path).unwrap();
    (ran, run.profile.map(|profile| *profile))
}

fn good(lab: &Lab, words: &[&str], input: &[u8]) -> TlbProfile {
    let (ran, found) = profile(lab, words, input);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    found.unwrap()
}

fn misses(found: &TlbProfile) -> u64 {
    found.images.iter().map(|image| image.misses).sum()
}

#[test]
fn one_miss_of_fourteen_samples_by_file_by_pipe_and_as_text() {
    let Some(path) = corpus(GOOGLE) else { return };
    let (lab, path) = (Lab::new(), path.display().to_string());
    let by_file = good(&lab, &[&path], b"");
    assert_eq!((by_file.source, misses(&by_file)), (ProfileSource::PerfData, 10_009));
    let by_pipe = good(&lab, &["-"], &fs::read(&path).unwrap());
    assert_eq!(by_pipe.images, by_file.images);
    for text in ["script", "memreport"] {
        let found = good(&lab, &["-"], &fs::read(format!("{path}.{text}.txt")).unwrap());
        assert_eq!(misses(&found), 1, "{text}: a text tells no periods");
        assert!(found.notes.iter().any(|note| note.contains("not misses")), "{:?}", found.notes);
    }
    let ranged = good(&lab, &[&path, "--range", "448200000000-448300000000"], b"");
    let mappings = || ranged.images.iter().flat_map(|image| &image.mappings);
    assert_eq!(mappings().flat_map(|of| &of.cells.misses).sum::<u64>(), 10_009);
    assert!(mappings().flat_map(|of| &of.unseen).any(|of| of.why == UnseenReason::OutOfRange));
    let elsewhere = good(&lab, &[&path, "--range", "0x1000-0x2000"], b"");
    let mut cells = elsewhere.images.iter().flat_map(|image| &image.mappings).flat_map(|of| &of.cells.misses);
    assert_eq!(cells.next(), None);
}

#[test]
fn no_miss_is_a_profile_that_says_so() {
    let Some(path) = corpus(NUMATOP) else { return };
    let found = good(&Lab::new(), &[&path.display().to_string()], b"");
    assert_eq!(misses(&found), 0);
    assert!(found.notes.iter().any(|note| note.starts_with("0 of 14 samples missed")), "{:?}", found.notes);
}

#[test]
fn files_without_a_profile_are_refused_and_leave_no_file() {
    let lab = Lab::new();
    let check = |words: &[&str], input: &[u8], code: i32, why: &str| {
        let (ran, found) = profile(&lab, words, input);
        assert_eq!((ran.code, found.is_none()), (Some(code), true), "{}", ran.err);
        assert!(ran.err.contains(why), "{}", ran.err);
        assert!(!ran.err.contains("panicked"), "{}", ran.err);
    };
    if let Some(path) = corpus(FIBO) {
        check(&[&path.display().to_string()], b"", 3, "290 have the data address 0");
    }
    if let Some(path) = corpus(GOOGLE) {
        let whole = fs::read(path).unwrap();
        // The header, the events, the records, the features.
        for end in [3, 90, 200, 4000, 700_000, whole.len() - 9000] {
            check(
                &["-"],
                &whole[..end],
                3,
                if end < 16 { "standard input" } else { "standard input: byte " },
            );
        }
    }
    check(&["none"], b"", 3, "cannot read none");
    check(&["."], b"", 3, "expected a file, found a directory");
    check(&["-"], b"", 3, "expected perf output with TLB data");
    check(&["-"], b"\x7fELF\0\0\0", 3, "expected a perf.data file");
    check(
        &["-"],
        b"ls 2 page-faults: 7f56ff78bcb8\n",
        3,
        "expected perf output with TLB data\nhint: use perf script",
    );
    check(&[], b"", 2, "no file given");
    check(&["f", "--range", "20-10"], b"", 2, "the first below the second");
    check(&["f", "--page-size", "3K"], b"", 2, "power of two");
    check(&["f", "--", "ls"], b"", 2, "cannot be used with a command");
}

/// On a machine with such counters the command succeeds; without them it must fail with the reason.
#[test]
fn without_counters_the_pmu_source_reports_the_reason() {
    let lab = Lab::new();
    let ran = lab.run(&["profile", "--source", "pmu", "-o", "p.pagelab", "--", "/bin/true"]);
    match ran.code {
        Some(0) => assert!(lab.path().join("p.pagelab").exists()),
        code => {
            assert_eq!(code, Some(4), "{}", ran.err);
            assert!(ran.err.contains("cannot sample TLB misses"), "{}", ran.err);
            assert!(!lab.path().join("p.pagelab").exists());
        }
    }
}
