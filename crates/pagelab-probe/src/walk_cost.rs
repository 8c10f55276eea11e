//! Page walk cost of this machine: measured once and stored in the cache directory.

use std::time::Duration;

use pagelab_command::exit::{Failure, FailureKind};
use pagelab_command::progress::{CommandStatus, StatusEnd};
use pagelab_experiment::trial::ActivitySample;
use pagelab_host::collect::{CollectOptions, collect};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::machine::{Hypervisor, Machine};
use pagelab_model::order_statistics::median;
use pagelab_model::profile::WalkCostCurve;
use pagelab_model::{Bytes, Snapshot};
use pagelab_report::style::format_bytes;
use pagelab_report::utc::format_utc;
use pagelab_sys::clock;
use pagelab_tlb::walk_fit::{self, BufferTimings};

use crate::calibration_cache::CacheEntry;
use crate::journalled_probe::probe_facts;
use crate::probe::{self, ProbeOptions, ReadSpan};

/// Smallest buffer. Buffer sizes range from below the reach of common TLBs to far above it.
const SPAN_BYTES_MIN: u64 = 2 << 20;
/// Time limit of the calibration: on a busy machine, one second is too short.
const TIME_LIMIT_NS: u64 = 15_000_000_000;

/// Measures with two buffers of up to `largest` bytes, and caches the result.
pub fn measure(snapshot: &Snapshot, largest: Bytes) -> Result<WalkCostCurve, Failure> {
    let refused =
        |what: String| Failure::cannot(FailureKind::NotAvailable, "measure the cost of page walks", what);
    let page_size = snapshot.machine.page_size;
    let tlb = snapshot.machine.tlb.as_ref().map_err(|absence| refused(absence.reason().to_owned()))?;
    let reach = tlb.reach(Bytes(page_size.bytes())).map_or(0, |reach| reach.0);
    if reach.saturating_mul(2) > largest.0 {
        let least = format_bytes(Bytes(reach.saturating_mul(2)));
        return Err(refused(format!(
            "the TLB reach requires buffers of at least {least}; hint: use a larger size"
        )));
    }
    let _status = CommandStatus::start(
        "measuring the cost of page walks",
        StatusEnd::After(Duration::from_nanos(TIME_LIMIT_NS)),
    );
    let options = ProbeOptions { region_max: largest, time_ns: TIME_LIMIT_NS, ..ProbeOptions::default() };
    let spans = build_spans(reach, largest.0);
    let before = ActivitySample::read();
    let facts = probe_facts(&collect(&Reader::new(&Root::live()), &CollectOptions::default()));
    let pairs = probe::measure_pairs(&options, &facts, &spans);
    // Other programs occupy the caches: the cost of near walks is then higher than on a quiet machine.
    let meanwhile = ActivitySample::read().busy_share_since(&before, 0);
    let pairs = pairs.map_err(|absence| refused(absence.reason().to_owned()))?;
    let measured: Vec<BufferTimings> = pairs
        .iter()
        .filter_map(|(span, pair)| {
            let huge = pair.huge.as_ref().ok().filter(|huge| huge.is_huge_backed())?;
            // Both reads of a turn have the same disturbance, so the difference of each turn counts.
            let turns = pair.base.ps_per_access.iter().zip(&huge.ps_per_access);
            let mut saved: Vec<f64> = turns.map(|(&base, &huge)| base as f64 - huge as f64).collect();
            let huge_ps = huge.median_ps()? as f64;
            let base_ps = huge_ps + median(&mut saved)?;
            Some(BufferTimings { size: span.size, window: span.window, base_ps, huge_ps })
        })
        .collect();
    let when = format_utc(clock::realtime_ns());
    let mut origin = format!("measured {when} on {}", machine_key(&snapshot.machine));
    if let Some(cpus) = meanwhile {
        origin.push_str(&format!(
            ", while other processes used {cpus:.1} CPUs: near walks are cheaper on an idle machine"
        ));
    }
    let fitted = walk_fit::fit_walk_cost(&measured, reach / page_size.bytes(), page_size, origin);
    let found = fitted.ok_or_else(|| {
        refused(
            "no huge pages were allocated, or base pages were not slower; hint: try again on a quieter \
            machine"
                .to_owned(),
        )
    })?;
    cache_entry(&machine_key(&snapshot.machine)).save(&found);
    Ok(found)
}

/// Fractions of the reach, as divisors: windows of this size show the cost of near walks.
const WINDOW_DIVISORS: [u64; 2] = [32, 2];
/// Buffer size of the windows, as a multiple of the reach: two of three reads need a walk, and the data and
/// page tables stay in the private second-level cache. With 8 times the reach they do not, and the cost of
/// near walks varied from 3 to 55 ns between calibrations (AMD EPYC 25/17/1, a VM whose host has other
/// guests); with 3 times from 17 to 49 ns.
const WINDOWED_SPAN_FACTOR: u64 = 3;

/// Returns all sizes without a window, and one size above the reach with windows far below it.
fn build_spans(reach: u64, largest: u64) -> Vec<ReadSpan> {
    let whole =
        span_sizes(reach, largest).into_iter().map(|size| ReadSpan { size: Bytes(size), window: None });
    let size = Bytes((reach * WINDOWED_SPAN_FACTOR).min(largest) / SPAN_BYTES_MIN * SPAN_BYTES_MIN);
    let windows = WINDOW_DIVISORS.map(|part| ReadSpan { size, window: Some(Bytes(reach / part)) });
    whole.chain(windows).collect()
}

/// Returns sizes below the reach, and from twice the reach on two sizes per doubling.
fn span_sizes(reach: u64, largest: u64) -> Vec<u64> {
    let huge = |size: u64| (size / SPAN_BYTES_MIN).max(1) * SPAN_BYTES_MIN;
    let mut sizes = vec![huge(reach / 4), huge(reach / 2), huge(reach / 4 * 3)];
    sizes.dedup();
    let mut size = huge(reach * 2);
    while size < largest {
        // 181 / 128 is √2 to four digits.
        sizes.extend([size, huge(size / 128 * 181)].into_iter().filter(|&size| size < largest));
        size *= 2;
    }
    sizes.push(huge(largest));
    sizes.dedup();
    sizes
}

/// Returns the cached page walk cost of this machine, if any.
pub fn load_cached(hardware: &Machine) -> Option<WalkCostCurve> {
    let found: WalkCostCurve = cache_entry(&machine_key(hardware)).load()?;
    let rises = found.points.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
    (rises && !found.points.is_empty()).then_some(found)
}

fn cache_entry(machine: &str) -> CacheEntry<'_> {
    // Each measurement method has its own name: files named `walk-cost` have no near walks.
    CacheEntry { name: "walk-cost-2", machine, key: machine }
}

/// Returns processor, kernel and whether there is a hypervisor: the page walk cost depends on all of them.
pub fn machine_key(hardware: &Machine) -> String {
    let cpu = hardware.cpu.as_ref().ok();
    let number = |number: Option<u32>| number.map_or("?".to_owned(), |number| number.to_string());
    let model = cpu.map_or("an unknown processor", |cpu| cpu.model_name.as_str());
    let numbers = cpu.map(|cpu| [cpu.family, cpu.model, cpu.stepping].map(number).join("/"));
    let kernel = hardware.kernel_release.as_ref().map_or("?", String::as_str);
    let guest = if matches!(hardware.hypervisor, Ok(Hypervisor::None)) { "" } else { ", in a VM" };
    format!("{model} ({}), Linux {kernel}{guest}", numbers.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_lie_on_both_sides_of_the_reach() {
        let mib: Vec<u64> = span_sizes(8 << 20, 1 << 30).iter().map(|size| size >> 20).collect();
        assert_eq!(mib, [2, 4, 6, 16, 22, 32, 44, 64, 90, 128, 180, 256, 362, 512, 724, 1024]);
        let small: Vec<u64> = span_sizes(256 << 10, 16 << 20).iter().map(|size| size >> 20).collect();
        assert_eq!(small, [2, 4, 8, 10, 16]);
    }
}
