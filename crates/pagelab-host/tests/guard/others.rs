//! Several processes that want one setting: one has it, the others wait, are refused, or clean up.

use std::path::Path;
use std::time::Duration;

use pagelab_host::guard::{self, ErrorKind, Fate, Guard, Knob, Liveness, Options, Watched};
use rustix::process::Signal;

use crate::machine::{DEFRAG, ENABLED, Ground, POOL, Stop};
use crate::victim::{Plan, Task, outcomes};

fn plan<'a>(task: Task, ground: &'a Ground, journals: &'a Path, stop: Stop) -> Plan<'a> {
    Plan { task, base: Some(ground.base()), journals, stop }
}

#[test]
fn the_second_is_refused_by_name_or_waits() {
    let ground = Ground::new();
    let before = ground.everything();
    let journals = ground.journals();
    let mut victim = plan(Task::Thp, &ground, &journals, Stop::Before(ENABLED, 2)).run_to_stop();
    let error = ground.guard().set(&Knob::thp_enabled(), "always").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    for words in [format!("pid {}", victim.child.id()), "victim::victim".to_owned()] {
        assert!(error.to_string().contains(&words), "{error}");
    }
    // Another setting is free meanwhile.
    let other = ground.guard();
    other.set(&Knob::thp_defrag(), "never").unwrap();
    assert_eq!(ground.value(DEFRAG), "never");
    // A restore leaves the running one alone, although it is stopped.
    let report = guard::restore(&ground.site(), false).unwrap();
    assert_eq!(report.count(Fate::Held), 2, "the victim's and our own: {report:?}");
    assert!(report.journals.iter().all(|journal| journal.liveness == Liveness::Live));
    assert_eq!((ground.value(ENABLED), ground.value(DEFRAG)), ("never".into(), "never".into()));
    other.finish();

    let options = Options { wait: Duration::from_secs(120), dry_run: false };
    let patient = Guard::begin(&ground.site(), Watched::left_to_restore(), options).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| patient.set(&Knob::thp_enabled(), "always").unwrap());
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waiting.is_finished());
        victim.signal(Signal::CONT);
        assert_eq!(waiting.join().unwrap().old, "madvise", "it found the victim's change undone");
    });
    victim.child.wait().unwrap();
    patient.finish();
    assert_eq!(ground.everything(), before);
}

#[test]
fn what_a_dead_one_left_is_undone_before_the_next_change() {
    let ground = Ground::new();
    let before = ground.everything();
    let journals = ground.journals();
    let pid = plan(Task::Thp, &ground, &journals, Stop::After(ENABLED, 1)).run_to_kill();
    plan(Task::Pool, &ground, &journals, Stop::After(POOL, 1)).run_to_kill();

    let options = Options { dry_run: true, ..Options::default() };
    let dry = Guard::begin(&ground.site(), Watched::left_to_restore(), options).unwrap();
    assert_eq!(dry.set(&Knob::thp_enabled(), "always").unwrap().old, "madvise");
    assert_eq!((ground.value(ENABLED), ground.journal_names().len()), ("never".into(), 2));

    let guard = ground.guard();
    let applied = guard.set(&Knob::thp_enabled(), "always").unwrap();
    assert_eq!(applied.old, "madvise", "not the never that the dead one left");
    assert_eq!(guard.left_behind()[0].owner.pid, pid);
    assert_eq!(ground.value(POOL), "4", "what is not wanted is left to pagelab restore");
    guard.finish();
    assert_eq!(ground.value(ENABLED), "madvise");
    let report = guard::restore(&ground.site(), false).unwrap();
    assert_eq!(outcomes(&report).len(), 1);
    assert_eq!(ground.everything(), before);
}

/// Four processes, twenty turns each: a turn asserts that its process is alone between change and
/// undoing, and that it found the original.
#[test]
fn many_contend_and_each_is_alone() {
    let ground = Ground::new();
    let before = ground.everything();
    let journals = ground.journals();
    let contend = plan(Task::Contend, &ground, &journals, Stop::Never);
    let mut victims: Vec<_> = (0..4).map(|_| contend.spawn()).collect();
    for victim in &mut victims {
        assert!(victim.child.wait().unwrap().success());
    }
    assert_eq!(ground.everything(), before);
    assert!(!journals.exists());
}
