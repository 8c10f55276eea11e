//! Tests of `pagelab checkup --run`: the run file during the write, and however the write ended.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test panics to fail, and says what it skips")]

mod support;

use std::fs;
use std::io::Read as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use pagelab_model::run::{Run, RunEnd};
use rustix::process::{Pid, Signal, kill_process};
use support::{CommandOutput, Lab};

/// A checkup with a probe, running, whose run file is there.
struct Probing {
    child: Child,
    lab: Lab,
}

const FILE: &str = "probe.pagelab";

impl Probing {
    fn start() -> Probing {
        let lab = Lab::new();
        let mut command = lab.command(&["checkup", "--probe", "-o", FILE]);
        command.env("XDG_RUNTIME_DIR", lab.path()).stdout(Stdio::null()).stderr(Stdio::piped());
        Probing { child: command.spawn().unwrap(), lab }
    }

    /// Waits until a report finds the manifest. `None`: the checkup has ended before.
    fn begun(&mut self) -> Option<()> {
        let deadline = Instant::now() + Duration::from_secs(120);
        while self.child.try_wait().unwrap().is_none() {
            if self.read().is_ok() {
                return Some(());
            }
            assert!(Instant::now() < deadline, "no run file");
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }

    /// Waits until the probe has written its first samples.
    fn until_sampled(&mut self) {
        self.begun().expect("the probe takes longer than its first look");
        let deadline = Instant::now() + Duration::from_secs(120);
        while self.read().is_ok_and(|run| run.streams.is_empty()) {
            assert!(self.child.try_wait().unwrap().is_none(), "the probe ended without a sample");
            assert!(Instant::now() < deadline, "no sample in the run file");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn read(&self) -> Result<Run, pagelab_runfile::Error> {
        pagelab_runfile::read_run_file(&self.lab.path().join(FILE))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Probing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A killed probe leaves its journal; the journals of other programs are not changed.
        let _ = self.lab.command(&["restore"]).env("XDG_RUNTIME_DIR", self.lab.path()).status();
    }
}

#[test]
fn the_file_exists_before_the_measurement_and_is_readable_during_it() {
    let mut probing = Probing::start();
    probing.begun().expect("the probe takes longer than its first look");
    let run = probing.read().unwrap();
    assert_eq!(
        (run.manifest.kind.as_str(), run.ending, run.manifest.seed),
        ("checkup", RunEnd::NotClosed, Some(1))
    );
    assert!(run.manifest.command_line.ends_with(&["-o".to_owned(), FILE.to_owned()]));
    let shown = probing.lab.run(&["report", FILE]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    assert!(shown.out.contains("NOT CLOSED  its writer was killed, power was lost, or it is still running"));
    let again = probing.lab.run(&["checkup", "-o", FILE]);
    assert_eq!((again.code, again.out.as_str()), (Some(2), ""), "a file that exists is not touched");
    assert_eq!(probing.child.wait().unwrap().code(), Some(0));
    assert!(matches!(probing.read().unwrap().ending, RunEnd::Complete { .. }));
}

#[test]
fn a_signal_closes_the_file_with_the_samples_so_far() {
    for (signal, code, name) in
        [(Signal::INT, 130, "SIGINT"), (Signal::TERM, 143, "SIGTERM"), (Signal::HUP, 129, "SIGHUP")]
    {
        let mut probing = Probing::start();
        probing.until_sampled();
        probing.signal(signal);
        let status = probing.child.wait().unwrap();
        assert_eq!(status.code(), Some(code), "{name}");
        let mut said = String::new();
        probing.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let first = format!("note: stopped by {name}; {FILE} contains the data until then\n");
        assert!(said.starts_with(&first), "{said}");
        for act in said.lines().skip(1) {
            assert!(act.ends_with("nothing to undo: the memory was freed when the process exited"), "{said}");
        }
        let run = probing.read().unwrap();
        let RunEnd::Stopped { after_ns, reason: why } = &run.ending else {
            panic!("{name}: {:?}", run.ending)
        };
        assert!(why == name && *after_ns > 0, "{name}: {why} after {after_ns} ns");
        let shown = probing.lab.run(&["report", FILE]);
        assert_eq!(shown.code, Some(0), "{}", shown.err);
        assert!(shown.out.contains("STOPPED  after ") && shown.out.contains(name), "{}", shown.out);
        assert!(!run.streams.is_empty() && run.snapshot.is_some(), "{name}: the look that was there is kept");
        let left: Vec<_> =
            fs::read_dir(probing.lab.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        let beside = left.iter().filter(|file| file.to_string_lossy().starts_with(FILE)).count();
        assert_eq!(beside, 1, "one plain file: {left:?}");
    }
}

#[test]
fn a_kill_during_the_probe_keeps_the_snapshot_before_it() {
    let mut probing = Probing::start();
    probing.until_sampled();
    probing.signal(Signal::KILL);
    probing.child.wait().unwrap();
    let run = probing.read().unwrap();
    assert_eq!(run.ending, RunEnd::NotClosed);
    let look = run.snapshot.expect("the look is older than the samples");
    assert!(look.meminfo.is_ok() && look.probe.is_none());
    // The records are in the log, and a copy of the file alone must be reported.
    let log = probing.lab.path().join(format!("{FILE}-wal"));
    assert!(fs::metadata(log).unwrap().len() > 0 && run.write_ahead_log.is_some_and(|log| log.is_present));
    assert!(!probing.lab.run(&["report", FILE]).out.contains("copy both"));
    fs::copy(probing.lab.path().join(FILE), probing.lab.path().join("alone.pagelab")).unwrap();
    let alone = probing.lab.run(&["report", "alone.pagelab"]);
    assert_eq!(alone.code, Some(0), "{}", alone.err);
    let words = alone.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("alone.pagelab-wal, which is part of this run file and missing: copy both"));
    assert!(words.contains("it contains only the start; records may be in "), "{words}");
}

#[test]
fn run_file_page_and_document_of_one_probe_agree() {
    let lab = Lab::new();
    let mut command = lab.command(&["checkup", "--probe", "--json", "-o", FILE, "--html", "page.html"]);
    let ran = command.env("XDG_RUNTIME_DIR", lab.path()).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let run = pagelab_runfile::read_run_file(&lab.path().join(FILE)).unwrap();
    assert!(run.unknown_content.is_empty() && run.snapshot.is_some_and(|look| look.probe.is_some()));
    let text = lab.run(&["report", "-v", FILE]).out;
    let samples = |text: &str| text.split("access time\n").nth(1).map(|rest| rest[..200].to_owned());
    let page = fs::read_to_string(lab.path().join("page.html")).unwrap();
    // On a busy machine the probe's time may be over before.
    let is_cut = text.contains("access times: not available: the time limit was reached");
    assert!(samples(&text).is_some() || is_cut, "{text}");
    assert_eq!(samples(&page), samples(&text), "the page has the raw samples too");
    let report: serde_json::Value = serde_json::from_str(&lab.run(&["report", "--json", FILE]).out).unwrap();
    let printed: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(report["runs"][0]["checkup"], printed);
    let over = lab.run(&["report", FILE, "--html", FILE]);
    assert_eq!((over.code, over.out.as_str()), (Some(2), ""), "a run file is not overwritten by a page");
    assert!(over.err.contains("it already exists"), "{}", over.err);
    let forced = lab.run(&["report", FILE, "--html", FILE, "--force"]);
    assert!(forced.code == Some(2) && forced.err.contains("it is a run file"), "{}", forced.err);
}

#[test]
fn a_kill_at_any_moment_leaves_a_file_that_can_be_read() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(std::process::id());
    let (mut readable, mut absent) = (0, 0);
    for round in 0..12u32 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let wait_ms = (state >> 33) % 2500;
        let mut probing = Probing::start();
        // Every other one has its manifest by then, however busy the machine is.
        let has_begun = round % 2 == 1 && probing.begun().is_some();
        std::thread::sleep(Duration::from_millis(wait_ms));
        probing.signal(Signal::KILL);
        probing.child.wait().unwrap();
        let shown = probing.lab.run(&["report", FILE]);
        let what = format!("round {round}, killed after {wait_ms} ms: {}{}", shown.out, shown.err);
        match shown.code {
            Some(0) => {
                assert!(shown.out.contains("NOT CLOSED") || shown.out.contains("complete, "), "{what}");
                readable += 1;
            }
            // Before the manifest was written there is no run.
            Some(3) => {
                assert!(!has_begun, "{what}");
                absent += 1;
            }
            _ => panic!("{what}"),
        }
    }
    assert!(readable > 0, "{absent} times there was no file");
}

#[test]
fn a_full_disk_is_reported_and_the_file_stays_readable() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not-root: a small tmpfs cannot be mounted");
        return;
    }
    let lab = Lab::new();
    lab.write("tree/proc/meminfo", "MemTotal:        4194304 kB\nMemFree:         2179200 kB\n");
    // A counter's name after the other, none like another: a look that does not fit.
    let mut state = 1u64;
    let vmstat: String = (0..200_000)
        .map(|n| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            format!("counter_{n} {state}\n")
        })
        .collect();
    lab.write("tree/proc/vmstat", format!("nr_free_pages 544800\n{vmstat}"));
    let script = "$0 checkup --root tree -o disk/a.pagelab; code=$?
        echo ==== $code; $0 report disk/a.pagelab; exit $code";
    let Some(CommandOutput { code, out, err }) = lab.run_with_small_disk("1m", script) else { return };
    assert_eq!(code, Some(5), "{out}{err}");
    assert!(
        err.contains("disk/a.pagelab") && err.contains("disk is full") && err.contains("hint: free space"),
        "{err}"
    );
    let (printed, shown) = out.split_once("==== 5\n").unwrap();
    assert!(
        printed.contains("Linux") || printed.contains("4 GiB"),
        "the look is printed all the same: {printed}"
    );
    assert!(shown.starts_with("disk/a.pagelab   checkup"), "{shown}{err}");
    assert!(shown.contains("STOPPED") || shown.contains("NOT CLOSED"), "{shown}");
}

#[test]
fn a_disk_too_full_for_a_checkpoint_is_reported_with_the_log() {
    let lab = Lab::new();
    lab.write("tree/proc/meminfo", "MemTotal:        4194304 kB\nMemFree:         2179200 kB\n");
    let mut state = 1u64;
    let vmstat: String = (0..3000)
        .map(|n| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            format!("counter_{n} {state}\n")
        })
        .collect();
    lab.write("tree/proc/vmstat", format!("nr_free_pages 544800\n{vmstat}"));
    // From a disk that cannot hold the log to one that can hold file and log after they were joined.
    let script = "for size in 100 110 120 130 140 150 160 170 180 190 200 220 240; do
          mount -t tmpfs -o size=${size}k none disk
          $0 checkup --root tree -o disk/a.pagelab 2>&1 >/dev/null; echo \"code $?\"
          $0 report disk/a.pagelab; $0 report --json disk/a.pagelab; umount disk; echo ====
        done";
    let Some(CommandOutput { out, err, .. }) = lab.run_with_small_disk("1m", script) else { return };
    let (mut joined, mut apart) = (0, 0);
    for case in out.split_terminator("====\n") {
        let words = case.split_whitespace().collect::<Vec<_>>().join(" ");
        if words.contains("code 0") {
            assert!(words.contains("complete, ") && !words.contains("IN TWO FILES"), "{case}");
            joined += 1;
        } else if words.contains("complete, ") {
            assert!(
                words.contains("code 5") && words.contains("IN TWO FILES the last records are in"),
                "{case}"
            );
            assert!(words.contains("all data is in this file and in disk/a.pagelab-wal"), "{case}");
            assert!(words.contains("\"counter_2999\""), "everything is kept: {case}");
            apart += 1;
        }
    }
    assert!(joined > 0 && apart > 0, "{joined} {apart}: {out}{err}");
}

#[test]
fn an_unwritable_path_is_refused_before_the_checkup() {
    let lab = Lab::new();
    lab.write("there", "mine");
    for (path, problem) in [("there", "already exists"), ("none/x", "no directory none"), ("..", "name")] {
        let refused = lab.run(&["checkup", "-o", path]);
        let code = if path == "none/x" { Some(3) } else { Some(2) };
        assert_eq!((refused.code, refused.out.as_str()), (code, ""), "{path}: {}", refused.err);
        assert!(refused.err.contains(path) && refused.err.contains(problem), "{}", refused.err);
    }
    let forced = lab.run(&["checkup", "-o", "there", "--force"]);
    assert!(forced.code == Some(2) && forced.err.contains("it is not a run file"), "{}", forced.err);
    assert_eq!(fs::read(lab.path().join("there")).unwrap(), b"mine");
}

#[test]
fn a_checkup_of_an_empty_tree_leaves_no_file() {
    let lab = Lab::new();
    lab.write("tree/proc/nothing", "");
    let refused = lab.run(&["checkup", "--root", "tree", "-o", "x.pagelab"]);
    assert_eq!(refused.code, Some(3), "{}", refused.err);
    let left: Vec<_> = fs::read_dir(lab.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["tree"]);
}

#[test]
fn every_way_of_printing_writes_the_same_file() {
    let lab = Lab::new();
    lab.write("tree/proc/buddyinfo", "Node 0, zone   Normal      1      2      3      4 \n");
    lab.write("tree/proc/meminfo", "MemTotal:        4194304 kB\nMemFree:             196 kB\n");
    let mut looks = Vec::new();
    for (file, more) in [("a", &[][..]), ("b", &["--json"]), ("c", &["--brief"]), ("d", &["-v"])] {
        let ran = lab.run(&[&["checkup", "--root", "tree", "-o", file], more].concat());
        assert!(matches!(ran.code, Some(0 | 1)), "{more:?}: {}", ran.err);
        looks.push(pagelab_runfile::read_run_file(&lab.path().join(file)).unwrap().snapshot.unwrap());
    }
    assert!(looks.iter().all(|look| look == &looks[0]));
}
