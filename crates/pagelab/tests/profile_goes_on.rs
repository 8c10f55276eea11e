//! What becomes of a program after its profile: it goes on to its own end.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests fail and print as tests do")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;

use support::Lab;
use support::running::{HOLDS, Running, profile, until};

/// A program of one's own under `profile`, which has said `ready`; its files lie with the lab's.
fn started(lab: &Lab, script: &str, options: &[&str]) -> Option<Running> {
    lab.write(
        "program.py",
        format!("{HOLDS}{script}").replace("print('ready')", "print('ready', flush=True)"),
    );
    let head = ["profile", "--source", "accessed", "--duty", "50", "-o", "p.pagelab"];
    let program = ["--", "/usr/bin/env", "python3", "program.py"];
    let mut running = Running(lab.command(&[&head[..], options, &program].concat()).spawn().unwrap(), None);
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
fn a_program_goes_on_to_its_end_when_its_profile_is_long_over() {
    let lab = Lab::new();
    // Far longer than the profile, and than anything that waits for its end.
    let script =
        "time.sleep(6)\nprint('all right', sum(m[at] for at in range(0, len(m), 4096)))\nraise SystemExit(7)";
    let Some(mut running) = started(&lab, script, &["--for", "200ms"]) else { return };
    let sum: usize = (0..16384).map(|page| page % 251).sum();
    assert_eq!(running.line(), format!("all right {sum}"));
    assert_eq!(running.0.wait().unwrap().code(), Some(7));
    assert_eq!(profile(&lab, "p.pagelab").exit, Some(7));
}

#[test]
fn a_program_that_does_not_mind_ctrl_c_goes_on_and_ends_as_it_wants() {
    let lab = Lab::new();
    let script = "
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
print('deaf', flush=True)
time.sleep(6)
print('all right')
raise SystemExit(7)";
    let Some(mut running) = started(&lab, script, &[]) else { return };
    assert_eq!(running.line(), "deaf");
    running.signal(rustix::process::Signal::INT);
    assert_eq!(running.line(), "all right");
    let mut told = String::new();
    std::io::Read::read_to_string(running.0.stderr.as_mut().unwrap(), &mut told).unwrap();
    assert_eq!(running.0.wait().unwrap().code(), Some(7), "{told}");
    assert!(told.contains("goes on, and its profile is written when it ends"), "{told}");
}

#[test]
fn sigterm_is_passed_on_and_once_more_ends_a_program_that_is_deaf() {
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
    while !line.contains("goes on, and its profile is written when it ends") {
        line.clear();
        assert!(told.read_line(&mut line).unwrap() > 0, "it never said that it waits");
    }
    running.signal(rustix::process::Signal::INT);
    running.0.wait().unwrap();
    until("the program's end", || !Path::new(&format!("/proc/{pid}")).exists());
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
