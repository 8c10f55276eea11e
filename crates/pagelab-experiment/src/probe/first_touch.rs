//! System time of the first touch of a trial's memory: clearing pages, and waiting for a host that had taken
//! them back.
//!
//! The kernel does not count this time. Each reading checks whether the memory of the trial's processes has
//! exceeded its previous maximum, and assigns the system time since the last reading to the growth or to the
//! rest.

use pagelab_model::experiment::{BetterDirection, measures};
use pagelab_model::{Absence, AbsenceReason};

use super::process_tree::{TreeSample, too_short_absence};
use super::{ProbeReadings, ProbeTarget};

/// Growth below this, in bytes, is not a first touch.
const GROWTH_MIN: u64 = 1 << 20;
/// Free pages are reported this long after they were freed (mm/page_reporting.c, PAGE_REPORTING_DELAY), ns.
const REPORTED_AFTER_NS: u64 = 2_000_000_000;

/// System time and memory of the last reading.
#[derive(Debug, Default)]
pub(super) struct FirstTouch {
    system_ns: Option<u64>,
    largest: u64,
    last_growth_ns: u64,
    /// Bytes touched later than warm memory stays warm.
    late_bytes: u64,
    scan_count: u64,
    /// Of them, those with a known system time, and before.
    timed_scans: u64,
}

impl FirstTouch {
    pub(super) fn begin(&mut self, target: &ProbeTarget<'_>) {
        self.system_ns = read_system_ns(target);
    }

    pub(super) fn record_scan(&mut self, target: &ProbeTarget<'_>, sample: &TreeSample, elapsed_ns: u64) {
        let memory = sample.processes.iter().map(|of| of.anonymous + of.shmem + of.hugetlb).sum();
        self.record(read_system_ns(target), memory, elapsed_ns);
    }

    fn record(&mut self, system_ns: Option<u64>, memory: u64, elapsed_ns: u64) {
        let growth = memory.saturating_sub(self.largest);
        self.scan_count += 1;
        if let (Some(now), Some(before)) = (system_ns, self.system_ns) {
            self.timed_scans += 1;
            if growth >= GROWTH_MIN {
                self.last_growth_ns += now.saturating_sub(before);
            }
        }
        if elapsed_ns > REPORTED_AFTER_NS {
            self.late_bytes += growth;
        }
        self.system_ns = system_ns.or(self.system_ns);
        self.largest = self.largest.max(memory);
    }

    pub(super) fn add_measures(&self, readings: &mut ProbeReadings) {
        let value = match (self.timed_scans, self.scan_count) {
            (1.., _) => Ok(self.last_growth_ns),
            (0, 1..) => {
                let absence = Absence::new(
                    "CPU time of its cgroup",
                    AbsenceReason::NotThere,
                    "the trial has no cgroup",
                );
                Err(absence.with_hint("run as root"))
            }
            (0, 0) => Err(too_short_absence()),
        };
        let source = "system time of its cgroup in scan intervals in which its memory grew";
        readings.push_ns(measures::FIRST_TOUCH, BetterDirection::Lower, value, source);
        let late_reading = if self.scan_count > 0 { Ok(self.late_bytes) } else { Err(too_short_absence()) };
        let source = "growth of its memory more than 2 s after its start";
        readings.push_bytes("memory.late", BetterDirection::Neither, late_reading, source);
    }
}

fn read_system_ns(target: &ProbeTarget<'_>) -> Option<u64> {
    target.cgroup.and_then(|group| group.read_cpu_time().ok()).map(|cpu| cpu.system_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_time_goes_to_the_growth_or_to_the_rest() {
        let mib = 1 << 20;
        let mut touch = FirstTouch { system_ns: Some(10), ..FirstTouch::default() };
        // Grows, shrinks, returns to its size, grows again, late.
        for (system_ns, memory, at_ns) in [
            (110, 64 * mib, 100),
            (150, 2 * mib, 200),
            (190, 64 * mib, 300),
            (490, 65 * mib, REPORTED_AFTER_NS + 1),
        ] {
            touch.record(Some(system_ns), memory, at_ns);
        }
        assert_eq!((touch.last_growth_ns, touch.late_bytes, touch.scan_count), (100 + 300, mib, 4));
        let readings = |touch: &FirstTouch| {
            let mut found = ProbeReadings::default();
            touch.add_measures(&mut found);
            found.measures.into_iter().map(|measure| measure.value).collect::<Vec<_>>()
        };
        assert!(readings(&FirstTouch::default()).iter().all(Result::is_err));
        // Without a control group the late bytes are known, the time is not, and the reason is given.
        let mut alone = FirstTouch::default();
        alone.record(None, 64 * mib, REPORTED_AFTER_NS + 1);
        let values = readings(&alone);
        let why = values[0].as_ref().unwrap_err().reason();
        assert!(why.contains("has no cgroup"), "{why}");
        assert_eq!(values[1], Ok((64 * mib) as f64));
    }
}
