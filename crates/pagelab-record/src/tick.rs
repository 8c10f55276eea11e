//! Grid of ticks on CLOCK_BOOTTIME, with waits for the next tick or a signal.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use pagelab_host::root::Root;
use pagelab_host::{guard, paths};
use pagelab_report::quantity_format::format_duration;
use pagelab_sys::clock;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// Ticks at `start + first + n × every`, without end.
#[derive(Clone, Copy, Debug)]
pub struct TickGrid {
    /// CLOCK_BOOTTIME from which the run's times count.
    pub start_ns: u64,
    /// Time from there to tick 0: creating the file and opening all sources.
    pub first_tick_offset_ns: u64,
    /// Nanoseconds from tick to tick; not 0.
    pub every_ns: u64,
}

impl TickGrid {
    /// Returns the time of a tick since the start, in nanoseconds.
    pub fn at_ns(&self, tick: u64) -> u64 {
        self.first_tick_offset_ns.saturating_add(tick.saturating_mul(self.every_ns))
    }

    /// Returns the CLOCK_BOOTTIME of a tick.
    pub fn deadline_ns(&self, tick: u64) -> u64 {
        self.start_ns.saturating_add(self.at_ns(tick))
    }

    /// Returns the first tick from `tick` on that can still be taken at `now_ns`: a sample begins at most
    /// half an interval after its tick, otherwise the tick is missed. A tick after `tick` may be in the
    /// future.
    pub fn next_possible(&self, tick: u64, now_ns: u64) -> u64 {
        let since_ns = now_ns.saturating_sub(self.start_ns.saturating_add(self.first_tick_offset_ns));
        let (current, late_ns) = (since_ns / self.every_ns, since_ns % self.every_ns);
        tick.max(if late_ns > self.every_ns / 2 { current + 1 } else { current })
    }
}

/// A request to stop, set from the thread that waits for signals.
#[derive(Clone, Debug)]
pub struct StopRequest {
    shared: Arc<(AtomicI32, OwnedFd)>,
}

impl StopRequest {
    pub fn new() -> Result<StopRequest, Errno> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(StopRequest { shared: Arc::new((AtomicI32::new(0), bell)) })
    }

    /// Sets the request, with the exit code.
    pub fn request(&self, code: i32) {
        self.shared.0.store(code, Ordering::SeqCst);
        // A full counter has already woken all waiters.
        let _ = rustix::io::write(&self.shared.1, &1_u64.to_ne_bytes());
    }

    /// Returns the exit code, once the request is set.
    pub fn exit_code(&self) -> Option<i32> {
        match self.shared.0.load(Ordering::SeqCst) {
            0 => None,
            code => Some(code),
        }
    }
}

/// An alarm on CLOCK_BOOTTIME, which includes suspend: after a suspend it is due at once.
#[derive(Debug)]
pub struct BoottimeAlarm {
    timer: OwnedFd,
    stop: StopRequest,
}

impl BoottimeAlarm {
    /// Creates an alarm that a stop request ends early.
    pub fn new(stop: StopRequest) -> Result<BoottimeAlarm, Errno> {
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(BoottimeAlarm { timer, stop })
    }

    /// Waits until CLOCK_BOOTTIME reaches `deadline_ns`. Returns the exit code if a stop was requested.
    pub fn wait(&self, deadline_ns: u64) -> Result<Option<i32>, Errno> {
        // An absolute time of 0 would disarm the timer.
        let deadline_ns = deadline_ns.max(1);
        let value = Timespec {
            tv_sec: i64::try_from(deadline_ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (deadline_ns % 1_000_000_000) as i64,
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
        loop {
            if let Some(code) = self.stop.exit_code() {
                return Ok(Some(code));
            }
            let mut both =
                [PollFd::new(&self.timer, PollFlags::IN), PollFd::new(&self.stop.shared.1, PollFlags::IN)];
            match poll(&mut both, None) {
                Err(Errno::INTR) => continue,
                ready => ready?,
            };
            if both[0].revents().contains(PollFlags::IN) {
                return Ok(self.stop.exit_code());
            }
        }
    }
}

/// More than slewing can cause: adjtimex slews by at most 500 ppm, and the frequency may be corrected by as
/// much again (kernel/time/ntp.c, MAXFREQ).
const SLEW_PPM_MAX: u64 = 1000;
/// Never reported: the effect of an interrupt between reading the two clocks.
const NOISE_NS: u64 = 2_000_000;
/// Readings of the clocks, of which the tightest counts.
const READINGS: usize = 5;

/// Nanoseconds from CLOCK_BOOTTIME to the wall clock, and the time of the reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallClockOffset {
    /// Wall clock less CLOCK_BOOTTIME.
    pub offset_ns: i128,
    /// CLOCK_BOOTTIME of the reading.
    pub at_ns: u64,
}

impl WallClockOffset {
    /// Reads both clocks, with one between two readings of the other.
    pub fn read() -> WallClockOffset {
        let read = || {
            let before_ns = clock::boottime_ns();
            let wall_ns = clock::realtime_ns();
            let after_ns = clock::boottime_ns();
            let middle_ns = before_ns / 2 + after_ns / 2;
            let offset =
                WallClockOffset { offset_ns: i128::from(wall_ns) - i128::from(middle_ns), at_ns: after_ns };
            (after_ns - before_ns, offset)
        };
        let mut best = read();
        for _ in 1..READINGS {
            // Two microseconds: nothing interrupted the readings.
            if best.0 <= 2_000 {
                break;
            }
            let next = read();
            if next.0 < best.0 {
                best = next;
            }
        }
        best.1
    }

    /// Describes the change of the wall clock between two readings, if it is more than slewing.
    pub fn describe_step(&self, later: &WallClockOffset) -> Option<String> {
        let elapsed_ns = later.at_ns.saturating_sub(self.at_ns);
        let step_ns = later.offset_ns - self.offset_ns;
        let allowed_ns = NOISE_NS + elapsed_ns / 1_000_000 * SLEW_PPM_MAX;
        let size_ns = u64::try_from(step_ns.unsigned_abs()).unwrap_or(u64::MAX);
        if size_ns <= allowed_ns {
            return None;
        }
        let direction = if step_ns > 0 { "forward" } else { "back" };
        Some(format!("the wall clock was set {direction} by {}", format_duration(size_ns)))
    }
}

/// Readings that are compared before and after a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockReadings {
    /// Time that the machine has slept: CLOCK_BOOTTIME less CLOCK_MONOTONIC.
    pub asleep_ns: u64,
    /// Time that this thread has waited for a CPU; `None` if the kernel does not count it.
    pub waited_ns: Option<u64>,
    /// Wall time of the previous tick, from its sample to its last row.
    pub busy_ns: u64,
    /// Whether this process was stopped and continued during that tick.
    pub was_stopped: bool,
}

/// Detector of gaps between ticks.
#[derive(Debug)]
pub struct GapDetector {
    continued: Option<Arc<AtomicBool>>,
    schedstat: Option<File>,
    last_readings: ClockReadings,
}

impl GapDetector {
    /// Creates a detector; a clock that cannot be read is never the reason.
    pub fn new(root: &Root) -> GapDetector {
        let continued = guard::watch_sigcont().ok();
        let schedstat = root.open_regular_file(paths::SELF_SCHEDSTAT).ok();
        let mut watch = GapDetector { continued, schedstat, last_readings: ClockReadings::default() };
        watch.record_tick(0);
        watch
    }

    /// Records the clocks after a tick that took `busy_ns`.
    pub fn record_tick(&mut self, busy_ns: u64) {
        let was_stopped = self.continued.as_ref().is_some_and(|flag| flag.swap(false, Ordering::Relaxed));
        self.last_readings = ClockReadings { busy_ns, was_stopped, ..self.read_clocks() };
    }

    /// Explains a gap of `gap_ns` since the last tick.
    pub fn explain(&self, gap_ns: u64) -> String {
        let continued = self.continued.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed));
        explain_gap(gap_ns, &self.last_readings, &self.read_clocks(), continued)
    }

    fn read_clocks(&self) -> ClockReadings {
        // In this order, a preemption between the reads makes the time asleep too small, never too large.
        let boottime_ns = clock::boottime_ns();
        let asleep_ns = boottime_ns.saturating_sub(clock::monotonic_ns());
        ClockReadings { asleep_ns, waited_ns: self.waited_ns(), busy_ns: 0, was_stopped: false }
    }

    /// The second number of schedstat is the time on run queues in nanoseconds (2.6.23 and later, with
    /// CONFIG_SCHED_INFO; Documentation/scheduler/sched-stats.rst).
    fn waited_ns(&self) -> Option<u64> {
        let mut text = [0; 128];
        let count = self.schedstat.as_ref()?.read_at(&mut text, 0).ok()?;
        std::str::from_utf8(&text[..count]).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
    }
}

/// Text of a gap in which SIGCONT arrived.
const STOPPED_TEXT: &str = "this process was stopped by a signal and continued";

/// Returns the first reason that accounts for at least half of the gap.
fn explain_gap(gap_ns: u64, before: &ClockReadings, after: &ClockReadings, continued: bool) -> String {
    let half_ns = gap_ns / 2;
    let asleep_ns = after.asleep_ns.saturating_sub(before.asleep_ns);
    if asleep_ns >= half_ns {
        return format!("the machine was suspended for {}", format_duration(asleep_ns));
    }
    if continued || (before.was_stopped && before.busy_ns >= half_ns) {
        return STOPPED_TEXT.to_owned();
    }
    if before.busy_ns >= half_ns {
        return format!(
            "the previous tick took {}: reading files or writing to disk",
            format_duration(before.busy_ns)
        );
    }
    let waited_ns = after.waited_ns.zip(before.waited_ns).map(|(after, before)| after.saturating_sub(before));
    match waited_ns {
        Some(waited_ns) if waited_ns >= half_ns => {
            format!("no CPU was available for {}", format_duration(waited_ns))
        }
        // The tick was over and its time not yet recorded.
        _ if before.was_stopped => STOPPED_TEXT.to_owned(),
        _ => "unknown cause: possibly a paused virtual machine, a frozen cgroup or a debugger".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_taken_up_to_half_an_interval_late() {
        let grid = TickGrid { start_ns: 970, first_tick_offset_ns: 30, every_ns: 100 };
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
        let stop = StopRequest::new().unwrap();
        let alarm = BoottimeAlarm::new(stop.clone()).unwrap();
        for ahead_ns in [0, 3_000_000] {
            let deadline_ns = clock::boottime_ns() + ahead_ns;
            assert_eq!(alarm.wait(deadline_ns), Ok(None));
            assert!(clock::boottime_ns() >= deadline_ns);
        }
        assert_eq!(alarm.wait(0), Ok(None));
        let waiting_tid = rustix::thread::gettid().as_raw_nonzero();
        let asking = std::thread::spawn({
            let stop = stop.clone();
            move || {
                let stat = format!("/proc/self/task/{waiting_tid}/stat");
                while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
                    std::thread::yield_now();
                }
                stop.request(143);
            }
        });
        assert_eq!(alarm.wait(u64::MAX), Ok(Some(143)));
        asking.join().unwrap();
    }

    #[test]
    fn steps_are_told_and_slewing_is_not() {
        const S: u64 = 1_000_000_000;
        let before = WallClockOffset { offset_ns: 1 << 60, at_ns: 100 * S };
        for (elapsed_ns, step_ns, said) in [
            (5 * S, 0, None),
            (5 * S, 2_500_000, None),
            (5 * S, -6_900_000, None),
            (5 * S, 8_000_000, Some("forward by 8 ms")),
            (5 * S, -3_600_000_000_000, Some("back by 1 h 0 min")),
            (86_400 * S, 40_000_000_000, None),
            (0, i128::MAX / 2, Some("forward")),
        ] {
            let now =
                WallClockOffset { offset_ns: before.offset_ns + step_ns, at_ns: before.at_ns + elapsed_ns };
            let text = before.describe_step(&now);
            match said {
                None => assert_eq!(text, None, "{step_ns}"),
                Some(said) => assert!(text.as_ref().is_some_and(|text| text.contains(said)), "{text:?}"),
            }
        }
        assert_eq!(WallClockOffset::read().describe_step(&WallClockOffset::read()), None);
    }

    #[test]
    fn the_reason_accounts_for_half_of_the_gap() {
        const S: u64 = 1_000_000_000;
        let before = ClockReadings {
            asleep_ns: 100 * S,
            waited_ns: Some(5 * S),
            busy_ns: S / 1000,
            was_stopped: false,
        };
        let after = |asleep_s: u64, waited_s: u64| ClockReadings {
            asleep_ns: (100 + asleep_s) * S,
            waited_ns: Some((5 + waited_s) * S),
            ..ClockReadings::default()
        };
        for (after, continued, said) in [
            (after(9, 0), false, "the machine was suspended for 9 s"),
            (after(9, 0), true, "the machine was suspended for 9 s"),
            (after(0, 8), true, "this process was stopped by a signal and continued"),
            (after(4, 6), false, "no CPU was available for 6 s"),
            (after(4, 4), false, "unknown cause"),
        ] {
            let why = explain_gap(10 * S, &before, &after, continued);
            assert!(why.starts_with(said), "{why}");
        }
        let busy = ClockReadings { busy_ns: 7 * S, ..before };
        assert!(explain_gap(10 * S, &busy, &after(0, 0), false).starts_with("the previous tick took 7 s"));
        // A stop during a tick makes the tick long.
        let stopped = ClockReadings { was_stopped: true, ..busy };
        assert!(explain_gap(10 * S, &stopped, &after(0, 0), false).starts_with("this process was stopped"));
        let earlier = ClockReadings { was_stopped: true, ..before };
        assert!(explain_gap(10 * S, &earlier, &after(0, 8), false).starts_with("no CPU was available"));
        assert_eq!(
            explain_gap(10 * S, &earlier, &after(0, 0), false),
            STOPPED_TEXT,
            "after the tick, before its mark"
        );
        let uncounted = ClockReadings { waited_ns: None, ..before };
        assert!(explain_gap(10 * S, &uncounted, &after(0, 9), false).starts_with("unknown cause"));
    }
}
