//! Real kills, between every two steps, on a fake machine: what a restore finds and does then.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pagelab_host::guard::{self, Fate, Liveness};
use rustix::process::Signal;

use crate::machine::{CGROUPS, ENABLED, Ground, INSTANCES, MIN_FREE, POOL, SWAP_DIR, Stop};
use crate::victim::{Plan, Task, outcomes, until};

fn plan<'a>(task: Task, ground: &'a Ground, journals: &'a Path, stop: Stop) -> Plan<'a> {
    Plan { task, base: Some(ground.base()), journals, stop }
}

/// The first call on a path makes the change, the second undoes it.
#[test]
fn killed_between_any_two_steps() {
    use Fate::{AlreadyBack, Restored};
    let cases = [
        (Task::Thp, Stop::Before(ENABLED, 1), AlreadyBack),
        (Task::Thp, Stop::After(ENABLED, 1), Restored),
        (Task::Thp, Stop::Before(ENABLED, 2), Restored),
        (Task::Thp, Stop::After(ENABLED, 2), Restored),
        (Task::Pool, Stop::Before(POOL, 1), AlreadyBack),
        (Task::Pool, Stop::After(POOL, 1), Restored),
        (Task::Pool, Stop::Before(POOL, 2), Restored),
        (Task::Pool, Stop::After(POOL, 2), AlreadyBack),
        (Task::Cgroup, Stop::Before(CGROUPS, 1), AlreadyBack),
        (Task::Cgroup, Stop::After(CGROUPS, 1), Restored),
        (Task::Cgroup, Stop::Before(CGROUPS, 2), Restored),
        (Task::Cgroup, Stop::After(CGROUPS, 2), AlreadyBack),
        // The file, swapon, swapoff, and the file away.
        (Task::Swap, Stop::Before(SWAP_DIR, 1), AlreadyBack),
        (Task::Swap, Stop::After(SWAP_DIR, 1), Restored),
        (Task::Swap, Stop::Before(SWAP_DIR, 2), Restored),
        (Task::Swap, Stop::After(SWAP_DIR, 2), Restored),
        (Task::Swap, Stop::Before(SWAP_DIR, 3), Restored),
        (Task::Swap, Stop::After(SWAP_DIR, 3), Restored),
        (Task::Swap, Stop::Before(SWAP_DIR, 4), Restored),
        (Task::Swap, Stop::After(SWAP_DIR, 4), AlreadyBack),
        (Task::Trace, Stop::Before(INSTANCES, 1), AlreadyBack),
        (Task::Trace, Stop::After(INSTANCES, 1), Restored),
        (Task::Trace, Stop::Before(INSTANCES, 2), Restored),
        (Task::Trace, Stop::After(INSTANCES, 2), AlreadyBack),
    ];
    for (task, stop, fate) in cases {
        let ground = Ground::new();
        // A small value of an administrator, which each write to a THP mode moves along.
        fs::write(ground.base().join(&MIN_FREE[1..]), "9000\n").unwrap();
        let before = ground.everything();
        let journals = ground.journals();
        let pid = plan(task, &ground, &journals, stop).run_to_kill();
        assert_eq!(ground.journal_names().len(), 1, "{task:?} {stop:?}");

        let planned = guard::restore(&ground.site(), true).unwrap();
        assert_eq!(ground.journal_names().len(), 1, "a dry run leaves the journal: {task:?} {stop:?}");
        let report = guard::restore(&ground.site(), false).unwrap();
        let told: Vec<Fate> = outcomes(&planned).iter().map(|o| o.fate).collect();
        assert_eq!(told, [fate], "the dry run told what came: {task:?} {stop:?}");
        assert_eq!(report.journals[0].owner.pid, pid);
        assert_eq!(report.journals[0].liveness, Liveness::Killed);
        let fates: Vec<Fate> = outcomes(&report).iter().map(|o| o.fate).collect();
        assert_eq!(fates, [fate], "{task:?} {stop:?}");
        assert_eq!(ground.everything(), before, "{task:?} {stop:?}");
        assert!(!journals.exists());
        assert_eq!(guard::restore(&ground.site(), false).unwrap(), guard::Report::default());
    }
}

/// Nobody else ever wants a dead one's instance by its name.
#[test]
fn a_new_trace_instance_clears_up_behind_a_killed_one() {
    let ground = Ground::new();
    let (journals, folder) = (ground.journals(), ground.base().join(&INSTANCES[1..]));
    fs::create_dir(folder.join("somebodys")).unwrap();
    let pid = plan(Task::Trace, &ground, &journals, Stop::After(INSTANCES, 1)).run_to_kill();
    let names = || -> Vec<String> {
        let entries = fs::read_dir(&folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names().len(), 2);
    let (first, second) = (ground.guard(), ground.guard());
    let made = [first.trace_instance().unwrap(), second.trace_instance().unwrap()].map(|made| made.name);
    let left = first.left_behind();
    assert_eq!((left.len(), left[0].owner.pid, left[0].outcomes[0].fate), (1, pid, Fate::Restored));
    assert_eq!(names(), [&made[0], &made[1], "somebodys"], "two at once, and somebody's is left alone");
    assert_eq!(first.finish()[0].fate, Fate::Restored);
    assert_eq!(names(), [&made[1], "somebodys"]);
    drop(second);
    assert_eq!(names(), ["somebodys"]);
    assert!(!journals.exists());
}

#[test]
fn the_restore_itself_is_killed() {
    for stop in [Stop::Before(ENABLED, 1), Stop::After(ENABLED, 1)] {
        let ground = Ground::new();
        fs::write(ground.base().join(&MIN_FREE[1..]), "9000\n").unwrap();
        let before = ground.everything();
        let journals = ground.journals();
        plan(Task::Thp, &ground, &journals, Stop::After(ENABLED, 1)).run_to_kill();
        plan(Task::Restore, &ground, &journals, stop).run_to_kill();
        guard::restore(&ground.site(), false).unwrap();
        assert_eq!(ground.everything(), before, "{stop:?}");
        assert!(!journals.exists());
    }
}

#[test]
fn two_restores_at_once_undo_once() {
    let ground = Ground::new();
    let before = ground.everything();
    let journals = ground.journals();
    for round in 0..5 {
        plan(Task::Pool, &ground, &journals, Stop::After(POOL, 1)).run_to_kill();
        let restored: usize = std::thread::scope(|scope| {
            let runs: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| guard::restore(&ground.site(), false).unwrap().count(Fate::Restored)))
                .collect();
            runs.into_iter().map(|run| run.join().unwrap()).sum()
        });
        assert_eq!(restored, 1, "round {round}");
        assert_eq!(ground.everything(), before);
    }
}

#[test]
fn a_value_that_somebody_set_after_the_kill_stays() {
    let cases = [
        // A mode that is neither ours (never) nor the original (madvise).
        (Task::Thp, ENABLED, "always", Fate::LeftAlone, "always"),
        (Task::Thp, ENABLED, "madvise", Fate::AlreadyBack, "madvise"),
        // A pool goes back from anywhere between the original 0 and our 4, and from nowhere else.
        (Task::Pool, POOL, "2", Fate::Restored, "0"),
        (Task::Pool, POOL, "7", Fate::LeftAlone, "7"),
    ];
    for (task, path, value, fate, end) in cases {
        let ground = Ground::new();
        let journals = ground.journals();
        plan(task, &ground, &journals, Stop::After(path, 1)).run_to_kill();
        ground.put(path, value);
        let report = guard::restore(&ground.site(), false).unwrap();
        let outcome = &outcomes(&report)[0];
        assert_eq!((outcome.fate, outcome.found.as_deref()), (fate, Some(value)));
        assert_eq!(ground.value(path), end);
        assert_eq!(guard::restore(&ground.site(), false).unwrap(), guard::Report::default(), "said once");
    }
}

#[test]
fn signals_restore_and_end_with_their_number() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let ground = Ground::new();
        let before = ground.everything();
        let journals = ground.journals();
        let mut victim = plan(Task::Wait, &ground, &journals, Stop::Never).spawn();
        until("the victim's change", || journals.with_extension("ready").exists());
        assert_eq!(ground.value(ENABLED), "never");
        victim.signal(signal);
        assert_eq!(victim.child.wait().unwrap().code(), Some(code), "{signal:?}");
        assert_eq!(ground.everything(), before);
        assert!(!journals.exists());
    }
}

/// A signal comes while the kernel is inside the write: the change ends first, and is then undone.
#[test]
fn a_signal_in_the_middle_of_a_change() {
    let ground = Ground::new();
    let before = ground.everything();
    let journals = ground.journals();
    let mut victim = plan(Task::Wait, &ground, &journals, Stop::Before(ENABLED, 1)).run_to_stop();
    victim.signal(Signal::TERM);
    victim.signal(Signal::CONT);
    assert_eq!(victim.child.wait().unwrap().code(), Some(143));
    assert_eq!(ground.everything(), before);
    assert!(!journals.exists());
}

#[test]
fn nohup_is_respected() {
    let ground = Ground::new();
    let journals = ground.journals();
    let inner = plan(Task::Wait, &ground, &journals, Stop::Never).command();
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(inner.get_program()).args(inner.get_args());
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    let mut victim = crate::victim::Victim { child };
    until("the victim's change", || journals.with_extension("ready").exists());
    victim.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(victim.child.try_wait().unwrap(), None, "it goes on");
    assert_eq!(ground.value(ENABLED), "never");
    victim.signal(Signal::TERM);
    assert_eq!(victim.child.wait().unwrap().code(), Some(143));
    assert_eq!(ground.value(ENABLED), "madvise");
}
