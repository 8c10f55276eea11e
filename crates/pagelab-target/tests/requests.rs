//! Thousands of calls in the name of programs that do all that makes that hard: each is answered, the program
//! says what it says alone, and its mappings are known by their names at the end.
#![allow(clippy::print_stderr, reason = "a skipped check says so")]
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand
#![cfg(target_arch = "x86_64")]

mod support;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pagelab_target::supervise::{Choice, Spec, Thp, Unanswered, Watch};
use pagelab_tlb::engine::ledger::{Kind, Ledger};

/// Long enough for a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(120);

/// The program of these tests.
fn program() -> Option<&'static Path> {
    support::threaded("requests")
}

fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        match found() {
            Some(found) => return found,
            None => assert!(Instant::now() < end, "it never came: {what}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn said(folder: &Path) -> Option<String> {
    std::fs::read_to_string(folder.join("said")).ok().filter(|text| text.ends_with('\n'))
}

/// What it says without anybody.
fn alone(program: &Path, word: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("stop"), "").unwrap();
    let mut child = Command::new(program).arg(word).arg(folder.path()).spawn().unwrap();
    let said = until(word, || said(folder.path()));
    child.kill().unwrap();
    child.wait().unwrap();
    said
}

/// Asks it for calls, so many times, while it works; then it says the same and has what the ledger has.
fn answers(word: &str, requests: u32) {
    let Some(program) = program() else { return };
    let wanted = alone(program, word);
    let folder = tempfile::tempdir().unwrap();
    let spec = Spec {
        program: program.to_owned(),
        arguments: vec![program.into(), word.into(), folder.path().into()],
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
    let call = |number| (number, [0; 6]);
    let calls = [call(libc::SYS_getpid), call(libc::SYS_getppid), call(libc::SYS_getpid)];
    let mine = i64::from(std::process::id());
    for nth in 0..requests {
        let asked = Instant::now();
        let answer = watch.make(pid, &calls);
        assert_eq!(watch.ended(), None, "{word} {nth}");
        match answer {
            Ok(results) => assert_eq!(results, [i64::from(pid), mine, i64::from(pid)], "{word} {nth}"),
            // What is asked of a program is not asked of the next one.
            Err(Unanswered::Gone) if word == "execs" => {}
            Err(why) => panic!("{word} {nth} after {:?}: {why}", asked.elapsed()),
        }
    }
    std::fs::write(folder.path().join("stop"), "").unwrap();
    let says = until(word, || {
        assert_eq!(watch.ended(), None, "{word}");
        said(folder.path())
    });
    assert_eq!(says, wanted, "{word}");
    agrees(&watch.ledger(pid).unwrap().1, pid, program, word);
    let target = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(target, rustix::process::Signal::KILL).unwrap();
    watch.wait(PATIENCE).unwrap();
}

/// All anonymous memory has a name, and what has one is there.
fn agrees(ledger: &Ledger, pid: u32, program: &Path, word: &str) {
    let text = std::fs::read(format!("/proc/{pid}/maps")).unwrap();
    let maps = pagelab_formats::maps::parse(&text).unwrap();
    let text = String::from_utf8_lossy(&text);
    let own = program.to_str().unwrap();
    // Behind the program's own file lies its memory without a file, which the kernel makes at the exec.
    let own_end = maps.iter().filter(|map| map.name == own).map(|map| map.end).max().unwrap();
    for map in maps.iter().filter(|map| map.name.is_empty() && map.start != own_end) {
        let is_anonymous = |kind: &Kind| *kind == Kind::Anonymous;
        // Of a library, what is anonymous was laid over its file, or is: both are the ledger's.
        let is_known =
            ledger.covered(map.start..map.end, |kind| is_anonymous(kind) || matches!(kind, Kind::File(_)));
        assert!(is_known, "{word}: {:x}-{:x} has no name\n{text}\n{ledger:x?}", map.start, map.end);
    }
    let mut anonymous = 0;
    for (span, mapping, _) in ledger.within(&(0..u64::MAX)) {
        if ledger.made(mapping).key.kind != Kind::Anonymous {
            continue;
        }
        anonymous += 1;
        let mut at = span.start;
        while let Some(map) = maps.iter().find(|map| map.start <= at && at < map.end) {
            at = map.end;
        }
        assert!(at >= span.end, "{word}: {span:x?} is not there from {at:x} on\n{text}\n{ledger:x?}");
    }
    assert!(anonymous > 0, "{word}");
}

#[test]
fn of_a_program_that_only_computes() {
    answers("hot", 1000);
}

#[test]
fn of_a_program_that_maps_all_the_time() {
    answers("maps", 1000);
}

#[test]
fn of_threads_that_map_all_the_time() {
    answers("threads", 1000);
}

#[test]
fn of_a_program_that_makes_children_all_the_time() {
    answers("children", 1000);
}

#[test]
fn of_a_program_that_waits_in_calls() {
    answers("waits", 1000);
}

#[test]
fn of_a_program_with_a_thousand_signals_a_second() {
    answers("storm", 1000);
}

#[test]
fn of_a_program_that_is_stopped_and_continued_all_the_time() {
    answers("stops", 1000);
}

#[test]
fn of_a_program_in_restartable_sequences() {
    answers("sequences", 200);
}

#[test]
fn of_a_program_that_becomes_another_again_and_again() {
    answers("execs", 300);
}
