//! Complete reports of a small machine: full, sampled, with a probe, without findings; 80 columns, and ASCII.

pub(crate) mod example;

use expect_test::{ExpectFile, expect_file};
use pagelab_model::probe::ProbeResults;
use pagelab_model::{Absence, AbsenceReason, Bytes, Coverage, SamplePlan};

use super::*;
use crate::text_report::display_width;
use example::{census, example, healthy, probe};

const SUMMARY: View = View { verbose: false, with_paper_index: false, is_saved: false };
const VERBOSE: View = View { verbose: true, with_paper_index: true, is_saved: false };

/// Renders, checks the properties of every report, and compares with the stored text.
fn check(snapshot: &Snapshot, view: View, expected: &ExpectFile) {
    let checkup = Checkup::from_snapshot(snapshot);
    let text = render(snapshot, &checkup, view, TextStyle::PLAIN);
    expected.assert_eq(&text);
    let ascii = render(snapshot, &checkup, view, TextStyle { unicode: false, ..TextStyle::PLAIN });
    assert!(ascii.is_ascii(), "{ascii}");
    // Only the machine's own texts may lose characters: here two letters of a control group's name.
    assert_eq!(ascii.matches('?').count(), if view.verbose { 2 } else { 0 }, "{ascii}");
    for line in text.lines().chain(ascii.lines()) {
        assert!(display_width(line) <= TextStyle::PLAIN.width, "too wide: {line}");
        assert_eq!(line.trim_end(), line, "blanks at the end");
    }
    let coloured = render(snapshot, &checkup, view, TextStyle { colour: true, ..TextStyle::PLAIN });
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
    let absence = Absence::new("probe", AbsenceReason::NotPermitted, "only 0 MiB is allowed");
    let none = (Err(absence.clone()), Err(absence));
    snapshot.probe = snapshot.probe.map(|probe| ProbeResults { huge: none.0, access: none.1, ..probe });
    let text = render(&snapshot, &Checkup::from_snapshot(&snapshot), SUMMARY, TextStyle::PLAIN);
    assert_eq!(text.matches("only 0 MiB is allowed").count(), 1, "{text}");
    assert!(text.contains("nothing was measured: "), "{text}");
}

#[test]
fn nothing_to_do_and_nothing_invented() {
    check(&healthy(), SUMMARY, &expect_file!["tests/nothing_to_do.txt"]);
    assert_eq!(render_brief(&healthy(), &Checkup::from_snapshot(&healthy()), TextStyle::PLAIN), "");
    assert!(
        render_brief(&example(), &Checkup::from_snapshot(&example()), TextStyle::PLAIN)
            .starts_with("the kernel log contains 1 report")
    );
}

#[test]
fn nothing_read_is_said_and_not_invented() {
    let nothing = Snapshot::new_unread("nowhere", pagelab_model::PageSize::DEFAULT);
    let text = render(&nothing, &Checkup::from_snapshot(&nothing), VERBOSE, TextStyle::PLAIN);
    assert!(text.matches("not available").count() > 10, "{text}");
}
