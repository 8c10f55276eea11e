//! What a page walk costs on this machine: measured once, kept in the cache folder, found there again.

use pagelab_experiment::trial::Others;
use pagelab_host::collect::{CollectOptions, collect};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_model::machine::{Hypervisor, Machine};
use pagelab_model::profile::WalkCost;
use pagelab_model::run::StreamHead;
use pagelab_model::{Bytes, Snapshot};
use pagelab_report::style::bytes;
use pagelab_report::utc::utc;
use pagelab_sys::clock;
use pagelab_tlb::walk_fit::{self, Measured};

use crate::cmd::checkup::probing::facts as facts_of;
use crate::exit::{Exit, Failure};
use crate::kept_price::Place;
use crate::probe::{self, ProbeFacts, ProbeOptions, Samples, Span};

/// Sizes below the reach of usual TLBs, at it and far above; the last is the largest asked for.
const SMALLEST: u64 = 2 << 20;
/// Time for all of it: what a busy machine does in one second says little.
const TIME_NS: u64 = 15_000_000_000;

/// Measures with two buffers of up to `largest` bytes, and keeps the result for the next time.
pub fn measure(look: &Snapshot, largest: Bytes) -> Result<WalkCost, Failure> {
    let refused = |what: String| {
        let message = format!("the price of a page walk cannot be measured: {what}");
        Failure::new(Exit::NotAvailable, message)
    };
    let page_size = look.machine.page_size;
    let tlb = look.machine.tlb.as_ref().map_err(|absence| refused(absence.reason().to_owned()))?;
    let reach = tlb.reach(Bytes(page_size.bytes())).map_or(0, |reach| reach.0);
    if reach.saturating_mul(2) > largest.0 {
        let least = bytes(Bytes(reach.saturating_mul(2)));
        return Err(refused(format!(
            "the TLB reaches too far for buffers below {least}; give a larger size"
        )));
    }
    let options = ProbeOptions { region_max: largest, time_ns: TIME_NS, ..ProbeOptions::default() };
    let spans = spans(reach, largest.0);
    let before = Others::now();
    let pairs = probe::pairs(&options, &facts(), &Nowhere, &spans);
    // Others take room in the caches: walks of near lines come out dearer than they are on a quiet machine.
    let meanwhile = Others::now().not_quiet_since(&before, 0);
    let pairs = pairs.map_err(|absence| refused(absence.reason().to_owned()))?;
    let measured: Vec<Measured> = pairs
        .iter()
        .filter_map(|(span, pair)| {
            let huge = pair.huge.as_ref().ok().filter(|huge| huge.is_backed())?;
            // Both of a turn meet the same disturbance, so what counts is the difference of each turn.
            let turns = pair.base.ps_per_access.iter().zip(&huge.ps_per_access);
            let mut saved: Vec<f64> = turns.map(|(&base, &huge)| base as f64 - huge as f64).collect();
            saved.sort_by(f64::total_cmp);
            let huge_ps = huge.median_ps()? as f64;
            let base_ps = huge_ps + saved.get(saved.len() / 2)?;
            Some(Measured { size: span.size, window: span.window, base_ps, huge_ps })
        })
        .collect();
    let when = utc(clock::realtime_ns());
    let mut origin = format!("measured {when} on {}", machine(&look.machine));
    if let Some(cpus) = meanwhile {
        origin.push_str(&format!(
            ", while others had {cpus:.1} CPUs: walks of near lines are cheaper on a quiet one"
        ));
    }
    let fitted = walk_fit::fit(&measured, reach / page_size.bytes(), page_size, origin);
    let found = fitted.ok_or_else(|| {
        refused(
            "no huge pages came, or base pages were not slower: try again on a quieter machine".to_owned(),
        )
    })?;
    place(&machine(&look.machine)).keep(&found);
    Ok(found)
}

/// Windows of these parts of the reach show what near walks cost.
const WINDOWS: [u64; 2] = [32, 2];
/// They are read in a buffer of so many times the reach: two of three reads walk, and what is read of it,
/// data and page tables, stays in a second-level cache that is the processor's own. With 8 times the reach,
/// which does not, near walks cost 3 to 55 ns from one calibration to the next (AMD EPYC 25/17/1, a VM whose
/// host has other guests); with 3 times 17 to 49.
const WINDOWED: u64 = 3;

/// All sizes as a whole, and one above the reach in windows far below it.
fn spans(reach: u64, largest: u64) -> Vec<Span> {
    let whole = sizes(reach, largest).into_iter().map(|size| Span { size: Bytes(size), window: None });
    let size = Bytes((reach * WINDOWED).min(largest) / SMALLEST * SMALLEST);
    let windows = WINDOWS.map(|part| Span { size, window: Some(Bytes(reach / part)) });
    whole.chain(windows).collect()
}

/// Below the reach, and from twice of it on by two sizes a doubling.
fn sizes(reach: u64, largest: u64) -> Vec<u64> {
    let huge = |size: u64| (size / SMALLEST).max(1) * SMALLEST;
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

/// What was measured on this machine before, if it was.
pub fn known(of: &Machine) -> Option<WalkCost> {
    let found: WalkCost = place(&machine(of)).known()?;
    let rises = found.points.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
    (rises && !found.points.is_empty()).then_some(found)
}

fn place(machine: &str) -> Place<'_> {
    // Prices of another kind of measurement have another name: those named `walk-cost` had no near walks.
    Place { name: "walk-cost-2", machine, key: machine }
}

/// The processor and the kernel: what a walk costs depends on both, and on whether there is a hypervisor.
pub fn machine(of: &Machine) -> String {
    let cpu = of.cpu.as_ref().ok();
    let number = |number: Option<u32>| number.map_or("?".to_owned(), |number| number.to_string());
    let model = cpu.map_or("an unknown processor", |cpu| cpu.model_name.as_str());
    let numbers = cpu.map(|cpu| [cpu.family, cpu.model, cpu.stepping].map(number).join("/"));
    let kernel = of.kernel_release.as_ref().map_or("?", String::as_str);
    let guest = if matches!(of.hypervisor, Ok(Hypervisor::None)) { "" } else { ", in a VM" };
    format!("{model} ({}), Linux {kernel}{guest}", numbers.unwrap_or_default())
}

fn facts() -> ProbeFacts {
    facts_of(&collect(&Reader::new(&Root::live()), &CollectOptions::default()))
}

/// The samples of a calibration are not kept.
struct Nowhere;

impl Samples for Nowhere {
    fn take(&self, _head: &StreamHead, _samples: &[(u64, f64)]) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_lie_on_both_sides_of_the_reach() {
        let mib: Vec<u64> = sizes(8 << 20, 1 << 30).iter().map(|size| size >> 20).collect();
        assert_eq!(mib, [2, 4, 6, 16, 22, 32, 44, 64, 90, 128, 180, 256, 362, 512, 724, 1024]);
        let small: Vec<u64> = sizes(256 << 10, 16 << 20).iter().map(|size| size >> 20).collect();
        assert_eq!(small, [2, 4, 8, 10, 16]);
    }
}
