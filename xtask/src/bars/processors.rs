//! Limits of bars whose truth differs by processor, each with what was measured on it. The limit of a bar
//! itself is that of all other processors.

use super::Bar;
use crate::facts::{Condition, Fact};

/// A limit on one kind of processor.
#[derive(Debug)]
pub struct OnProcessor {
    /// The name of the bar.
    pub bar: &'static str,
    /// The processor, for a person.
    pub processor: &'static str,
    /// A condition of `facts.rs` that holds on it.
    pub condition: &'static str,
    /// The limit there.
    pub limit: f64,
    /// What was measured there, and why it differs.
    pub measured: &'static str,
}

const ZEN_4: &str = "AMD EPYC of family 25, model 17";
const AMD: &str = "processor 25/17";

const ZEN_5: &str = "AMD EPYC of family 26, model 2";
const ZEN_5_IS: &str = "processor 26/2";

const QUARTER: f64 = 0.35;

/// All such limits.
pub const ON_PROCESSORS: &[OnProcessor] = &[
    OnProcessor {
        bar: "chase_quarter_share_zipf_1_0",
        processor: ZEN_4,
        condition: AMD,
        limit: QUARTER,
        measured: "0.45 (quiet, 5 rounds: all bring 1.36), 0.59 (8 rounds), 0.51 (beside neighbours); the \
                   model says 0.64, and other guests of the host move the price of walks",
    },
    OnProcessor {
        bar: "chase_quarter_share_hot",
        processor: ZEN_4,
        condition: AMD,
        limit: QUARTER,
        measured: "0.74 (quiet, 5 rounds: all bring 1.28), 0.62 (8 rounds), 0.31 (beside neighbours); the \
                   model says 0.75",
    },
    OnProcessor {
        bar: "chase_quarter_share_zipf_1_5",
        processor: ZEN_4,
        condition: AMD,
        limit: QUARTER,
        measured: "0.43 (quiet, 5 rounds: all bring 1.15), 0.87 (8 rounds), 1.20 (beside neighbours); the \
                   model says 0.78",
    },
    OnProcessor {
        bar: "hot_regions_8_pages",
        processor: ZEN_4,
        condition: AMD,
        limit: 0.85,
        measured: "0.98 (quiet, 9 rounds), 0.91 (7 rounds): the huge zero page of 2 MiB does not fit the \
                   second-level cache of 1 MiB; 1.26 to 1.37 on Sapphire Rapids, where it does",
    },
    OnProcessor {
        bar: "hot_regions_15_pages",
        processor: ZEN_4,
        condition: AMD,
        limit: 0.85,
        measured: "0.98 (quiet, 9 rounds), 0.89 (7 rounds), for the same reason; 1.84 to 1.94 on Sapphire \
                   Rapids",
    },
    OnProcessor {
        bar: "hot_regions_8_pages",
        processor: ZEN_5,
        condition: ZEN_5_IS,
        limit: 0.85,
        measured: "0.967 (quiet): its second-level cache has 1 MiB too",
    },
    OnProcessor {
        bar: "hot_regions_15_pages",
        processor: ZEN_5,
        condition: ZEN_5_IS,
        limit: 0.85,
        measured: "0.980 (quiet); all pages 1.150",
    },
    OnProcessor {
        bar: "sim_bulk_compact_to_plain",
        processor: ZEN_5,
        condition: ZEN_5_IS,
        limit: 21.0,
        measured: "26.5 (quiet), 34.5 million pairs a second: plain sets are faster there too; 0.8 of that",
    },
    OnProcessor {
        bar: "gain_prediction_programs",
        processor: ZEN_4,
        condition: AMD,
        limit: 3.0,
        measured: "3 of 12 and 2 of 7: on a host with other guests two equal runs are 4 to 83 % apart in \
                   four \
                   to six rounds; 8 of 15 on EPYC of family 26, model 2, where they are 2 to 10 % apart",
    },
];

/// The bar with the limit of this processor.
pub fn limited(bar: &Bar, ask: &dyn Fn(&Fact) -> bool) -> Bar {
    let holds = |text| Condition::parse(text).is_ok_and(|condition| condition.holds(ask));
    let own = ON_PROCESSORS.iter().find(|of| of.bar == bar.name && holds(of.condition));
    Bar { limit: own.map_or(bar.limit, |of| of.limit), ..*bar }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bars::BARS;

    #[test]
    fn limits_by_processor_are_of_bars_that_there_are_and_are_taken_there_alone() {
        for of in ON_PROCESSORS {
            let bar = BARS.iter().find(|bar| bar.name == of.bar).unwrap_or_else(|| panic!("{}", of.bar));
            assert!(Condition::parse(of.condition).is_ok() && !of.measured.is_empty(), "{}", of.bar);
            let (family, model) = if of.condition == AMD { (25, 17) } else { (26, 2) };
            let is_it = |fact: &Fact| *fact == Fact::Processor(family, model);
            assert_eq!(limited(bar, &is_it).limit, of.limit, "{}", of.bar);
            assert_eq!(limited(bar, &|_| false).limit, bar.limit, "{}", of.bar);
        }
        let other = BARS.iter().find(|bar| bar.name == "checkup_wall_s").unwrap();
        assert_eq!(limited(other, &|_| true).limit, other.limit);
    }
}
