//! Wait for the exit of a profiled program, which continues after its profile because it is the user's
//! command.

use std::io;
use std::process::ExitStatus;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::injector::StartedProgram;
use super::profiler::{AccessProfiler, TICK};

/// Time for a program to exit after a signal, before pagelab reports or acts. One that is not supervised is
/// waited for no longer.
const SIGNAL_GRACE: Duration = Duration::from_secs(2);

/// Signals in quick succession count as one: a terminal and `timeout` signal a whole group at once.
const SIGNAL_COALESCE: Duration = Duration::from_millis(500);

#[derive(Default)]
struct WaitState {
    /// When the first signal was heard.
    first_signal: Option<Instant>,
    /// When the one was heard for which the program was ended.
    second_signal: Option<Instant>,
    is_reported: bool,
}

impl AccessProfiler<'_> {
    /// Waits for the program's end. A supervised program cannot continue without pagelab: the first signal
    /// leaves it running, but is forwarded if the program may not have received it; the second one terminates
    /// it.
    pub(super) fn wait_for_exit(&mut self, child: &mut StartedProgram) -> io::Result<Option<ExitStatus>> {
        let mut state = WaitState::default();
        loop {
            if let Some(exit) = child.poll_exit(&self.injector)? {
                return Ok(Some(exit));
            }
            let is_stopped = self.request.stop.load(Ordering::Relaxed);
            match child {
                StartedProgram::Child(child) if is_stopped => {
                    if state.first_signal.get_or_insert_with(Instant::now).elapsed() > SIGNAL_GRACE {
                        self.add_note(format!("the program (process {}) keeps running", child.id()));
                        return Ok(None);
                    }
                }
                StartedProgram::Supervised(pid) => {
                    self.handle_signals(*pid, &mut state);
                    if state.second_signal.is_some_and(|second| second.elapsed() > SIGNAL_GRACE) {
                        return Ok(None);
                    }
                }
                StartedProgram::Child(_) => {}
            }
            thread::sleep(TICK);
        }
    }

    fn handle_signals(&mut self, pid: u32, state: &mut WaitState) {
        let signal_number = i32::try_from(self.request.last_signal.swap(0, Ordering::Relaxed)).unwrap_or(0);
        match (signal_number, state.first_signal) {
            (0, _) => {}
            (signal, None) => {
                state.first_signal = Some(Instant::now());
                // Ctrl-C is heard by all that runs on the terminal.
                if signal != libc::SIGINT {
                    send_signal(pid, Signal::from_named_raw(signal));
                }
            }
            (_, Some(first)) if state.second_signal.is_none() && first.elapsed() > SIGNAL_COALESCE => {
                state.second_signal = Some(Instant::now());
                send_signal(pid, Some(Signal::TERM));
                self.add_note(format!(
                    "the program (process {pid}) was killed: it cannot run without pagelab"
                ));
            }
            _ => {}
        }
        if !state.is_reported && state.first_signal.is_some_and(|first| first.elapsed() > SIGNAL_GRACE) {
            state.is_reported = true;
            (self.request.report)(&format!(
                "the program (process {pid}) keeps running, and its profile is written when it exits; it \
                 cannot run without pagelab. Press Ctrl-C again to kill it"
            ));
        }
    }
}

fn send_signal(pid: u32, signal: Option<Signal>) {
    if let (Some(pid), Some(signal)) = (i32::try_from(pid).ok().and_then(Pid::from_raw), signal) {
        let _ = kill_process(pid, signal);
    }
}
