//! The measured phase of a built-in workload, counted by the workload's own process: counters are opened
//! before anything is prepared, switched on where the phase begins and off where it ends, so that neither the
//! preparation nor the check of the result is in them.

use pagelab_host::root::Root;
use pagelab_model::experiment::{Better, measures};
use pagelab_sys::clock::monotonic_ns;
use pagelab_sys::perf_count::{Start, switch_own};
use pagelab_sys::wait::Rusage;
use pagelab_workloads::phase::Watch;

use super::counters::Counters;
use super::{Found, Wanted};

/// Where times and rusage are from.
const CLOCK: &str = "CLOCK_MONOTONIC, from the begin to the end of the measured phase";
const RUSAGE: &str = "getrusage around the measured phase: this process, and children that were waited for";

/// Counters and clocks of the phase.
#[derive(Debug)]
pub struct PhaseProbe {
    counters: Counters,
    begun: Option<(u64, Rusage)>,
    wall_ns: u64,
    used: Rusage,
}

impl PhaseProbe {
    /// Opens the counters for this thread and what it starts from now on. They count nothing yet.
    pub fn open(wanted: &Wanted) -> PhaseProbe {
        let mut counters = Counters::prepare(&Root::live(), wanted);
        counters.open(0, Start::ByHand);
        PhaseProbe { counters, begun: None, wall_ns: 0, used: Rusage::default() }
    }

    /// What the phase took and what was counted in it: `phase.…`; nothing of a workload that never began it.
    pub fn found(self) -> Found {
        let mut found = Found::default();
        if self.wall_ns == 0 {
            return found;
        }
        let name = |name: &str| format!("{}{name}", measures::PHASE);
        found.ns(name(measures::WALL), Better::Lower, Ok(self.wall_ns), CLOCK);
        let of = self.used;
        found.ns(name(measures::CPU_USER), Better::Lower, Ok(of.utime_ns), RUSAGE);
        found.ns(name(measures::CPU_SYSTEM), Better::Lower, Ok(of.stime_ns), RUSAGE);
        let cpu_ns = of.utime_ns.saturating_add(of.stime_ns);
        found.ns(name(measures::CPU), Better::Lower, Ok(cpu_ns), RUSAGE);
        for (field, better, count) in [
            ("minflt", Better::Lower, of.minflt),
            ("majflt", Better::Lower, of.majflt),
            ("inblock", Better::Lower, of.inblock),
            ("oublock", Better::Lower, of.oublock),
            ("nvcsw", Better::Neither, of.nvcsw),
            ("nivcsw", Better::Neither, of.nivcsw),
        ] {
            found.count(name(&format!("rusage.{field}")), better, Ok(count), RUSAGE);
        }
        self.counters.measures(&name(measures::COUNTER), &mut found);
        found
    }
}

impl Watch for PhaseProbe {
    fn begin(&mut self) {
        let used = Rusage::of_this_process();
        // Where it is refused, the counters say that they never counted.
        let _ = switch_own(true);
        self.begun = Some((monotonic_ns(), used));
    }

    fn end(&mut self) {
        let now_ns = monotonic_ns();
        let _ = switch_own(false);
        let now = Rusage::of_this_process();
        let Some((began_ns, before)) = self.begun.take() else { return };
        self.wall_ns += now_ns.saturating_sub(began_ns).max(1);
        let used = &mut self.used;
        for (sum, now, before) in [
            (&mut used.utime_ns, now.utime_ns, before.utime_ns),
            (&mut used.stime_ns, now.stime_ns, before.stime_ns),
            (&mut used.minflt, now.minflt, before.minflt),
            (&mut used.majflt, now.majflt, before.majflt),
            (&mut used.inblock, now.inblock, before.inblock),
            (&mut used.oublock, now.oublock, before.oublock),
            (&mut used.nvcsw, now.nvcsw, before.nvcsw),
            (&mut used.nivcsw, now.nivcsw, before.nivcsw),
        ] {
            *sum += now.saturating_sub(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use pagelab_workloads::options::Options;
    use pagelab_workloads::phase::Phase;
    use pagelab_workloads::table::WORKLOADS;

    use super::*;

    fn value(found: &Found, name: &str) -> f64 {
        let of = found.measures.iter().find(|of| of.name == name).unwrap_or_else(|| panic!("no {name}"));
        *of.value.as_ref().unwrap_or_else(|absence| panic!("{name}: {}", absence.reason()))
    }

    #[test]
    fn every_workload_has_a_measured_phase_and_it_is_not_all_that_it_does() {
        let small = [
            ("alloc-storm", &[("count", "20")][..]),
            ("bfs", &[("size", "2M"), ("roots", "2")]),
            ("canneal", &[("size", "1M"), ("steps", "2"), ("swaps", "500")]),
            ("desktop", &[("size", "8M"), ("processes", "2"), ("operations", "20"), ("pause", "0")]),
            ("fmm", &[("size", "160K")]),
            ("gc", &[("size", "4M"), ("rounds", "2")]),
            ("hot-regions", &[("size", "64M"), ("base", "0"), ("rounds", "1000")]),
            ("mmap-access", &[("size", "4M")]),
            ("streamcluster", &[("size", "256K"), ("parts", "1"), ("candidates", "2")]),
        ];
        for workload in WORKLOADS {
            let mut options = Options::defaults(workload.options);
            options.set("size", "4M").unwrap();
            for (name, typed) in small.iter().filter(|(name, _)| *name == workload.name).flat_map(|of| of.1) {
                options.set(name, typed).unwrap();
            }
            for (name, typed) in [("steps", "20000"), ("lookups", "20000")] {
                if small.iter().all(|(known, _)| *known != workload.name) {
                    // Where it has such an option.
                    let _ = options.set(name, typed);
                }
            }
            let before = (monotonic_ns(), Rusage::of_this_process());
            let mut probe = PhaseProbe::open(&Wanted::none());
            (workload.run)(&options, &mut Phase::watched(&mut probe)).unwrap();
            let (whole_ns, after) = (monotonic_ns() - before.0, Rusage::of_this_process());
            let found = probe.found();
            let wall_ns = value(&found, "phase.wall");
            assert!(wall_ns > 0.0 && wall_ns < whole_ns as f64, "{}: {wall_ns}", workload.name);
            let faults = value(&found, "phase.rusage.minflt");
            assert!(faults <= (after.minflt - before.1.minflt) as f64, "{}", workload.name);
        }
    }

    /// The faults of the accesses are those that the workload counts around them itself, and those of the
    /// preparation are in the process alone.
    #[test]
    fn preparing_a_file_and_checking_the_result_are_not_in_the_phase() {
        let mut options = Options::defaults(pagelab_workloads::mmap_access::WORKLOAD.options);
        let set = [("size", "16M"), ("mapping", "file"), ("sharing", "shared"), ("file", "prewritten")];
        for (name, typed) in set.iter().chain(&[("populate", "populate-write")]) {
            options.set(name, typed).unwrap();
        }
        let before = Rusage::of_this_process();
        let wanted = Wanted { software: true, ..Wanted::none() };
        let mut probe = PhaseProbe::open(&wanted);
        let run = pagelab_workloads::mmap_access::WORKLOAD.run;
        let done = run(&options, &mut Phase::watched(&mut probe)).unwrap();
        let whole = Rusage::of_this_process().minflt - before.minflt;
        let own = done.figures.iter().find(|figure| figure.name == "access_minor_faults").unwrap().value;
        let found = probe.found();
        let counted = found.measures.iter().find(|of| of.name == "phase.counter.page-faults").unwrap();
        match &counted.value {
            Ok(count) => assert!((*count - own).abs() <= 8.0, "{count} counted, {own} of the accesses"),
            Err(absence) => println!("skipped: no-perf-events: {}", absence.reason()),
        }
        // Other tests run as threads of this very process, and getrusage has their faults too.
        assert!(value(&found, "phase.rusage.minflt") >= own);
        assert!(whole as f64 > own, "{whole} faults in all");
    }
}
