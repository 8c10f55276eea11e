//! Real programs under the supervisor: what they compute and how they end is what it is without one.
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
use pagelab_model::profile::{MappingKey, MappingKind, Program};
use pagelab_target::supervise::{self, Choice, Ended, Spec, Summary, Thp, Watch};
use support::built;

const HUGE: u64 = 2 << 20;
const BUFFER: u64 = 64 << 20;

/// The program that makes trouble, compiled once; `None` after saying that there is no compiler.
fn hostile() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<(tempfile::TempDir, PathBuf)>> = OnceLock::new();
    BUILT.get_or_init(|| built("hostile", &["-pthread"])).as_ref().map(|(_, program)| program.as_path())
}

fn spec(program: &Path, word: &str, choice: Choice) -> Spec {
    Spec {
        program: program.to_owned(),
        arguments: vec![program.into(), word.into()],
        choice,
        overrides: false,
        hugetlb: false,
        stale: false,
        thp: Thp::OnlyAdvised,
        sees_all: false,
        page: rustix::param::page_size() as u64,
        huge: HUGE,
    }
}

/// Every third region of the buffer.
fn plan() -> HugePlan {
    let offsets = (0..BUFFER / HUGE).step_by(3).map(|n| n * HUGE).collect();
    plan_of(MappingKind::Anonymous, BUFFER, offsets)
}

/// Four regions of the heap.
fn heap_plan() -> HugePlan {
    plan_of(MappingKind::Heap, 0, [1, 2, 5, 11].map(|n| n * HUGE).to_vec())
}

fn plan_of(kind: MappingKind, bytes: u64, offsets: Vec<u64>) -> HugePlan {
    let region = |offset: u64| PlannedRegion { offset, page: Bytes(HUGE), cost_ns: None };
    let mapping = PlannedMapping {
        key: MappingKey { kind, bytes: Bytes(bytes), nth: 0 },
        start: 1 << 40,
        bytes: Bytes(BUFFER),
        regions: offsets.into_iter().map(region).collect(),
        cells: Vec::new(),
    };
    let program = PlannedProgram { program: Program::default(), mappings: vec![mapping] };
    HugePlan { source: None, command: Vec::new(), predicted: None, programs: vec![program] }
}

fn supervised(spec: Spec) -> (Ended, Summary) {
    let mut got = None;
    supervise::run(&Arc::new(spec), |_| {}, |ended, summary| got = Some((ended, summary))).unwrap();
    got.unwrap()
}

fn alone(program: &Path, word: &str) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let status = Command::new(program).arg(word).status().unwrap();
    status.code().or(status.signal().map(|signal| 128 + signal)).unwrap() as u8
}

/// Runs it without a supervisor and under each choice; all must end alike.
fn ends_alike(words: &[&str]) {
    let Some(program) = hostile() else { return };
    for word in words {
        let wanted = alone(program, word);
        for choice in [Choice::Nothing, Choice::All, Choice::Plan(plan())] {
            let (ended, summary) = supervised(spec(program, word, choice.clone()));
            assert_eq!(ended.code(), wanted, "{word} {choice:?} {summary:?}");
        }
    }
}

#[test]
fn programs_end_as_they_do_alone() {
    ends_alike(&["touch", "at_once", "exec", "thread_exec", "killed", "unmap", "tracer", "untraced"]);
}

#[test]
fn signals_and_stops_are_the_programs_own() {
    ends_alike(&["signals", "stops", "sleeps"]);
}

#[test]
fn many_children_and_threads() {
    ends_alike(&["forks", "threads"]);
}

#[test]
fn a_buffer_that_grows_by_mremap_grows() {
    ends_alike(&["grow"]);
}

#[test]
fn a_buffer_of_before_a_fork_grows_in_parent_and_child() {
    ends_alike(&["fork_grow"]);
}

#[test]
fn a_filter_that_kills_is_not_hit() {
    ends_alike(&["filter"]);
    let Some(program) = hostile() else { return };
    let (_, summary) = supervised(spec(program, "filter", Choice::All));
    assert!(summary.notes.iter().any(|note| note.contains("filter of its own")), "{summary:?}");
}

#[test]
fn sixty_thousand_mappings_and_a_sparse_tebibyte() {
    let Some(program) = hostile() else { return };
    for (word, choice) in [
        ("many", Choice::Plan(plan())),
        ("many", Choice::All),
        ("sparse", Choice::Nothing),
        ("sparse", Choice::All),
    ] {
        let (ended, summary) = supervised(spec(program, word, choice));
        assert_eq!(ended, Ended::Code(0), "{word} {summary:?}");
        assert!(word != "sparse" || summary.wanted <= 20, "{summary:?}");
    }
}

/// Whether huge pages can be had at all by advice here, asked of the machine by a program without us.
fn can_be_had() -> bool {
    let free = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let can = free.contains("[madvise]") || free.contains("[always]");
    if !can {
        eprintln!("skipped: thp-absent: huge pages are switched off here");
    }
    can
}

#[test]
fn what_is_planned_is_huge_and_nothing_else() {
    let Some(program) = hostile() else { return };
    if !can_be_had() {
        return;
    }
    let (_, none) = supervised(spec(program, "touch", Choice::Nothing));
    assert_eq!((none.wanted, none.huge_bytes), (0, 0));
    let (_, planned) = supervised(spec(program, "touch", Choice::Plan(plan())));
    assert!(planned.wanted == 10 || planned.wanted == 11, "{planned:?}");
    assert_eq!(planned.got, planned.wanted, "{planned:?}");
    assert_eq!(planned.huge_bytes, planned.got * HUGE);
    let (_, all) = supervised(spec(program, "touch", Choice::All));
    assert!(all.got >= 31 && all.got == all.wanted, "{all:?}");
}

#[test]
fn a_program_that_is_against_it_is_told_of_and_overridden() {
    let Some(program) = hostile() else { return };
    if !can_be_had() {
        return;
    }
    for (word, said) in [("against", "MADV_NOHUGEPAGE"), ("off", "PR_SET_THP_DISABLE")] {
        let (ended, obeyed) = supervised(spec(program, word, Choice::All));
        assert_eq!((ended, obeyed.got), (Ended::Code(0), 0), "{word} {obeyed:?}");
        assert!(obeyed.refused.iter().any(|refused| refused.why.contains(said)), "{obeyed:?}");
        let overridden = Spec { overrides: true, ..spec(program, word, Choice::All) };
        let (ended, summary) = supervised(overridden);
        assert_eq!(ended, Ended::Code(0));
        assert!(summary.got >= 31, "{word} {summary:?}");
    }
}

#[test]
fn a_break_is_where_the_kernel_says_without_us() {
    let Some((folder, program)) = built("breaks", &[]) else { return };
    let log = |name: &str| folder.path().join(name);
    let status = Command::new(&program).arg("all").arg(log("alone")).status().unwrap();
    assert!(status.success());
    let alone = std::fs::read_to_string(log("alone")).unwrap();
    assert!(alone.lines().count() > 500, "{alone}");
    for (name, choice) in
        [("nothing", Choice::Nothing), ("everything", Choice::All), ("planned", Choice::Plan(heap_plan()))]
    {
        let mut spec = spec(&program, "all", choice);
        spec.arguments.push(log(name).into());
        let (ended, summary) = supervised(spec);
        assert_eq!(ended, Ended::Code(0), "{name} {summary:?}");
        let told = std::fs::read_to_string(log(name)).unwrap();
        for (line, (wanted, got)) in alone.lines().zip(told.lines()).enumerate() {
            assert_eq!(got, wanted, "{name}, line {line}");
        }
        assert_eq!(told.lines().count(), alone.lines().count(), "{name}");
    }
}

#[test]
fn a_heap_that_grows_in_small_steps_is_huge_at_the_first_touch() {
    let Some(program) = hostile() else { return };
    if !can_be_had() {
        return;
    }
    // Its exit code is its page faults, in hundreds: 33 MiB have 8448 small pages, and a huge one saves 511.
    let small = alone(program, "steps");
    assert!((84..100).contains(&small), "{small}");
    for (choice, pages) in [(Choice::All, 14), (Choice::Plan(heap_plan()), 4)] {
        let (ended, summary) = supervised(spec(program, "steps", choice));
        assert!(u64::from(ended.code()) <= u64::from(small) - pages * 5, "{ended:?} {summary:?}");
        assert!(summary.got >= pages && summary.heap_beyond_bytes < HUGE, "{summary:?}");
    }
}

#[test]
fn a_heap_that_grows_in_small_steps_is_collapsed() {
    let Some(program) = hostile() else { return };
    if !can_be_had() {
        return;
    }
    let (ended, summary) = supervised(spec(program, "heap", Choice::All));
    assert_eq!(ended, Ended::Code(0));
    let heap = summary.huge_bytes / HUGE;
    assert!(heap >= 8, "{summary:?}");
}

#[test]
fn a_plan_for_another_build_advises_nothing_unless_it_is_carried_out_anyway() {
    let Some(program) = hostile() else { return };
    let mut stale = plan();
    stale.programs[0].program = Program {
        path: "/elsewhere/hostile".to_owned(),
        bytes: Some(Bytes(1)),
        identity: Some("00".to_owned()),
    };
    let (_, refused) = supervised(spec(program, "touch", Choice::Plan(stale.clone())));
    assert_eq!(refused.got, 0);
    assert!(refused.notes.iter().any(|note| note.contains("another build")), "{refused:?}");
    let anyway = Spec { stale: true, ..spec(program, "touch", Choice::Plan(stale)) };
    assert_eq!(supervised(anyway).1.wanted, refused.wanted);
    // Another input: the mapping has another length, and never appears.
    let (_, other) = supervised(spec(program, "at_once", Choice::Plan(plan())));
    assert!(other.notes.iter().any(|note| note.contains("never appeared")), "{other:?}");
}

#[test]
fn a_set_user_id_program_gets_its_rights() {
    use std::os::unix::fs::PermissionsExt;
    let Some(program) = hostile() else { return };
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: not-root: nobody else can give a program to another user");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    std::fs::copy(program, &other).unwrap();
    std::os::unix::fs::chown(&other, Some(65534), None).unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let wanted = alone(&other, "user");
    let (ended, summary) = supervised(spec(&other, "user", Choice::All));
    assert_eq!(ended.code(), wanted, "{summary:?}");
}

#[test]
fn a_watched_program_has_named_mappings_and_makes_calls() {
    let Some(program) = hostile() else { return };
    let watch = Watch::start(Spec { sees_all: true, ..spec(program, "wait", Choice::Nothing) }).unwrap();
    let pid = watch.pid();
    let end = std::time::Instant::now() + Duration::from_secs(60);
    let named = loop {
        let (_, ledger) = watch.ledger(pid).unwrap();
        let found = ledger.mappings().iter().find(|made| made.key.bytes == BUFFER).cloned();
        match found {
            Some(made) => break made,
            None => assert!(std::time::Instant::now() < end, "{ledger:?}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!((named.key.nth, named.bytes), (0, BUFFER));
    assert_eq!(watch.images()[0].program.path, program.to_str().unwrap());
    // A call of ours in the middle of its sleep, many times: it does not notice.
    for _ in 0..50 {
        let results = watch.make(pid, &[(libc::SYS_getpid, [0; 6]), (libc::SYS_getppid, [0; 6])]).unwrap();
        assert_eq!(results, [i64::from(pid), i64::from(std::process::id())]);
    }
    assert_eq!(watch.ended(), None);
    let target = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(target, rustix::process::Signal::TERM).unwrap();
    assert_eq!(watch.wait(Duration::from_secs(60)), Some(Ended::Signal(libc::SIGTERM)));
    assert!(watch.make(pid, &[(libc::SYS_getpid, [0; 6])]).is_err());
}

#[test]
fn sleeps_that_are_interrupted_by_calls_of_ours_last_as_long() {
    let Some(program) = hostile() else { return };
    let watch = Watch::start(spec(program, "sleeps", Choice::Nothing)).unwrap();
    while watch.ended().is_none() {
        let _ = watch.make(watch.pid(), &[(libc::SYS_getpid, [0; 6])]);
    }
    assert_eq!(watch.ended(), Some(Ended::Code(0)));
}
