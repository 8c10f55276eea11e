//! Tests of `pagelab report` on run files of every kind and in every state.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test panics to fail, and says what it skips")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use expect_test::{expect, expect_file};
use pagelab_model::run::*;
use pagelab_model::{Counters, PageSize, Snapshot};
use pagelab_runfile::RunWriter;
use serde_json::Value;
use support::{CommandOutput, Lab, binary};

const S: u64 = 1_000_000_000;

/// A small saved tree, at `tree` in the lab.
fn tree(lab: &Lab) {
    lab.write("tree/proc/buddyinfo", "Node 0, zone   Normal  90000  60000  40000  10000   3000    800 \n");
    lab.write("tree/proc/meminfo", "MemTotal:        4194304 kB\nMemFree:         2179200 kB\n");
    lab.write(
        "tree/proc/vmstat",
        "nr_free_pages 1\nthp_fault_alloc 1000\nthp_fault_fallback 10\noom_kill 3\n",
    );
    lab.write("tree/proc/sys/kernel/osrelease", "6.1.0-test\n");
}

/// The arguments of a run that must end with this code.
fn run_pagelab(lab: &Lab, code: i32, arguments: &[&str]) -> CommandOutput {
    let ran = lab.run(arguments);
    assert_eq!(ran.code, Some(code), "pagelab {arguments:?}\n{}{}", ran.out, ran.err);
    ran
}

fn manifest(kind: &str, words: &[&str]) -> Manifest {
    let mut known = Snapshot::new_unread("a test", PageSize::DEFAULT);
    known.machine.host_name = Some("vm-17".to_owned());
    known.machine.kernel_release = Ok("6.12.1".to_owned());
    known.settings.vm = Counters::from_iter([("swappiness", 60)]);
    Manifest {
        kind: kind.to_owned(),
        tool_version: "0.1.0".to_owned(),
        command_line: words.iter().map(|&word| word.to_owned()).collect(),
        seed: Some(7),
        started: ClockReading { realtime_ns: 1_770_127_506 * S, boottime_ns: 1000 * S },
        machine: known.machine,
        settings: known.settings,
    }
}

/// A run with everything in it but a look; not closed yet.
fn recorded(path: &Path) -> RunWriter {
    let head = |name: &str, unit: &str, is_counter| ColumnHeader {
        name: name.into(),
        unit: unit.into(),
        is_counter,
    };
    let mut file =
        RunWriter::create(path, &manifest("record", &["/opt/pagelab", "record", "--run", "a b"])).unwrap();
    let heads = [
        head("MemFree", Unit::BYTES, false),
        head("pgfault", Unit::COUNT, true),
        head("MemTotal", Unit::BYTES, false),
        head("Hugetlb, \"2M\"", Unit::PAGES, false),
    ];
    let series = file.add_series("proc/all", "/proc/meminfo, /proc/vmstat", &heads).unwrap();
    for n in 0..100i64 {
        let free = (n % 10 != 3).then_some((1 << 30) + n * (1 << 20));
        file.add_row(series, n as u64 * S / 10, &[free, Some(n * n * 10), Some(24 << 30), Some(n / 50)])
            .unwrap();
    }
    for (pages, ns) in [("base", 170.0), ("huge", 140.0)] {
        let labels =
            vec![("pages".to_owned(), pages.to_owned()), ("bytes".to_owned(), "67108864".to_owned())];
        let head = StreamHeader { name: "access time".into(), unit: Unit::NANOSECONDS.into(), labels };
        let stream = file.add_stream(&head).unwrap();
        (0..50u32)
            .for_each(|n| file.add_sample(stream, u64::from(n) * 7919, ns + f64::from(n % 7) / 3.0).unwrap());
    }
    let event = |at_ns, kind: &str, text: &str| RunEvent { at_ns, kind: kind.into(), text: text.into() };
    file.add_event(&event(S, "missed", "a reading came 120 ms late")).unwrap();
    file.add_event(&event(2 * S, "note", "=1+1, \"said\" somebody")).unwrap();
    file
}

/// A closed run file called `day.pagelab`.
fn day(lab: &Lab) {
    recorded(&lab.path().join("day.pagelab")).close(RunEnd::Complete { after_ns: 10 * S }).unwrap();
}

#[test]
fn a_recording_is_shown_and_completely_with_v() {
    let lab = Lab::new();
    day(&lab);
    expect_file!["report/day.txt"].assert_eq(&run_pagelab(&lab, 0, &["report", "day.pagelab"]).out);
    expect_file!["report/day_verbose.txt"]
        .assert_eq(&run_pagelab(&lab, 0, &["report", "-v", "day.pagelab"]).out);
}

#[test]
fn a_checkup_is_shown_as_it_was_printed() {
    let lab = Lab::new();
    tree(&lab);
    for (file, view) in [("a.pagelab", &[][..]), ("b.pagelab", &["-v"])] {
        let printed = run_pagelab(&lab, 0, &[&["checkup", "--root", "tree", "-o", file], view].concat());
        assert_eq!(printed.err, "", "quiet without a terminal");
        let shown = run_pagelab(&lab, 0, &[&["report", file], view].concat()).out;
        let (head, look) = shown.split_once("\n\n").unwrap();
        let hint = view.is_empty().then_some("-v for everything · --json · --html FILE");
        let printed = printed.out.replace(&hint.map_or(String::new(), |hint| format!("{hint}\n")), "");
        let look = look.replace(&hint.map_or(String::new(), |hint| format!("{hint} · --tables DIR\n")), "");
        assert_eq!(look, printed, "but for what else the command can do");
        let lines: Vec<&str> = head.lines().collect();
        assert!(lines[0].starts_with(&format!("{file}   checkup of tree   20")), "{head}");
        assert!(lines[0].contains("complete, "), "{head}");
        assert!(lines[1].contains(&format!("seed 1   $ pagelab checkup --root tree -o {file}")), "{head}");
    }
    // The same in JSON, and the look that was not recorded is the same too.
    let alone: Value =
        serde_json::from_str(&run_pagelab(&lab, 0, &["checkup", "--root", "tree", "--json"]).out).unwrap();
    let report: Value =
        serde_json::from_str(&run_pagelab(&lab, 0, &["report", "--json", "a.pagelab"]).out).unwrap();
    assert_eq!(report["runs"][0]["checkup"], alone);
    assert_eq!(report["runs"][0]["run"]["machine"]["kernel_release"], "6.1.0-test", "the tree's machine");
}

#[test]
fn a_tree_with_numbers_of_no_machine_is_bad_input_and_its_file_is_not_complete() {
    let lab = Lab::new();
    tree(&lab);
    lab.write("tree/proc/buddyinfo", "Node 0, zone   Normal 18446744073709551615 0 0 0 0 0 0 0 0 0 1\n");
    let error = run_pagelab(&lab, 3, &["checkup", "--root", "tree", "--run", "a.pagelab"]).err;
    assert!(error.contains("impossible number of free pages"), "{error}");
    let shown = run_pagelab(&lab, 0, &["report", "a.pagelab"]).out;
    assert!(shown.contains("STOPPED") && shown.contains("the snapshot was not completely stored"), "{shown}");
    let error = run_pagelab(&lab, 2, &["checkup", "--root", "tree", "--run", "b", "--html", "b"]).err;
    assert!(error.contains("name the same file"), "{error}");
    assert!(!lab.path().join("b").exists());
}

#[test]
fn a_probe_leaves_its_raw_samples() {
    let lab = Lab::new();
    let printed = run_pagelab(&lab, 0, &["checkup", "--probe", "--run", "probe.pagelab"]);
    let shown = run_pagelab(&lab, 0, &["report", "probe.pagelab"]).out;
    let (look, _) = printed.out.rsplit_once("-v for everything").unwrap();
    assert!(shown.contains(look) && !shown.contains("· --probe"), "{shown}");
    let report: Value =
        serde_json::from_str(&run_pagelab(&lab, 0, &["report", "--json", "probe.pagelab"]).out).unwrap();
    let run = &report["runs"][0];
    let probe = &run["checkup"]["probe"];
    if probe["huge_pages"].is_null() {
        eprintln!("skipped: thp-absent: {}", probe["huge_pages_absent_reason"]);
        return;
    }
    let streams = run["streams"].as_array().unwrap();
    assert!(streams.iter().all(|stream| stream["unit"] == "ns"));
    let latency = streams.iter().find(|stream| stream["name"] == "huge page latency").unwrap();
    let as_ints: Vec<u64> =
        latency["values"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as u64).collect();
    assert_eq!(Value::from(as_ints), probe["huge_pages"]["latency_ns"]);
    let measured = probe["access"]["base_curve"].as_array().unwrap().len()
        + probe["access"]["huge_curve"].as_array().unwrap().len()
        + 2 * probe["access"]["pairs"].as_array().unwrap().len();
    assert_eq!(streams.len(), measured + 1, "every measurement is a stream");
    let ended_ns = run["run"]["ended_after_ns"].as_u64().unwrap();
    let times = streams.iter().flat_map(|stream| stream["at_ns"].as_array().unwrap());
    assert!(times.map(|at| at.as_u64().unwrap()).all(|at_ns| 0 < at_ns && at_ns < ended_ns));
}

#[test]
fn several_files_are_shown_and_bad_ones_do_not_hide_them() {
    let lab = Lab::new();
    day(&lab);
    fs::copy(lab.path().join("day.pagelab"), lab.path().join("copy.pagelab")).unwrap();
    lab.write("text.pagelab", "hello\n");
    let both = run_pagelab(&lab, 0, &["report", "day.pagelab", "copy.pagelab"]).out;
    assert!(both.starts_with("==> day.pagelab <==\nday.pagelab   record"), "{both}");
    assert!(both.contains("\n\n==> copy.pagelab <==\ncopy.pagelab   record"), "{both}");
    let files = ["day.pagelab", "none.pagelab", "text.pagelab", "copy.pagelab"];
    let mixed = run_pagelab(&lab, 3, &[&["report"][..], &files].concat());
    assert_eq!(mixed.out, both);
    let complaints: Vec<&str> = mixed.err.lines().filter(|line| !line.starts_with("hint: ")).collect();
    assert_eq!(complaints.len(), 2, "{}", mixed.err);
    assert!(
        complaints[0].contains("none.pagelab") && complaints[1].contains("text.pagelab"),
        "{}",
        mixed.err
    );
    let json = run_pagelab(&lab, 3, &[&["report", "--json"][..], &files].concat()).out;
    let document: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(document["runs"].as_array().map(Vec::len), Some(2));
    let none = run_pagelab(&lab, 3, &["report", "--json", "text.pagelab", "none.pagelab"]);
    assert_eq!(serde_json::from_str::<Value>(&none.out).unwrap()["runs"], serde_json::json!([]));
    run_pagelab(&lab, 3, &[&["report", "--html", "page.html"][..], &files].concat());
    let page = fs::read_to_string(lab.path().join("page.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") || page.starts_with("<!DOCTYPE html>"));
}

#[test]
fn an_unreadable_file_is_bad_input_with_a_hint() {
    let lab = Lab::new();
    day(&lab);
    let whole = fs::read(lab.path().join("day.pagelab")).unwrap();
    lab.write("cut.pagelab", &whole[..whole.len() / 2]);
    lab.write("empty.pagelab", "");
    // Bytes 60 to 63 are the schema's version (sqlite.org/fileformat2.html#user_version_number).
    let mut newer = whole.clone();
    newer[60..64].copy_from_slice(&999u32.to_be_bytes());
    lab.write("newer.pagelab", newer);
    let mut damaged = whole;
    damaged[100..4000].fill(0xff);
    lab.write("damaged.pagelab", damaged);
    sqlite3(&lab, "theirs.db", "CREATE TABLE bookmarks(url); INSERT INTO bookmarks VALUES('x');");
    fs::copy(lab.path().join("day.pagelab"), lab.path().join("hostile.pagelab")).unwrap();
    let trigger = "CREATE TRIGGER t AFTER INSERT ON stream BEGIN DELETE FROM sample; END;";
    sqlite3(&lab, "hostile.pagelab", trigger);
    let cases = [
        ("none.pagelab", "no such file"),
        (".", "directory"),
        ("cut.pagelab", "truncated"),
        ("empty.pagelab", "empty"),
        ("newer.pagelab", "newer"),
        ("damaged.pagelab", "damaged"),
        ("theirs.db", "another program"),
        ("hostile.pagelab", "trigger"),
    ];
    for (file, problem) in cases {
        for more in [&[][..], &["--json"], &["--tables", "tables"], &["--html", "page.html"]] {
            let refused = run_pagelab(&lab, 3, &[&["report", file], more].concat());
            assert!(refused.err.contains(file) && refused.err.contains(problem), "{file}: {}", refused.err);
            let lines: Vec<&str> = refused.err.lines().collect();
            let has_advice = match lines[..] {
                [_, hint] => hint.starts_with("hint: "),
                // What is expected names the commands that make it.
                [error] => error.contains("expected a run file of"),
                _ => false,
            };
            assert!(has_advice, "{file} {more:?}: {}", refused.err);
            assert_eq!(refused.out, "", "{file} {more:?}");
        }
    }
    assert!(!lab.path().join("tables").exists() && !lab.path().join("page.html").exists());
}

#[test]
fn command_lines_that_make_no_sense_are_refused() {
    let lab = Lab::new();
    day(&lab);
    let cases: [&[&str]; 5] = [
        &["report"],
        &["report", "day.pagelab", "--json", "--tables", "x"],
        &["report", "day.pagelab", "--html", "x", "--tables", "x"],
        &["report", "day.pagelab", "--html", "."],
        &["report", "day.pagelab", "--tables", "day.pagelab"],
    ];
    for arguments in cases {
        let refused = run_pagelab(&lab, 2, arguments);
        assert!(refused.out.is_empty() && !refused.err.is_empty(), "{arguments:?}");
    }
    let refused = run_pagelab(&lab, 3, &["report", "day.pagelab", "--tables", "none/x"]);
    assert!(refused.out.is_empty() && refused.err.contains("no directory none"), "{}", refused.err);
}

/// Runs SQL in the other program, and returns its output.
fn sqlite3(lab: &Lab, database: &str, script: &str) -> String {
    let output = Command::new("sqlite3").arg(database).arg(script).current_dir(lab.path()).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Every table of a folder, read by the other program into a database.
fn imported(lab: &Lab, folder: &str) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(lab.path().join(folder)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().replace('-', "_");
        let load = format!(".import --csv '{}' {name}", path.display());
        let output =
            Command::new("sqlite3").args(["tables.db", &load]).current_dir(lab.path()).output().unwrap();
        // It complains where a line has other cells than the first.
        assert!(output.status.success() && output.stderr.is_empty(), "{load}: {output:?}");
        names.push(name);
    }
    names.sort();
    names
}

#[test]
fn tables_are_read_by_another_program_as_they_were_recorded() {
    let lab = Lab::new();
    day(&lab);
    let said = run_pagelab(&lab, 0, &["report", "--tables", "tables", "day.pagelab"]).out;
    assert!(said.starts_with("day.pagelab → tables   7 tables   "), "{said}");
    let names = imported(&lab, "tables");
    expect![[r#"["columns", "events", "labels", "manifest", "samples", "series_proc_all", "streams"]"#]]
        .assert_eq(&format!("{names:?}"));
    let ask = |sql: &str| sqlite3(&lab, "tables.db", sql);
    // The same sums as the raw file gives.
    assert_eq!(
        ask("SELECT count(*), sum(at_ns), printf('%.9f', sum(value)) FROM samples"),
        sqlite3(&lab, "day.pagelab", "SELECT count(*), sum(at_ns), printf('%.9f', sum(value)) FROM sample")
    );
    let series = r#"SELECT count(*), count(nullif("MemFree [bytes]", '')), max("pgfault [count]"),
        min("MemTotal [bytes]"), sum("Hugetlb, ""2M"" [pages]") FROM series_proc_all"#;
    assert_eq!(ask(series), "100|90|98010|25769803776|50\n");
    assert_eq!(ask("SELECT text FROM events WHERE kind = 'note'"), "'=1+1, \"said\" somebody\n");
    let words = "SELECT json_extract(value, '$[3]') FROM manifest WHERE field = 'command_line'";
    assert_eq!(ask(words), "a b\n");
    let huge = "SELECT count(*) FROM samples JOIN labels USING(stream) WHERE label = 'pages' AND labels.value = 'huge'";
    assert_eq!(ask(huge), "50\n");
}

#[test]
fn the_tables_of_a_look_are_those_of_its_json() {
    let lab = Lab::new();
    tree(&lab);
    run_pagelab(&lab, 0, &["checkup", "--root", "tree", "--run", "a.pagelab"]);
    run_pagelab(&lab, 0, &["report", "--tables", "tables", "a.pagelab"]);
    imported(&lab, "tables");
    let look: Value =
        serde_json::from_str(&run_pagelab(&lab, 0, &["checkup", "--root", "tree", "--json"]).out).unwrap();
    let zone = &look["fragmentation"]["zones"][0];
    let blocks: Vec<u64> =
        zone["free_blocks"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
    let listed: String = blocks.iter().map(|blocks| format!("{blocks}\n")).collect();
    assert_eq!(
        sqlite3(&lab, "tables.db", "SELECT free_blocks FROM free_blocks ORDER BY 0 + \"order\""),
        listed
    );
    let first = look["findings"][0]["sentence"].as_str().unwrap();
    assert_eq!(
        sqlite3(&lab, "tables.db", "SELECT sentence FROM findings WHERE place = 1"),
        format!("{first}\n")
    );
    assert_eq!(sqlite3(&lab, "tables.db", "SELECT value FROM meminfo WHERE field = 'MemFree'"), "2179200\n");
}

#[test]
fn no_table_is_overwritten_and_none_is_left_half_written() {
    let lab = Lab::new();
    day(&lab);
    lab.write("tables/events.csv", "mine\n");
    lab.write("tables/notes.txt", "mine too\n");
    let refused = run_pagelab(&lab, 2, &["report", "--tables", "tables", "day.pagelab"]);
    assert!(refused.err.contains("tables/events.csv") && refused.err.contains("--force"), "{}", refused.err);
    assert_eq!(names(&lab.path().join("tables")), ["events.csv", "notes.txt"]);
    assert_eq!(fs::read_to_string(lab.path().join("tables/events.csv")).unwrap(), "mine\n");
    // Beside other files is fine, a folder for each of several runs is made.
    run_pagelab(&lab, 0, &["report", "--tables", "several", "day.pagelab", "./day.pagelab"]);
    assert_eq!(names(&lab.path().join("several")), ["day", "day-2"]);
    run_pagelab(&lab, 2, &["report", "--tables", "several", "day.pagelab", "./day.pagelab"]);
    fs::remove_file(lab.path().join("tables/events.csv")).unwrap();
    run_pagelab(&lab, 0, &["report", "--tables", "tables", "day.pagelab"]);
    assert_eq!(fs::read_to_string(lab.path().join("tables/notes.txt")).unwrap(), "mine too\n");
}

/// The names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let names: BTreeSet<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.into_iter().collect()
}

#[test]
fn a_full_disk_leaves_no_table_of_the_run() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not-root: a small tmpfs cannot be mounted");
        return;
    }
    let lab = Lab::new();
    day(&lab);
    let script = "$0 report --tables disk/tables day.pagelab; code=$?; ls -A disk; exit $code";
    let Some(CommandOutput { code, out, err }) = lab.run_with_small_disk("8k", script) else { return };
    assert_eq!((code, &*out), (Some(5), ""), "{err}");
    assert!(err.contains("cannot write disk/tables/") && err.contains("hint: free space"), "{err}");
}

#[test]
fn hostile_names_in_a_file_reach_neither_terminal_nor_json_nor_tables_raw() {
    let evil = "\x1b[2J\x1b]0;owned\x07\nFORGED\r\u{202e}gnp\u{9b}31m\u{200b},\"=cmd";
    let lab = Lab::new();
    let mut manifest = manifest(evil, &["pagelab", evil]);
    manifest.machine.host_name = Some(evil.to_owned());
    manifest.machine.kernel_release = Ok(evil.to_owned());
    let mut file = RunWriter::create(&lab.path().join("evil.pagelab"), &manifest).unwrap();
    let heads = [ColumnHeader { name: evil.into(), unit: evil.into(), is_counter: false }];
    let series = file.add_series(evil, evil, &heads).unwrap();
    (0..3).for_each(|n| file.add_row(series, n, &[Some(n as i64)]).unwrap());
    let head = StreamHeader {
        name: evil.into(),
        unit: evil.into(),
        labels: vec![(evil.to_owned(), evil.to_owned())],
    };
    let stream = file.add_stream(&head).unwrap();
    file.add_sample(stream, 1, f64::MAX).unwrap();
    file.add_event(&RunEvent { at_ns: 1, kind: evil.into(), text: evil.into() }).unwrap();
    let mut look = Snapshot::new_unread(evil, PageSize::DEFAULT);
    look.machine = manifest.machine.clone();
    file.add_snapshot(&look).unwrap();
    file.close(RunEnd::Stopped { after_ns: 5, reason: evil.to_owned() }).unwrap();
    let is_plain =
        |text: &str| text.chars().all(|sign| sign == '\n' || !pagelab_report::style::is_invisible(sign));
    for more in [&[][..], &["-v"], &["--json"]] {
        let shown = run_pagelab(&lab, 0, &[&["report", "evil.pagelab"], more].concat()).out;
        assert!(is_plain(&shown), "{more:?}: {shown:?}");
        assert!(!shown.contains("\nFORGED"), "{more:?}: {shown}");
    }
    let document: Value =
        serde_json::from_str(&run_pagelab(&lab, 0, &["report", "--json", "evil.pagelab"]).out).unwrap();
    assert_eq!(document["runs"][0]["events"][0]["text"], evil, "JSON has every character");
    run_pagelab(&lab, 0, &["report", "--tables", "tables", "evil.pagelab"]);
    for name in names(&lab.path().join("tables")) {
        assert!(name.chars().all(|sign| sign.is_ascii_alphanumeric() || "-_.".contains(sign)), "{name:?}");
        assert!(is_plain(&fs::read_to_string(lab.path().join("tables").join(&name)).unwrap()), "{name}");
    }
    imported(&lab, "tables");
    let refused = lab.run(&["report", "\x1b[31mnone\nFORGED"]);
    assert!(is_plain(&refused.err) && refused.code == Some(3), "{:?}", refused.err);
}

#[test]
fn a_file_in_a_read_only_directory_is_read() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not-root: this test becomes another user");
        return;
    }
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let lab = Lab::new();
    day(&lab);
    let open = recorded(&lab.path().join("open.pagelab"));
    let copy: PathBuf = lab.path().join("pagelab");
    fs::copy(binary(), &copy).unwrap();
    fs::set_permissions(lab.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let before = names(lab.path());
    for file in ["day.pagelab", "open.pagelab"] {
        let mut command = Command::new(&copy);
        let output =
            command.uid(65_534).gid(65_534).args(["report", file]).current_dir(lab.path()).output().unwrap();
        let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{file}: {said}");
        assert_eq!(text.contains("NOT CLOSED"), file == "open.pagelab", "{text}");
        for option in ["--tables", "--html"] {
            let refused = Command::new(&copy)
                .uid(65_534)
                .gid(65_534)
                .args(["report", option, "there", file])
                .current_dir(lab.path())
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&refused.stderr);
            assert_eq!(refused.status.code(), Some(4), "{said}");
            assert!(said.contains("cannot write there: ") && said.contains("hint: choose a"), "{said}");
        }
    }
    assert_eq!(names(lab.path()), before, "nothing was made beside them");
    drop(open);
    fs::set_permissions(lab.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn every_field_of_the_json_is_documented_and_no_null_lacks_its_reason() {
    let docs = include_str!("../../../docs/json.md");
    let lab = Lab::new();
    tree(&lab);
    day(&lab);
    drop(recorded(&lab.path().join("open.pagelab")));
    run_pagelab(&lab, 0, &["checkup", "--root", "tree", "--run", "a.pagelab"]);
    let text = run_pagelab(&lab, 0, &["report", "--json", "a.pagelab", "day.pagelab", "open.pagelab"]).out;
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&document["pagelab_json"], &document["kind"]), (&2.into(), &"report".into()));
    let endings: Vec<&Value> =
        document["runs"].as_array().unwrap().iter().map(|run| &run["run"]["ending"]).collect();
    assert_eq!(endings, ["complete", "complete", "not_closed"]);
    let section = docs.split("\n## `report`\n").nth(1).unwrap();
    let mut names = BTreeSet::new();
    fields(&document, &mut names);
    let is_documented = |name: &&String| docs.contains(&format!("`{name}`"));
    let undocumented: Vec<&String> = names.iter().filter(|name| !is_documented(name)).collect();
    assert!(undocumented.is_empty(), "not in docs/json.md: {undocumented:#?}");
    for own in ["runs", "run", "series", "streams", "readings_failed", "constant", "end_reason", "not_shown"]
    {
        assert!(names.contains(own) && section.contains(&format!("`{own}`")), "{own}");
    }
}

/// Names of all fields that are ours: below these, keys are the kernel's own names or a run's labels.
fn fields(value: &Value, into: &mut BTreeSet<String>) {
    const NOT_OURS: [&str; 7] = ["vmstat", "meminfo", "vm", "counters", "khugepaged", "pageblocks", "labels"];
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let why = map.get(&format!("{name}_absent_reason")).and_then(Value::as_str);
                assert_eq!(value.is_null(), why.is_some_and(|why| !why.is_empty()), "{name}");
                if !name.ends_with("_absent_reason") {
                    into.insert(name.clone());
                }
                if !NOT_OURS.contains(&name.as_str()) {
                    fields(value, into);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields(item, into)),
        _ => {}
    }
}
