//! Tests of thousands of injected calls into difficult programs: each is answered, the output is unchanged,
//! and the mappings are identified.
#![allow(clippy::print_stderr, reason = "a skipped check says so")]
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand
#![cfg(target_arch = "x86_64")]

mod support;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pagelab_target::supervisor::{
    HugePageChoice, RequestError, SupervisedProgram, SupervisorConfig, ThpMode,
};
use pagelab_tlb::engine::mapping_table::{MappedKind, MappingTable};

/// Long enough for a machine that is busy with other things.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The program of these tests.
fn program() -> Option<&'static Path> {
    support::compile_threaded("requests")
}

fn wait_until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        match found() {
            Some(found) => return found,
            None => assert!(Instant::now() < end, "it was never printed: {what}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn read_output(folder: &Path) -> Option<String> {
    std::fs::read_to_string(folder.join("said")).ok().filter(|text| text.ends_with('\n'))
}

/// Its answer without any program.
fn run_alone(program: &Path, word: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("stop"), "").unwrap();
    let mut child = Command::new(program).arg(word).arg(folder.path()).spawn().unwrap();
    let said = wait_until(word, || read_output(folder.path()));
    child.kill().unwrap();
    child.wait().unwrap();
    said
}

/// Asks it for calls, so many times, while it works; then it says the same and has what the table has.
fn check_requests(word: &str, requests: u32) {
    let Some(program) = program() else { return };
    let wanted = run_alone(program, word);
    let folder = tempfile::tempdir().unwrap();
    let spec = SupervisorConfig {
        program: program.to_owned(),
        arguments: vec![program.into(), word.into(), folder.path().into()],
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
    let call = |number| (number, [0; 6]);
    let calls = [call(libc::SYS_getpid), call(libc::SYS_getppid), call(libc::SYS_getpid)];
    let mine = i64::from(std::process::id());
    for nth in 0..requests {
        let asked = Instant::now();
        let answer = supervised_program.inject_calls(pid, &calls);
        assert_eq!(supervised_program.program_exit(), None, "{word} {nth}");
        match answer {
            Ok(results) => assert_eq!(results, [i64::from(pid), mine, i64::from(pid)], "{word} {nth}"),
            // A request for one program is not sent to the next.
            Err(RequestError::Gone) if word == "execs" => {}
            Err(why) => panic!("{word} {nth} after {:?}: {why}", asked.elapsed()),
        }
    }
    std::fs::write(folder.path().join("stop"), "").unwrap();
    let says = wait_until(word, || {
        assert_eq!(supervised_program.program_exit(), None, "{word}");
        read_output(folder.path())
    });
    assert_eq!(says, wanted, "{word}");
    check_ledger(&supervised_program.read_mapping_table(pid).unwrap().1, pid, program, word);
    let target = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(target, rustix::process::Signal::KILL).unwrap();
    support::wait_for_exit(&supervised_program);
}

/// All anonymous memory has a name, and what has one is there.
fn check_ledger(table: &MappingTable, pid: u32, program: &Path, word: &str) {
    let text = std::fs::read(format!("/proc/{pid}/maps")).unwrap();
    let maps = pagelab_formats::maps::parse(&text).unwrap();
    let text = String::from_utf8_lossy(&text);
    let own = program.to_str().unwrap();
    // After the program's own file is its memory without a file, which the kernel creates at the exec.
    let own_end = maps.iter().filter(|map| map.name == own).map(|map| map.end).max().unwrap();
    for map in maps.iter().filter(|map| map.name.is_empty() && map.start != own_end) {
        let is_anonymous = |kind: &MappedKind| *kind == MappedKind::Anonymous;
        // Of a library, what is anonymous was laid over its file, or is: both are the table's.
        let is_known = table.is_covered_by(map.start..map.end, |kind| {
            is_anonymous(kind) || matches!(kind, MappedKind::File(_))
        });
        assert!(is_known, "{word}: {:x}-{:x} has no name\n{text}\n{table:x?}", map.start, map.end);
    }
    let mut anonymous = 0;
    for (span, mapping, _) in table.spans_in(&(0..u64::MAX)) {
        if table.mapping(mapping).key.kind != MappedKind::Anonymous {
            continue;
        }
        anonymous += 1;
        let mut at = span.start;
        while let Some(map) = maps.iter().find(|map| map.start <= at && at < map.end) {
            at = map.end;
        }
        assert!(at >= span.end, "{word}: {span:x?} is not there from {at:x} on\n{text}\n{table:x?}");
    }
    assert!(anonymous > 0, "{word}");
}

#[test]
fn requests_to_a_program_that_only_computes() {
    check_requests("hot", 1000);
}

#[test]
fn requests_to_a_program_that_maps_all_the_time() {
    check_requests("maps", 1000);
}

#[test]
fn requests_to_threads_that_map_all_the_time() {
    check_requests("threads", 1000);
}

#[test]
fn requests_to_a_program_that_forks_all_the_time() {
    check_requests("children", 1000);
}

#[test]
fn requests_to_a_program_that_waits_in_calls() {
    check_requests("waits", 1000);
}

#[test]
fn requests_to_a_program_with_a_thousand_signals_a_second() {
    check_requests("storm", 1000);
}

#[test]
fn requests_to_a_program_that_is_stopped_and_continued() {
    check_requests("stops", 1000);
}

#[test]
fn requests_to_a_program_in_restartable_sequences() {
    check_requests("sequences", 200);
}

#[test]
fn requests_to_a_program_that_execs_again_and_again() {
    check_requests("execs", 300);
}
