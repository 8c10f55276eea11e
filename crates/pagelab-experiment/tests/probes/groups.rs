//! The control group: what it limits, counts and ends.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use pagelab_experiment::probe::Wanted;
use pagelab_model::Bytes;

use crate::trial::{group, run, task};

#[test]
fn a_group_is_joined_and_emptied_and_goes_with_its_guard() {
    let Some(own) = group("whole") else { return };
    let folders: Vec<String> = own.group.folders().map(str::to_owned).collect();
    assert!(folders.iter().all(|folder| fs::exists(folder).unwrap()), "{folders:?}");
    // It starts others that have a session and a parent of their own, and ends: a daemon.
    let mut command = Command::new("sh");
    command.args(["-c", "setsid sleep 60 & setsid sleep 61 & exit 0"]).stdin(Stdio::null());
    own.group.join(&mut command).unwrap();
    assert!(command.status().unwrap().success());
    let ended = own.group.kill_all(Duration::from_secs(10)).unwrap();
    assert_eq!((ended.found, ended.left), (2, 0));
    assert_eq!(own.group.processes().unwrap(), [0u32; 0]);
    let ended = own.group.kill_all(Duration::ZERO).unwrap();
    assert_eq!((ended.found, ended.left), (0, 0), "nobody is there any more");
    drop(own);
    assert!(folders.iter().all(|folder| !fs::exists(folder).unwrap()), "{folders:?}");
}

#[test]
fn a_limit_is_read_back_and_its_death_is_counted() {
    let Some(own) = group("limited") else { return };
    let limit = Bytes(24 << 20);
    assert_eq!(own.group.limit_memory(limit), Ok(limit));
    // A limit that is no multiple of the page size is rounded down, and that is told.
    assert!(own.group.limit_memory(Bytes(limit.0 + 1)).is_ok_and(|got| got == limit));
    let pages = (96 << 20) / rustix::param::page_size();
    let outcome = run(&task(&format!("fault {pages}")), &Wanted::none(), Some(&own.group));
    // Where there is swap, it may live; nothing else may save it.
    if outcome.status.success() {
        println!("skipped: swap-on: a limit of memory kills nobody where there is swap");
        return;
    }
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&outcome.status), Some(9));
    let events = own.group.limit_events().unwrap();
    assert!(events.kills.is_none_or(|kills| kills == 1) && events.hits > 0, "{events:?}");
    assert_eq!(outcome.value("group.oom_kill"), 1.0);
    let peak = outcome.value("memory.peak");
    assert!(peak <= limit.0 as f64 && peak > limit.0 as f64 / 2.0, "{peak}");
}

#[test]
fn cpus_are_limited_where_the_controller_is() {
    let Some(own) = group("pinned") else { return };
    match own.group.limit_cpus("0") {
        Ok(list) => assert_eq!(list, "0"),
        Err(absence) => assert!(absence.detail.contains("without the cpuset controller"), "{absence:?}"),
    }
    assert!(own.group.limit_cpus("99999").is_err());
}

#[test]
fn cpu_time_of_who_was_not_waited_for_is_in_the_group_and_not_in_rusage() {
    let Some(own) = group("orphans") else { return };
    let outcome = run(&task("orphan 700"), &Wanted::none(), Some(&own.group));
    assert!(outcome.status.success(), "{}", outcome.said);
    let waited_for = outcome.value("rusage.utime") + outcome.value("rusage.stime");
    let all = outcome.value("cpu");
    assert!(all > waited_for + 50e6, "{all} ns in the group, {waited_for} ns in rusage");
    assert_eq!(outcome.value("cpu.user") + outcome.value("cpu.system"), all);
}
