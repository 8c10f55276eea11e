//! Signals as something to wait for: a byte in a socket wakes the view, and flags say what it was.

use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::{flag, low_level};

/// What came since it was last asked.
pub struct Signals {
    wake: UnixStream,
    /// The exit code after a signal that ends the view; 0 if none came.
    ended: Arc<AtomicUsize>,
    stopped: Arc<AtomicBool>,
    quit: Arc<AtomicBool>,
    resumed: Arc<AtomicBool>,
    resized: Arc<AtomicBool>,
}

/// A signal whose usual effect is to be had once the terminal is given back.
pub struct Stop(i32);

impl Stop {
    /// Stops this process until it is resumed; or ends it, after SIGQUIT.
    pub fn carry_out(self) -> io::Result<()> {
        low_level::emulate_default_handler(self.0)
    }
}

impl Signals {
    /// From now on the signals that would leave the terminal as it must not be left are waited for.
    pub fn watch() -> io::Result<Signals> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let signals = Signals {
            wake,
            ended: Arc::default(),
            stopped: Arc::default(),
            quit: Arc::default(),
            resumed: Arc::default(),
            resized: Arc::default(),
        };
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            flag::register_usize(signal, signals.ended.clone(), 128 + signal as usize)?;
        }
        for (signal, flag) in [
            (SIGTSTP, &signals.stopped),
            (SIGQUIT, &signals.quit),
            (SIGCONT, &signals.resumed),
            (SIGWINCH, &signals.resized),
        ] {
            flag::register(signal, flag.clone())?;
        }
        // The flag of a signal is set before the byte is written: actions run in the order of registration.
        for signal in [SIGTERM, SIGINT, SIGHUP, SIGTSTP, SIGQUIT, SIGCONT, SIGWINCH] {
            low_level::pipe::register(signal, woken.try_clone()?)?;
        }
        Ok(signals)
    }

    /// The exit code after a signal that ends the view, once one came.
    pub fn ended(&self) -> Option<u8> {
        u8::try_from(self.ended.load(Ordering::Relaxed)).ok().filter(|&code| code > 0)
    }

    /// A signal that stops the process, or ends it as if nobody had waited for it.
    pub fn take_stop(&self) -> Option<Stop> {
        let take = |flag: &AtomicBool| flag.swap(false, Ordering::Relaxed);
        match (take(&self.quit), take(&self.stopped)) {
            (true, _) => Some(Stop(SIGQUIT)),
            (false, true) => Some(Stop(SIGTSTP)),
            (false, false) => None,
        }
    }

    /// Whether the process was resumed.
    pub fn take_resumed(&self) -> bool {
        self.resumed.swap(false, Ordering::Relaxed)
    }

    /// Whether the terminal has another size.
    pub fn take_resized(&self) -> bool {
        self.resized.swap(false, Ordering::Relaxed)
    }

    /// What can be read from once a signal came.
    pub fn wake(&self) -> &UnixStream {
        &self.wake
    }

    /// Takes the bytes that woke.
    pub fn drain(&self) {
        let mut bytes = [0; 64];
        while (&self.wake).read(&mut bytes).is_ok_and(|count| count > 0) {}
    }
}
