//! Why ticks were missed: what the kernel's clocks and counters say of the time in between.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pagelab_host::root::Root;
use pagelab_host::{guard, paths};
use pagelab_report::quantity::duration;
use pagelab_sys::clock;

/// What is compared before and after a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Time that the machine has slept: CLOCK_BOOTTIME less CLOCK_MONOTONIC.
    pub asleep_ns: u64,
    /// Time that this thread has waited for a CPU; `None` on a kernel that does not count it.
    pub waited_ns: Option<u64>,
    /// Wall time that the tick before took, from its sample to its last row.
    pub busy_ns: u64,
    /// Whether this process was stopped and continued during that tick.
    pub was_stopped: bool,
}

/// Takes marks at every tick.
#[derive(Debug)]
pub struct Watch {
    continued: Option<Arc<AtomicBool>>,
    schedstat: Option<File>,
    last: Marks,
}

impl Watch {
    /// Begins; what cannot be had is never the reason.
    pub fn new(root: &Root) -> Watch {
        let continued = guard::continued().ok();
        let schedstat = root.file(paths::SELF_SCHEDSTAT).ok();
        let mut watch = Watch { continued, schedstat, last: Marks::default() };
        watch.mark(0);
        watch
    }

    /// Remembers this moment, after a tick that took `busy_ns`.
    pub fn mark(&mut self, busy_ns: u64) {
        let was_stopped = self.continued.as_ref().is_some_and(|flag| flag.swap(false, Ordering::Relaxed));
        self.last = Marks { busy_ns, was_stopped, ..self.now() };
    }

    /// Why nothing was done for `gap_ns` since the last mark.
    pub fn why(&self, gap_ns: u64) -> String {
        let continued = self.continued.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed));
        why(gap_ns, &self.last, &self.now(), continued)
    }

    fn now(&self) -> Marks {
        // Read in this order a preemption in between makes the time asleep too small, never too large.
        let boottime_ns = clock::boottime_ns();
        let asleep_ns = boottime_ns.saturating_sub(clock::monotonic_ns());
        Marks { asleep_ns, waited_ns: self.waited_ns(), busy_ns: 0, was_stopped: false }
    }

    /// The second number of schedstat is the time on run queues in nanoseconds (2.6.23 and later, with
    /// CONFIG_SCHED_INFO; Documentation/scheduler/sched-stats.rst).
    fn waited_ns(&self) -> Option<u64> {
        let mut text = [0; 128];
        let count = self.schedstat.as_ref()?.read_at(&mut text, 0).ok()?;
        std::str::from_utf8(&text[..count]).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
    }
}

/// What is said of a gap in which SIGCONT came.
const STOPPED: &str = "this process was stopped by a signal, and continued";

/// The first reason that accounts for at least half of the gap.
fn why(gap_ns: u64, before: &Marks, after: &Marks, continued: bool) -> String {
    let half_ns = gap_ns / 2;
    let asleep_ns = after.asleep_ns.saturating_sub(before.asleep_ns);
    if asleep_ns >= half_ns {
        return format!("the machine slept for {}", duration(asleep_ns));
    }
    if continued || (before.was_stopped && before.busy_ns >= half_ns) {
        return STOPPED.to_owned();
    }
    if before.busy_ns >= half_ns {
        return format!(
            "the tick before took {}: its files, or handing it to the disk",
            duration(before.busy_ns)
        );
    }
    let waited_ns = after.waited_ns.zip(before.waited_ns).map(|(after, before)| after.saturating_sub(before));
    match waited_ns {
        Some(waited_ns) if waited_ns >= half_ns => {
            format!("no CPU was free for it for {}", duration(waited_ns))
        }
        // The tick was over and its mark not yet made.
        _ if before.was_stopped => STOPPED.to_owned(),
        _ => "why is not known: a paused virtual machine, a frozen control group or a debugger would look so"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_accounts_for_half_of_the_gap() {
        const S: u64 = 1_000_000_000;
        let before =
            Marks { asleep_ns: 100 * S, waited_ns: Some(5 * S), busy_ns: S / 1000, was_stopped: false };
        let after = |asleep_s: u64, waited_s: u64| Marks {
            asleep_ns: (100 + asleep_s) * S,
            waited_ns: Some((5 + waited_s) * S),
            ..Marks::default()
        };
        for (after, continued, said) in [
            (after(9, 0), false, "the machine slept for 9 s"),
            (after(9, 0), true, "the machine slept for 9 s"),
            (after(0, 8), true, "this process was stopped by a signal, and continued"),
            (after(4, 6), false, "no CPU was free for it for 6 s"),
            (after(4, 4), false, "why is not known"),
        ] {
            let why = why(10 * S, &before, &after, continued);
            assert!(why.starts_with(said), "{why}");
        }
        let busy = Marks { busy_ns: 7 * S, ..before };
        assert!(why(10 * S, &busy, &after(0, 0), false).starts_with("the tick before took 7 s"));
        // A stop in the middle of a tick makes the tick long.
        let stopped = Marks { was_stopped: true, ..busy };
        assert!(why(10 * S, &stopped, &after(0, 0), false).starts_with("this process was stopped"));
        let earlier = Marks { was_stopped: true, ..before };
        assert!(why(10 * S, &earlier, &after(0, 8), false).starts_with("no CPU was free"));
        assert_eq!(why(10 * S, &earlier, &after(0, 0), false), STOPPED, "after the tick, before its mark");
        let uncounted = Marks { waited_ns: None, ..before };
        assert!(why(10 * S, &uncounted, &after(0, 9), false).starts_with("why is not known"));
    }
}
