//! Tests of settings changed and restored in one process: nesting, rejected values, false readings, dry runs.

use std::fs;

use pagelab_host::guard::{
    AppliedChange, Guard, GuardErrorKind, GuardOptions, Knob, SignalWatch, UndoOutcome,
};
use rustix::io::Errno;

use crate::machine::{
    CGROUPS, COMPACT, DEFRAG, ENABLED, Fault, MIN_FREE, Machine, MachineFiles, POOL, SURPLUS, SWAPPINESS,
};

fn knob(path: &str) -> Knob {
    Knob::from_path(path).unwrap()
}

#[test]
fn a_change_lasts_as_long_as_its_guard() {
    let cases = [(ENABLED, "never"), (DEFRAG, "defer+madvise"), (POOL, "4"), (SWAPPINESS, "10")];
    for (path, value) in cases {
        let machine_files = MachineFiles::new();
        let before = machine_files.contents();
        let guard = machine_files.guard();
        let applied = guard.set_knob(&knob(path), value).unwrap();
        assert_eq!(machine_files.value(path), value);
        assert!(applied.is_exact(), "{applied:?}");
        assert_eq!(machine_files.journal_names().len(), 1);
        let outcomes = guard.finish();
        assert_eq!(outcomes.iter().map(|o| o.undo).collect::<Vec<_>>(), [UndoOutcome::Restored]);
        assert_eq!(machine_files.contents(), before);
        assert!(!machine_files.journals().exists(), "the last journal takes the directory with it");
    }
}

#[test]
fn drop_and_panic_restore_too() {
    let machine_files = MachineFiles::new();
    let before = machine_files.contents();
    let panicked = std::panic::catch_unwind(|| {
        let guard = machine_files.guard();
        guard.set_knob(&Knob::thp_enabled(), "always").unwrap();
        guard.set_knob(&Knob::vm("swappiness").unwrap(), "1").unwrap();
        assert_eq!(machine_files.value(SWAPPINESS), "0", "the panic of this test");
    });
    assert!(panicked.is_err());
    assert_eq!(machine_files.contents(), before);
    assert!(machine_files.journal_names().is_empty());
}

#[test]
fn owners_nest_and_end_in_any_order() {
    // Each guard in turn sets one mode; then they end in the given order, and after each end the mode
    // must be the one of the innermost guard that is left.
    let modes = ["never", "always", "madvise", "never"];
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1], [0, 3, 1, 2]] {
        let machine_files = MachineFiles::new();
        let before = machine_files.contents();
        let mut guards: Vec<Option<Guard>> = Vec::new();
        for mode in modes {
            let guard = machine_files.guard();
            guard.set_knob(&Knob::thp_enabled(), mode).unwrap();
            guards.push(Some(guard));
        }
        for ended in order {
            guards[ended].take().unwrap().finish();
            let innermost = guards.iter().rposition(Option::is_some);
            let expected = innermost.map_or("madvise", |index| modes[index]);
            assert_eq!(machine_files.value(ENABLED), expected, "{order:?} after {ended}");
        }
        assert_eq!(machine_files.contents(), before, "{order:?}");
        assert!(machine_files.journal_names().is_empty());
    }
}

#[test]
fn one_guard_may_change_a_setting_often() {
    let machine_files = MachineFiles::new();
    let guard = machine_files.guard();
    for mode in ["never", "always", "always", "never", "madvise", "never"] {
        guard.set_knob(&Knob::thp_enabled(), mode).unwrap();
    }
    guard.finish();
    assert_eq!(machine_files.value(ENABLED), "madvise");
}

#[test]
fn a_later_change_by_another_program_is_kept() {
    let machine_files = MachineFiles::new();
    let (outer, inner) = (machine_files.guard(), machine_files.guard());
    outer.set_knob(&Knob::thp_enabled(), "never").unwrap();
    outer.set_knob(&Knob::thp_defrag(), "never").unwrap();
    inner.set_knob(&Knob::thp_enabled(), "madvise").unwrap();
    machine_files.set_file(ENABLED, "always");
    let outcomes = inner.finish();
    assert_eq!(outcomes[0].undo, UndoOutcome::LeftUnchanged);
    assert_eq!(outcomes[0].found_value.as_deref(), Some("always"));
    let undo_outcomes: Vec<UndoOutcome> = outer.finish().iter().map(|o| o.undo).collect();
    assert_eq!(
        undo_outcomes,
        [UndoOutcome::Restored, UndoOutcome::LeftUnchanged],
        "defrag is ours still, enabled is not"
    );
    assert_eq!(
        (machine_files.value(ENABLED), machine_files.value(DEFRAG)),
        ("always".into(), "madvise".into())
    );
    assert!(machine_files.journal_names().is_empty());
}

#[test]
fn min_free_kbytes_does_not_stay_moved() {
    // An administrator's small value: each write of a THP mode recomputes it, as the kernel does.
    let machine_files = MachineFiles::new();
    machine_files.set_file(MIN_FREE, "9000");
    let guard = machine_files.guard();
    guard.set_knob(&Knob::thp_enabled(), "never").unwrap();
    assert_ne!(machine_files.value(MIN_FREE), "9000", "the fake kernel moves it, as the real one does");
    let outcomes = guard.finish();
    assert_eq!(
        (machine_files.value(ENABLED), machine_files.value(MIN_FREE)),
        ("madvise".into(), "9000".into())
    );
    assert!(outcomes[0].detail.contains("9000"), "{outcomes:?}");

    // A value that another process sets meanwhile is kept, although undoing writes it once more.
    let guard = machine_files.guard();
    guard.set_knob(&Knob::thp_enabled(), "never").unwrap();
    machine_files.set_file(MIN_FREE, "12000");
    guard.finish();
    assert_eq!(machine_files.value(MIN_FREE), "12000");
}

#[test]
fn a_pool_that_meminfo_does_not_confirm_is_refused_and_undone() {
    let machine_files = MachineFiles::new();
    let guard =
        machine_files.guard_with(Machine::fake(machine_files.base()).with_fault(Fault::MeminfoDiffers));
    let error = guard.set_knob(&knob(POOL), "8").unwrap_err();
    assert_eq!(error.kind(), GuardErrorKind::KernelRefused);
    assert!(error.to_string().contains("it reads \"8\", but HugePages_Total in meminfo is 0"), "{error}");
    assert_eq!(machine_files.value(POOL), "0");
}

#[test]
fn a_pool_may_fall_short_and_surplus_is_not_made_to_stay() {
    let machine_files = MachineFiles::new();
    let guard = machine_files.guard_with(Machine::fake(machine_files.base()).with_fault(Fault::PoolHolds(3)));
    let applied = guard.set_knob(&knob(POOL), "8").unwrap();
    let expected = AppliedChange { old: "0".into(), requested: "8".into(), actual: "3".into() };
    assert_eq!(applied, expected);
    assert!(!applied.is_exact());
    guard.finish();
    assert_eq!(machine_files.value(POOL), "0");

    // Seven pages, two of them surplus: five are configured, and five is what comes back.
    let machine_files = MachineFiles::new();
    machine_files.set_file(SURPLUS, "2");
    machine_files.set_file(POOL, "5");
    assert_eq!(machine_files.value(POOL), "7");
    let guard = machine_files.guard();
    let applied = guard.set_knob(&knob(POOL), "9").unwrap();
    assert_eq!((applied.old.as_str(), applied.actual.as_str()), ("5", "9"));
    guard.finish();
    assert_eq!(machine_files.value(POOL), "7");
}

#[test]
fn writes_are_verified_by_reading_back() {
    let machine_files = MachineFiles::new();
    let guard =
        machine_files.guard_with(Machine::fake(machine_files.base()).with_fault(Fault::Lies(ENABLED)));
    let error = guard.set_knob(&Knob::thp_enabled(), "never").unwrap_err();
    assert_eq!(error.kind(), GuardErrorKind::KernelRefused);
    assert!(error.to_string().contains("after the write"), "{error}");
    assert!(machine_files.journal_names().is_empty());
}

#[test]
fn refused_changes_report_the_reason() {
    let cases = [
        (Errno::INVAL, "always", GuardErrorKind::KernelRefused, "expected always madvise never"),
        (Errno::ACCESS, "always", GuardErrorKind::NotAvailable, "ermission denied"),
        (Errno::BUSY, "always", GuardErrorKind::KernelRefused, "busy"),
        (Errno::BUSY, "a b", GuardErrorKind::InvalidRequest, "invalid value"),
        (Errno::BUSY, "", GuardErrorKind::InvalidRequest, "invalid value"),
    ];
    for (errno, value, kind, words) in cases {
        let machine_files = MachineFiles::new();
        let before = machine_files.contents();
        let fault = Fault::Refuses(ENABLED, errno);
        let guard = machine_files.guard_with(Machine::fake(machine_files.base()).with_fault(fault));
        let error = guard.set_knob(&Knob::thp_enabled(), value).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        drop(guard);
        assert_eq!(machine_files.contents(), before);
        assert!(machine_files.journal_names().is_empty());
    }
    let absent = MachineFiles::new();
    let error = absent.guard().set_knob(&Knob::vm("defrag_mode").unwrap(), "1").unwrap_err();
    assert_eq!(error.kind(), GuardErrorKind::NotAvailable, "{error}");
}

#[test]
fn a_failed_undo_is_repeated_later() {
    let machine_files = MachineFiles::new();
    let site = machine_files.site_with(Machine::fake(machine_files.base()).with_fault(Fault::PoolHolds(6)));
    machine_files.set_file(POOL, "10");
    let guard = Guard::new(&site, SignalWatch::without_handler(), GuardOptions::default()).unwrap();
    guard.set_knob(&knob(POOL), "2").unwrap();
    // Ten pages are not available again: six are allocated.
    let outcomes = guard.finish();
    assert_eq!(outcomes[0].undo, UndoOutcome::Failed, "{outcomes:?}");
    assert_eq!(machine_files.value(POOL), "6");
    assert_eq!(machine_files.journal_names().len(), 1, "the journal still knows of it");

    // The next guard that ends tries again once there is memory: here four pages freed by another process.
    let next = Guard::new(&site, SignalWatch::without_handler(), GuardOptions::default()).unwrap();
    next.set_knob(&Knob::thp_enabled(), "never").unwrap();
    fs::write(machine_files.base().join(&POOL[1..]), "10\n").unwrap();
    let undo_outcomes: Vec<UndoOutcome> = next.finish().iter().map(|o| o.undo).collect();
    assert_eq!(undo_outcomes, [UndoOutcome::Restored, UndoOutcome::AlreadyRestored]);
    assert!(machine_files.journal_names().is_empty());
}

#[test]
fn created_objects_are_removed_and_irreversible_acts_reported() {
    let machine_files = MachineFiles::new();
    let before = machine_files.contents();
    let guard = machine_files.guard();
    let parent = guard.cgroup_parent("memory").unwrap();
    assert_eq!(parent, CGROUPS);
    let cgroup = guard.create_cgroup(&parent, "test").unwrap();
    assert!(cgroup.starts_with("/sys/fs/cgroup/memory/pagelab-test-"), "{cgroup}");
    assert!(machine_files.base().join(&cgroup[1..]).is_dir());
    assert_eq!(guard.create_cgroup(&parent, "test").unwrap_err().kind(), GuardErrorKind::InvalidRequest);
    assert_eq!(guard.create_cgroup("/etc", "test").unwrap_err().kind(), GuardErrorKind::NotAvailable);
    guard.compact_memory().unwrap();
    assert_eq!(machine_files.value(COMPACT), "1");
    assert_eq!(guard.drop_caches(4).unwrap_err().kind(), GuardErrorKind::InvalidRequest);
    let journal =
        fs::read_to_string(machine_files.journals().join(&machine_files.journal_names()[0])).unwrap();
    let position = |word: &str| journal.find(word).unwrap_or_else(|| panic!("{word} in {journal}"));
    assert!(position("one-way") < position("\"done\""));
    let outcomes = guard.finish();
    assert_eq!(outcomes.len(), 1, "the cgroup; what is done is not undone: {outcomes:?}");
    assert_eq!(machine_files.contents(), before);
}

#[test]
fn a_dry_run_lists_and_changes_nothing() {
    let machine_files = MachineFiles::new();
    let before = machine_files.contents();
    let options = GuardOptions { dry_run: true, ..GuardOptions::default() };
    let guard = Guard::new(&machine_files.site(), SignalWatch::without_handler(), options).unwrap();
    guard.set_knob(&Knob::thp_enabled(), "never").unwrap();
    guard.set_knob(&Knob::thp_enabled(), "always").unwrap();
    guard.set_knob(&knob(POOL), "4").unwrap();
    guard.create_cgroup(CGROUPS, "x").unwrap();
    guard.compact_memory().unwrap();
    let planned: Vec<(String, Option<String>, Option<String>)> =
        guard.planned_changes().into_iter().map(|p| (p.label, p.current_value, p.new_value)).collect();
    let some = |text: &str| Some(text.to_owned());
    let expected = [
        ("THP enabled".to_owned(), some("madvise"), some("never")),
        ("THP enabled".to_owned(), some("never"), some("always")),
        ("2 MiB pool".to_owned(), some("0"), some("4")),
        ("cgroup".to_owned(), None, None),
        ("compact_memory 1".to_owned(), None, None),
    ];
    assert_eq!(planned, expected);
    drop(guard);
    assert_eq!(machine_files.contents(), before);
    assert_eq!(machine_files.value(COMPACT), "");
    assert!(!machine_files.journals().exists());
}
