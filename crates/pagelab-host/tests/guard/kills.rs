//! Tests with a real kill between every two steps, on a fake machine, and a restore after each.

use std::fs;
use std::path::Path;
use std::process::Command;

use pagelab_host::guard::{self, Liveness, UndoOutcome};
use rustix::process::Signal;

use crate::machine::{CGROUPS, ENABLED, INSTANCES, MIN_FREE, MachineFiles, POOL, SWAP_DIR, Stop};
use crate::victim::{Plan, Task, outcomes, wait_until};

fn plan<'a>(task: Task, machine_files: &'a MachineFiles, journals: &'a Path, stop: Stop) -> Plan<'a> {
    Plan { task, base: Some(machine_files.base()), journals, stop }
}

/// The first call on a path makes the change, the second undoes it.
#[test]
fn killed_between_any_two_steps() {
    use UndoOutcome::{AlreadyRestored, Restored};
    let cases = [
        (Task::Thp, Stop::Before(ENABLED, 1), AlreadyRestored),
        (Task::Thp, Stop::After(ENABLED, 1), Restored),
        (Task::Thp, Stop::Before(ENABLED, 2), Restored),
        (Task::Thp, Stop::After(ENABLED, 2), Restored),
        (Task::Pool, Stop::Before(POOL, 1), AlreadyRestored),
        (Task::Pool, Stop::After(POOL, 1), Restored),
        (Task::Pool, Stop::Before(POOL, 2), Restored),
        (Task::Pool, Stop::After(POOL, 2), AlreadyRestored),
        (Task::Cgroup, Stop::Before(CGROUPS, 1), AlreadyRestored),
        (Task::Cgroup, Stop::After(CGROUPS, 1), Restored),
        (Task::Cgroup, Stop::Before(CGROUPS, 2), Restored),
        (Task::Cgroup, Stop::After(CGROUPS, 2), AlreadyRestored),
        // The file, swapon, swapoff, and the file away.
        (Task::Swap, Stop::Before(SWAP_DIR, 1), AlreadyRestored),
        (Task::Swap, Stop::After(SWAP_DIR, 1), Restored),
        (Task::Swap, Stop::Before(SWAP_DIR, 2), Restored),
        (Task::Swap, Stop::After(SWAP_DIR, 2), Restored),
        (Task::Swap, Stop::Before(SWAP_DIR, 3), Restored),
        (Task::Swap, Stop::After(SWAP_DIR, 3), Restored),
        (Task::Swap, Stop::Before(SWAP_DIR, 4), Restored),
        (Task::Swap, Stop::After(SWAP_DIR, 4), AlreadyRestored),
        (Task::Trace, Stop::Before(INSTANCES, 1), AlreadyRestored),
        (Task::Trace, Stop::After(INSTANCES, 1), Restored),
        (Task::Trace, Stop::Before(INSTANCES, 2), Restored),
        (Task::Trace, Stop::After(INSTANCES, 2), AlreadyRestored),
    ];
    for (task, stop, undo) in cases {
        let machine_files = MachineFiles::new();
        // A small value of an administrator, which each write to a THP mode moves along.
        fs::write(machine_files.base().join(&MIN_FREE[1..]), "9000\n").unwrap();
        let before = machine_files.contents();
        let journals = machine_files.journals();
        let pid = plan(task, &machine_files, &journals, stop).run_to_kill();
        assert_eq!(machine_files.journal_names().len(), 1, "{task:?} {stop:?}");

        let planned = guard::restore(&machine_files.site(), true).unwrap();
        assert_eq!(machine_files.journal_names().len(), 1, "a dry run leaves the journal: {task:?} {stop:?}");
        let report = guard::restore(&machine_files.site(), false).unwrap();
        let told: Vec<UndoOutcome> = outcomes(&planned).iter().map(|o| o.undo).collect();
        assert_eq!(told, [undo], "the dry run reported the result: {task:?} {stop:?}");
        assert_eq!(report.journals[0].owner.pid, pid);
        assert_eq!(report.journals[0].liveness, Liveness::Killed);
        let undo_outcomes: Vec<UndoOutcome> = outcomes(&report).iter().map(|o| o.undo).collect();
        assert_eq!(undo_outcomes, [undo], "{task:?} {stop:?}");
        assert_eq!(machine_files.contents(), before, "{task:?} {stop:?}");
        assert!(!journals.exists());
        assert_eq!(guard::restore(&machine_files.site(), false).unwrap(), guard::RestoreReport::default());
    }
}

/// No other process uses the instance of a dead one by its name.
#[test]
fn a_new_trace_instance_clears_up_behind_a_killed_one() {
    let machine_files = MachineFiles::new();
    let (journals, folder) = (machine_files.journals(), machine_files.base().join(&INSTANCES[1..]));
    fs::create_dir(folder.join("somebodys")).unwrap();
    let pid = plan(Task::Trace, &machine_files, &journals, Stop::After(INSTANCES, 1)).run_to_kill();
    let names = || -> Vec<String> {
        let entries = fs::read_dir(&folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names().len(), 2);
    let (first, second) = (machine_files.guard(), machine_files.guard());
    let made = [first.trace_instance().unwrap(), second.trace_instance().unwrap()].map(|made| made.name);
    let left = first.recovered_journals();
    assert_eq!((left.len(), left[0].owner.pid, left[0].outcomes[0].undo), (1, pid, UndoOutcome::Restored));
    assert_eq!(names(), [&made[0], &made[1], "somebodys"], "two at once, and somebody's is left alone");
    assert_eq!(first.finish()[0].undo, UndoOutcome::Restored);
    assert_eq!(names(), [&made[1], "somebodys"]);
    drop(second);
    assert_eq!(names(), ["somebodys"]);
    assert!(!journals.exists());
}

#[test]
fn the_restore_itself_is_killed() {
    for stop in [Stop::Before(ENABLED, 1), Stop::After(ENABLED, 1)] {
        let machine_files = MachineFiles::new();
        fs::write(machine_files.base().join(&MIN_FREE[1..]), "9000\n").unwrap();
        let before = machine_files.contents();
        let journals = machine_files.journals();
        plan(Task::Thp, &machine_files, &journals, Stop::After(ENABLED, 1)).run_to_kill();
        plan(Task::Restore, &machine_files, &journals, stop).run_to_kill();
        guard::restore(&machine_files.site(), false).unwrap();
        assert_eq!(machine_files.contents(), before, "{stop:?}");
        assert!(!journals.exists());
    }
}

#[test]
fn two_restores_at_once_undo_once() {
    let machine_files = MachineFiles::new();
    let before = machine_files.contents();
    let journals = machine_files.journals();
    for round in 0..5 {
        plan(Task::Pool, &machine_files, &journals, Stop::After(POOL, 1)).run_to_kill();
        let restored: usize = std::thread::scope(|scope| {
            let runs: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        guard::restore(&machine_files.site(), false).unwrap().count(UndoOutcome::Restored)
                    })
                })
                .collect();
            runs.into_iter().map(|run| run.join().unwrap()).sum()
        });
        assert_eq!(restored, 1, "round {round}");
        assert_eq!(machine_files.contents(), before);
    }
}

#[test]
fn a_value_that_somebody_set_after_the_kill_stays() {
    let cases = [
        // A mode that is neither ours (never) nor the original (madvise).
        (Task::Thp, ENABLED, "always", UndoOutcome::LeftUnchanged, "always"),
        (Task::Thp, ENABLED, "madvise", UndoOutcome::AlreadyRestored, "madvise"),
        // A pool goes back from anywhere between the original 0 and our 4, and from nowhere else.
        (Task::Pool, POOL, "2", UndoOutcome::Restored, "0"),
        (Task::Pool, POOL, "7", UndoOutcome::LeftUnchanged, "7"),
    ];
    for (task, path, value, undo, end) in cases {
        let machine_files = MachineFiles::new();
        let journals = machine_files.journals();
        plan(task, &machine_files, &journals, Stop::After(path, 1)).run_to_kill();
        machine_files.set_file(path, value);
        let report = guard::restore(&machine_files.site(), false).unwrap();
        let outcome = &outcomes(&report)[0];
        assert_eq!((outcome.undo, outcome.found_value.as_deref()), (undo, Some(value)));
        assert_eq!(machine_files.value(path), end);
        assert_eq!(
            guard::restore(&machine_files.site(), false).unwrap(),
            guard::RestoreReport::default(),
            "said once"
        );
    }
}

#[test]
fn signals_restore_and_end_with_their_number() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let machine_files = MachineFiles::new();
        let before = machine_files.contents();
        let journals = machine_files.journals();
        let mut victim = plan(Task::Wait, &machine_files, &journals, Stop::Never).spawn();
        wait_until("the victim's change", || journals.with_extension("ready").exists());
        assert_eq!(machine_files.value(ENABLED), "never");
        victim.signal(signal);
        assert_eq!(victim.child.wait().unwrap().code(), Some(code), "{signal:?}");
        assert_eq!(machine_files.contents(), before);
        assert!(!journals.exists());
    }
}

/// A signal arrives while the kernel is inside the write: the write completes, and is then undone.
#[test]
fn a_signal_in_the_middle_of_a_change() {
    let machine_files = MachineFiles::new();
    let before = machine_files.contents();
    let journals = machine_files.journals();
    let mut victim = plan(Task::Wait, &machine_files, &journals, Stop::Before(ENABLED, 1)).run_to_stop();
    victim.signal(Signal::TERM);
    victim.signal(Signal::CONT);
    assert_eq!(victim.child.wait().unwrap().code(), Some(143));
    assert_eq!(machine_files.contents(), before);
    assert!(!journals.exists());
}

#[test]
fn nohup_is_respected() {
    let machine_files = MachineFiles::new();
    let journals = machine_files.journals();
    let inner = plan(Task::Wait, &machine_files, &journals, Stop::Never).command();
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(inner.get_program()).args(inner.get_args());
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    let mut victim = crate::victim::Victim { child };
    wait_until("the victim's change", || journals.with_extension("ready").exists());
    victim.signal(Signal::HUP);
    // An ignored signal is discarded when it is sent.
    let status = fs::read_to_string(format!("/proc/{}/status", victim.child.id())).unwrap();
    let has_hup = |field: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1
    };
    assert!(has_hup("SigIgn:") && !has_hup("SigPnd:") && !has_hup("ShdPnd:"), "{status}");
    assert_eq!(victim.child.try_wait().unwrap(), None, "it continues");
    assert_eq!(machine_files.value(ENABLED), "never");
    victim.signal(Signal::TERM);
    assert_eq!(victim.child.wait().unwrap().code(), Some(143));
    assert_eq!(machine_files.value(ENABLED), "madvise");
}
