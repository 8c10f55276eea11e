//! Reports of runs of several types: summary and full report, 80 columns and fewer, and ASCII.

pub(crate) mod example;
pub(crate) mod experiment;
pub(crate) mod tuning;

use expect_test::{ExpectFile, expect, expect_file};
use pagelab_model::run::{MapHeader, RunEnd, RunEvent, WriteAheadLog};

use super::*;
use crate::text_report::display_width;
use example::{hostile, probe_run, record};

pub(crate) const SUMMARY: View = View { verbose: false, shows_all: false };
pub(crate) const VERBOSE: View = View { verbose: true, shows_all: false };

/// Renders, checks the properties of every report, and compares with the stored text.
pub(crate) fn check(run: &Run, view: View, expected: &ExpectFile) {
    let text = render(run, view, TextStyle::PLAIN);
    expected.assert_eq(&text);
    let ascii = render(run, view, TextStyle { unicode: false, ..TextStyle::PLAIN });
    assert!(ascii.is_ascii(), "{ascii}");
    for line in text.lines().chain(ascii.lines()) {
        assert!(display_width(line) <= TextStyle::PLAIN.width, "too wide: {line}");
        assert_eq!(line.trim_end(), line, "blanks at the end");
    }
    let coloured = render(run, view, TextStyle { colour: true, ..TextStyle::PLAIN });
    let plain = ["0", "1", "2", "33", "36"]
        .iter()
        .fold(coloured, |text, code| text.replace(&format!("\x1b[{code}m"), ""));
    assert_eq!(plain, text, "colour carries nothing alone");
}

#[test]
fn a_recording() {
    check(&record(), SUMMARY, &expect_file!["tests/record.txt"]);
    check(&record(), VERBOSE, &expect_file!["tests/record_verbose.txt"]);
}

#[test]
fn a_look_with_samples() {
    check(&probe_run(), SUMMARY, &expect_file!["tests/look.txt"]);
}

#[test]
fn the_summary_keeps_to_one_screen() {
    let mut run = record();
    (run.unknown_content, run.stacks) = (vec![], None);
    run.series.truncate(1);
    run.series[0].name = "unknown".to_owned();
    let free = run.series[0].columns[1].clone();
    for number in 0..100 {
        let mut column = free.clone();
        column.header.name = format!("free {number}");
        run.series[0].columns.push(column);
    }
    let text = render(&run, SUMMARY, TextStyle::PLAIN);
    assert!(text.lines().count() <= 24, "{text}");
    assert!(text.contains("not shown: 95 more that vary, 1 that never changed"), "{text}");
}

#[test]
fn a_log_that_belongs_to_the_file_is_named_where_it_holds_or_may_hold_records() {
    let mut run = record();
    let said = |run: &Run| {
        let text = header::render_header(run, SUMMARY, TextStyle::PLAIN);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let log = |is_there| Some(WriteAheadLog { path: "day.pagelab-wal".into(), is_present: is_there });
    assert!(!said(&run).contains("day.pagelab-wal"));
    run.write_ahead_log = log(true);
    assert!(said(&run).contains("IN TWO FILES the last records are in day.pagelab-wal, which is part of"));
    run.ending = RunEnd::NotClosed;
    assert!(!said(&run).contains("day.pagelab-wal"), "it is read as it lies there");
    run.write_ahead_log = log(false);
    assert!(said(&run).contains("9.50 s after the start; records may be in day.pagelab-wal, which"));
}

#[test]
fn how_it_ended_is_said_and_loudly_if_not_well() {
    let mut run = record();
    run.ending = RunEnd::Stopped { after_ns: 1_500_000_000, reason: "SIGINT".into() };
    let head = |run: &Run| header::render_header(run, SUMMARY, TextStyle::PLAIN);
    expect![[r#"
        day.pagelab   record on vm-17   2026-02-03 14:05:06 UTC
        pagelab 0.1.0   Linux 6.12.1   seed 7   $ pagelab record --run day.pagelab
        STOPPED  after 1.50 s: SIGINT; it contains the data up to that point
    "#]]
    .assert_eq(&head(&run));
    run.ending = RunEnd::NotClosed;
    expect![[r#"
        day.pagelab   record on vm-17   2026-02-03 14:05:06 UTC
        pagelab 0.1.0   Linux 6.12.1   seed 7   $ pagelab record --run day.pagelab
        NOT CLOSED  its writer was killed, power was lost, or it is still running; the
                    last record is 9.50 s after the start
    "#]]
    .assert_eq(&head(&run));
    (run.series, run.streams, run.events) = (vec![], vec![], vec![]);
    assert!(
        head(&run).replace("\n            ", " ").contains("only the start was recorded"),
        "{}",
        head(&run)
    );
}

#[test]
fn a_narrow_terminal_gets_narrow_tables() {
    let narrow = TextStyle { width: 48, ..TextStyle::PLAIN };
    for view in [SUMMARY, VERBOSE] {
        let text = render(&record(), view, narrow);
        for line in text.lines() {
            assert!(display_width(line) <= 48, "{line}\n{text}");
        }
        assert!(text.contains("p95"), "{text}");
    }
}

#[test]
fn nothing_of_a_hostile_file_reaches_the_terminal_raw() {
    let run = hostile();
    for view in [SUMMARY, VERBOSE] {
        for style in [TextStyle::PLAIN, TextStyle { colour: true, ..TextStyle::PLAIN }] {
            let text = render(&run, view, style);
            let ours = ["[0m", "[1m", "[2m", "[33m", "[36m"];
            for (at, sign) in text.char_indices().filter(|&(_, sign)| sign != '\n') {
                let is_ours = sign == '\x1b' && ours.iter().any(|code| text[at + 1..].starts_with(code));
                assert!(is_ours || !crate::style::is_invisible(sign), "{sign:?} in {text:?}");
            }
            assert!(!text.contains("\nFORGED"), "a line of its own making: {text}");
        }
    }
    let text = render(&run, SUMMARY, TextStyle::PLAIN);
    assert!(text.len() < 60_000, "{} bytes: a name of 1 MB was shown whole", text.len());
}

#[test]
fn many_events_are_counted_and_the_last_are_shown() {
    let mut run = record();
    run.events = (0..100)
        .map(|n| RunEvent { at_ns: n, kind: format!("kind{}", n % 10), text: format!("event {n}") })
        .collect();
    let text = render_events(&run, SUMMARY, TextStyle::PLAIN);
    assert!(text.contains("10 kind0   10 kind1") && text.contains("20 of other kinds"), "{text}");
    assert!(text.contains("97 earlier events (-v)") && text.ends_with("event 99\n"), "{text}");
    assert_eq!(render_events(&run, VERBOSE, TextStyle::PLAIN).lines().count(), 102);
}

#[test]
fn maps_are_told_with_a_way_to_look_at_them() {
    let mut run = record();
    let map = |at: u64, is_key: bool| MapHeader { at_ns: at * 60_000_000_000, is_keyframe: is_key };
    run.maps = vec![map(0, true), map(1, false), map(4, true)];
    expect![[r#"
        maps   3 maps   over 4 min 0 s, one every 2 min 0 s
        2 full maps, the others as deltas
          started at 0 ns, 1 min 0 s, 4 min 0 s
          → pagelab map day.pagelab@last
          → pagelab map --diff day.pagelab@first day.pagelab@last
          → pagelab report --html maps.html day.pagelab
    "#]]
    .assert_eq(&render_maps(&run, VERBOSE, TextStyle::PLAIN));
    run.maps.truncate(1);
    let text = render_maps(&run, SUMMARY, TextStyle::PLAIN);
    assert!(text.starts_with("maps   1 map\n") && !text.contains("--diff"), "{text}");
}
