//! A program that goes on after its profile: it is the command of a person, and is waited for.

use std::io;
use std::process::ExitStatus;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::hands::Started;
use super::watch::{TICK, Watch};

/// How long a program has to end after a signal, before anything is said or done about it. One that is not
/// supervised is waited for no longer.
const AFTER_STOP: Duration = Duration::from_secs(2);

/// Signals that follow each other sooner are one: a terminal and `timeout` tell a whole group at once.
const AS_ONE: Duration = Duration::from_millis(500);

/// What happened to the wait so far.
#[derive(Default)]
struct Told {
    /// When the first signal was heard.
    first: Option<Instant>,
    /// When the one was heard for which the program was ended.
    second: Option<Instant>,
    is_said: bool,
}

impl Watch<'_> {
    /// Waits for the program's end. One that is supervised cannot go on without us: the first signal leaves
    /// it alone, but is passed on if the program may not have heard it; the second one ends it.
    pub(super) fn wait(&mut self, child: &mut Started) -> io::Result<Option<ExitStatus>> {
        let mut told = Told::default();
        loop {
            if let Some(exit) = child.ended(&self.hands)? {
                return Ok(Some(exit));
            }
            let is_stopped = self.wanted.stop.load(Ordering::Relaxed);
            match child {
                Started::Child(child) if is_stopped => {
                    if told.first.get_or_insert_with(Instant::now).elapsed() > AFTER_STOP {
                        self.note(format!("the program, process {}, goes on", child.id()));
                        return Ok(None);
                    }
                }
                Started::Watched(pid) => {
                    self.hear(*pid, &mut told);
                    if told.second.is_some_and(|second| second.elapsed() > AFTER_STOP) {
                        return Ok(None);
                    }
                }
                Started::Child(_) => {}
            }
            thread::sleep(TICK);
        }
    }

    fn hear(&mut self, pid: u32, told: &mut Told) {
        let heard = i32::try_from(self.wanted.heard.swap(0, Ordering::Relaxed)).unwrap_or(0);
        match (heard, told.first) {
            (0, _) => {}
            (signal, None) => {
                told.first = Some(Instant::now());
                // Ctrl-C is heard by all that runs on the terminal.
                if signal != libc::SIGINT {
                    send(pid, Signal::from_named_raw(signal));
                }
            }
            (_, Some(first)) if told.second.is_none() && first.elapsed() > AS_ONE => {
                told.second = Some(Instant::now());
                send(pid, Some(Signal::TERM));
                self.note(format!("the program, process {pid}, was ended: it cannot go on without pagelab"));
            }
            _ => {}
        }
        if !told.is_said && told.first.is_some_and(|first| first.elapsed() > AFTER_STOP) {
            told.is_said = true;
            (self.wanted.say)(&format!(
                "the program, process {pid}, goes on, and its profile is written when it ends: it cannot go \
                 on without pagelab, which waits. Ctrl-C or SIGTERM once more ends it"
            ));
        }
    }
}

fn send(pid: u32, signal: Option<Signal>) {
    if let (Some(pid), Some(signal)) = (i32::try_from(pid).ok().and_then(Pid::from_raw), signal) {
        let _ = kill_process(pid, signal);
    }
}
