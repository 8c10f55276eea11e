//! Ctrl-C and a full quota in the middle of a capture: it ends between two files and takes its `.part` away.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::guard::ignored_signals;

/// The number of the signal that asked to stop; 0 while none has.
#[derive(Clone, Debug)]
pub struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// From now on SIGINT, SIGTERM and SIGHUP are only noted, and a file that grows beyond the limit of this
    /// process (SIGXFSZ) is an error of the write. What was ignored at the start stays ignored.
    pub fn watch() -> io::Result<Stop> {
        let stop = Stop(Arc::default());
        let ignored = ignored_signals();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            if ignored & (1 << (signal - 1)) == 0 {
                flag::register_usize(signal, stop.0.clone(), signal.unsigned_abs() as usize)?;
            }
        }
        flag::register(Signal::XFSZ.as_raw(), Arc::new(AtomicBool::new(false)))?;
        Ok(stop)
    }

    /// The signal that asked to stop.
    pub fn signal(&self) -> Option<i32> {
        i32::try_from(self.0.load(Ordering::Relaxed)).ok().filter(|&signal| signal != 0)
    }

    /// An error once a signal has asked to stop.
    pub fn check(&self) -> io::Result<()> {
        match self.signal() {
            None => Ok(()),
            Some(signal) => Err(io::Error::other(format!("stopped by signal {signal}"))),
        }
    }
}
