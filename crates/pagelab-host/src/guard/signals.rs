//! Restoring after SIGINT, SIGTERM and SIGHUP.

use std::fs;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::thread;

use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::error::{ErrorKind, GuardError};
use super::ledger;
use super::undo::Outcome;
use crate::paths;

/// Ends the process with an exit code, after printing what was restored. Only the binary may end a
/// process, so it gives this function.
pub type End = Box<dyn Fn(i32, &[Outcome]) + Send>;

/// Proof that somebody has thought of signals. A guard cannot begin without one, so no command can
/// forget that Ctrl-C would leave the machine changed.
#[derive(Clone, Copy, Debug)]
pub struct Watched(());

static WATCHING: OnceLock<()> = OnceLock::new();

impl Watched {
    /// From now on SIGINT, SIGTERM and SIGHUP undo all changes of this process and then call `end` with
    /// 128 plus the signal's number. A signal that this process was started to ignore (nohup) stays
    /// ignored. Commands that change nothing do not call this, and die of signals as every program does.
    /// The second and later calls change nothing.
    pub fn signals(end: End) -> Result<Watched, GuardError> {
        let mut failure = None;
        WATCHING.get_or_init(|| failure = start(end).err());
        match failure {
            None => Ok(Watched(())),
            Some(error) => {
                let message = "cannot watch for signals, so nothing is changed";
                Err(GuardError::new(ErrorKind::NotAvailable, message).because(error))
            }
        }
    }

    /// Signals are not watched: one of them leaves the changes to `pagelab restore`. For tests, and for
    /// a process that has blocked signals and handles them itself by [`super::restore_this_process`].
    pub fn left_to_restore() -> Watched {
        Watched(())
    }
}

/// A flag that is set whenever this process is continued after having been stopped (SIGCONT).
pub fn continued() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGCONT, flag.clone())?;
    Ok(flag)
}

fn start(end: End) -> io::Result<()> {
    let ignored = ignored_signals();
    let watched = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0);
    let mut signals = Signals::new(watched)?;
    // A thread of its own, not a handler: undoing locks, allocates and waits for the kernel.
    let restore = move || {
        if let Some(signal) = signals.forever().next() {
            let outcomes = ledger::stop_all();
            end(128 + signal, &outcomes);
        }
    };
    thread::Builder::new().name("pagelab-signals".to_owned()).spawn(restore).map(drop)
}

/// The mask of ignored signals, bit 0 for signal 1. Unreadable counts as none.
pub(crate) fn ignored_signals() -> u64 {
    let status = fs::read_to_string(paths::SELF_STATUS).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
