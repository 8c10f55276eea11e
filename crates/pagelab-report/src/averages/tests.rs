//! Tests of the table: the machines of the document, several statistics, narrow terminals, hostile names.

use expect_test::expect;
use pagelab_metrics::averages::FaultRates;
use pagelab_model::{Absence, AbsenceReason};

use super::*;
use crate::text_report::display_width;

/// Line with constant values apart from a fluctuation.
pub(crate) fn line(file: &str, machine: Option<&str>, mib: [i64; 5], swing: f64) -> RunAverages {
    let over = |of: i64| {
        let mean = of as f64 * MIB;
        TimeStatistics {
            mean,
            min: mean - swing * MIB,
            max: mean + swing * MIB,
            percentile_95: mean + swing / 2.0 * MIB,
        }
    };
    let rate = |mean: f64| TimeStatistics { mean, min: 0.0, max: mean * 3.0, percentile_95: mean * 2.0 };
    let [total, free, used, cache, rest] = mib.map(over);
    RunAverages {
        file: file.to_owned(),
        machine: machine.map(str::to_owned),
        started_realtime_ns: 1_770_127_506_000_000_000,
        averages: Averages {
            readings: 8640,
            readings_left_out: 0,
            span_ns: 43_195_000_000_000,
            typical_interval_ns: Some(5_000_000_000),
            interval_max_ns: Some(5_000_000_000),
            total,
            free,
            used,
            page_cache: Ok(cache),
            used_less_page_cache: Ok(rest),
            faults_per_second: Ok(FaultRates { minor: rate(1234.5), major: rate(0.017) }),
        },
    }
}

const MEAN: View<'_> = View { stats: &[Stat::Mean], verbose: false };
const ALL: View<'_> = View { stats: &Stat::ALL, verbose: true };

/// Two lines of the table in the document.
fn document() -> Vec<RunAverages> {
    vec![
        line("cserver1.pagelab", Some("cserver1"), [4056, 2800, 1256, 1090, 166], 100.0),
        line("csews112.pagelab", Some("csews112"), [1999, 129, 1870, 1358, 512], 64.0),
    ]
}

#[test]
fn the_table_is_that_of_the_document() {
    expect![[r#"
        averages over time   memory in MiB, page faults per second
        machine   total   free   used  cached  used-cached  minor/s  major/s
        cserver1  4 056  2 800  1 256   1 090          166    1 235    0.017
        csews112  1 999    129  1 870   1 358          512    1 235    0.017
        over 12 h 0 min, one sample every 5 s (-v: min, max, p95)
        used: total - free · cached: Buffers + Cached + SwapCached
    "#]]
    .assert_eq(&render(&document(), MEAN, TextStyle::PLAIN));
}

#[test]
fn all_numbers_and_how_they_were_recorded() {
    let mut lines = document();
    lines.truncate(1);
    lines[0].averages.interval_max_ns = Some(65_000_000_000);
    lines[0].averages.readings_left_out = 3;
    lines[0].averages.faults_per_second =
        Err(Absence::new("vmstat", AbsenceReason::NotThere, "not recorded"));
    expect![[r#"
        memory use over time   memory in MiB, page faults per second
        machine         total   free   used  cached  used-cached  minor/s  major/s
        cserver1  mean  4 056  2 800  1 256   1 090          166        –        –
                  min   3 956  2 700  1 156     990           66        –        –
                  max   4 156  2 900  1 356   1 190          266        –        –
                  p95   4 106  2 850  1 306   1 140          216        –        –

        cserver1.pagelab: 8 640 readings · one every 5 s · over 12 h 0 min · longest gap
        1 min 5 s · 3 omitted: unreadable field · vmstat: not recorded

        used: total - free · cached: Buffers + Cached + SwapCached · means are
        time-weighted: a sample counts for half the interval to each neighbour · p95:
        95th percentile over time · minor faults: pgfault - pgmajfault
    "#]]
    .assert_eq(&render(&lines, ALL, TextStyle::PLAIN));
}

#[test]
fn names_that_are_equal_get_their_files_and_nothing_is_too_wide() {
    let mut lines = document();
    lines.push(line(
        "/srv/recordings/of/machines/monday.pagelab",
        Some("cserver1"),
        [4056, 10, 4046, 1, 4045],
        1.0,
    ));
    lines.push(line("evil\x1b[2J\n.pagelab", None, [1, 2, -1, 0, -1], 0.0));
    for width_of in [40, 80, 120] {
        for view in [MEAN, ALL] {
            let text = render(&lines, view, TextStyle { width: width_of, ..TextStyle::PLAIN });
            assert!(text.lines().all(|line| display_width(line) <= width_of.max(72)), "{text}");
            assert!(!text.contains('\x1b'), "{text}");
        }
    }
    let text = render(&lines, MEAN, TextStyle { width: 120, ..TextStyle::PLAIN });
    assert!(text.contains("…/machines/monday.pagelab") || text.contains("monday.pagelab"), "{text}");
    assert!(render(&[], MEAN, TextStyle::PLAIN).is_empty());
}

#[test]
fn a_run_of_one_reading_is_told_among_others() {
    let mut lines = document();
    let single = |line: &mut RunAverages| {
        let of = &mut line.averages;
        (of.readings, of.span_ns, of.typical_interval_ns, of.interval_max_ns) = (1, 0, None, None);
    };
    single(&mut lines[1]);
    let text = render(&lines, MEAN, TextStyle::PLAIN);
    let said = "over 12 h 0 min, one sample every 5 s; one run has a single sample (-v: min, max,";
    assert!(text.replace('\n', " ").contains(said), "{text}");
    single(&mut lines[0]);
    assert!(render(&lines, MEAN, TextStyle::PLAIN).contains("\na single sample\n"));
}
