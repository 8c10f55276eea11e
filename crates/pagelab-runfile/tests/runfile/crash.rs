//! Tests of files whose writer was killed, or is still writing.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagelab_model::random::SplitMix64;
use pagelab_model::run::{Run, RunEnd};
use pagelab_runfile::{ErrorKind, RunWriter, read_run_file};

use crate::child::{self, listing, summary};
use crate::fixtures;
use crate::round_trip::sqlite3;

const KILLS: u64 = 22;

/// A child that is already writing.
fn spawn_writer(path: &Path, pause_us: u64) -> Child {
    let asked = ["write", path.to_str().unwrap(), &pause_us.to_string()];
    let mut child =
        child::child_command(&asked).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let begun = lines.by_ref().any(|line| line.is_ok_and(|line| line.ends_with("begun")));
    assert!(begun, "the child never began");
    child
}

/// Waits until something holds, however busy the machine is.
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The end of a child.
struct KilledChild {
    /// The wall clock before it, in nanoseconds.
    at_ns: u64,
    /// How long its threads had waited for a CPU, all together: 0 on a machine that is not busy.
    waited_ns: u64,
}

/// Ends a child.
fn kill(mut child: Child) -> KilledChild {
    let (waited_ns, at_ns) = (waited_ns(child.id()), realtime_ns());
    child.kill().unwrap();
    child.wait().unwrap();
    KilledChild { at_ns, waited_ns }
}

/// The second number of schedstat is the time on run queues (Documentation/scheduler/sched-stats.rst); 0 on a
/// kernel that does not count it.
fn waited_ns(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let waited = |task: std::io::Result<fs::DirEntry>| -> Option<u64> {
        let text = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').nth(1)?.parse().ok()
    };
    tasks.filter_map(waited).sum()
}

fn realtime_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// Lets a child run; returns when one of its threads waited for the disk (state D): the ends of the waits by
/// the wall clock, and their lengths, in nanoseconds.
fn run_for(child: &Child, time: Duration) -> Vec<(u64, u64)> {
    let is_waiting = |task: std::io::Result<fs::DirEntry>| {
        let stat = task.and_then(|task| fs::read_to_string(task.path().join("stat")));
        stat.is_ok_and(|stat| stat.contains(") D "))
    };
    let (start, mut last, mut waits) = (Instant::now(), Instant::now(), Vec::new());
    while start.elapsed() < time {
        std::thread::sleep(Duration::from_millis(5));
        if fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().any(is_waiting) {
            waits.push((realtime_ns(), last.elapsed().as_nanos() as u64));
        }
        last = Instant::now();
    }
    waits
}

/// Asserts that the samples are the first that were written, none left out.
fn assert_prefix(run: &Run) {
    let numbers = (0..).zip(&run.streams[0].values);
    numbers.for_each(|(number, value)| assert_eq!(*value, f64::from(number)));
    let rows = run.series[0].at_ns.len();
    assert!(rows - run.events.len() <= 1, "{rows} rows beside {} events", run.events.len());
    let samples = run.streams[0].values.len();
    assert!(rows.abs_diff(samples / 100) <= 1, "{rows} rows beside {samples} samples");
}

#[test]
fn a_killed_run_lacks_at_most_the_last_second() {
    let mut random = SplitMix64::new(3);
    let mut worst_ns = 0;
    for number in 0..KILLS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.pagelab");
        // Some as fast as they can, some slowly.
        let child = spawn_writer(&path, [0, 0, 100, 2_000][number as usize % 4]);
        let disk_waits = run_for(&child, Duration::from_millis(random.next_below(1_600)));
        let killed = kill(child);
        let before = listing(folder.path());
        assert!(before.len() >= 2, "{before:?}");
        let run = read_run_file(&path).unwrap();
        assert_eq!(listing(folder.path()), before, "reading changed the folder");
        assert_eq!(run.ending, RunEnd::NotClosed);
        let mut lost_ns = killed.at_ns - run.manifest.started.realtime_ns;
        if let (Some(stream), true) = (run.streams.first(), !run.series.is_empty()) {
            assert_prefix(&run);
            let last_ns = stream.at_ns.last().copied().unwrap_or(0);
            lost_ns -= last_ns;
        }
        worst_ns = worst_ns.max(lost_ns);
        // The promise is for a process that waits for neither a CPU nor the disk.
        // Only a wait in the time that was lost explains a loss.
        let is_late = |wait: &&(u64, u64)| wait.0 >= killed.at_ns.saturating_sub(lost_ns);
        let disk_ns = disk_waits.iter().filter(is_late).map(|wait| wait.1).sum();
        let [lost_ms, cpu_ms, disk_ms] = [lost_ns, killed.waited_ns, disk_ns].map(|ns| ns / 1_000_000);
        assert!(
            lost_ms <= 1_000 + cpu_ms + disk_ms,
            "{lost_ms} ms were lost; it waited {cpu_ms} ms for a CPU, and {disk_ms} ms for the disk"
        );
        if number % 4 == 3 {
            check_moved_copy(folder.path(), &summary(&path));
        }
        if let Some(verdict) = sqlite3(&path, "PRAGMA integrity_check") {
            assert_eq!(verdict, "ok\n");
        }
    }
    eprintln!("{KILLS} killed; at most the last {} ms were lost", worst_ns / 1_000_000);
}

/// The file and its log without the rest, in a folder that cannot be written, read by root and by another.
fn check_moved_copy(from: &Path, expected: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pagelab");
    for end in ["", "-wal"] {
        let name = format!("run.pagelab{end}");
        fs::copy(from.join(&name), folder.path().join(&name)).unwrap();
    }
    let before = listing(folder.path());
    assert_eq!(summary(&path), expected);
    assert_eq!(listing(folder.path()), before, "reading changed the folder");
    let asked = ["read", path.to_str().unwrap()];
    if is_root() {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o555)).unwrap();
        assert_eq!(child::read_answer(child::wrap_command("setpriv", &OTHER_USER, &asked)), expected);
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    } else {
        eprintln!("skipped: not-root: only root can become another user");
    }
    if let Some(command) = read_only(folder.path(), &asked) {
        assert_eq!(child::read_answer(command), expected);
    }
    assert_eq!(listing(folder.path()), before, "reading changed the folder");
}

const OTHER_USER: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A child in a mount namespace in which `folder` is read-only, where one can be made.
fn read_only(folder: &Path, asked: &[&str]) -> Option<std::process::Command> {
    let folder = folder.to_str().unwrap();
    let script = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && \
                  { touch \"$0/x\" 2>/dev/null && exit 1; exec \"$@\"; }";
    let probe = std::process::Command::new("unshare")
        .args(["-m", "sh", "-c", "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\"", folder])
        .output();
    if !probe.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no-mount: a folder cannot be mounted read-only here");
        return None;
    }
    Some(child::wrap_command("unshare", &["-m", "sh", "-c", script, folder], asked))
}

/// The log and the shared memory of the killed writer remain, and the directory is read-only.
#[test]
fn a_killed_run_is_read_in_a_read_only_directory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pagelab");
    let child = spawn_writer(&path, 100);
    wait_until("a sample", || read_run_file(&path).is_ok_and(|run| !run.streams.is_empty()));
    kill(child);
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let expected = summary(&path);
    assert!(expected.contains(" samples"), "{expected}");
    let asked = ["read", path.to_str().unwrap()];
    if let Some(command) = read_only(folder.path(), &asked) {
        assert_eq!(child::read_answer(command), expected);
    }
    if is_root() {
        assert_eq!(child::read_answer(child::wrap_command("setpriv", &OTHER_USER, &asked)), expected);
    } else {
        eprintln!("skipped: not-root: only root can become another user");
    }
}

#[test]
fn a_run_is_read_while_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = folder.path().join("run.pagelab");
    let child = spawn_writer(&path, 20);
    let (mut last, mut grew) = (0, 0);
    let end = Instant::now() + Duration::from_secs(120);
    while grew < 3 {
        assert!(Instant::now() < end, "the file grew {grew} times in two minutes");
        std::thread::sleep(Duration::from_millis(150));
        let names = |listing: Vec<(std::path::PathBuf, u64, SystemTime)>| -> Vec<_> {
            listing.into_iter().map(|(name, _, _)| name).collect()
        };
        let before = names(listing(folder.path()));
        let run = read_run_file(&path).unwrap();
        assert_eq!(names(listing(folder.path())), before, "reading changed the folder");
        assert_eq!(run.ending, RunEnd::NotClosed);
        let Some(stream) = run.streams.first() else { continue };
        assert_prefix(&run);
        assert!(stream.values.len() >= last);
        grew += usize::from(stream.values.len() > last);
        last = stream.values.len();
    }
    if let Some(command) = read_only(folder.path(), &["read", path.to_str().unwrap()]) {
        assert!(child::read_answer(command).contains(" samples"));
    }
    if is_root() {
        let asked = ["read", path.to_str().unwrap()];
        assert!(child::read_answer(child::wrap_command("setpriv", &OTHER_USER, &asked)).contains(" samples"));
    } else {
        eprintln!("skipped: not-root: only root can become another user");
    }
    kill(child);
}

/// The caller writes once and then does nothing.
#[test]
fn records_of_an_idle_caller_are_committed_and_synced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pagelab");
    let wal_bytes = || fs::metadata(folder.path().join("run.pagelab-wal")).unwrap().len();
    let mut writer = RunWriter::create(&path, &fixtures::manifest()).unwrap();
    let stream = writer.add_stream(&fixtures::stream_head()).unwrap();
    writer.flush().unwrap();
    let mut last = wal_bytes();
    let mut grown = |what: &str, grows: bool| {
        let bytes = wal_bytes();
        assert_eq!(bytes > last, grows, "{what}: the log had {last} bytes, and has {bytes}");
        last = bytes;
    };
    writer.flush().unwrap();
    grown("nothing is left to be forced to the disk", false);
    for (index, waits_for_it) in [false, true].into_iter().enumerate() {
        writer.add_sample(stream, 1, 0.5).unwrap();
        let before = wal_bytes();
        wait_until("the commit", || wal_bytes() > before);
        // Its last page too.
        wait_until("the sample in the file", || {
            read_run_file(&path).is_ok_and(|run| run.streams[0].values.len() > index)
        });
        grown("the commit", true);
        let before = wal_bytes();
        if waits_for_it {
            wait_until("its own sync", || wal_bytes() > before);
        } else {
            writer.flush().unwrap();
        }
        // SQLite syncs a log only when it adds to it.
        grown("the records on the disk", true);
        std::thread::sleep(Duration::from_millis(900));
        grown("once they are there", false);
    }
    writer.close(RunEnd::Complete { after_ns: 2 }).unwrap();
}

/// A log of holes, larger than any disk.
#[test]
fn a_log_that_no_disk_has_room_for_is_not_copied() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.pagelab");
    fixtures::file(&path);
    let wal = fs::File::create(folder.path().join("run.pagelab-wal")).unwrap();
    if let Err(error) = wal.set_len(8 << 40) {
        eprintln!("skipped: no-holes: this file system has no file of 8 TiB: {error}");
        return;
    }
    let error = read_run_file(&path).map(|run| run.ending).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("hint: free space there, or set TMPDIR"), "{error}");
}
