//! The grid of ticks on CLOCK_BOOTTIME, and waiting for the next one or for a signal.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// Ticks at `start + first + n × every`, for ever.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// CLOCK_BOOTTIME from which the run's times count.
    pub start_ns: u64,
    /// From there to tick 0: what it took to make the file and open everything.
    pub first_ns: u64,
    /// Nanoseconds from tick to tick; not 0.
    pub every_ns: u64,
}

impl Grid {
    /// Nanoseconds of a tick since the start.
    pub fn at_ns(&self, tick: u64) -> u64 {
        self.first_ns.saturating_add(tick.saturating_mul(self.every_ns))
    }

    /// CLOCK_BOOTTIME of a tick.
    pub fn deadline_ns(&self, tick: u64) -> u64 {
        self.start_ns.saturating_add(self.at_ns(tick))
    }

    /// The first tick from `tick` on that can still be taken at `now_ns`: a sample begins at most half an
    /// interval after its tick, or the tick counts as missed. A later one than `tick` may lie in the future.
    pub fn next_possible(&self, tick: u64, now_ns: u64) -> u64 {
        let since_ns = now_ns.saturating_sub(self.start_ns.saturating_add(self.first_ns));
        let (current, late_ns) = (since_ns / self.every_ns, since_ns % self.every_ns);
        tick.max(if late_ns > self.every_ns / 2 { current + 1 } else { current })
    }
}

/// How waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The time has come.
    Due,
    /// A signal: end with this exit code.
    Stop(i32),
}

/// A request to stop, set from the thread that waits for signals.
#[derive(Clone, Debug)]
pub struct Stop {
    shared: Arc<(AtomicI32, OwnedFd)>,
}

impl Stop {
    /// Nobody has asked yet.
    pub fn new() -> Result<Stop, Errno> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Stop { shared: Arc::new((AtomicI32::new(0), bell)) })
    }

    /// Asks, with the exit code to end with.
    pub fn ask(&self, code: i32) {
        self.shared.0.store(code, Ordering::SeqCst);
        // A counter that is full has woken everybody already.
        let _ = rustix::io::write(&self.shared.1, &1_u64.to_ne_bytes());
    }

    /// The exit code, once somebody has asked.
    pub fn asked(&self) -> Option<i32> {
        match self.shared.0.load(Ordering::SeqCst) {
            0 => None,
            code => Some(code),
        }
    }
}

/// An alarm on CLOCK_BOOTTIME, which goes on while the machine sleeps: after a suspend it is due at once.
#[derive(Debug)]
pub struct Alarm {
    timer: OwnedFd,
    stop: Stop,
}

impl Alarm {
    /// An alarm that a request to stop ends early.
    pub fn new(stop: Stop) -> Result<Alarm, Errno> {
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Alarm { timer, stop })
    }

    /// Waits until CLOCK_BOOTTIME shows `deadline_ns` or later.
    pub fn wait(&self, deadline_ns: u64) -> Result<Woken, Errno> {
        // An absolute time of 0 would switch the timer off.
        let deadline_ns = deadline_ns.max(1);
        let value = Timespec {
            tv_sec: i64::try_from(deadline_ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (deadline_ns % 1_000_000_000) as i64,
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
        loop {
            if let Some(code) = self.stop.asked() {
                return Ok(Woken::Stop(code));
            }
            let mut both =
                [PollFd::new(&self.timer, PollFlags::IN), PollFd::new(&self.stop.shared.1, PollFlags::IN)];
            match poll(&mut both, None) {
                Err(Errno::INTR) => continue,
                ready => ready?,
            };
            if both[0].revents().contains(PollFlags::IN) {
                return Ok(self.stop.asked().map_or(Woken::Due, Woken::Stop));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_taken_up_to_half_an_interval_late() {
        let grid = Grid { start_ns: 970, first_ns: 30, every_ns: 100 };
        // The expected tick, the time, the tick that can still be taken.
        for (tick, now_ns, next) in [
            (0, 1_000, 0),
            (3, 1_300, 3),
            (3, 1_350, 3),
            (3, 1_351, 4),
            (3, 1_399, 4),
            (3, 1_400, 4),
            (3, 1_450, 4),
            (3, 1_951, 10),
            (3, 1_250, 3),
            (3, 900, 3),
        ] {
            assert_eq!(grid.next_possible(tick, now_ns), next, "tick {tick} at {now_ns}");
        }
        assert_eq!((grid.at_ns(7), grid.deadline_ns(7)), (730, 1_700));
    }

    #[test]
    fn an_alarm_is_never_early_and_a_request_ends_it() {
        let stop = Stop::new().unwrap();
        let alarm = Alarm::new(stop.clone()).unwrap();
        for ahead_ns in [0, 3_000_000] {
            let deadline_ns = pagelab_sys::clock::boottime_ns() + ahead_ns;
            assert_eq!(alarm.wait(deadline_ns), Ok(Woken::Due));
            assert!(pagelab_sys::clock::boottime_ns() >= deadline_ns);
        }
        assert_eq!(alarm.wait(0), Ok(Woken::Due));
        let asking = std::thread::spawn({
            let stop = stop.clone();
            move || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                stop.ask(143);
            }
        });
        assert_eq!(alarm.wait(u64::MAX), Ok(Woken::Stop(143)));
        asking.join().unwrap();
    }
}
