//! Which measures belong together, and which tell nothing because no variant changes them.

use pagelab_metrics::effect::{MeasureEffects, Verdict};
use pagelab_model::experiment::measures;

/// What is taken for noise of a measure whose noise is not known.
const NOISE: f64 = 1.05;

/// Measures that are shown even where no variant changes them.
const ALWAYS: [&str; 4] = [measures::WALL, measures::CPU, measures::PEAK, measures::HUGE];

/// Starts of names, and what gives the measures that begin so.
const GROUPS: [(&str, &str); 17] = [
    (measures::MODEL, "modelled, one run each"),
    ("hits.", "hits and misses"),
    ("miss_rate.", "hits and misses"),
    (measures::PHASE, "measured phase"),
    (measures::COUNTER, "perf"),
    ("rusage.", "rusage"),
    ("group.", "its group"),
    ("vmstat.", "vmstat"),
    ("thp.", "THP by size"),
    ("huge.", "huge pages"),
    ("page_tables", "page tables"),
    ("memory.", "memory"),
    ("pressure.", "pressure"),
    ("unusable.", "fragmentation"),
    ("probe.", "watching"),
    (measures::LATENCY, "latency"),
    ("cpu", "time"),
];

/// The group of a measure.
pub fn of(name: &str) -> &'static str {
    if [measures::WALL, measures::CPU].contains(&name) {
        return "time";
    }
    let known = GROUPS.iter().find(|(start, _)| name.starts_with(start));
    known.map_or("figures", |(_, group)| group)
}

/// Whether the measure has the same value, within its noise, under all variants.
pub fn is_same(measure: &MeasureEffects, baseline: usize) -> bool {
    if ALWAYS.contains(&measure.name.as_str()) {
        return false;
    }
    let noise = measure.floor.as_ref().map_or(NOISE, |floor| floor.ratio.max(1.0));
    let base = measure.variants.get(baseline).and_then(|of| of.statistics);
    measure.variants.iter().all(|variant| {
        let (Some(base), Some(of)) = (base, variant.statistics) else { return variant.statistics.is_none() };
        let decided = variant.effect.as_ref().is_ok_and(|effect| {
            matches!(effect.verdict, Verdict::Better | Verdict::Worse | Verdict::Differs)
        });
        let is_near = match (of.median, base.median) {
            (of, base) if of == base => true,
            (of, base) if of > 0.0 && base > 0.0 => (of / base).max(base / of) <= noise,
            _ => false,
        };
        let is_no_difference =
            variant.effect.as_ref().is_ok_and(|effect| effect.verdict == Verdict::NoDifference);
        !decided && (is_near || is_no_difference)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_measure_has_its_group() {
        for (name, group) in [
            ("wall", "time"),
            ("cpu.user", "time"),
            ("merit", "figures"),
            ("access_minor_faults", "figures"),
            ("counter.dTLB-loads", "perf"),
            ("phase.counter.dTLB-loads", "measured phase"),
            ("model.tlb-misses", "modelled, one run each"),
            ("miss_rate.dTLB-loads", "hits and misses"),
            ("huge.anon.last", "huge pages"),
            ("pressure.group.memory.some", "pressure"),
        ] {
            assert_eq!(of(name), group, "{name}");
        }
    }
}
