//! Entries of the page of zeros that are dropped while a program stands: nothing that it wrote is lost, and
//! each thing that forbids it is met. By the supervisor and by a process that attaches.
#![allow(clippy::print_stderr, reason = "a skipped check says so")]
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand
#![cfg(target_arch = "x86_64")]

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use pagelab_host::root::Root;
use pagelab_sys::pagemap_scan;
use pagelab_target::accessed::{drop_zeros, droppable, kept};
use pagelab_target::inject::Identity;
use pagelab_target::supervise::{Choice, Spec, Thp, Watch};

const PATIENCE: Duration = Duration::from_secs(60);

/// The program of these tests.
fn program() -> Option<&'static Path> {
    support::threaded("zero_page")
}

/// Whether the kernel tells where the page of zeros is mapped.
fn is_told() -> bool {
    let told = pagemap_scan::is_known(&File::open("/proc/self/pagemap").unwrap()).is_ok();
    if !told {
        eprintln!("skipped: no-pagemap-scan: the kernel has no PAGEMAP_SCAN");
    }
    told
}

struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
    memory: Range<u64>,
}

impl Running {
    /// `None` where what it needs is not there.
    fn start(what: &str) -> Option<Running> {
        let program = program().filter(|_| is_told())?;
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(program);
        command.arg(what).arg(folder.path()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| u64::from_str_radix(words[at], 16).unwrap();
        match words[..] {
            ["ready", ..] => {
                let memory = number(1)..number(1) + number(2);
                Some(Running { child, out, folder, memory })
            }
            ["absent"] => {
                child.wait().unwrap();
                eprintln!("skipped: no-such-descriptor: {what}");
                None
            }
            _ => panic!("{what}: {line}"),
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn identity(&self) -> Identity {
        Identity::of(&Root::live(), self.pid()).unwrap()
    }

    fn zeros(&self) -> Vec<Range<u64>> {
        zeros(self.pid(), &self.memory)
    }

    /// It says that its memory is as it left it.
    fn assert_right(mut self) {
        std::fs::write(self.folder.path().join("stop"), "").unwrap();
        let mut said = String::new();
        self.out.read_to_string(&mut said).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success() && said.trim() == "all right", "{status} {said}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn zeros(pid: u32, memory: &Range<u64>) -> Vec<Range<u64>> {
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).unwrap();
    let mut parts = Vec::new();
    pagemap_scan::zero_base_pages(&pagemap, memory.clone(), |part| parts.push(part)).unwrap();
    parts
}

fn bytes(parts: &[Range<u64>]) -> u64 {
    parts.iter().map(|part| part.end - part.start).sum()
}

fn runs(memory: &Range<u64>) -> Vec<Range<u64>> {
    (0..64).map(|n| memory.start + n * (128 << 10)).map(|at| at..at + (64 << 10)).collect()
}

#[test]
fn entries_of_a_program_that_may_are_dropped_and_read_as_zeros() {
    let Some(running) = Running::start("plain") else { return };
    let before = bytes(&running.zeros());
    assert_eq!(before, 8 << 20);
    let done = drop_zeros(&Root::live(), running.identity(), runs(&running.memory)).unwrap();
    assert_eq!(bytes(&done.parts), 64 * (64 << 10));
    assert!(done.stopped_ns > 0);
    assert_eq!(bytes(&running.zeros()), before - bytes(&done.parts));
    // What is no page of zeros is left alone: it is gone already.
    let again = drop_zeros(&Root::live(), running.identity(), runs(&running.memory)).unwrap();
    assert_eq!(again.parts, []);
    running.assert_right();
}

#[test]
fn who_writes_while_threads_stand_forbids_it() {
    for (what, why) in [
        ("userfaultfd", "a userfaultfd"),
        ("io_uring", "an io_uring"),
        ("polling", "iou-sqp"),
        ("device", "/dev/loop-control"),
        ("sharing", "shares its address space"),
    ] {
        let Some(running) = Running::start(what) else { continue };
        let before = running.zeros();
        let said = drop_zeros(&Root::live(), running.identity(), runs(&running.memory));
        let said = said.expect_err(what);
        // The kernel's own threads cannot be traced.
        let is_polled = what == "polling" && said.contains("does not let us trace it");
        assert!(said.contains(why) || is_polled, "{what}: {said}");
        assert_eq!(running.zeros(), before, "{what}");
        running.assert_right();
    }
}

#[test]
fn memory_that_is_locked_of_huge_pages_or_shared_is_never_touched() {
    // The list of mappings leaves the first out; the kernel refuses it besides. Of the others no page is one.
    for (what, has_some) in [("locked", true), ("huge", false), ("shared", false)] {
        let Some(running) = Running::start(what) else { continue };
        let before = running.zeros();
        if what == "shared" {
            assert_eq!(bytes(&before), 0, "{what}");
        }
        // Where huge pages are off, the page of zeros is the small one.
        if what == "huge" && bytes(&before) > 0 {
            eprintln!("skipped: thp-absent: no huge page of zeros");
            continue;
        }
        assert_eq!(bytes(&before) > 0, has_some, "{what}");
        let done = drop_zeros(&Root::live(), running.identity(), runs(&running.memory)).unwrap();
        assert_eq!(done.parts, [], "{what}");
        assert_eq!(running.zeros(), before, "{what}");
        running.assert_right();
    }
}

/// What the kernel tells of mappings that somebody watches or holds.
#[test]
fn mappings_that_somebody_watches_or_holds_are_kept() {
    for (what, why) in [
        ("missing", Some("watched by a userfaultfd")),
        ("protected", Some("watched by a userfaultfd")),
        ("locked", Some("locked in memory (mlock)")),
        ("plain", None),
    ] {
        let Some(running) = Running::start(what) else { continue };
        let text = std::fs::read(format!("/proc/{}/smaps", running.pid())).unwrap();
        let mappings = pagelab_formats::smaps::parse(&text).unwrap();
        let is_it = |m: &&pagelab_model::process::Mapping| {
            m.start < running.memory.end && running.memory.start < m.end
        };
        let said: Vec<_> = mappings.iter().filter(is_it).map(kept).collect();
        assert!(said.contains(&why), "{what}: {said:?}");
        running.assert_right();
    }
}

/// Four threads, of which three read, write and give back, under drops as fast as they can be made.
#[test]
fn nothing_that_is_written_between_two_drops_is_lost() {
    let Some(running) = Running::start("works") else { return };
    let (mut dropped, mut made) = (0, 0);
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        match drop_zeros(&Root::live(), running.identity(), running.zeros()) {
            Ok(done) => {
                dropped += bytes(&done.parts);
                made += 1;
            }
            Err(why) => assert!(why.contains("does not stop") || why.contains("in the middle"), "{why}"),
        }
    }
    assert!(made >= 5 && dropped >= 5 << 20, "{made} {dropped}");
    running.assert_right();
}

/// The same by the supervisor, whose tracer has the threads in its hands all the time.
#[test]
fn the_supervisor_has_all_threads_stand_and_loses_nothing() {
    let Some(program) = program().filter(|_| is_told()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let spec = Spec {
        program: program.to_owned(),
        arguments: vec![program.into(), "works".into(), folder.path().into()],
        choice: Choice::Nothing,
        overrides: false,
        hugetlb: false,
        stale: false,
        thp: Thp::Off,
        sees_all: true,
        page: rustix::param::page_size() as u64,
        huge: 2 << 20,
    };
    let watch = Watch::start(spec).unwrap();
    let pid = watch.pid();
    // Its memory is the largest that is of zeros.
    let until = Instant::now() + PATIENCE;
    let memory = loop {
        let text = std::fs::read(format!("/proc/{pid}/maps")).unwrap();
        let maps = pagelab_formats::maps::parse(&text).unwrap();
        let large = maps.iter().filter(|map| map.end - map.start >= 8 << 20 && map.name.is_empty());
        let found = large.map(|map| map.start..map.end).find(|range| bytes(&zeros(pid, range)) > 4 << 20);
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
        if let (Some(found), 4) = (found, threads) {
            break found;
        }
        assert!(Instant::now() < until && watch.ended().is_none());
        std::thread::sleep(Duration::from_millis(5));
    };
    let (mut dropped, mut made) = (0, 0);
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        let (says, hears) = mpsc::channel();
        let runs = zeros(pid, &memory);
        let prepare = move |others: &[u32]| {
            let mut parts = droppable(pid, Some(others), &runs);
            // All in one call, or each in one of its own where there are few.
            parts.iter_mut().for_each(|parts| parts.truncate(if made % 3 == 0 { 2 } else { 64 }));
            let ranges = parts.clone().unwrap_or_default();
            says.send(parts).unwrap();
            ranges
        };
        match watch.drop_standing(pid, Box::new(prepare)) {
            Ok(answer) => {
                let parts = hears.recv().unwrap().unwrap();
                assert_eq!(answer.results.len(), parts.len());
                assert!(answer.results.iter().all(|&result| result == 0), "{:?}", answer.results);
                let taken = parts.iter().zip(&answer.results);
                dropped += taken.map(|(part, _)| part.end - part.start).sum::<u64>();
                made += 1;
                assert!(answer.used.cpu_ns > 0 && answer.used.faults > 0);
            }
            Err(why) => assert!(why.is_passing() && watch.ended().is_none(), "{why}"),
        }
    }
    assert!(made >= 20 && dropped >= 5 << 20, "{made} {dropped}");
    std::fs::write(folder.path().join("stop"), "").unwrap();
    let ended = watch.wait(PATIENCE).unwrap();
    assert_eq!(ended.code(), 0);
}

/// A process that drops entries and is killed right after: what it held goes on, with zeros where they were.
#[test]
fn who_is_killed_after_a_drop_leaves_zeros() {
    const ROLE: &str = "PAGELAB_TEST_ZERO_PAGE_DROPS";
    if let Ok(role) = std::env::var(ROLE) {
        let mut numbers = role.split(' ').map(|word| word.parse::<u64>().unwrap());
        let (pid, start, end) = (numbers.next().unwrap(), numbers.next().unwrap(), numbers.next().unwrap());
        let identity = Identity::of(&Root::live(), pid as u32).unwrap();
        let threads = move || pagelab_target::accessed::living_threads(&Root::live(), pid as u32);
        let killed = pagelab_target::inject::with_all(&Root::live(), identity, threads, move |injector| {
            let parts = droppable(pid as u32, None, std::slice::from_ref(&(start..end))).unwrap();
            assert_eq!(bytes(&parts), end - start);
            let arguments = [start, end - start, libc::MADV_DONTNEED as u64, 0, 0, 0];
            assert_eq!(injector.call(libc::SYS_madvise, arguments)?, 0);
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
            Ok(())
        });
        panic!("it was not killed: {killed:?}");
    }
    // It is stopped, so that registers that are not its own are never run with.
    let Some(running) = Running::start("plain") else { return };
    let pid = rustix::process::Pid::from_raw(running.pid() as i32).unwrap();
    let state = || {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", running.pid())).unwrap();
        text.rsplit(") ").next().unwrap().chars().next().unwrap()
    };
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let until = Instant::now() + PATIENCE;
    while state() != 'T' {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(1));
    }
    let role = format!("{} {} {}", running.pid(), running.memory.start, running.memory.start + (1 << 20));
    let mut killer = Command::new(std::env::current_exe().unwrap());
    killer.args(["--exact", "who_is_killed_after_a_drop_leaves_zeros", "--nocapture"]).env(ROLE, role);
    let output = killer.output().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&output.status),
        Some(libc::SIGKILL),
        "{output:?}"
    );
    assert_eq!(bytes(&running.zeros()), (8 << 20) - (1 << 20));
    let mut contents = vec![1; 1 << 20];
    let mut memory = File::open(format!("/proc/{}/mem", running.pid())).unwrap();
    std::io::Seek::seek(&mut memory, std::io::SeekFrom::Start(running.memory.start)).unwrap();
    memory.read_exact(&mut contents).unwrap();
    assert!(contents.iter().all(|&byte| byte == 0));
}
