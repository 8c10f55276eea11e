//! The bars of predicted gains, over programs of many kinds (`cargo bench -p pagelab --bench gains`).

use super::{Bar, Good};

const fn bar(name: &'static str, good: Good, limit: f64, what: &'static str) -> Bar {
    let source = "predictions as intervals";
    let absent_where = "not tool apt-get or not cpus 2";
    Bar { name, good, limit, unit: "ratio", what, source, absent_where, changes: &[] }
}

pub(super) const PROGRAMS: Bar = bar(
    "gain_prediction_programs",
    Good::AtLeast,
    8.0,
    "programs of which the plan saves more time than two equal runs are apart",
);
pub(super) const MEDIAN: Bar = bar(
    "gain_prediction_median_error",
    Good::AtMost,
    0.25,
    "of those: the median error of the time that is saved, to what was measured",
);
pub(super) const WORST: Bar =
    bar("gain_prediction_worst_error", Good::AtMost, 0.6, "of those: the largest error of the time saved");
pub(super) const FLOOR: Bar = bar(
    "gain_prediction_beyond_floor",
    Good::AtMost,
    0.0,
    "of the other programs: those whose predicted saving is larger than their noise floor",
);
pub(super) const INTERVAL: Bar = bar(
    "gain_interval_holds",
    Good::AtLeast,
    0.8,
    "of all programs: those whose measured interval meets the predicted one",
);
