//! Tests of `pagelab record`: the contents of the file, however the recording ends.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test panics to fail, and says what it skips")]

mod support;

use std::fs;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use pagelab_model::random::SplitMix64;
use pagelab_model::run::{Run, RunEnd, Series};
use pagelab_sys::clock;
use rustix::process::{Pid, Signal, kill_process};
use support::running::{process_state, run_queue_wait_ns, wait_until};
use support::{CommandOutput, Lab};

const FILE: &str = "day.pagelab";
const MS: u64 = 1_000_000;

/// A running recording.
struct Recording {
    child: Child,
    lab: Lab,
}

impl Recording {
    fn start(args: &[&str]) -> Recording {
        let lab = Lab::new();
        let mut command = lab.command(&["record", "-o", FILE]);
        Recording { child: command.args(args).spawn().unwrap(), lab }
    }

    fn read(&self) -> Result<Run, pagelab_runfile::Error> {
        pagelab_runfile::read_run_file(&self.lab.path().join(FILE))
    }

    /// Waits until the file has this many samples.
    fn until_sampled(&mut self, samples: usize) -> Run {
        let mut found = None;
        wait_until("samples", || {
            assert!(self.child.try_wait().unwrap().is_none(), "the recording has ended");
            found = self
                .read()
                .ok()
                .filter(|run| run.series.iter().any(|of| of.name == "recorder" && of.at_ns.len() >= samples));
            found.is_some()
        });
        found.unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn end(&mut self) -> (Option<i32>, Run) {
        let status = self.child.wait().unwrap();
        (status.code(), self.read().unwrap())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn series<'a>(run: &'a Run, name: &str) -> &'a Series {
    run.series.iter().find(|series| series.name == name).unwrap_or_else(|| panic!("no series {name}"))
}

fn value(series: &Series, column: &str, index: usize) -> Option<i64> {
    let found = series.columns.iter().find(|known| known.header.name == column);
    found.unwrap_or_else(|| panic!("no column {column}")).values.value_at(index)
}

/// How many times of a series are not a whole number of intervals after its first.
fn off_grid(series: &Series, every_ns: u64) -> usize {
    let first = series.at_ns[0];
    series.at_ns.iter().filter(|at_ns| !(*at_ns - first).is_multiple_of(every_ns)).count()
}

fn missed(run: &Run) -> u64 {
    let recorder = series(run, "recorder");
    let counted = run.events.iter().filter(|event| event.kind == "missed");
    let told: u64 = counted.map(|event| event.text.split(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    let last = value(recorder, "missed", recorder.at_ns.len() - 1).unwrap();
    assert!(u64::try_from(last).unwrap() <= told, "each missed tick that was counted was told");
    told
}

#[test]
fn ticks_are_on_their_grid_and_each_missed_one_is_reported() {
    let mut recording = Recording::start(&["--every", "100ms", "--for", "1500ms"]);
    let (code, run) = recording.end();
    assert_eq!(code, Some(0));
    assert_eq!(run.manifest.kind, "record");
    assert!(matches!(run.ending, RunEnd::Complete { after_ns } if after_ns >= 1500 * MS), "{:?}", run.ending);
    for name in ["meminfo", "vmstat", "buddyinfo", "recorder"] {
        let series = series(&run, name);
        assert_eq!(off_grid(series, 100 * MS), 0, "{name}");
        assert_eq!(series.at_ns.len() as u64 + missed(&run), 16, "{name}: every tick was taken or told");
    }
    let recorder = series(&run, "recorder");
    for index in 0..recorder.at_ns.len() {
        assert!(value(recorder, "late_ns", index).is_some_and(|late| (0..=50 * MS as i64).contains(&late)));
        assert!(value(recorder, "wall_ns", index).is_some_and(|ns| ns > 0));
        assert!(value(recorder, "rss", index).is_some_and(|bytes| bytes > 1 << 20));
    }
    assert!(value(recorder, "cpu_ns", 0).is_some_and(|ns| ns > 0));
}

#[test]
fn a_short_recording_has_ten_samples_or_a_warning() {
    let mut recording = Recording::start(&["--for", "1s"]);
    let (code, run) = recording.end();
    assert_eq!(code, Some(0));
    let meminfo = series(&run, "meminfo");
    assert_eq!(off_grid(meminfo, 100 * MS), 0);
    assert_eq!(meminfo.at_ns.len() as u64 + missed(&run), 11);

    let lab = Lab::new();
    let ran = lab.run(&["record", "-o", "one.pagelab", "--every", "5s", "--for", "200ms"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(
        ran.err.contains("--for 200 ms is shorter than --every 5 s: only one sample is recorded"),
        "{}",
        ran.err
    );
}

#[test]
fn values_are_those_that_the_kernel_prints() {
    let mut recording = Recording::start(&["--every", "100ms", "--for", "300ms"]);
    let (_, run) = recording.end();
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find(|line| line.starts_with("MemTotal:")).unwrap();
    let total: i64 = line.split_ascii_whitespace().nth(1).unwrap().parse::<i64>().unwrap() * 1024;
    assert_eq!(value(series(&run, "meminfo"), "MemTotal", 0), Some(total));
    // The names of all columns, by shell tools.
    let shell = |script: &str| {
        let ran = Command::new("sh").args(["-c", script]).output().unwrap();
        String::from_utf8(ran.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let names = |name: &str| -> Vec<String> {
        series(&run, name).columns.iter().map(|column| column.header.name.clone()).collect()
    };
    assert_eq!(names("vmstat"), shell("cut -d' ' -f1 /proc/vmstat"));
    assert_eq!(names("meminfo"), shell("cut -d: -f1 /proc/meminfo"));
    let buddyinfo =
        "tr -d , < /proc/buddyinfo | awk '{for (i = 5; i <= NF; i++) print $2 \"/\" $4 \"/\" i - 5}'";
    assert_eq!(names("buddyinfo"), shell(buddyinfo));
    // And by another reader of the file.
    let sql = "SELECT first FROM series_column WHERE table_name = 'series_meminfo' AND sql_name = 'MemTotal'";
    let path = recording.lab.path().join(FILE);
    match Command::new("sqlite3").arg("-readonly").arg(path).arg(sql).output() {
        Ok(ran) => assert_eq!(String::from_utf8_lossy(&ran.stdout).trim(), total.to_string()),
        Err(_) => eprintln!("skipped: sqlite3-absent: there is no `sqlite3` to compare with"),
    }
}

#[test]
fn a_recording_that_was_stopped_reports_missed_ticks_and_does_not_catch_up() {
    let mut recording = Recording::start(&["--every", "200ms"]);
    recording.until_sampled(2);
    recording.signal(Signal::STOP);
    wait_until("the stop", || process_state(recording.child.id()) == 'T');
    let stopped_ns = clock::boottime_ns();
    let before = series(&recording.read().unwrap(), "recorder").at_ns.len();
    wait_until("six ticks", || clock::boottime_ns() > stopped_ns + 6 * 200 * MS);
    recording.signal(Signal::CONT);
    recording.until_sampled(before + 2);
    recording.signal(Signal::TERM);
    let (code, run) = recording.end();
    assert_eq!(code, Some(143));
    assert!(matches!(run.ending, RunEnd::Complete { .. }), "no end was requested: {:?}", run.ending);
    let told: Vec<&str> =
        run.events.iter().filter(|event| event.kind == "missed").map(|event| &*event.text).collect();
    assert!(
        told.iter().any(|text| text.ends_with("this process was stopped by a signal and continued")),
        "{told:?}"
    );
    let at_ns = &series(&run, "meminfo").at_ns;
    assert!(missed(&run) >= 4, "{told:?}");
    assert_eq!(off_grid(series(&run, "meminfo"), 200 * MS), 0);
    let last = (at_ns.last().unwrap() - at_ns[0]) / (200 * MS);
    assert_eq!(at_ns.len() as u64 + missed(&run), last + 1, "{at_ns:?} {told:?}");
}

#[test]
fn a_signal_closes_the_file() {
    for (signal, code, why) in [(Signal::INT, 130, "SIGINT"), (Signal::HUP, 129, "SIGHUP")] {
        let mut recording = Recording::start(&["--every", "1h", "--for", "2h"]);
        recording.until_sampled(1);
        let asked = Instant::now();
        recording.signal(signal);
        let (ended, run) = recording.end();
        assert!(asked.elapsed() < Duration::from_secs(600), "a tick that is far away is not waited for");
        assert_eq!(ended, Some(code));
        assert!(
            matches!(&run.ending, RunEnd::Stopped { reason: told, .. } if told == why),
            "{:?}",
            run.ending
        );
        assert!(!recording.lab.path().join("day.pagelab-wal").exists(), "one plain file is left");
    }
}

/// Without --for, Ctrl-C is the documented end; other signals are not.
#[test]
fn ctrl_c_ends_a_recording_without_an_end() {
    for (signal, code) in [(Signal::INT, 0), (Signal::TERM, 143)] {
        let mut recording = Recording::start(&["--every", "1h"]);
        recording.until_sampled(1);
        recording.signal(signal);
        let (ended, run) = recording.end();
        assert_eq!(ended, Some(code));
        assert!(matches!(run.ending, RunEnd::Complete { .. }), "{:?}", run.ending);
    }
}

#[test]
fn kill_9_at_any_moment_loses_at_most_one_sample() {
    const EVERY_NS: u64 = 100 * MS;
    let mut random = SplitMix64::new(clock::realtime_ns());
    for round in 0..8 {
        let mut recording = Recording::start(&["--every", "100ms", "--metrics", "all"]);
        recording.until_sampled(1);
        let wait_us = random.next_below(700_000);
        std::thread::sleep(Duration::from_micros(wait_us));
        let waited_ns = run_queue_wait_ns(recording.child.id());
        let before_ns = clock::boottime_ns();
        recording.signal(Signal::KILL);
        let (code, run) = recording.end();
        assert_eq!((code, &run.ending), (None, &RunEnd::NotClosed));
        let recorder = series(&run, "recorder");
        let ran_ns = before_ns - run.manifest.started.boottime_ns - recorder.at_ns[0];
        // The last tick whose sample must be finished: a disk has half an interval, and on a busy machine the
        // recorder waits for a CPU.
        let begun = ran_ns.saturating_sub(EVERY_NS / 2 + waited_ns) / EVERY_NS;
        let kept = (recorder.at_ns.last().unwrap() - recorder.at_ns[0]) / EVERY_NS;
        let told = missed(&run);
        assert!(
            kept + told + 1 >= begun,
            "round {round}, {wait_us} us: killed in tick {begun}, the last one kept is {kept}, {told} missed"
        );
        assert_eq!(recorder.at_ns.len() as u64 + told, kept + 1, "round {round}: no hole before the end");
    }
}

#[test]
fn a_recording_is_read_while_it_is_written() {
    let mut recording = Recording::start(&["--every", "100ms"]);
    let before = recording.until_sampled(2);
    assert_eq!(before.ending, RunEnd::NotClosed);
    for _ in 0..3 {
        let ran = recording.lab.run(&["report", FILE]);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        assert!(ran.out.contains("used - cached"), "{}", ran.out);
    }
    let samples = series(&before, "recorder").at_ns.len();
    recording.until_sampled(samples + 3);
}

#[test]
fn a_full_disk_ends_the_recording_and_leaves_a_file_that_can_be_read() {
    let lab = Lab::new();
    let script = "\"$0\" record -o disk/day.pagelab --every 100ms --for 100s; echo code $?
        \"$0\" report disk/day.pagelab | grep -c -e cached: -e recorder";
    let Some(ran) = lab.run_with_small_disk("1m", script) else { return };
    assert!(ran.out.contains("code 5\n"), "{ran:?}");
    for said in
        ["cannot continue the recording after", "disk/day.pagelab", "the disk is full", "hint: free space"]
    {
        assert!(ran.err.contains(said), "{said}: {ran:?}");
    }
    let shown = ran.out.lines().last().unwrap_or("0");
    assert!(shown.parse::<u32>().is_ok_and(|lines| lines >= 2), "{ran:?}");
}

#[test]
fn a_read_only_disk_is_reported_before_anything_is_recorded() {
    let lab = Lab::new();
    let script = "mount -o remount,ro disk; \"$0\" record -o disk/day.pagelab --for 1s; echo code $?";
    let Some(ran) = lab.run_with_small_disk("1m", script) else { return };
    assert!(ran.out.contains("code 4\n") && ran.err.contains("disk/day.pagelab"), "{ran:?}");
    assert!(ran.err.contains("hint: choose a writable directory"), "{ran:?}");
}

#[test]
fn invalid_arguments_are_refused_with_a_hint() {
    let lab = Lab::new();
    lab.write("there.pagelab", "something");
    for (line, said) in [
        (
            "-o a.pagelab --metrics memory",
            "unknown metric `memory`; expected one of meminfo, vmstat, buddyinfo",
        ),
        ("-o a.pagelab --metrics meminfo,,vmstat", "empty name in the list"),
        ("-o a.pagelab --metrics slab=x", "only cgroups and processes accept a pattern"),
        ("-o a.pagelab --every 5", "missing unit; expected a duration"),
        ("-o a.pagelab --every 99ms", "'99ms' for '--every <TIME>': expected 100ms to 1d"),
        ("-o a.pagelab --every 25h", "expected 100ms to 1d"),
        ("-o a.pagelab --for -3s", "not a number"),
        ("-o a.pagelab --for 0s", "'0s' for '--for <TIME>': expected 100ms to 366d"),
        ("-o there.pagelab --for 1s", "it already exists\nhint: choose another name"),
        ("-o there.pagelab --dry-run", "it already exists\nhint: choose another name"),
        ("-o a.pagelab --root saved", "a saved tree does not change"),
        ("--for 1s", "--output"),
    ] {
        let line = line.replace("--for -3s", "--for=-3s");
        let words: Vec<&str> = ["record"].into_iter().chain(line.split(' ')).collect();
        let ran = lab.run(&words);
        assert_eq!(ran.code, Some(2), "{line}: {ran:?}");
        assert!(ran.err.contains(said), "{line}: {}", ran.err);
        assert!(!lab.path().join("a.pagelab").exists(), "{line}");
    }
}

#[test]
fn unavailable_metrics_are_reported_and_the_others_recorded() {
    let lab = Lab::new();
    let metrics = "meminfo,processes=no-such-program-*,cgroups=/no/such/group";
    let ran = lab.run(&["record", "-o", FILE, "--for", "200ms", "--every", "100ms", "--metrics", metrics]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("processes is not recorded: /proc: no process is named no-such"), "{ran:?}");
    assert!(ran.err.contains("cgroups is not recorded: "), "{ran:?}");
    let run = pagelab_runfile::read_run_file(&lab.path().join(FILE)).unwrap();
    assert_eq!(run.events.iter().filter(|event| event.kind == "absent").count(), 2);
    assert_eq!(series(&run, "meminfo").at_ns.len() as u64 + missed(&run), 3);
    let alone = ["record", "-o", "none.pagelab", "--metrics", "processes=no-such-program-*"];
    let ran: CommandOutput = lab.run(&alone);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(!lab.path().join("none.pagelab").exists());
    for (words, said) in [
        ("-o none.pagelab --metrics processes=4194305", "cannot record process 4194305: no such process"),
        ("-o none/a.pagelab --for 1s", "no directory none\nhint: create it first"),
    ] {
        let ran = lab.run(&["record"].into_iter().chain(words.split(' ')).collect::<Vec<_>>());
        assert!(ran.code == Some(3) && ran.err.contains(said), "{ran:?}");
    }
}

#[test]
fn one_process_is_recorded_by_its_number() {
    let lab = Lab::new();
    let mut child = lab.command(&["record", "-o", "other.pagelab"]).spawn().unwrap();
    wait_until("its file", || lab.path().join("other.pagelab").exists());
    let metrics = format!("processes={}", child.id());
    let ran = lab.run(&["record", "-o", FILE, "--for", "100ms", "--every", "100ms", "--metrics", &metrics]);
    let _ = child.kill();
    let _ = child.wait();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let run = pagelab_runfile::read_run_file(&lab.path().join(FILE)).unwrap();
    let process = series(&run, &format!("process {} pagelab", child.id()));
    assert!(value(process, "Rss", 0).is_some_and(|bytes| bytes > 1 << 20));
    assert!(value(process, "AnonHugePages", 0).is_some());
}

#[test]
fn a_dry_run_measures_and_makes_nothing() {
    let lab = Lab::new();
    let ran = lab.run(&["record", "-o", FILE, "--for", "12h", "--dry-run"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.out.contains("every 5 s, for 12 h 0 min") && ran.out.contains("8\u{202f}641 ticks"),
        "{}",
        ran.out
    );
    let ran = lab.run(&["record", "-o", FILE, "--for", "12h", "--dry-run", "--json"]);
    let plan: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((plan["kind"].as_str(), plan["ticks"].as_u64()), (Some("record_plan"), Some(8641)));
    assert!(plan["bytes_low"].as_u64() <= plan["bytes_high"].as_u64());
    assert_eq!(fs::read_dir(lab.path()).unwrap().count(), 0);
}

#[test]
fn the_summary_lists_the_recorded_metrics() {
    let lab = Lab::new();
    let ran = lab.run(&["record", "-o", FILE, "--for", "300ms", "--every", "100ms"]);
    assert!(ran.err.is_empty(), "quiet without a terminal: {}", ran.err);
    for said in ["samples in", "one every 100 ms", " missed\n", "of CPU", "pagelab report day.pagelab"] {
        assert!(ran.out.contains(said), "{said}: {}", ran.out);
    }
    let ran = lab.run(&["record", "-o", "b.pagelab", "--for", "300ms", "--every", "100ms", "--json"]);
    let summary: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((summary["kind"].as_str(), summary["ending"].as_str()), (Some("record"), Some("complete")));
    assert_eq!(summary["samples"].as_u64().zip(summary["missed"].as_u64()).map(|(s, m)| s + m), Some(4));
}
