//! Tests of several processes that need one setting: one holds it, the others wait, are rejected, or clean
//! up.

use std::path::Path;
use std::time::Duration;

use pagelab_host::guard::{
    self, Guard, GuardErrorKind, GuardOptions, Knob, Liveness, SignalWatch, UndoOutcome,
};
use rustix::process::Signal;

use crate::machine::{DEFRAG, ENABLED, MachineFiles, POOL, Stop};
use crate::victim::{Plan, Task, outcomes};

fn plan<'a>(task: Task, machine_files: &'a MachineFiles, journals: &'a Path, stop: Stop) -> Plan<'a> {
    Plan { task, base: Some(machine_files.base()), journals, stop }
}

#[test]
fn a_second_owner_is_refused_by_name_or_waits() {
    let machine_files = MachineFiles::new();
    let before = machine_files.contents();
    let journals = machine_files.journals();
    let mut victim = plan(Task::Thp, &machine_files, &journals, Stop::Before(ENABLED, 2)).run_to_stop();
    let error = machine_files.guard().set_knob(&Knob::thp_enabled(), "always").unwrap_err();
    assert_eq!(error.kind(), GuardErrorKind::HeldByOther);
    for words in [format!("pid {}", victim.child.id()), "victim::victim".to_owned()] {
        assert!(error.to_string().contains(&words), "{error}");
    }
    // Another setting is free meanwhile.
    let other = machine_files.guard();
    other.set_knob(&Knob::thp_defrag(), "never").unwrap();
    assert_eq!(machine_files.value(DEFRAG), "never");
    // A restore leaves the running one alone, although it is stopped.
    let report = guard::restore(&machine_files.site(), false).unwrap();
    assert_eq!(report.count(UndoOutcome::OwnerRunning), 2, "the victim's and our own: {report:?}");
    assert!(report.journals.iter().all(|journal| journal.liveness == Liveness::Live));
    assert_eq!((machine_files.value(ENABLED), machine_files.value(DEFRAG)), ("never".into(), "never".into()));
    other.finish();

    let options = GuardOptions { wait_timeout: Duration::from_secs(120), dry_run: false };
    let patient = Guard::new(&machine_files.site(), SignalWatch::without_handler(), options).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| patient.set_knob(&Knob::thp_enabled(), "always").unwrap());
        // Both orders must hold: the claim is refused before the signal, or not tried yet.
        std::thread::yield_now();
        assert!(!waiting.is_finished());
        victim.signal(Signal::CONT);
        assert_eq!(waiting.join().unwrap().old, "madvise", "it found the victim's change undone");
    });
    victim.child.wait().unwrap();
    patient.finish();
    assert_eq!(machine_files.contents(), before);
}

#[test]
fn changes_of_a_dead_owner_are_undone_before_the_next_change() {
    let machine_files = MachineFiles::new();
    let before = machine_files.contents();
    let journals = machine_files.journals();
    let pid = plan(Task::Thp, &machine_files, &journals, Stop::After(ENABLED, 1)).run_to_kill();
    plan(Task::Pool, &machine_files, &journals, Stop::After(POOL, 1)).run_to_kill();

    let options = GuardOptions { dry_run: true, ..GuardOptions::default() };
    let dry = Guard::new(&machine_files.site(), SignalWatch::without_handler(), options).unwrap();
    assert_eq!(dry.set_knob(&Knob::thp_enabled(), "always").unwrap().old, "madvise");
    assert_eq!((machine_files.value(ENABLED), machine_files.journal_names().len()), ("never".into(), 2));

    let guard = machine_files.guard();
    let applied = guard.set_knob(&Knob::thp_enabled(), "always").unwrap();
    assert_eq!(applied.old, "madvise", "not the never that the dead one left");
    assert_eq!(guard.recovered_journals()[0].owner.pid, pid);
    assert_eq!(machine_files.value(POOL), "4", "what is not wanted is left to pagelab restore");
    guard.finish();
    assert_eq!(machine_files.value(ENABLED), "madvise");
    let report = guard::restore(&machine_files.site(), false).unwrap();
    assert_eq!(outcomes(&report).len(), 1);
    assert_eq!(machine_files.contents(), before);
}

/// Four processes, twenty turns each: a turn asserts that its process is alone between change and
/// undoing, and that it found the original.
#[test]
fn contending_owners_exclude_each_other() {
    let machine_files = MachineFiles::new();
    let before = machine_files.contents();
    let journals = machine_files.journals();
    let contend = plan(Task::Contend, &machine_files, &journals, Stop::Never);
    let mut victims: Vec<_> = (0..4).map(|_| contend.spawn()).collect();
    for victim in &mut victims {
        assert!(victim.child.wait().unwrap().success());
    }
    assert_eq!(machine_files.contents(), before);
    assert!(!journals.exists());
}
