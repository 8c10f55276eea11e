//! Tests of `pagelab usage`, whose figures sqlite3 computes a second time.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test panics to fail, and says what it skips")]

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use expect_test::expect;
use pagelab_model::run::*;
use pagelab_model::{PageSize, Snapshot};
use pagelab_runfile::RunWriter;
use serde_json::Value;
use support::{CommandOutput, Lab, collect_fields};

const S: u64 = 1_000_000_000;
const MIB: i64 = 1 << 20;

fn run_pagelab(lab: &Lab, code: i32, arguments: &[&str]) -> CommandOutput {
    let ran = lab.run(arguments);
    assert_eq!(ran.code, Some(code), "pagelab {arguments:?}\n{}{}", ran.out, ran.err);
    ran
}

fn manifest(machine: &str) -> Manifest {
    let mut known = Snapshot::new_unread("a test", PageSize::DEFAULT);
    known.machine.host_name = Some(machine.to_owned());
    Manifest {
        kind: "record".to_owned(),
        tool_version: "0.1.0".to_owned(),
        command_line: vec!["pagelab".to_owned(), "record".to_owned()],
        seed: None,
        started: ClockReading { realtime_ns: 1_770_127_506 * S, boottime_ns: 1000 * S },
        machine: known.machine,
        settings: known.settings,
    }
}

fn head(name: &str, unit: &str, is_counter: bool) -> ColumnHeader {
    ColumnHeader { name: name.into(), unit: unit.into(), is_counter }
}

/// A recording whose readings come every 5 s, but for missed ticks; one reading fails.
fn recording(path: &Path, machine: &str, mib: [i64; 4], missed: impl Fn(i64) -> bool) {
    let mut file = RunWriter::create(path, &manifest(machine)).unwrap();
    let names = ["MemTotal", "MemFree", "Buffers", "Cached", "SwapCached"];
    let heads = names.map(|name| head(name, Unit::BYTES, false));
    let meminfo = file.add_series("meminfo", "/proc/meminfo", &heads).unwrap();
    let heads = [head("pgfault", Unit::COUNT, true), head("pgmajfault", Unit::COUNT, true)];
    let vmstat = file.add_series("vmstat", "/proc/vmstat", &heads).unwrap();
    let [total, free, buffers, cached] = mib.map(|mib| mib * MIB);
    for tick in (0..200).filter(|&tick| !missed(tick)) {
        // A triangle whose mean over regular readings is 0, in steps that no mean of which is round.
        let swing = ((tick % 20) - 10).abs() * 7919 * 61 - 5 * 7919 * 61;
        let at_ns = tick as u64 * 5 * S + 1;
        let free = (tick != 77).then_some(free + swing);
        let row = [Some(total), free, Some(buffers), Some(cached - swing / 2), Some(0)];
        file.add_row(meminfo, at_ns, &row).unwrap();
        file.add_row(vmstat, at_ns, &[Some(1_000_000 + tick * tick * 37), Some(500 + tick / 9)]).unwrap();
    }
    file.close(RunEnd::Complete { after_ns: 1000 * S }).unwrap();
}

/// Asks the other program.
fn sqlite3(lab: &Lab, database: &str, script: &str) -> Vec<f64> {
    let output = Command::new("sqlite3")
        .args(["-readonly", database, script])
        .current_dir(lab.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    let line = String::from_utf8(output.stdout).unwrap();
    line.trim().split('|').map(|cell| cell.parse().unwrap()).collect()
}

/// Values in full, weighed by half the time to each neighbour, and at the ends by the usual distance.
const WEIGHED: &str = "
WITH f AS (SELECT sql_name AS n, first AS v FROM series_column WHERE table_name = 'series_meminfo'),
r AS (SELECT at_ns,
    coalesce(MemTotal, (SELECT v FROM f WHERE n = 'MemTotal')) AS total,
    coalesce(MemFree, (SELECT v FROM f WHERE n = 'MemFree')) AS free,
    coalesce(Buffers, (SELECT v FROM f WHERE n = 'Buffers'))
        + coalesce(Cached, (SELECT v FROM f WHERE n = 'Cached'))
        + coalesce(SwapCached, (SELECT v FROM f WHERE n = 'SwapCached')) AS cache
    FROM series_meminfo),
k AS (SELECT *, total - free AS used FROM r WHERE typeof(free) = 'integer'),
d AS (SELECT *, at_ns - lag(at_ns) OVER (ORDER BY at_ns) AS before, lead(at_ns) OVER (ORDER BY at_ns) - at_ns AS after
    FROM k),
u AS (SELECT after AS usual FROM d WHERE after IS NOT NULL ORDER BY after
    LIMIT 1 OFFSET (SELECT (count(*) - 1) / 2 FROM k)),
w AS (SELECT *, coalesce(before, (SELECT usual FROM u)) + coalesce(after, (SELECT usual FROM u)) AS weight FROM d)";

/// Mean, least, most and 95th percentile of an expression, by SQL.
fn oracle(lab: &Lab, file: &str, of: &str) -> Vec<f64> {
    let sql = format!(
        "{WEIGHED}, x AS (SELECT {of} AS value, weight FROM w),
        c AS (SELECT value, sum(weight) OVER (ORDER BY value) AS covered FROM x)
        SELECT sum(1.0 * value * weight) / sum(weight), min(value), max(value),
            (SELECT min(value) FROM c WHERE covered >= 0.95 * (SELECT sum(weight) FROM x)) FROM x"
    );
    sqlite3(lab, file, &sql)
}

fn check(lab: &Lab, file: &str, run: &Value) {
    let amounts = [
        ("total_bytes", "total"),
        ("free_bytes", "free"),
        ("used_bytes", "used"),
        ("page_cache_bytes", "cache"),
        ("used_less_page_cache_bytes", "used - cache"),
    ];
    for (field, of) in amounts {
        let wanted = oracle(lab, file, of);
        for (stat, wanted) in ["mean", "min", "max", "p95"].iter().zip(wanted) {
            let found = run[field][stat].as_f64().unwrap();
            // sqlite3 prints 15 digits.
            let is_equal = (found - wanted).abs() <= wanted.abs() * 1e-12;
            assert!(is_equal, "{file}: {field} {stat}: {found}, by SQL {wanted}");
        }
    }
    let grown = "SELECT (max(pgfault) - min(pgfault) - max(pgmajfault) + min(pgmajfault)) / s, \
        (max(pgmajfault) - min(pgmajfault)) / s FROM (SELECT \
        coalesce(pgfault, (SELECT first FROM series_column WHERE name = 'pgfault')) AS pgfault, \
        coalesce(pgmajfault, (SELECT first FROM series_column WHERE name = 'pgmajfault')) AS pgmajfault \
        FROM series_vmstat), (SELECT (max(at_ns) - min(at_ns)) / 1e9 AS s FROM series_vmstat)";
    for (field, wanted) in ["minor_faults_per_s", "major_faults_per_s"].iter().zip(sqlite3(lab, file, grown))
    {
        let found = run[field]["mean"].as_f64().unwrap();
        assert!((found - wanted).abs() <= wanted * 1e-9, "{file}: {field}: {found}, by SQL {wanted}");
    }
}

/// Two machines of the document's table, and one of them with a third of its ticks missed.
fn three(lab: &Lab) {
    let at = |name: &str| lab.path().join(name);
    recording(&at("a.pagelab"), "cserver1", [4056, 2800, 90, 1000], |_| false);
    recording(&at("b.pagelab"), "csews112", [1999, 129, 58, 1300], |_| false);
    recording(&at("c.pagelab"), "cserver1", [4056, 2800, 90, 1000], |tick| tick % 20 > 12 || tick == 50);
}

#[test]
fn figures_equal_those_of_sql_queries() {
    let lab = Lab::new();
    three(&lab);
    let files = ["a.pagelab", "b.pagelab", "c.pagelab"];
    let text = run_pagelab(&lab, 0, &[&["usage", "--json"][..], &files].concat()).out;
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["kind"], "usage");
    for (file, run) in files.iter().zip(document["runs"].as_array().unwrap()) {
        assert_eq!(run["name"], *file);
        check(&lab, file, run);
    }
    let runs = &document["runs"];
    assert_eq!((&runs[0]["readings"], &runs[0]["readings_left_out"]), (&199.into(), &1.into()));
    assert_eq!((&runs[0]["every_ns"], &runs[2]["gap_max_ns"]), (&(5 * S).into(), &(40 * S).into()));
}

#[test]
fn a_line_for_each_run_in_the_order_given() {
    let lab = Lab::new();
    three(&lab);
    let text = run_pagelab(&lab, 0, &["usage", "b.pagelab", "a.pagelab"]).out;
    expect![[r#"
        averages over time   memory in MiB, page faults per second
        machine   total   free   used  cached  used-cached  minor/s  major/s
        csews112  1 999    129  1 870   1 358          512    1 473    0.022
        cserver1  4 056  2 800  1 256   1 090          166    1 473    0.022
        over 16 min 40 s, one sample every 5 s (-v: min, max, p95)
        used: total - free · cached: Buffers + Cached + SwapCached
    "#]]
    .assert_eq(&text);
    let csv = run_pagelab(&lab, 0, &["usage", "--csv", "b.pagelab", "a.pagelab"]).out;
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!((lines.len(), lines[0][0], lines[1][1], lines[2][1]), (3, "file", "csews112", "cserver1"));
    assert!(lines.iter().all(|line| line.len() == lines[0].len()));
    let total = lines[0].iter().position(|name| *name == "total_mean [bytes]").unwrap();
    assert_eq!(lines[2][total], format!("{:?}", (4056 * MIB) as f64));
    for stat in ["min", "max", "p95", "all"] {
        assert!(
            run_pagelab(&lab, 0, &["usage", "--stat", stat, "a.pagelab"]).out.contains("cserver1"),
            "{stat}"
        );
    }
}

#[test]
fn bad_files_do_not_hide_the_others() {
    let lab = Lab::new();
    three(&lab);
    lab.write("text.pagelab", "hello\n");
    RunWriter::create(&lab.path().join("empty.pagelab"), &manifest("m")).unwrap();
    let files = ["text.pagelab", "a.pagelab", "none.pagelab", "empty.pagelab"];
    let ran_ = run_pagelab(&lab, 3, &[&["usage"][..], &files].concat());
    assert!(ran_.out.contains("cserver1") && ran_.out.lines().count() == 5, "{}", ran_.out);
    let said: Vec<&str> = ran_.err.lines().filter(|line| !line.starts_with("hint: ")).collect();
    assert_eq!(said.len(), 3, "{}", ran_.err);
    assert!(
        said[2].contains("no samples of MemTotal and MemFree")
            && ran_.err.contains("hint: record the machine"),
        "{}",
        ran_.err
    );
    for file in ["text.pagelab", "none.pagelab", "empty.pagelab"] {
        let refused = run_pagelab(&lab, 3, &["usage", file]);
        assert!(refused.out.is_empty() && refused.err.contains(file), "{}", refused.err);
    }
    run_pagelab(&lab, 2, &["usage"]);
    run_pagelab(&lab, 2, &["usage", "a.pagelab", "--stat", "median"]);
    run_pagelab(&lab, 2, &["usage", "a.pagelab", "--json", "--csv"]);
}

#[test]
fn a_checkup_is_a_single_sample() {
    let lab = Lab::new();
    lab.write("tree/proc/meminfo", "MemTotal: 4096 kB\nMemFree: 1024 kB\nBuffers: 512 kB\nCached: 1536 kB\n");
    run_pagelab(&lab, 0, &["checkup", "--root", "tree", "--run", "look.pagelab"]);
    let text = run_pagelab(&lab, 0, &["usage", "look.pagelab"]).out;
    let line: Vec<&str> = text.lines().nth(2).unwrap().split_whitespace().collect();
    assert_eq!(line, ["look.pagelab", "4", "1", "3", "2", "1", "–", "–"], "{text}");
    assert!(text.contains("a single sample"), "{text}");
}

#[test]
fn every_field_of_the_json_is_documented() {
    let lab = Lab::new();
    three(&lab);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once("\n## `usage`\n").unwrap();
    let rows = section.split("\n## ").next().unwrap().lines();
    let names = rows.filter_map(|line| line.strip_prefix("| `")?.split_once(" |")).map(|(names, _)| names);
    let documented: BTreeSet<String> =
        names.flat_map(|names| names.split(", ")).map(|name| name.trim_matches('`').to_owned()).collect();
    let text = run_pagelab(&lab, 0, &["usage", "--json", "a.pagelab"]).out;
    let mut printed = BTreeSet::new();
    let usage: Value = serde_json::from_str(&text).unwrap();
    collect_fields(&usage["runs"], &mut printed);
    assert_eq!(printed, documented);
    // The same numbers stand in the report, and what it derives is named in the docs.
    let text = run_pagelab(&lab, 0, &["report", "--json", "a.pagelab"]).out;
    let report: Value = serde_json::from_str(&text).unwrap();
    let derived = &report["runs"][0]["derived"];
    let (_, section) = page.split_once("\n### `derived`\n").unwrap();
    assert_eq!(derived["usage"]["used_bytes"], usage["runs"][0]["used_bytes"]);
    for series in derived["series"].as_array().unwrap() {
        let row = format!("| `{}` |", series["name"].as_str().unwrap());
        let row = section.lines().find(|line| line.starts_with(&row)).unwrap();
        for column in series["columns"].as_array().unwrap() {
            assert!(row.contains(&format!("`{}`", column["name"].as_str().unwrap())), "{row}");
        }
    }
}
