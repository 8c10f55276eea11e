//! Entries of the zero page that are dropped while a program stands: nothing that it wrote is lost, and
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
use pagelab_target::accessed::{drop_zero_pages, find_droppable, ineligible_reason};
use pagelab_target::process_injection::ProcessIdentity;
use pagelab_target::supervisor::{HugePageChoice, SupervisedProgram, SupervisorConfig, ThpMode};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The program of these tests.
fn program() -> Option<&'static Path> {
    support::compile_threaded("zero_page")
}

/// Whether the kernel tells where the zero page is mapped.
fn has_pagemap_scan() -> bool {
    let told = pagemap_scan::probe_support(&File::open("/proc/self/pagemap").unwrap()).is_ok();
    if !told {
        eprintln!("skipped: no-pagemap-scan: the kernel has no PAGEMAP_SCAN");
    }
    told
}

struct TestProgram {
    child: Child,
    out: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
    memory: Range<u64>,
}

impl TestProgram {
    /// `None` if a requirement is missing.
    fn start(what: &str) -> Option<TestProgram> {
        let program = program().filter(|_| has_pagemap_scan())?;
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
                Some(TestProgram { child, out, folder, memory })
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

    fn identity(&self) -> ProcessIdentity {
        ProcessIdentity::from_pid(&Root::live(), self.pid()).unwrap()
    }

    fn read_zero_ranges(&self) -> Vec<Range<u64>> {
        read_zero_ranges(self.pid(), &self.memory)
    }

    /// It says that its memory is as it left it.
    fn assert_memory_intact(mut self) {
        std::fs::write(self.folder.path().join("stop"), "").unwrap();
        let mut said = String::new();
        self.out.read_to_string(&mut said).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success() && said.trim() == "all right", "{status} {said}");
    }
}

impl Drop for TestProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_zero_ranges(pid: u32, memory: &Range<u64>) -> Vec<Range<u64>> {
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).unwrap();
    let mut parts = Vec::new();
    pagemap_scan::for_each_zero_base_range(&pagemap, memory.clone(), |part| parts.push(part)).unwrap();
    parts
}

fn sum_bytes(parts: &[Range<u64>]) -> u64 {
    parts.iter().map(|part| part.end - part.start).sum()
}

fn drop_ranges(memory: &Range<u64>) -> Vec<Range<u64>> {
    (0..64).map(|n| memory.start + n * (128 << 10)).map(|at| at..at + (64 << 10)).collect()
}

#[test]
fn zero_page_entries_are_dropped_and_read_as_zeros() {
    let Some(running) = TestProgram::start("plain") else { return };
    let before = sum_bytes(&running.read_zero_ranges());
    assert_eq!(before, 8 << 20);
    let done = drop_zero_pages(&Root::live(), running.identity(), drop_ranges(&running.memory)).unwrap();
    assert_eq!(sum_bytes(&done.parts), 64 * (64 << 10));
    assert!(done.stopped_ns > 0);
    assert_eq!(sum_bytes(&running.read_zero_ranges()), before - sum_bytes(&done.parts));
    // What is no zero page is left alone: it is gone already.
    let again = drop_zero_pages(&Root::live(), running.identity(), drop_ranges(&running.memory)).unwrap();
    assert_eq!(again.parts, []);
    running.assert_memory_intact();
}

#[test]
fn a_writer_outside_the_stopped_threads_forbids_drops() {
    for (what, why) in [
        ("userfaultfd", "a userfaultfd"),
        ("io_uring", "an io_uring"),
        ("polling", "iou-sqp"),
        ("device", "/dev/loop-control"),
        ("sharing", "shares its address space"),
    ] {
        let Some(running) = TestProgram::start(what) else { continue };
        let before = running.read_zero_ranges();
        let said = drop_zero_pages(&Root::live(), running.identity(), drop_ranges(&running.memory));
        let said = said.expect_err(what);
        // The kernel's own threads cannot be traced.
        let is_polled = what == "polling" && said.contains("denies ptrace");
        assert!(said.contains(why) || is_polled, "{what}: {said}");
        assert_eq!(running.read_zero_ranges(), before, "{what}");
        running.assert_memory_intact();
    }
}

#[test]
fn locked_huge_and_shared_memory_is_never_dropped() {
    // The list of mappings leaves the first out; the kernel refuses it besides. Of the others no page is one.
    for (what, has_some) in [("locked", true), ("huge", false), ("shared", false)] {
        let Some(running) = TestProgram::start(what) else { continue };
        let before = running.read_zero_ranges();
        if what == "shared" {
            assert_eq!(sum_bytes(&before), 0, "{what}");
        }
        // Where huge pages are off, the zero page is the small one.
        if what == "huge" && sum_bytes(&before) > 0 {
            eprintln!("skipped: thp-absent: no huge zero page");
            continue;
        }
        assert_eq!(sum_bytes(&before) > 0, has_some, "{what}");
        let done = drop_zero_pages(&Root::live(), running.identity(), drop_ranges(&running.memory)).unwrap();
        assert_eq!(done.parts, [], "{what}");
        assert_eq!(running.read_zero_ranges(), before, "{what}");
        running.assert_memory_intact();
    }
}

/// The kernel's information about mappings that are watched or locked.
#[test]
fn watched_and_locked_mappings_are_kept() {
    for (what, why) in [
        ("missing", Some("watched by a userfaultfd")),
        ("protected", Some("watched by a userfaultfd")),
        ("locked", Some("locked in memory (mlock)")),
        ("plain", None),
    ] {
        let Some(running) = TestProgram::start(what) else { continue };
        let text = std::fs::read(format!("/proc/{}/smaps", running.pid())).unwrap();
        let mappings = pagelab_formats::smaps::parse(&text).unwrap();
        let is_it = |m: &&pagelab_model::process::Mapping| {
            m.start < running.memory.end && running.memory.start < m.end
        };
        let said: Vec<_> = mappings.iter().filter(is_it).map(ineligible_reason).collect();
        assert!(said.contains(&why), "{what}: {said:?}");
        running.assert_memory_intact();
    }
}

/// Four threads, of which three read, write and free, under drops at the maximum rate.
#[test]
fn nothing_that_is_written_between_two_drops_is_lost() {
    let Some(running) = TestProgram::start("works") else { return };
    let (mut dropped, mut made) = (0, 0);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(4) || made < 20 || dropped < 5 << 20 {
        assert!(begun.elapsed() < TIMEOUT, "{made} drops of {dropped} bytes");
        match drop_zero_pages(&Root::live(), running.identity(), running.read_zero_ranges()) {
            Ok(done) => {
                dropped += sum_bytes(&done.parts);
                made += 1;
            }
            Err(why) => assert!(why.contains("does not stop") || why.contains("in the middle"), "{why}"),
        }
    }
    running.assert_memory_intact();
}

/// The same by the supervisor, which traces all threads.
#[test]
fn drops_of_the_supervisor_lose_nothing_that_is_written() {
    let Some(program) = program().filter(|_| has_pagemap_scan()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let spec = SupervisorConfig {
        program: program.to_owned(),
        arguments: vec![program.into(), "works".into(), folder.path().into()],
        choice: HugePageChoice::Nothing,
        overrides: false,
        hugetlb: false,
        allow_stale: false,
        thp: ThpMode::Off,
        traces_all_mappings: true,
        page: rustix::param::page_size() as u64,
        huge: 2 << 20,
    };
    let supervised_program = SupervisedProgram::start(spec).unwrap();
    let pid = supervised_program.pid();
    // Its memory is the largest that is of zeros.
    let until = Instant::now() + TIMEOUT;
    let memory = loop {
        let text = std::fs::read(format!("/proc/{pid}/maps")).unwrap();
        let maps = pagelab_formats::maps::parse(&text).unwrap();
        let large = maps.iter().filter(|map| map.end - map.start >= 8 << 20 && map.name.is_empty());
        let found = large
            .map(|map| map.start..map.end)
            .find(|range| sum_bytes(&read_zero_ranges(pid, range)) > 4 << 20);
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
        if let (Some(found), 4) = (found, threads) {
            break found;
        }
        assert!(Instant::now() < until && supervised_program.program_exit().is_none());
        std::thread::sleep(Duration::from_millis(5));
    };
    let (mut dropped, mut made) = (0, 0);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(4) || made < 20 || dropped < 5 << 20 {
        assert!(begun.elapsed() < TIMEOUT, "{made} drops of {dropped} bytes");
        let (parts_sender, parts_receiver) = mpsc::channel();
        let runs = read_zero_ranges(pid, &memory);
        let prepare = move |others: &[u32]| {
            let mut parts = find_droppable(pid, Some(others), &runs);
            // All in one call, or each in one of its own where there are few.
            parts.iter_mut().for_each(|parts| parts.truncate(if made % 3 == 0 { 2 } else { 64 }));
            let ranges = parts.clone().unwrap_or_default();
            parts_sender.send(parts).unwrap();
            ranges
        };
        match supervised_program.drop_while_stopped(pid, Box::new(prepare)) {
            Ok(answer) => {
                let parts = parts_receiver.recv().unwrap().unwrap();
                assert_eq!(answer.results.len(), parts.len());
                assert!(answer.results.iter().all(|&result| result == 0), "{:?}", answer.results);
                let taken = parts.iter().zip(&answer.results);
                dropped += taken.map(|(part, _)| part.end - part.start).sum::<u64>();
                made += 1;
                assert!(answer.usage.cpu_ns > 0 && answer.usage.faults > 0);
            }
            Err(why) => assert!(why.is_temporary() && supervised_program.program_exit().is_none(), "{why}"),
        }
    }
    std::fs::write(folder.path().join("stop"), "").unwrap();
    assert_eq!(support::wait_for_exit(&supervised_program).exit_code(), 0);
}

/// A process that drops entries and is killed right after: its memory stays, with zeros as before.
#[test]
fn a_kill_after_a_drop_leaves_zeros() {
    const ROLE: &str = "PAGELAB_TEST_ZERO_PAGE_DROPS";
    if let Ok(role) = std::env::var(ROLE) {
        let mut numbers = role.split(' ').map(|word| word.parse::<u64>().unwrap());
        let (pid, start, end) = (numbers.next().unwrap(), numbers.next().unwrap(), numbers.next().unwrap());
        let identity = ProcessIdentity::from_pid(&Root::live(), pid as u32).unwrap();
        let killed = pagelab_target::process_injection::inject_with_threads_stopped(
            &Root::live(),
            identity,
            move |injector| {
                let parts = find_droppable(pid as u32, None, std::slice::from_ref(&(start..end))).unwrap();
                assert_eq!(sum_bytes(&parts), end - start);
                let arguments = [start, end - start, libc::MADV_DONTNEED as u64, 0, 0, 0];
                assert_eq!(injector.call(libc::SYS_madvise, arguments)?, 0);
                let own = rustix::process::getpid();
                rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
                Ok(())
            },
        );
        panic!("it was not killed: {killed:?}");
    }
    // It is stopped, so that registers that are not its own are never run with.
    let Some(running) = TestProgram::start("plain") else { return };
    let pid = rustix::process::Pid::from_raw(running.pid() as i32).unwrap();
    let state = || {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", running.pid())).unwrap();
        text.rsplit(") ").next().unwrap().chars().next().unwrap()
    };
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let until = Instant::now() + TIMEOUT;
    while state() != 'T' {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(1));
    }
    let role = format!("{} {} {}", running.pid(), running.memory.start, running.memory.start + (1 << 20));
    let mut killer = Command::new(std::env::current_exe().unwrap());
    killer.args(["--exact", "a_kill_after_a_drop_leaves_zeros", "--nocapture"]).env(ROLE, role);
    let output = killer.output().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&output.status),
        Some(libc::SIGKILL),
        "{output:?}"
    );
    assert_eq!(sum_bytes(&running.read_zero_ranges()), (8 << 20) - (1 << 20));
    let mut contents = vec![1; 1 << 20];
    let mut memory = File::open(format!("/proc/{}/mem", running.pid())).unwrap();
    std::io::Seek::seek(&mut memory, std::io::SeekFrom::Start(running.memory.start)).unwrap();
    memory.read_exact(&mut contents).unwrap();
    assert!(contents.iter().all(|&byte| byte == 0));
}
