//! Tests of the control group: limits, counts and kills.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use pagelab_experiment::probe::ProbeSelection;
use pagelab_model::Bytes;

use crate::trial::{group, run, task};

#[test]
fn a_group_is_joined_and_emptied_and_removed_with_its_guard() {
    let Some(own) = group("whole") else { return };
    let folders: Vec<String> = own.group.dir_paths().map(str::to_owned).collect();
    assert!(folders.iter().all(|folder| fs::exists(folder).unwrap()), "{folders:?}");
    // The shell starts two daemons, processes in sessions of their own, and exits.
    let mut command = Command::new("sh");
    command.args(["-c", "setsid sleep 60 & setsid sleep 61 & exit 0"]).stdin(Stdio::null());
    own.group.join_before_exec(&mut command).unwrap();
    assert!(command.status().unwrap().success());
    let ended = own.group.kill_all(Duration::from_secs(10)).unwrap();
    assert_eq!((ended.killed, ended.remaining), (2, 0));
    assert_eq!(own.group.list_processes().unwrap(), [0u32; 0]);
    let ended = own.group.kill_all(Duration::ZERO).unwrap();
    assert_eq!((ended.killed, ended.remaining), (0, 0), "the group is empty");
    drop(own);
    assert!(folders.iter().all(|folder| !fs::exists(folder).unwrap()), "{folders:?}");
}

#[test]
fn a_limit_is_read_back_and_its_oom_kill_is_counted() {
    let Some(own) = group("limited") else { return };
    let limit = Bytes(24 << 20);
    assert_eq!(own.group.limit_memory(limit), Ok(limit));
    // A limit that is not a multiple of the page size is rounded down.
    assert!(own.group.limit_memory(Bytes(limit.0 + 1)).is_ok_and(|got| got == limit));
    let pages = (96 << 20) / rustix::param::page_size();
    let outcome = run(&task(&format!("fault {pages}")), &ProbeSelection::always_on(), Some(&own.group));
    // Only with swap may the process survive.
    if outcome.status.success() {
        println!("skipped: swap-on: with swap a memory limit kills no process");
        return;
    }
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&outcome.status), Some(9));
    let events = own.group.read_limit_events().unwrap();
    assert!(events.kills.is_none_or(|kills| kills == 1) && events.hits > 0, "{events:?}");
    assert_eq!(outcome.value("group.oom_kill"), 1.0);
    let peak = outcome.value("memory.peak");
    assert!(peak <= limit.0 as f64 && peak > limit.0 as f64 / 2.0, "{peak}");
}

#[test]
fn the_cgroup_counts_cpu_time_of_orphans_and_rusage_does_not() {
    let Some(own) = group("orphans") else { return };
    let outcome = run(&task("orphan"), &ProbeSelection::always_on(), Some(&own.group));
    assert!(outcome.status.success(), "{}", outcome.said);
    let waited_for = outcome.value("rusage.utime") + outcome.value("rusage.stime");
    let all = outcome.value("cpu");
    assert!(all > waited_for + 50e6, "{all} ns in the group, {waited_for} ns in rusage");
    assert_eq!(outcome.value("cpu.user") + outcome.value("cpu.system"), all);
}
