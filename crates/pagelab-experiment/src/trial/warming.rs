//! Warming of the memory that a trial will use, before its gate opens, on machines whose host takes free
//! memory back.
//!
//! Without it the first trial after a pause pays for the host, and more with huge pages than with base pages:
//! huge pages come from the reported blocks. All variants are warmed alike.

use pagelab_contig::host_warming::{WarmingResult, warm_host_memory};
use pagelab_host::page_reporting;
use pagelab_host::root::Root;
use pagelab_model::experiment::{BetterDirection, Flag, Measure, measures};
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsenceReason, Bytes, Reading, size};

use super::TrialContext;
use crate::recipe::size_argument;

/// Warmed memory for a program of unknown size; less on a small machine.
const UNKNOWN_PEAK_BYTES: u64 = 2 << 30;
/// Share of the memory that may be cold without a flag.
const COLD_SHARE_MAX: f64 = 0.1;

#[derive(Debug)]
pub(super) struct TrialWarming {
    result: WarmingResult,
    reported_bytes: Reading<Bytes>,
    size_source: &'static str,
}

impl TrialWarming {
    /// Warms as much memory as the trial uses, if known; `None` if the host does not reclaim free memory of
    /// the guest.
    pub(super) fn warm_for_trial(
        context: &TrialContext<'_>,
        workload: usize,
        variant: usize,
    ) -> Option<TrialWarming> {
        let reporting = context.machine.page_reporting.as_ref()?;
        let root = Root::live();
        let reported = reporting.order.and_then(|order| {
            // Orders 0 to 10, as nearly all kernels have them.
            let orders = usize::from(order.0.max(10)) + 1;
            page_reporting::reported_bytes(&root, context.machine.page_size, order, orders)
        });
        let reported = reported.ok_or_else(|| {
            Absence::new("kpageflags", AbsenceReason::NotPermitted, "it is not readable")
                .with_hint("run as root")
        });
        let (requested, size_source) = estimate_memory(context, workload, variant);
        let warmed = warm_host_memory(&root, requested, &|| (context.stop_signal)().is_some());
        Some(TrialWarming { result: warmed, reported_bytes: reported, size_source })
    }

    /// Adds the measures, and a flag if the warmed memory was not enough.
    pub(super) fn add_measures(self, measures: &mut Vec<Measure>, flags: &mut Vec<Flag>) {
        let value = |name: &str| {
            let measure_value = measures.iter().find(|measure| measure.name == name)?;
            measure_value.value.as_ref().ok().copied()
        };
        let (peak, late_bytes) = (value(measures::PEAK_MEMORY), value("memory.late").unwrap_or(0.0));
        let cold = self.describe_cold(peak, late_bytes);
        flags.extend(cold.map(|text| Flag { kind: Flag::NOT_WARMED.to_owned(), text }));
        let TrialWarming { result: warmed, reported_bytes: reported, .. } = self;
        let mut push_measure = |name: &str, unit: &str, value: Reading<u64>, source: &str| {
            let value = value.map(|value| value as f64);
            measures.push(Measure::new(name, unit, BetterDirection::Neither, value, source));
        };
        let warmed_source = "pagelab, before the gate opened";
        push_measure("warm.bytes", Unit::BYTES, Ok(warmed.warmed.0), warmed_source);
        push_measure("warm.cpu", Unit::NANOSECONDS, Ok(warmed.cpu_ns), warmed_source);
        let small_source = "buddyinfo: free memory in blocks smaller than a huge page, not warmed; cold if \
            split from a reported block";
        push_measure("warm.small", Unit::BYTES, Ok(warmed.in_small_blocks.0), small_source);
        let reported_source = "kpageflags: free memory reclaimed by the host before warming";
        push_measure("warm.reported", Unit::BYTES, reported.map(|bytes| bytes.0), reported_source);
    }

    fn describe_cold(&self, peak: Option<f64>, late_bytes: f64) -> Option<String> {
        let amount = |bytes: f64| size::format_bytes(Bytes(bytes as u64));
        let (warmed, wanted) = (self.result.warmed.0 as f64, self.result.requested.0 as f64);
        let peak = peak.filter(|&peak| peak > 0.0)?;
        let cold = peak - warmed;
        if let Some(why) = self.result.shortfall_reason.as_ref().filter(|_| cold > peak * COLD_SHARE_MAX) {
            return Some(format!(
                "{} of {} was warmed before the trial: {why}",
                amount(warmed),
                amount(peak)
            ));
        }
        if peak - wanted > peak * COLD_SHARE_MAX {
            let size_source = self.size_source;
            return Some(format!(
                "{} of {} was warmed before the trial, size from {size_source}",
                amount(wanted),
                amount(peak)
            ));
        }
        (late_bytes > peak * COLD_SHARE_MAX).then(|| {
            format!(
                "{} of {} was touched more than 2 s after the start, when the host had reclaimed free memory \
                again",
                amount(late_bytes),
                amount(peak)
            )
        })
    }
}

/// Estimate of a trial's memory, and its source.
fn estimate_memory(context: &TrialContext<'_>, workload: usize, variant: usize) -> (Bytes, &'static str) {
    let with_margin = |bytes: u64| Bytes(bytes.saturating_add(bytes / 8).saturating_add(32 << 20));
    if let Some(&peak) = context.peak_bytes.borrow().get(&workload) {
        return (with_margin(peak), "the peak of earlier trials");
    }
    if let Some(size) = size_argument(&context.resolved.workload_command(workload, variant)) {
        return (with_margin(size), "its size option");
    }
    match context.resolved.recipe.variants[variant].memory_limit {
        Some(limit) => (limit, "its memory limit"),
        None => (
            Bytes(UNKNOWN_PEAK_BYTES.min(context.total_memory.0 / 8)),
            "an upper bound, because its size is unknown",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warming_shortfall(
        wanted: u64,
        warmed: u64,
        short: Option<&str>,
        peak: f64,
        late: f64,
    ) -> Option<String> {
        let mib = |count: u64| Bytes(count << 20);
        let short = short.map(str::to_owned);
        let (wanted, warmed) = (mib(wanted), mib(warmed));
        let warmed = WarmingResult {
            requested: wanted,
            warmed,
            in_small_blocks: Bytes(0),
            cpu_ns: 1,
            shortfall_reason: short,
        };
        let warming = TrialWarming { result: warmed, reported_bytes: Ok(Bytes(0)), size_source: "a bound" };
        let mib = f64::from(1 << 20);
        warming.describe_cold((peak > 0.0).then_some(peak * mib), late * mib)
    }

    #[test]
    fn what_stayed_cold_is_told_and_what_is_small_is_not() {
        assert_eq!(warming_shortfall(100, 100, None, 100.0, 0.0), None);
        assert_eq!(warming_shortfall(100, 95, Some("reserve"), 100.0, 0.0), None);
        let reserve = warming_shortfall(100, 50, Some("reserve"), 100.0, 0.0);
        assert_eq!(reserve.as_deref(), Some("50 MiB of 100 MiB was warmed before the trial: reserve"));
        // The rest is in smaller blocks, of which nothing is known.
        assert_eq!(warming_shortfall(100, 50, None, 100.0, 0.0), None);
        let bound = warming_shortfall(100, 100, None, 300.0, 0.0);
        assert_eq!(
            bound.as_deref(),
            Some("100 MiB of 300 MiB was warmed before the trial, size from a bound")
        );
        assert!(
            warming_shortfall(400, 400, None, 300.0, 200.0)
                .is_some_and(|text| text.starts_with("200 MiB of 300"))
        );
        assert_eq!(warming_shortfall(400, 0, Some("reserve"), 0.0, 0.0), None, "without a peak unknown");
    }

    #[test]
    fn a_size_is_found_in_a_command() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(size_argument(&words("pagelab workload chase --size 1G --seed 2")), Some(1 << 30));
        assert_eq!(size_argument(&words("x --size=64M")), Some(64 << 20));
        for none in ["x", "x --size", "x --size many", "x --sized 1G"] {
            assert_eq!(size_argument(&words(none)), None, "{none}");
        }
    }
}
