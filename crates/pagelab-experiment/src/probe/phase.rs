//! Counters of the measured phase of a built-in workload.
//!
//! The workload's own process opens them before any preparation, enables them at the start of the phase and
//! disables them at its end, so that they include neither the preparation nor the check of the result.

use pagelab_host::root::Root;
use pagelab_model::experiment::{BetterDirection, measures};
use pagelab_sys::clock::monotonic_ns;
use pagelab_sys::perf_event::{CounterStart, set_own_counters};
use pagelab_sys::wait::Rusage;
use pagelab_workloads::phase::PhaseObserver;

use super::counters::PerfCounters;
use super::{ProbeReadings, ProbeSelection};

/// Sources of times and rusage.
const CLOCK_SOURCE: &str = "CLOCK_MONOTONIC, from the start to the end of the measured phase";
const RUSAGE_SOURCE: &str = "getrusage around the measured phase: this process and its waited-for children";

/// Counters and clocks of the phase.
#[derive(Debug)]
pub struct PhaseProbe {
    counters: PerfCounters,
    start: Option<(u64, Rusage)>,
    wall_ns: u64,
    used_rusage: Rusage,
}

impl PhaseProbe {
    /// Opens the counters for this thread and its future threads and children. They do not count yet.
    pub fn open(selection: &ProbeSelection) -> PhaseProbe {
        let mut counters = PerfCounters::prepare(&Root::live(), selection);
        counters.open(0, CounterStart::Manual);
        PhaseProbe { counters, start: None, wall_ns: 0, used_rusage: Rusage::default() }
    }

    /// Duration and counts of the phase: `phase.…`; empty for a workload that never began it.
    pub fn into_readings(self) -> ProbeReadings {
        let mut readings = ProbeReadings::default();
        if self.wall_ns == 0 {
            return readings;
        }
        let name = |name: &str| format!("{}{name}", measures::PHASE_PREFIX);
        readings.push_ns(&name(measures::WALL), BetterDirection::Lower, Ok(self.wall_ns), CLOCK_SOURCE);
        let of = self.used_rusage;
        readings.push_ns(&name(measures::CPU_USER), BetterDirection::Lower, Ok(of.utime_ns), RUSAGE_SOURCE);
        readings.push_ns(&name(measures::CPU_SYSTEM), BetterDirection::Lower, Ok(of.stime_ns), RUSAGE_SOURCE);
        let cpu_ns = of.utime_ns.saturating_add(of.stime_ns);
        readings.push_ns(&name(measures::CPU), BetterDirection::Lower, Ok(cpu_ns), RUSAGE_SOURCE);
        for (field, better, count) in [
            ("minflt", BetterDirection::Lower, of.minflt),
            ("majflt", BetterDirection::Lower, of.majflt),
            ("inblock", BetterDirection::Lower, of.inblock),
            ("oublock", BetterDirection::Lower, of.oublock),
            ("nvcsw", BetterDirection::Neither, of.nvcsw),
            ("nivcsw", BetterDirection::Neither, of.nivcsw),
        ] {
            readings.push_count(&name(&format!("rusage.{field}")), better, Ok(count), RUSAGE_SOURCE);
        }
        self.counters.add_measures(&name(measures::COUNTER_PREFIX), &mut readings);
        readings
    }
}

impl PhaseObserver for PhaseProbe {
    fn begin(&mut self) {
        let start_rusage = Rusage::for_this_process();
        // If it fails, the counters report that they never counted.
        let _ = set_own_counters(true);
        self.start = Some((monotonic_ns(), start_rusage));
    }

    fn end(&mut self) {
        let now_ns = monotonic_ns();
        let _ = set_own_counters(false);
        let end_rusage = Rusage::for_this_process();
        let Some((began_ns, before)) = self.start.take() else { return };
        self.wall_ns += now_ns.saturating_sub(began_ns).max(1);
        let phase_rusage = &mut self.used_rusage;
        for (sum, now, before) in [
            (&mut phase_rusage.utime_ns, end_rusage.utime_ns, before.utime_ns),
            (&mut phase_rusage.stime_ns, end_rusage.stime_ns, before.stime_ns),
            (&mut phase_rusage.minflt, end_rusage.minflt, before.minflt),
            (&mut phase_rusage.majflt, end_rusage.majflt, before.majflt),
            (&mut phase_rusage.inblock, end_rusage.inblock, before.inblock),
            (&mut phase_rusage.oublock, end_rusage.oublock, before.oublock),
            (&mut phase_rusage.nvcsw, end_rusage.nvcsw, before.nvcsw),
            (&mut phase_rusage.nivcsw, end_rusage.nivcsw, before.nivcsw),
        ] {
            *sum += now.saturating_sub(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use pagelab_workloads::options::WorkloadOptions;
    use pagelab_workloads::phase::MeasuredPhase;
    use pagelab_workloads::{WORKLOADS, Workload};

    use super::*;

    fn value(found: &ProbeReadings, name: &str) -> f64 {
        let of = found.measures.iter().find(|of| of.name == name).unwrap_or_else(|| panic!("no {name}"));
        *of.value.as_ref().unwrap_or_else(|absence| panic!("{name}: {}", absence.reason()))
    }

    #[test]
    fn every_workload_has_a_measured_phase_and_it_is_not_all_that_it_does() {
        let small = [
            ("aim9", &[("count", "20")][..]),
            ("bfs", &[("size", "2M"), ("roots", "2")]),
            ("canneal", &[("size", "1M"), ("steps", "2"), ("swaps", "500")]),
            ("desktop", &[("size", "8M"), ("processes", "2"), ("operations", "20"), ("pause", "0")]),
            ("fmm", &[("size", "160K")]),
            ("gc", &[("size", "4M"), ("rounds", "2")]),
            ("hot-regions", &[("size", "64M"), ("base", "0"), ("rounds", "1000")]),
            ("mmap-access", &[("size", "4M")]),
            ("streamcluster", &[("size", "256K"), ("parts", "1"), ("candidates", "2")]),
        ];
        // That without a size needs the kernel module, in a guest.
        let has_size = |of: &&Workload| of.options.iter().any(|head| head.name == "size");
        for workload in WORKLOADS.iter().copied().filter(has_size) {
            let mut options = WorkloadOptions::with_defaults(workload.options);
            options.set_value("size", "4M").unwrap();
            for (name, typed) in small.iter().filter(|(name, _)| *name == workload.name).flat_map(|of| of.1) {
                options.set_value(name, typed).unwrap();
            }
            for (name, typed) in [("steps", "20000"), ("lookups", "20000")] {
                if small.iter().all(|(known, _)| *known != workload.name) {
                    // If it has such an option.
                    let _ = options.set_value(name, typed);
                }
            }
            let before = (monotonic_ns(), Rusage::for_this_process());
            let mut probe = PhaseProbe::open(&ProbeSelection::always_on());
            (workload.run)(&options, &mut MeasuredPhase::with_observer(&mut probe)).unwrap();
            let (whole_ns, after) = (monotonic_ns() - before.0, Rusage::for_this_process());
            let found = probe.into_readings();
            let wall_ns = value(&found, "phase.wall");
            assert!(wall_ns > 0.0 && wall_ns < whole_ns as f64, "{}: {wall_ns}", workload.name);
            let faults = value(&found, "phase.rusage.minflt");
            assert!(faults <= (after.minflt - before.1.minflt) as f64, "{}", workload.name);
        }
    }

    /// The faults of the accesses are those that the workload counts around them itself; those of the
    /// preparation are in the process alone.
    #[test]
    fn preparing_a_file_and_checking_the_result_are_not_in_the_phase() {
        let mut options = WorkloadOptions::with_defaults(pagelab_workloads::mmap_access::WORKLOAD.options);
        let set = [("size", "16M"), ("mapping", "file"), ("sharing", "shared"), ("file", "prewritten")];
        for (name, typed) in set.iter().chain(&[("populate", "populate-write")]) {
            options.set_value(name, typed).unwrap();
        }
        let before = Rusage::for_this_process();
        let wanted = ProbeSelection { software: true, ..ProbeSelection::always_on() };
        let mut probe = PhaseProbe::open(&wanted);
        let run = pagelab_workloads::mmap_access::WORKLOAD.run;
        let done = run(&options, &mut MeasuredPhase::with_observer(&mut probe)).unwrap();
        let whole = Rusage::for_this_process().minflt - before.minflt;
        let own = done.figures.iter().find(|figure| figure.name == "access_minor_faults").unwrap().value;
        let found = probe.into_readings();
        let counted = found.measures.iter().find(|of| of.name == "phase.counter.page-faults").unwrap();
        match &counted.value {
            Ok(count) => assert!((*count - own).abs() <= 8.0, "{count} counted, {own} of the accesses"),
            Err(absence) => println!("skipped: no-perf-events: {}", absence.reason()),
        }
        // Other tests run as threads of this process, and getrusage includes their faults.
        assert!(value(&found, "phase.rusage.minflt") >= own);
        assert!(whole as f64 > own, "{whole} faults in all");
    }
}
