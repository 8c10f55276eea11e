//! Tests of a program after its profile: it continues to its own exit.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests fail and print as tests do")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use support::Lab;
use support::running::{HOLDS, KillOnDrop, process_field, profile, wait_until};

/// A program of one's own under `profile`, which has said `ready`; its files lie with the lab's.
fn started(lab: &Lab, script: &str, options: &[&str]) -> Option<KillOnDrop> {
    lab.write(
        "program.py",
        format!("{HOLDS}{script}").replace("print('ready')", "print('ready', flush=True)"),
    );
    let head = ["profile", "--source", "accessed", "--duty", "50%", "-o", "p.pagelab"];
    let program = ["--", "/usr/bin/env", "python3", "program.py"];
    let mut running =
        KillOnDrop(lab.command(&[&head[..], options, &program].concat()).spawn().unwrap(), None);
    running.1 = running.0.stdout.take().map(BufReader::new);
    match running.line().as_str() {
        "ready" => Some(running),
        _ => {
            eprintln!("skipped: python3-absent: no program with these habits");
            None
        }
    }
}

#[test]
fn a_program_continues_after_its_profile() {
    let lab = Lab::new();
    let script = "
import os
while not os.path.exists('go'): time.sleep(0.01)
print('all right', sum(m[at] for at in range(0, len(m), 4096)))
raise SystemExit(7)";
    let Some(mut running) = started(&lab, script, &["--for", "200ms"]) else { return };
    // It polls for the end of the program every 20 ms, and sleeps during the profile too, which is over then.
    let polls = || process_field(running.0.id(), "status", "voluntary_ctxt_switches").unwrap();
    let (begun, first) = (Instant::now(), polls());
    wait_until("200 polls", || begun.elapsed() > Duration::from_secs(4) && polls() > first + 200);
    lab.write("go", "");
    let sum: usize = (0..16384).map(|page| page % 251).sum();
    assert_eq!(running.line(), format!("all right {sum}"));
    assert_eq!(running.0.wait().unwrap().code(), Some(7));
    assert_eq!(profile(&lab, "p.pagelab").exit, Some(7));
}

#[test]
fn a_program_that_ignores_ctrl_c_continues_to_its_own_exit() {
    let lab = Lab::new();
    let script = "
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
print('deaf', flush=True)
import os
while not os.path.exists('go'): time.sleep(0.01)
print('all right')
raise SystemExit(7)";
    let Some(mut running) = started(&lab, script, &[]) else { return };
    assert_eq!(running.line(), "deaf");
    running.signal(rustix::process::Signal::INT);
    let mut messages = BufReader::new(running.0.stderr.take().unwrap()).lines();
    let note = messages.by_ref().map_while(Result::ok).find(|line| line.contains("keeps running"));
    lab.write("go", "");
    assert_eq!(running.line(), "all right");
    let rest: Vec<String> = messages.map_while(Result::ok).collect();
    let told = [note.unwrap_or_default(), rest.join(" ")].join(" ");
    assert_eq!(running.0.wait().unwrap().code(), Some(7), "{told}");
    assert!(told.contains("keeps running, and its profile is written when it exits"), "{told}");
}

#[test]
fn sigterm_is_forwarded_and_a_second_signal_kills_a_program_that_ignores_it() {
    let lab = Lab::new();
    let polite = "
import signal, sys
def end(*_): print('tidied up', flush=True); sys.exit(3)
signal.signal(signal.SIGTERM, end)
print('hears', flush=True)
time.sleep(100)";
    let Some(mut running) = started(&lab, polite, &[]) else { return };
    assert_eq!(running.line(), "hears");
    running.signal(rustix::process::Signal::TERM);
    assert_eq!(running.line(), "tidied up");
    assert_eq!(running.0.wait().unwrap().code(), Some(3));
    let lab = Lab::new();
    let deaf = "
import os, signal
for number in (signal.SIGTERM, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(100)";
    let Some(mut running) = started(&lab, deaf, &[]) else { return };
    let pid = running.line();
    running.signal(rustix::process::Signal::INT);
    let mut told = BufReader::new(running.0.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("keeps running, and its profile is written when it exits") {
        line.clear();
        assert!(told.read_line(&mut line).unwrap() > 0, "it never said that it waits");
    }
    running.signal(rustix::process::Signal::INT);
    running.0.wait().unwrap();
    wait_until("the program's end", || !Path::new(&format!("/proc/{pid}")).exists());
    assert!(profile(&lab, "p.pagelab").exit.is_none());
}

#[test]
fn without_a_supervisor_a_program_outlives_its_profile() {
    let lab = Lab::new();
    let script = "
import os, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(100)";
    let Some(mut running) = started(&lab, script, &["--no-supervise"]) else { return };
    let pid: i32 = running.line().parse().unwrap();
    running.signal(rustix::process::Signal::INT);
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
    let target = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(target, rustix::process::Signal::KILL).unwrap();
    let notes = profile(&lab, "p.pagelab").notes;
    assert!(notes.iter().any(|note| note.contains("without --no-supervise")), "{notes:?}");
}
