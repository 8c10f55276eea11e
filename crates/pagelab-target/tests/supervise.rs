//! Tests of real programs under the supervisor: results and exits are those without it.
#![allow(clippy::print_stderr, reason = "a skipped check says so")]
#![allow(clippy::unwrap_used)] // a test's helpers may fail where they stand
#![cfg(target_arch = "x86_64")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pagelab_model::Bytes;
use pagelab_model::huge_plan::{HugePlan, PlannedMapping, PlannedProgram, PlannedRegion};
use pagelab_model::profile::{MappingIdentity, MappingKind, Program};
use pagelab_target::supervisor::{
    self, HugePageChoice, ProgramExit, Summary, SupervisedProgram, SupervisorConfig, ThpMode,
};
use support::compile_program;

const HUGE: u64 = 2 << 20;
const BUFFER: u64 = 64 << 20;

/// The program that makes trouble, compiled once; `None` after saying that there is no compiler.
fn hostile_program() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<(tempfile::TempDir, PathBuf)>> = OnceLock::new();
    BUILT
        .get_or_init(|| compile_program("hostile", &["-pthread"]))
        .as_ref()
        .map(|(_, program)| program.as_path())
}

fn spec(program: &Path, word: &str, choice: HugePageChoice) -> SupervisorConfig {
    SupervisorConfig {
        program: program.to_owned(),
        arguments: vec![program.into(), word.into()],
        choice,
        overrides: false,
        hugetlb: false,
        allow_stale: false,
        thp: ThpMode::OnlyAdvised,
        traces_all_mappings: false,
        page: rustix::param::page_size() as u64,
        huge: HUGE,
    }
}

/// Every third region of the buffer.
fn plan() -> HugePlan {
    let offsets = (0..BUFFER / HUGE).step_by(3).map(|n| n * HUGE).collect();
    build_plan(MappingKind::Anonymous, BUFFER, offsets)
}

/// Four regions of the heap.
fn heap_plan() -> HugePlan {
    build_plan(MappingKind::Heap, 0, [1, 2, 5, 11].map(|n| n * HUGE).to_vec())
}

fn build_plan(kind: MappingKind, bytes: u64, offsets: Vec<u64>) -> HugePlan {
    let region = |offset: u64| PlannedRegion { offset, page: Bytes(HUGE), cost_ns: None };
    let mapping = PlannedMapping {
        key: MappingIdentity { kind, bytes: Bytes(bytes), nth: 0 },
        start: 1 << 40,
        bytes: Bytes(BUFFER),
        regions: offsets.into_iter().map(region).collect(),
        cells: Vec::new(),
    };
    let program = PlannedProgram { program: Program::default(), mappings: vec![mapping] };
    HugePlan { programs: vec![program], ..HugePlan::default() }
}

fn run_supervised(spec: SupervisorConfig) -> (ProgramExit, Summary) {
    let mut got = None;
    supervisor::run_supervised(&Arc::new(spec), |_| {}, |ended, summary| got = Some((ended, summary)))
        .unwrap();
    got.unwrap()
}

fn run_alone(program: &Path, word: &str) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let status = Command::new(program).arg(word).status().unwrap();
    status.code().or(status.signal().map(|signal| 128 + signal)).unwrap() as u8
}

/// Runs it without a supervisor and under each choice; all must end alike.
fn check_same_exit(words: &[&str]) {
    let Some(program) = hostile_program() else { return };
    for word in words {
        let wanted = run_alone(program, word);
        for choice in [HugePageChoice::Nothing, HugePageChoice::All, HugePageChoice::Plan(plan())] {
            let (ended, summary) = run_supervised(spec(program, word, choice.clone()));
            assert_eq!(ended.exit_code(), wanted, "{word} {choice:?} {summary:?}");
        }
    }
}

#[test]
fn programs_end_as_they_do_alone() {
    check_same_exit(&["touch", "at_once", "exec", "thread_exec", "killed", "unmap", "tracer", "untraced"]);
}

#[test]
fn signals_and_stops_are_the_programs_own() {
    check_same_exit(&["signals", "stops", "sleeps"]);
}

#[test]
fn many_children_and_threads() {
    check_same_exit(&["forks", "threads"]);
}

#[test]
fn a_buffer_that_grows_by_mremap_grows() {
    check_same_exit(&["grow"]);
}

#[test]
fn a_buffer_of_before_a_fork_grows_in_parent_and_child() {
    check_same_exit(&["fork_grow"]);
}

#[test]
fn a_killing_seccomp_filter_is_not_triggered() {
    check_same_exit(&["filter"]);
    let Some(program) = hostile_program() else { return };
    let (_, summary) = run_supervised(spec(program, "filter", HugePageChoice::All));
    assert!(summary.notes.iter().any(|note| note.contains("installed a seccomp filter")), "{summary:?}");
}

#[test]
fn sixty_thousand_mappings_and_a_sparse_tebibyte() {
    let Some(program) = hostile_program() else { return };
    for (word, choice) in [
        ("many", HugePageChoice::Plan(plan())),
        ("many", HugePageChoice::All),
        ("sparse", HugePageChoice::Nothing),
        ("sparse", HugePageChoice::All),
    ] {
        let (ended, summary) = run_supervised(spec(program, word, choice));
        assert_eq!(ended, ProgramExit::Code(0), "{word} {summary:?}");
        assert!(word != "sparse" || summary.requested <= 20, "{summary:?}");
    }
}

/// Whether advice gives huge pages on this machine, tested by a program without pagelab.
fn has_thp_enabled() -> bool {
    let free = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let can = free.contains("[madvise]") || free.contains("[always]");
    if !can {
        eprintln!("skipped: thp-absent: huge pages are switched off here");
    }
    can
}

#[test]
fn only_planned_regions_are_huge() {
    let Some(program) = hostile_program() else { return };
    if !has_thp_enabled() {
        return;
    }
    let (_, none) = run_supervised(spec(program, "touch", HugePageChoice::Nothing));
    assert_eq!((none.requested, none.huge_bytes), (0, 0));
    let (_, planned) = run_supervised(spec(program, "touch", HugePageChoice::Plan(plan())));
    assert!(planned.requested == 10 || planned.requested == 11, "{planned:?}");
    assert_eq!(planned.allocated, planned.requested, "{planned:?}");
    assert_eq!(planned.huge_bytes, planned.allocated * HUGE);
    let (_, all) = run_supervised(spec(program, "touch", HugePageChoice::All));
    assert!(all.allocated >= 31 && all.allocated == all.requested, "{all:?}");
}

#[test]
fn a_program_that_disables_huge_pages_is_reported_and_overridden() {
    let Some(program) = hostile_program() else { return };
    if !has_thp_enabled() {
        return;
    }
    for (word, said) in [("against", "MADV_NOHUGEPAGE"), ("off", "PR_SET_THP_DISABLE")] {
        let (ended, obeyed) = run_supervised(spec(program, word, HugePageChoice::All));
        assert_eq!((ended, obeyed.allocated), (ProgramExit::Code(0), 0), "{word} {obeyed:?}");
        assert!(obeyed.failed.iter().any(|refused| refused.reason.contains(said)), "{obeyed:?}");
        let overridden = SupervisorConfig { overrides: true, ..spec(program, word, HugePageChoice::All) };
        let (ended, summary) = run_supervised(overridden);
        assert_eq!(ended, ProgramExit::Code(0));
        assert!(summary.allocated >= 31, "{word} {summary:?}");
    }
}

#[test]
fn the_program_break_equals_that_of_an_untraced_run() {
    let Some((folder, program)) = compile_program("breaks", &[]) else { return };
    let log = |name: &str| folder.path().join(name);
    let status = Command::new(&program).arg("all").arg(log("alone")).status().unwrap();
    assert!(status.success());
    let alone = std::fs::read_to_string(log("alone")).unwrap();
    assert!(alone.lines().count() > 500, "{alone}");
    for (name, choice) in [
        ("nothing", HugePageChoice::Nothing),
        ("everything", HugePageChoice::All),
        ("planned", HugePageChoice::Plan(heap_plan())),
    ] {
        let mut spec = spec(&program, "all", choice);
        spec.arguments.push(log(name).into());
        let (ended, summary) = run_supervised(spec);
        assert_eq!(ended, ProgramExit::Code(0), "{name} {summary:?}");
        let told = std::fs::read_to_string(log(name)).unwrap();
        for (line, (wanted, got)) in alone.lines().zip(told.lines()).enumerate() {
            assert_eq!(got, wanted, "{name}, line {line}");
        }
        assert_eq!(told.lines().count(), alone.lines().count(), "{name}");
    }
}

#[test]
fn a_heap_that_grows_in_small_steps_is_huge_at_the_first_touch() {
    let Some(program) = hostile_program() else { return };
    if !has_thp_enabled() {
        return;
    }
    // Its exit code is its page faults, in hundreds: 33 MiB have 8448 small pages, and a huge one saves 511.
    let small = run_alone(program, "steps");
    assert!((84..100).contains(&small), "{small}");
    for (choice, pages) in [(HugePageChoice::All, 14), (HugePageChoice::Plan(heap_plan()), 4)] {
        let (ended, summary) = run_supervised(spec(program, "steps", choice));
        assert!(u64::from(ended.exit_code()) <= u64::from(small) - pages * 5, "{ended:?} {summary:?}");
        assert!(summary.allocated >= pages && summary.heap_beyond_bytes < HUGE, "{summary:?}");
    }
}

#[test]
fn a_heap_that_grows_in_small_steps_is_collapsed() {
    let Some(program) = hostile_program() else { return };
    if !has_thp_enabled() {
        return;
    }
    let (ended, summary) = run_supervised(spec(program, "heap", HugePageChoice::All));
    assert_eq!(ended, ProgramExit::Code(0));
    let heap = summary.huge_bytes / HUGE;
    assert!(heap >= 8, "{summary:?}");
}

#[test]
fn a_plan_for_another_build_is_applied_only_with_allow_stale() {
    let Some(program) = hostile_program() else { return };
    let mut stale = plan();
    stale.programs[0].program = Program {
        path: "/elsewhere/hostile".to_owned(),
        bytes: Some(Bytes(1)),
        identity: Some("00".to_owned()),
    };
    let (_, refused) = run_supervised(spec(program, "touch", HugePageChoice::Plan(stale.clone())));
    assert_eq!(refused.allocated, 0);
    assert!(refused.notes.iter().any(|note| note.contains("another build")), "{refused:?}");
    let anyway =
        SupervisorConfig { allow_stale: true, ..spec(program, "touch", HugePageChoice::Plan(stale)) };
    assert_eq!(run_supervised(anyway).1.requested, refused.requested);
    // Another input: the mapping has another length, and never appears.
    let (_, other) = run_supervised(spec(program, "at_once", HugePageChoice::Plan(plan())));
    assert!(other.notes.iter().any(|note| note.contains("never appeared")), "{other:?}");
}

#[test]
fn a_set_user_id_program_gets_its_rights() {
    use std::os::unix::fs::PermissionsExt;
    let Some(program) = hostile_program() else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not-root: only root can give a program to another user");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    std::fs::copy(program, &other).unwrap();
    std::os::unix::fs::chown(&other, Some(65534), None).unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let wanted = run_alone(&other, "user");
    let (ended, summary) = run_supervised(spec(&other, "user", HugePageChoice::All));
    assert_eq!(ended.exit_code(), wanted, "{summary:?}");
}

#[test]
fn a_watched_program_has_named_mappings_and_makes_calls() {
    let Some(program) = hostile_program() else { return };
    let supervised_program = SupervisedProgram::start(SupervisorConfig {
        traces_all_mappings: true,
        ..spec(program, "wait", HugePageChoice::Nothing)
    })
    .unwrap();
    let pid = supervised_program.pid();
    let end = std::time::Instant::now() + Duration::from_secs(60);
    let named = loop {
        let (_, table) = supervised_program.read_mapping_table(pid).unwrap();
        let found = table.mappings().iter().find(|made| made.key.bytes == BUFFER).cloned();
        match found {
            Some(made) => break made,
            None => assert!(std::time::Instant::now() < end, "{table:?}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!((named.key.nth, named.bytes), (0, BUFFER));
    // A call of ours in the middle of its sleep, many times: it does not notice.
    for _ in 0..50 {
        let results = supervised_program
            .inject_calls(pid, &[(libc::SYS_getpid, [0; 6]), (libc::SYS_getppid, [0; 6])])
            .unwrap();
        assert_eq!(results, [i64::from(pid), i64::from(std::process::id())]);
    }
    assert_eq!(supervised_program.program_exit(), None);
    let target = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(target, rustix::process::Signal::TERM).unwrap();
    assert_eq!(support::wait_for_exit(&supervised_program), ProgramExit::Signal(libc::SIGTERM));
    assert!(supervised_program.inject_calls(pid, &[(libc::SYS_getpid, [0; 6])]).is_err());
}

#[test]
fn sleeps_interrupted_by_injected_calls_last_as_long() {
    let Some(program) = hostile_program() else { return };
    let supervised_program =
        SupervisedProgram::start(spec(program, "sleeps", HugePageChoice::Nothing)).unwrap();
    while supervised_program.program_exit().is_none() {
        let _ = supervised_program.inject_calls(supervised_program.pid(), &[(libc::SYS_getpid, [0; 6])]);
    }
    assert_eq!(supervised_program.program_exit(), Some(ProgramExit::Code(0)));
}
