//! Tests of `pagelab import`: valid and invalid snapshots and scrapes, and the result as another program
//! reads it.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test panics to fail, and says what it skips")]

mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, SystemTime};

use pagelab_model::run::{ColumnValues, Run, RunEnd};
use serde_json::Value;
use support::{CommandOutput, Lab};

/// The user who may do nothing.
const NOBODY: u32 = 65_534;

/// Seconds since 1970 of the first snapshot.
const FIRST: u64 = 1_770_127_500;

fn run_pagelab(lab: &Lab, code: i32, arguments: &[&str]) -> CommandOutput {
    let ran = lab.run(arguments);
    assert_eq!(ran.code, Some(code), "pagelab {arguments:?}\n{}{}", ran.out, ran.err);
    ran
}

fn read(lab: &Lab, file: &str) -> Run {
    pagelab_runfile::read_run_file(&lab.path().join(file)).unwrap()
}

fn buddyinfo(free: u64) -> String {
    format!("Node 0, zone    DMA32      1      0      3 \nNode 0, zone   Normal {free} 7 {} \n", free / 2)
}

/// A folder of snapshots of one machine, one every 5 s.
fn snapshots(lab: &Lab, folder: &str, machine: &str, count: u64) {
    for at in 0..count {
        lab.write(&format!("{folder}/{machine}.{}", FIRST + 5 * at), buddyinfo(100 + at * at % 7));
    }
}

fn column(run: &Run, series: usize, name: &str) -> Vec<Option<i64>> {
    let series = &run.series[series];
    let column = series.columns.iter().find(|column| column.header.name == name).unwrap();
    (0..series.at_ns.len()).map(|at| column.values.value_at(at)).collect()
}

#[test]
fn snapshots_with_times_in_their_names_become_a_recording() {
    let lab = Lab::new();
    snapshots(&lab, "day", "vm-17", 20);
    lab.write("day/README", "by cron\n");
    lab.write("day/.hidden", "x");
    let said = run_pagelab(&lab, 0, &["import", "-o", "day.pagelab", "day"]).out;
    assert!(said.starts_with("day.pagelab   20 readings of vm-17   over 1 min 35 s   "), "{said}");
    assert!(said.contains("times: the file names (NAME.SECONDS)"), "{said}");
    assert!(said.contains("skipped: 1 file without .SECONDS"), "{said}");
    assert!(said.contains("meminfo, vmstat, pressure, settings, the page size (assuming 4 KiB"), "{said}");
    let run = read(&lab, "day.pagelab");
    assert_eq!(run.manifest.started.realtime_ns, FIRST * 1_000_000_000);
    assert_eq!(run.ending, RunEnd::Complete { after_ns: 95_000_000_000 });
    assert_eq!(run.manifest.machine.host_name.as_deref(), Some("vm-17"));
    assert!(run.manifest.machine.kernel_release.is_err() && run.manifest.settings.thp.is_err());
    let wanted: Vec<_> = (0..20).map(|at| Some(100 + at * at % 7)).collect();
    assert_eq!(column(&run, 0, "0/Normal/0"), wanted);
    assert_eq!(run.series[0].columns[2].values, ColumnValues::Constant(Some(3)));
    assert!(run.events.iter().any(|event| event.text.contains("NAME.SECONDS")), "{:?}", run.events);
    // What reads recordings reads it too.
    for more in [&[][..], &["-v"], &["--json"], &["--html", "day.html"], &["--tables", "tables"]] {
        assert!(!run_pagelab(&lab, 0, &[&["report", "day.pagelab"], more].concat()).out.is_empty());
    }
    assert!(
        run_pagelab(&lab, 3, &["usage", "day.pagelab"]).err.contains("no samples of MemTotal and MemFree")
    );
    assert!(run_pagelab(&lab, 2, &["import", "-o", "day.pagelab", "day"]).err.contains("already exists"));
}

#[test]
fn without_times_in_their_names_files_are_as_old_as_their_last_change() {
    let lab = Lab::new();
    for (name, seconds) in [("b", 10), ("a", 0), ("c", 5), ("d", 5)] {
        lab.write(&format!("day/{name}"), buddyinfo(seconds));
        let file = std::fs::File::options().append(true).open(lab.path().join("day").join(name)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(FIRST + seconds)).unwrap();
    }
    let said =
        run_pagelab(&lab, 0, &["import", "-o", "a.pagelab", "--machine", "vm", "--page-size", "64K", "day"])
            .out;
    assert!(
        said.contains("3 readings of vm") && said.contains("times: modification time of each file"),
        "{said}"
    );
    assert!(said.contains("skipped duplicates with the same time: 1"), "{said}");
    assert!(!said.contains("page size"), "{said}");
    let run = read(&lab, "a.pagelab");
    assert_eq!(column(&run, 0, "0/Normal/0"), [Some(0), Some(5), Some(10)]);
    assert_eq!(run.manifest.machine.page_size.bytes(), 64 << 10);
    run_pagelab(&lab, 3, &["import", "-o", "b.pagelab", "--times", "name", "day"]);
}

#[test]
fn machines_in_one_folder_are_distinguished_and_not_combined() {
    let lab = Lab::new();
    snapshots(&lab, "all", "web.example", 3);
    snapshots(&lab, "all", "db", 4);
    let refused = run_pagelab(&lab, 3, &["import", "-o", "a.pagelab", "all"]);
    assert!(refused.err.contains("from several machines: db (4), web.example (3)"), "{}", refused.err);
    assert!(refused.err.contains("--machine NAME") && !lab.path().join("a.pagelab").exists());
    assert!(
        run_pagelab(&lab, 0, &["import", "-o", "db.pagelab", "--machine", "db", "all"])
            .out
            .contains("4 readings of db")
    );
    let refused = run_pagelab(&lab, 3, &["import", "-o", "a.pagelab", "--machine", "mail", "all"]);
    assert!(refused.err.contains("none is from mail: db (4)"), "{}", refused.err);
}

#[test]
fn a_new_zone_begins_a_new_series_and_unreadable_files_are_skipped() {
    let lab = Lab::new();
    snapshots(&lab, "day", "vm", 4);
    let later = |at: u64| format!("day/vm.{}", FIRST + 100 + at);
    lab.write(&later(0), format!("{}Node 1, zone  Movable 1 2 3\n", buddyinfo(1)));
    lab.write(&later(1), buddyinfo(2));
    lab.write(&later(2), buddyinfo(13).trim_end());
    lab.write(&later(3), b"\x7fELF\0\x01\x02");
    lab.write(&later(4), "");
    lab.write(&later(5), "hello there\n");
    lab.write(&later(6), buddyinfo(1).repeat(2));
    lab.write(&later(7), b"\x1f\x8b\x08\0\0");
    let said = run_pagelab(&lab, 5, &["import", "-o", "a.pagelab", "day"]);
    assert!(said.out.contains("6 readings of vm") && said.out.contains("2 layouts"), "{}", said.out);
    assert!(said.out.contains("skipped, unreadable: 6 files"), "{}", said.out);
    for problem in [
        "last line is truncated",
        "not a text file",
        "empty file",
        "value is not a number",
        "2 buddyinfo readings",
    ] {
        assert!(said.err.contains(problem), "{problem}: {}", said.err);
    }
    assert!(said.err.contains("cannot read 1 more files"), "{}", said.err);
    let run = read(&lab, "a.pagelab");
    let shapes: Vec<usize> = run.series.iter().map(|series| series.columns.len()).collect();
    assert_eq!(shapes, [6, 9, 6]);
    assert_eq!(run.events.iter().filter(|event| event.kind == "left out").count(), 6);
    assert_eq!(run.manifest.kind, "import");
    lab.write("junk/x.1770127500", "hello there\n");
    let refused = run_pagelab(&lab, 3, &["import", "-o", "b.pagelab", "junk"]);
    assert!(refused.err.contains("cannot import: no readable file contains"), "{}", refused.err);
    assert!(!lab.path().join("b.pagelab").exists());
    run_pagelab(&lab, 3, &["import", "-o", "b.pagelab", "none"]);
    run_pagelab(&lab, 3, &["import", "-o", "none/b.pagelab", "day"]);
    run_pagelab(&lab, 2, &["import", "day"]);
}

/// A scrape as node_exporter writes it, orders sorted as texts.
fn scrape(at_s: f64, free: u64) -> String {
    let mut text = String::from("# HELP node_buddyinfo_blocks Count of free blocks according to size.\n");
    text += "# TYPE node_buddyinfo_blocks gauge\n";
    for size in [0, 1, 10, 2, 3, 4, 5, 6, 7, 8, 9] {
        for zone in ["DMA", "Normal"] {
            let blocks = free / (size + 1) * u64::from(zone == "Normal");
            text +=
                &format!("node_buddyinfo_blocks{{node=\"0\",size=\"{size}\",zone=\"{zone}\"}} {blocks}\n");
        }
    }
    for (name, kib) in [("MemTotal", 1 << 22), ("MemFree", free * 50), ("Buffers", 1000), ("Cached", 200_000)]
    {
        text += &format!("node_memory_{name}_bytes {:e}\n", (kib * 1024) as f64);
    }
    text += "node_memory_Active_anon_bytes 2.068484096e+09\nnode_memory_HugePages_Total 0\n";
    text += &format!("node_vmstat_pgfault {}\nnode_vmstat_pgmajfault 4\n", free * 1000);
    text += &format!("node_pressure_memory_waiting_seconds_total {}\n", free as f64 / 8.0);
    text += "node_uname_info{machine=\"x86_64\",nodename=\"vm-17\",release=\"6.12.1\",sysname=\"Linux\"} 1\n";
    text + &format!("node_time_seconds {at_s:e}\nnode_boot_time_seconds {:e}\n", FIRST as f64 - 1000.0)
}

/// The same metrics, read without any of our code.
const PYTHON: &str = r#"
import json, re, sys
out = []
for path in sys.argv[1:]:
    found = {}
    for line in open(path):
        if line.startswith('#'): continue
        name, value = line.rsplit(' ', 1)
        labels = dict(re.findall(r'(\w+)="([^"]*)"', name))
        name = name.split('{')[0]
        if name == 'node_buddyinfo_blocks':
            found['%s/%s/%s' % (labels['node'], labels['zone'], labels['size'])] = int(float(value))
        elif name.startswith('node_memory_'):
            key = name[len('node_memory_'):].removesuffix('_bytes')
            found[re.sub(r'^((?:Ina|A)ctive)_(anon|file)$', r'\1(\2)', key)] = int(float(value))
        elif name.startswith('node_vmstat_'):
            found[name[len('node_vmstat_'):]] = int(float(value))
    out.append(found)
print(json.dumps(out))
"#;

#[test]
fn scrapes_equal_those_of_another_parser() {
    let lab = Lab::new();
    let files: Vec<String> = (0..4).map(|at| format!("scrapes/{}.prom", 9 - at)).collect();
    for (at, file) in files.iter().enumerate() {
        lab.write(file, scrape(FIRST as f64 + at as f64 * 15.0 + 0.25, 5000 + at as u64 * 16));
    }
    let said = run_pagelab(&lab, 0, &["import", "-o", "a.pagelab", "scrapes"]).out;
    assert!(said.contains("4 readings of vm-17   over 45 s"), "{said}");
    assert!(said.contains("times: node_time_seconds of each scrape"), "{said}");
    let run = read(&lab, "a.pagelab");
    assert_eq!(run.manifest.machine.kernel_release.as_deref(), Ok("6.12.1"));
    assert_eq!(run.manifest.started.boottime_ns / 1_000_000, 1_000_250);
    let python = Command::new("python3").args(["-c", PYTHON]).args(&files).current_dir(lab.path()).output();
    let Ok(python) = python else {
        eprintln!("skipped: python3-absent: what scrapes say is not read a second time");
        return;
    };
    let found: Value = serde_json::from_slice(&python.stdout).unwrap();
    let mut compared = 0;
    for series in run.series.iter().filter(|series| series.name != "pressure") {
        for column in &series.columns {
            for (at, reading) in found.as_array().unwrap().iter().enumerate() {
                let wanted = reading[&column.header.name].as_i64();
                assert_eq!(column.values.value_at(at), wanted, "{} {}", series.name, column.header.name);
                compared += usize::from(wanted.is_some());
            }
        }
    }
    assert_eq!(compared, 4 * found[0].as_object().unwrap().len());
    let usage: Value =
        serde_json::from_str(&run_pagelab(&lab, 0, &["usage", "--json", "a.pagelab"]).out).unwrap();
    assert_eq!(usage["runs"][0]["total_bytes"]["mean"], (1u64 << 32) as f64);
    // 16 000 faults in 15 s, and no major one.
    let minor = usage["runs"][0]["minor_faults_per_s"]["mean"].as_f64().unwrap();
    assert!((minor - 16_000.0 / 15.0).abs() < 1e-6, "{minor}");
}

#[test]
fn scrapes_of_one_text_need_time_stamps_and_come_from_one_machine() {
    let lab = Lab::new();
    let stamped = |at_ms: u64, value: u64| {
        format!("node_vmstat_pgfault {value} {at_ms}\nnode_memory_MemFree_bytes {} {at_ms}\n", value * 1024)
    };
    lab.write("stamped.prom", stamped(2_000_000_500, 7) + &stamped(2_000_000_000, 5));
    let said = run_pagelab(&lab, 0, &["import", "-o", "a.pagelab", "stamped.prom"]).out;
    assert!(
        said.contains("times: the timestamps in the scrapes") && said.contains("the machine's name"),
        "{said}"
    );
    assert_eq!(column(&read(&lab, "a.pagelab"), 1, "pgfault"), [Some(5), Some(7)]);
    lab.write("twice.prom", scrape(5.0, 1) + &scrape(6.0, 2));
    let refused = run_pagelab(&lab, 3, &["import", "-o", "b.pagelab", "twice.prom"]);
    assert!(refused.err.contains("several scrapes in one file need timestamps"), "{}", refused.err);
    lab.write("cut.prom", &scrape(5.0, 1)[..900]);
    assert!(run_pagelab(&lab, 3, &["import", "-o", "b.pagelab", "cut.prom"]).err.contains("cut.prom:"));
    lab.write("two/a", scrape(5.0, 1));
    lab.write("two/b", scrape(6.0, 1).replace("vm-17", "vm-18"));
    let refused = run_pagelab(&lab, 3, &["import", "-o", "b.pagelab", "two"]);
    assert!(refused.err.contains("a scrape of vm-18, but the others are of vm-17"), "{}", refused.err);
    let piped = lab.run_with(&["import", "-o", "c.pagelab", "-"], scrape(77.0, 1).as_bytes());
    assert!(
        piped.code == Some(0) && piped.out.contains("1 reading of vm-17   one point in time"),
        "{}",
        piped.err
    );
    let refused = lab.run_with(&["import", "-o", "d.pagelab", "-"], buddyinfo(1).as_bytes());
    assert!(refused.code == Some(3) && refused.err.contains("its time is unknown"), "{}", refused.err);
}

/// The error is a missing permission, and not the format of the file.
#[test]
fn files_of_another_user_are_not_available() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not-root: cannot run as another user");
        return;
    }
    let lab = Lab::new();
    lab.write("kept", buddyinfo(100));
    std::fs::create_dir(lab.path().join("folder")).unwrap();
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(lab.path(), 0o755);
    mode(&lab.path().join("kept"), 0o600);
    mode(&lab.path().join("folder"), 0o700);
    for line in [
        "checkup --root kept",
        "checkup --root folder",
        "can 4 --root kept",
        "map --root kept",
        "frag --root kept",
        "frag --from kept",
        "capture x.tar --root kept",
        "import kept -o x.pagelab",
        "import perf-stat a=kept -o x.pagelab",
        "plan kept",
        "report kept",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let output = lab.command(&words).uid(NOBODY).gid(NOBODY).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{line}: {said}");
        assert!(said.contains("ermission denied") && !said.contains("a saved tree is"), "{line}: {said}");
        assert!(!said.contains("--help says"), "{line}: {said}");
    }
}

/// A hint names only options that the command has.
#[test]
fn hints_name_only_options_of_the_command() {
    const PROFILE: &str = "hint: create one with `pagelab profile -o FILE -- COMMAND`";
    const PLAN: &str = "hint: create one with `pagelab plan -o FILE`";
    let lab = Lab::new();
    std::fs::create_dir(lab.path().join("folder")).unwrap();
    lab.write("x.zst", b"\x28\xb5\x2f\xfd and more");
    lab.write("bin.dat", b"\xff\xfe\x00");
    for (line, words) in [
        ("plan folder", PROFILE),
        ("plan nofile", PROFILE),
        ("profile show nofile", PROFILE),
        ("apply folder -- true", PLAN),
        ("apply nofile -- true", PLAN),
        ("run --resume nofile", "hint: create one with `pagelab run RECIPE -o FILE`"),
        ("import perf-stat a=x.zst -o y", "hint: `zstdcat x.zst > FILE`, then use FILE"),
        ("run ./bin.dat", "./bin.dat: expected a recipe in TOML"),
        ("apply bin.dat -- true", "bin.dat:1: not valid UTF-8 (read as huge-page plan)"),
    ] {
        let said = run_pagelab(&lab, 3, &line.split(' ').collect::<Vec<_>>()).err;
        assert!(said.contains(words), "{line}: {said}");
        let foreign = ["--root", "--from", "`-`", "pagelab record", "stream did not"];
        assert!(!foreign.iter().any(|word| said.contains(word)), "{line}: {said}");
    }
    let said = run_pagelab(&lab, 2, &["frag", "--order", "x"]).err;
    assert!(said.contains("expected an integer from 0 to 63"), "{said}");
}
