//! The part of a trial's system time in which its memory was touched for the first time: clearing pages, and
//! waiting for a host that had taken them.
//!
//! The kernel counts no such time. At each look it is seen whether the memory of the trial's processes has
//! grown beyond all that it was, and the system time since the look before is put to the growth or to the
//! rest.

use pagelab_model::experiment::{Better, measures};
use pagelab_model::{Absence, AbsentWhy};

use super::tree::{Look, too_short};
use super::{Found, Target};

/// Growth below this, in bytes, is no laying out of memory.
const GROWTH_MIN: u64 = 1 << 20;
/// Free pages are reported this long after they were freed (mm/page_reporting.c, PAGE_REPORTING_DELAY), ns.
const REPORTED_AFTER_NS: u64 = 2_000_000_000;

/// System time and memory as they were last seen.
#[derive(Debug, Default)]
pub(super) struct FirstTouch {
    system_ns: Option<u64>,
    largest: u64,
    grew_ns: u64,
    /// Bytes that came later than warm memory stays warm.
    late: u64,
    looks: u64,
    /// Of them, those at which the system time was known, and before.
    timed: u64,
}

impl FirstTouch {
    pub(super) fn begin(&mut self, target: &Target<'_>) {
        self.system_ns = system_ns(target);
    }

    pub(super) fn look(&mut self, target: &Target<'_>, look: &Look, elapsed_ns: u64) {
        let memory = look.processes.iter().map(|of| of.anonymous + of.shmem + of.hugetlb).sum();
        self.see(system_ns(target), memory, elapsed_ns);
    }

    fn see(&mut self, system_ns: Option<u64>, memory: u64, elapsed_ns: u64) {
        let growth = memory.saturating_sub(self.largest);
        self.looks += 1;
        if let (Some(now), Some(before)) = (system_ns, self.system_ns) {
            self.timed += 1;
            if growth >= GROWTH_MIN {
                self.grew_ns += now.saturating_sub(before);
            }
        }
        if elapsed_ns > REPORTED_AFTER_NS {
            self.late += growth;
        }
        self.system_ns = system_ns.or(self.system_ns);
        self.largest = self.largest.max(memory);
    }

    pub(super) fn measures(&self, found: &mut Found) {
        let value = match (self.timed, self.looks) {
            (1.., _) => Ok(self.grew_ns),
            (0, 1..) => Err(no_group()),
            (0, 0) => Err(too_short()),
        };
        let source = "CPU time of its cgroup in the kernel, between looks in which its memory grew";
        found.ns(measures::FIRST_TOUCH, Better::Lower, value, source);
        let late = if self.looks > 0 { Ok(self.late) } else { Err(too_short()) };
        found.bytes(
            "memory.late",
            Better::Neither,
            late,
            "what its memory grew by later than 2 s after its start",
        );
    }
}

fn no_group() -> Absence {
    let detail = "the trial has no control group of its own";
    Absence::new("CPU time of its cgroup", AbsentWhy::NotThere, detail).or("run as root")
}

fn system_ns(target: &Target<'_>) -> Option<u64> {
    target.group.and_then(|group| group.cpu().ok()).map(|cpu| cpu.system_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_time_goes_to_the_growth_or_to_the_rest() {
        let mib = 1 << 20;
        let mut touch = FirstTouch { system_ns: Some(10), ..FirstTouch::default() };
        // Grows, shrinks, comes back to what it was, grows again, late.
        for (system_ns, memory, at_ns) in [
            (110, 64 * mib, 100),
            (150, 2 * mib, 200),
            (190, 64 * mib, 300),
            (490, 65 * mib, REPORTED_AFTER_NS + 1),
        ] {
            touch.see(Some(system_ns), memory, at_ns);
        }
        assert_eq!((touch.grew_ns, touch.late, touch.looks), (100 + 300, mib, 4));
        let told = |touch: &FirstTouch| {
            let mut found = Found::default();
            touch.measures(&mut found);
            found.measures.into_iter().map(|measure| measure.value).collect::<Vec<_>>()
        };
        assert!(told(&FirstTouch::default()).iter().all(Result::is_err));
        // Without a group of its own: what came late is known, the time is not, and the reason says why.
        let mut alone = FirstTouch::default();
        alone.see(None, 64 * mib, REPORTED_AFTER_NS + 1);
        let told = told(&alone);
        let why = told[0].as_ref().unwrap_err().reason();
        assert!(why.contains("no control group of its own"), "{why}");
        assert_eq!(told[1], Ok((64 * mib) as f64));
    }
}
