//! The bars of predicted gains, over programs of many kinds (`cargo bench -p pagelab --bench gains`).

use super::{AT_MOST, Bar, LimitDirection};

const GAIN: Bar =
    Bar { source: "predictions as intervals", unavailable_if: "not tool apt-get or not cpus 2", ..AT_MOST };
const GAIN_AT_LEAST: Bar = Bar { direction: LimitDirection::AtLeast, ..GAIN };

pub(super) const BARS: &[Bar] = &[
    Bar {
        name: "gain_prediction_programs",
        limit: 8.0,
        comparison: "programs for which the plan saves more time than two equal runs differ by",
        ..GAIN_AT_LEAST
    },
    Bar {
        name: "gain_prediction_median_error",
        limit: 0.25,
        comparison: "of those: median error of the predicted time saving / of the measured one",
        ..GAIN
    },
    Bar {
        name: "gain_prediction_worst_error",
        limit: 0.6,
        comparison: "of those: the largest error of the time saved",
        ..GAIN
    },
    Bar {
        name: "gain_prediction_beyond_floor",
        limit: 0.0,
        comparison: "of the other programs: those whose predicted saving is larger than their noise floor",
        ..GAIN
    },
    Bar {
        name: "gain_interval_holds",
        limit: 0.8,
        comparison: "of all programs: those whose measured interval meets the predicted one",
        ..GAIN_AT_LEAST
    },
];
