//! Limits of bars that differ by processor, each with its measurement. The limit of a bar itself is that of
//! all other processors.

use super::Bar;
use crate::conditions::{Condition, Fact};

#[derive(Debug)]
pub struct Processor {
    /// Its name, for a person.
    pub name: &'static str,
    /// A condition of `conditions.rs` that holds on it.
    pub condition: &'static str,
}

#[derive(Debug)]
pub struct ProcessorLimit {
    pub bar: &'static str,
    pub processor: Processor,
    pub limit: f64,
    /// Measurement on this processor, and reason for the difference.
    pub measured: &'static str,
}

const ZEN_4: Processor = Processor { name: "AMD EPYC of family 25, model 17", condition: "processor 25/17" };
const ZEN_5: Processor = Processor { name: "AMD EPYC of family 26, model 2", condition: "processor 26/2" };

const QUARTER_SHARE_LIMIT: f64 = 0.35;

pub const PROCESSOR_LIMITS: &[ProcessorLimit] = &[
    ProcessorLimit {
        bar: "chase_quarter_share_zipf_1_0",
        processor: ZEN_4,
        limit: QUARTER_SHARE_LIMIT,
        measured: "0.45 (quiet, 5 rounds: all bring 1.36), 0.59 (8 rounds), 0.51 (beside neighbours); the \
                   model says 0.64, and other guests of the host change the cost of walks",
    },
    ProcessorLimit {
        bar: "chase_quarter_share_hot",
        processor: ZEN_4,
        limit: QUARTER_SHARE_LIMIT,
        measured: "0.74 (quiet, 5 rounds: all bring 1.28), 0.62 (8 rounds), 0.31 (beside neighbours); the \
                   model says 0.75",
    },
    ProcessorLimit {
        bar: "chase_quarter_share_zipf_1_5",
        processor: ZEN_4,
        limit: QUARTER_SHARE_LIMIT,
        measured: "0.43 (quiet, 5 rounds: all bring 1.15), 0.87 (8 rounds), 1.20 (beside neighbours); the \
                   model says 0.78",
    },
    ProcessorLimit {
        bar: "hot_regions_8_pages",
        processor: ZEN_4,
        limit: 0.85,
        measured: "0.98 (quiet, 9 rounds), 0.91 (7 rounds): the huge zero page of 2 MiB does not fit the \
                   second-level cache of 1 MiB; 1.26 to 1.37 on Sapphire Rapids, where it does",
    },
    ProcessorLimit {
        bar: "hot_regions_15_pages",
        processor: ZEN_4,
        limit: 0.85,
        measured: "0.98 (quiet, 9 rounds), 0.89 (7 rounds), for the same reason; 1.84 to 1.94 on Sapphire \
                   Rapids",
    },
    ProcessorLimit {
        bar: "hot_regions_8_pages",
        processor: ZEN_5,
        limit: 0.85,
        measured: "0.967 (quiet): its second-level cache has 1 MiB too",
    },
    ProcessorLimit {
        bar: "hot_regions_15_pages",
        processor: ZEN_5,
        limit: 0.85,
        measured: "0.980 (quiet); all pages 1.150",
    },
    ProcessorLimit {
        bar: "sim_bulk_compact_to_plain",
        processor: ZEN_5,
        limit: 21.0,
        measured: "26.5 (quiet), 34.5 million pairs a second: plain sets are faster there too; 0.8 of that",
    },
    ProcessorLimit {
        bar: "gain_prediction_programs",
        processor: ZEN_4,
        limit: 3.0,
        measured: "3 of 12 and 2 of 7: on a host with other guests two equal runs are 4 to 83 % apart in \
                   four \
                   to six rounds; 8 of 15 on EPYC of family 26, model 2, where they are 2 to 10 % apart",
    },
];

/// The bar with the limit of this processor.
pub fn with_processor_limit(bar: &Bar, is_true: &dyn Fn(&Fact) -> bool) -> Bar {
    let holds = |text| Condition::parse(text).is_ok_and(|condition| condition.holds(is_true));
    let own = PROCESSOR_LIMITS.iter().find(|of| of.bar == bar.name && holds(of.processor.condition));
    Bar { limit: own.map_or(bar.limit, |of| of.limit), ..*bar }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bars::all_bars;

    #[test]
    fn limits_by_processor_are_of_bars_that_there_are_and_are_taken_there_alone() {
        for of in PROCESSOR_LIMITS {
            let bar = all_bars().find(|bar| bar.name == of.bar).unwrap_or_else(|| panic!("{}", of.bar));
            assert!(
                Condition::parse(of.processor.condition).is_ok() && !of.measured.is_empty(),
                "{}",
                of.bar
            );
            let (family, model) = if of.processor.condition == ZEN_4.condition { (25, 17) } else { (26, 2) };
            let is_it = |fact: &Fact| *fact == Fact::Processor(family, model);
            assert_eq!(with_processor_limit(bar, &is_it).limit, of.limit, "{}", of.bar);
            assert_eq!(with_processor_limit(bar, &|_| false).limit, bar.limit, "{}", of.bar);
        }
        let other = all_bars().find(|bar| bar.name == "checkup_wall_s").unwrap();
        assert_eq!(with_processor_limit(other, &|_| true).limit, other.limit);
    }
}
