//! The report of a small machine, whole: everything, a sample, a probe, nothing to do; 80 columns, and ASCII.

mod example;

use expect_test::{ExpectFile, expect_file};
use pagelab_model::probe::ProbeResults;
use pagelab_model::{Absence, AbsentWhy, Bytes, Coverage, SamplePlan};

use super::*;
use crate::grid::width;
use example::{census, example, healthy, probe};

const SUMMARY: View = View { verbose: false, paper: false, saved: false };
const VERBOSE: View = View { verbose: true, paper: true, saved: false };

/// Renders, checks what holds for every report, and compares with the stored text.
fn check(snapshot: &Snapshot, view: View, expected: &ExpectFile) {
    let checkup = Checkup::of(snapshot);
    let text = render(snapshot, &checkup, view, Style::PLAIN);
    expected.assert_eq(&text);
    let ascii = render(snapshot, &checkup, view, Style { unicode: false, ..Style::PLAIN });
    assert!(ascii.is_ascii(), "{ascii}");
    // Only the machine's own words may lose their signs: here two letters of a control group's name.
    assert_eq!(ascii.matches('?').count(), if view.verbose { 2 } else { 0 }, "{ascii}");
    for line in text.lines().chain(ascii.lines()) {
        assert!(width(line) <= Style::PLAIN.width, "too wide: {line}");
        assert_eq!(line.trim_end(), line, "blanks at the end");
    }
    let coloured = render(snapshot, &checkup, view, Style { colour: true, ..Style::PLAIN });
    let mut plain = coloured;
    for code in ["0", "1", "2", "33", "36"] {
        plain = plain.replace(&format!("\x1b[{code}m"), "");
    }
    assert_eq!(plain, text, "colour carries nothing alone");
}

fn sampled() -> Snapshot {
    let plan = SamplePlan { seed: 42, blocks: 100, blocks_total: 1000 };
    let mut snapshot = example();
    snapshot.census = Ok(census(Coverage::Sample(plan)));
    snapshot
}

fn probed(backed: u64) -> Snapshot {
    let mut snapshot = healthy();
    snapshot.probe = Some(probe(Bytes(backed << 20)));
    snapshot
}

#[test]
fn the_summary() {
    check(&example(), SUMMARY, &expect_file!["tests/summary.txt"]);
}

#[test]
fn everything() {
    check(&example(), VERBOSE, &expect_file!["tests/verbose.txt"]);
}

#[test]
fn a_sample_says_its_error_everywhere() {
    check(&sampled(), VERBOSE, &expect_file!["tests/sampled.txt"]);
}

#[test]
fn a_probe_that_got_its_huge_pages() {
    check(&probed(64), SUMMARY, &expect_file!["tests/probe_backed.txt"]);
}

#[test]
fn a_probe_that_did_not_claims_nothing() {
    check(&probed(32), SUMMARY, &expect_file!["tests/probe_not_backed.txt"]);
}

#[test]
fn a_probe_without_room_says_so_once() {
    let mut snapshot = probed(64);
    let absence = Absence::new("probe", AbsentWhy::NotPermitted, "only 0 MiB may be taken");
    let none = (Err(absence.clone()), Err(absence));
    snapshot.probe = snapshot.probe.map(|probe| ProbeResults { huge: none.0, access: none.1, ..probe });
    let text = render(&snapshot, &Checkup::of(&snapshot), SUMMARY, Style::PLAIN);
    assert_eq!(text.matches("only 0 MiB may be taken").count(), 1, "{text}");
    assert!(text.contains("nothing was measured: "), "{text}");
}

#[test]
fn nothing_to_do_and_nothing_invented() {
    check(&healthy(), SUMMARY, &expect_file!["tests/nothing_to_do.txt"]);
    assert_eq!(brief(&healthy(), &Checkup::of(&healthy()), Style::PLAIN), "");
    assert!(
        brief(&example(), &Checkup::of(&example()), Style::PLAIN)
            .starts_with("the kernel log holds 1 report")
    );
}

#[test]
fn nothing_read_is_said_and_not_invented() {
    let nothing = Snapshot::unread("nowhere", pagelab_model::PageSize::USUAL);
    let text = render(&nothing, &Checkup::of(&nothing), VERBOSE, Style::PLAIN);
    assert!(text.matches("not available").count() > 10, "{text}");
}
