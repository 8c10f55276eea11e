//! Hits and miss rates, from counts of accesses and misses.
//!
//! | measure | unit | from |
//! |---|---|---|
//! | `hits.EVENT` | count: accesses − misses | `counter.EVENT` and its misses |
//! | `miss_rate.EVENT` | permille: misses / accesses | the same |
//!
//! `EVENT` is the event of the accesses, as in `perf`: `dTLB-loads`, `cache-references`. The same names with
//! the prefixes `phase.` and `model.` are for counts of the measured phase and of a model.

use pagelab_model::experiment::{BetterDirection, Measure, measures};
use pagelab_model::run::Unit;
use pagelab_model::{Absence, AbsenceReason, Reading};

/// Accesses and their misses, as `perf` names them.
pub const ACCESS_MISS_EVENTS: [(&str, &str); 11] = [
    ("L1-dcache-loads", "L1-dcache-load-misses"),
    ("L1-dcache-stores", "L1-dcache-store-misses"),
    ("L1-dcache-prefetches", "L1-dcache-prefetch-misses"),
    ("L1-icache-loads", "L1-icache-load-misses"),
    ("LLC-loads", "LLC-load-misses"),
    ("LLC-stores", "LLC-store-misses"),
    ("dTLB-loads", "dTLB-load-misses"),
    ("dTLB-stores", "dTLB-store-misses"),
    ("iTLB-loads", "iTLB-load-misses"),
    ("cache-references", "cache-misses"),
    // Of the model: all accesses, and walks of the page tables.
    ("accesses", "tlb-misses"),
];

/// Hits of an event of accesses.
pub const HITS_PREFIX: &str = "hits.";
/// The share of its accesses that missed.
pub const MISS_RATE_PREFIX: &str = "miss_rate.";

/// Prefixes of event names: for the counts of a trial, and for its rates.
const NAME_PREFIXES: [(&str, &str); 3] =
    [("counter.", ""), ("phase.counter.", measures::PHASE_PREFIX), ("model.", measures::MODEL_PREFIX)];

/// The rates of all pairs that a trial has both counts of. Modifiers and control groups behind the name of an
/// event (`dTLB-loads:u`, `dTLB-loads@web`) stay with it.
pub fn compute_hit_rates(measures: &[Measure]) -> Vec<Measure> {
    let mut rates = Vec::new();
    for measure in measures {
        for (event_prefix, prefix) in NAME_PREFIXES {
            let Some(event) = measure.name.strip_prefix(event_prefix) else { continue };
            let miss_event =
                ACCESS_MISS_EVENTS.iter().find_map(|(all, misses)| Some((*misses, event.strip_prefix(all)?)));
            let Some((misses, suffix)) = miss_event.filter(|(_, behind)| is_modifier(behind)) else {
                continue;
            };
            let name = format!("{event_prefix}{misses}{suffix}");
            let Some(misses) = measures.iter().find(|of| of.name == name) else { continue };
            let (Ok(all), Ok(missed)) = (&measure.value, &misses.value) else { continue };
            let source = format!("{} and {}", measure.name, misses.name);
            let [hits, rate] = hits_and_miss_rate(*all, *missed);
            let derived = |kind: &str, unit: &str, better, value| {
                Measure::new(format!("{prefix}{kind}{event}"), unit, better, value, source.clone())
            };
            rates.push(derived(HITS_PREFIX, Unit::COUNT, BetterDirection::Neither, hits));
            rates.push(derived(MISS_RATE_PREFIX, Unit::PERMILLE, BetterDirection::Lower, rate));
        }
    }
    rates
}

fn is_modifier(suffix: &str) -> bool {
    suffix.is_empty() || suffix.starts_with([':', '@'])
}

fn hits_and_miss_rate(all: f64, missed: f64) -> [Reading<f64>; 2] {
    let none = |why: &str| Absence::new("hits and misses", AbsenceReason::Undefined, why);
    if missed > all {
        let why = "more misses than accesses: the two events count different accesses";
        return [Err(none(why)), Err(none(why))];
    }
    let rate = if all > 0.0 { Ok(1000.0 * missed / all) } else { Err(none("no accesses")) };
    [Ok(all - missed), rate]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(counts: &[(&str, f64)]) -> Vec<String> {
        let measure = |(name, value): &(&str, f64)| {
            Measure::new(*name, Unit::COUNT, BetterDirection::Neither, Ok(*value), "perf")
        };
        let found: Vec<Measure> = counts.iter().map(measure).collect();
        let show = |of: &Measure| match &of.value {
            Ok(value) => format!("{} {value:.2} {}", of.name, of.unit.0),
            Err(absence) => format!("{} {}", of.name, absence.reason()),
        };
        compute_hit_rates(&found).iter().map(show).collect()
    }

    /// Table 1 of the laboratory report: reads and writes of the data cache and of the data TLB. It prints
    /// hits, and the rates are misses by accesses.
    #[test]
    fn the_table_of_the_laboratory_report_comes_out() {
        let (hits, misses) = (16_645_660_050.0, 257_725_814.0);
        let (stored, stores_missed) = (6_414_354_060.0, 51_390_573.0);
        let found = rates(&[
            ("counter.L1-dcache-loads", hits + misses),
            ("counter.L1-dcache-load-misses", misses),
            ("counter.L1-dcache-stores", stored + stores_missed),
            ("counter.L1-dcache-store-misses", stores_missed),
            ("counter.dTLB-stores", 6_461_392_399.0 + 2_185_452.0),
            ("counter.dTLB-store-misses", 2_185_452.0),
        ]);
        assert_eq!(
            found,
            [
                "hits.L1-dcache-loads 16645660050.00 count",
                "miss_rate.L1-dcache-loads 15.25 permille",
                "hits.L1-dcache-stores 6414354060.00 count",
                "miss_rate.L1-dcache-stores 7.95 permille",
                "hits.dTLB-stores 6461392399.00 count",
                "miss_rate.dTLB-stores 0.34 permille",
            ]
        );
    }

    #[test]
    fn a_rate_needs_both_counts_of_the_same_moments() {
        assert_eq!(rates(&[("counter.dTLB-load-misses", 5.0)]), [""; 0], "misses alone have no rate");
        let of_phase = rates(&[("counter.dTLB-loads", 100.0), ("phase.counter.dTLB-load-misses", 1.0)]);
        assert_eq!(of_phase, [""; 0], "misses of the phase by accesses of the process");
        let phase = [("phase.counter.cache-references", 200.0), ("phase.counter.cache-misses", 50.0)];
        assert_eq!(
            rates(&phase),
            ["phase.hits.cache-references 150.00 count", "phase.miss_rate.cache-references 250.00 permille"]
        );
        let user = [("counter.dTLB-loads:u", 10.0), ("counter.dTLB-load-misses:u", 1.0)];
        assert_eq!(rates(&user)[1], "miss_rate.dTLB-loads:u 100.00 permille");
        let wrong = rates(&[("counter.iTLB-loads", 10.0), ("counter.iTLB-load-misses", 11.0)]);
        assert!(wrong.iter().all(|line| line.contains("more misses than accesses")), "{wrong:?}");
        let none = rates(&[("model.dTLB-loads", 0.0), ("model.dTLB-load-misses", 0.0)]);
        assert_eq!(none, ["model.hits.dTLB-loads 0.00 count", "model.miss_rate.dTLB-loads no accesses"]);
    }
}
