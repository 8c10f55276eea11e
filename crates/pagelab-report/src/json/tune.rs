//! JSON of a tuning: `docs/json.md` lists fields and units.

use pagelab_metrics::effect::RatioInterval;
use pagelab_metrics::tune::{ArmResult, MissRegion, TuningResult, TuningVerdict, compare_regions};
use pagelab_model::run::Run;
use pagelab_model::tune::{CurvePoint, HugePageSelection, TuningArm};
use serde_json::Value;

use super::object::JsonObject;
use crate::fields::fields;
use crate::run::tune::{mapping_name, verdict_sentence};

/// Regions listed, at most, most misses first.
const REGIONS_MAX: usize = 4_000;
const UNSCALED: &str = "the result of none or all, or the share of the gain, is missing";
const NOT_MEASURED: &str = "not measured";
const IS_BASELINE: &str = "this is the baseline, or it was not measured";

/// Choice of the arms, and their results; `None` if the run is not a tuning run.
pub fn to_document(run: &Run) -> Option<Value> {
    let (tune, experiment) = (run.tune.as_deref()?, run.experiment.as_deref()?);
    let tuned = TuningResult::from_experiment(experiment, tune)?;
    let regions = run.profile.as_deref().map(|profile| compare_regions(tune, profile)).unwrap_or_default();
    let ratio_interval = tuned.plan_to_all.map(|(ratio, within)| with_interval((ratio, Some(within))));
    let head = match run.profile.as_deref() {
        Some(profile) => super::profile::with_misses(JsonObject::new(), profile),
        None => JsonObject::new(),
    };
    let no_knee = tune.knee_absence.as_deref().unwrap_or("the predicted curve has no knee");
    let object = head
        .field("verdict", verdict_sentence(&tuned, tune))
        .field("says", verdict_slug(tuned.verdict))
        .field("by", tuned.measure.as_str())
        .field("by_unit", tuned.unit.0.as_str())
        .field("interval_level", tuned.level)
        .optional(
            "noise_floor",
            tuned.floor.as_ref().map(|floor| floor.ratio),
            "too few pairs of equal variants",
        )
        .field("plan_arguments", tune.plan_arguments.as_str())
        .field("plan_file", tune.plan_file.as_str())
        .field("huge_page_bytes", tune.huge)
        .optional("pid", tune.pid, "the program was restarted for each trial")
        .optional("plan_to_all", ratio_interval, "too few rounds have both arms")
        .optional(
            "share_of_gain",
            tuned.gain_share,
            "it is unknown whether all memory on huge pages is faster",
        )
        .optional("share_of_pages", tuned.huge_pages_share, NOT_MEASURED)
        .optional("knee", tune.knee, no_knee)
        .optional("knee_low", tune.knee_range.map(|range| range.low), no_knee)
        .optional("knee_high", tune.knee_range.map(|range| range.high), no_knee)
        .optional("most_of_gain_pages", tune.most_of_gain.map(|most| most.pages), "there is no curve")
        .field("arms", arm_fields().array(tune.arms.iter().zip(&tuned.arms)))
        .field("curve", curve_point_fields().array(&tune.curve))
        .field("regions_total", regions.len())
        .field("regions", miss_region_fields().array(regions.iter().take(REGIONS_MAX)))
        .field("notes", tune.notes.clone());
    Some(object.into())
}

/// An arm of a tuning run, and its result.
type ArmRow<'a> = (&'a TuningArm, &'a ArmResult);

fields! { fn arm_fields<'a>(of: ArmRow<'a>);
    "name": string, "name of the arm" => of.0.name.as_str();
    "selection": string, "`never`, `none`, `plan`, `all`, `costliest`, `random`, `most_used`" =>
        selection_slug(of.0.selection);
    "overrides_advice": boolean, "whether the arm overrides the program's own advice against huge pages" =>
        of.0.overrides_advice;
    "planned": integer (null: "the arm covers all memory"), "number of planned huge pages" => of.0.planned;
    "value": number (null: NOT_MEASURED), "median of the measure that decides the verdict" => of.1.value;
    "speed_up": object (null: IS_BASELINE), "relative to `none`: `ratio`, `low`, `high`" =>
        of.1.speed_up.map(with_interval);
    "speed_up_from_never": object (null: "the program requests no huge pages itself, or it was not measured"),
        "relative to `never`, in the same fields" => of.1.speed_up_from_never.map(with_interval);
    "cpu_speed_up": object (null: IS_BASELINE), "the same for CPU time" =>
        of.1.cpu_speed_up.map(with_interval);
    "wall_ns": number (null: NOT_MEASURED), "median" => of.1.wall_ns;
    "cpu_ns": number (null: NOT_MEASURED), "median" => of.1.cpu_ns;
    "user_ns": number (null: NOT_MEASURED), "median" => of.1.user_ns;
    "system_ns": number (null: NOT_MEASURED), "median" => of.1.system_ns;
    "page_faults": number (null: NOT_MEASURED), "median" => of.1.faults;
    "huge_pages": number (null: NOT_MEASURED), "median" => of.1.huge_pages;
    "regions_allocated": number (null: "no huge pages are planned for the arm"), "median" =>
        of.1.planned_and_allocated.map(|(_, allocated)| allocated);
    "memory_bytes": number (null: NOT_MEASURED), "median" => of.1.peak_memory;
    "saved_ns": integer (null: "the profile has no page walk cost"), "time saved according to the profile" =>
        of.0.saved_ns;
    "predicted_speed_up": number (null: "the profile has no page walk cost, or no share of the run time"),
        "speed-up predicted from the profile" => of.1.predicted_speed_up;
    "scaled_speed_up": number (null: UNSCALED),
        "prediction scaled to the measured times of `none` and `all`" =>
        of.1.scaled_speed_up;
    "scaled_speed_up_low": number (null: UNSCALED), "lower end of its interval" =>
        of.1.scaled_interval.map(|of| of.low);
    "scaled_speed_up_high": number (null: UNSCALED), "upper end of its interval" =>
        of.1.scaled_interval.map(|of| of.high);
}

fn with_interval((ratio, interval): (f64, Option<RatioInterval>)) -> JsonObject {
    JsonObject::new()
        .field("ratio", ratio)
        .optional("low", interval.map(|found| found.low), "a single round has no interval")
        .optional("high", interval.map(|found| found.high), "a single round has no interval")
}

fields! { fn curve_point_fields(of: CurvePoint);
    "pages": integer, "number of huge pages" => of.pages;
    "share_permille": integer, "share of the attainable gain, according to the profile" => of.share_permille;
}

fields! { fn miss_region_fields(of: MissRegion);
    "image": integer, "index of the program" => of.image;
    "mapping": string, "description of the mapping" => mapping_name(&of.key);
    "offset": integer, "offset in the mapping, in bytes" => of.offset;
    "is_planned": boolean, "whether the plan contains the region" => of.is_planned;
    "misses_before": integer, "misses without the plan" => of.misses_before;
    "misses_after": integer (null: "the misses were not recounted with the plan"), "misses with the plan" =>
        of.misses_after;
}

fn selection_slug(selection: HugePageSelection) -> &'static str {
    match selection {
        HugePageSelection::Never => "never",
        HugePageSelection::None => "none",
        HugePageSelection::Plan => "plan",
        HugePageSelection::All => "all",
        HugePageSelection::Costliest => "costliest",
        HugePageSelection::Random => "random",
        HugePageSelection::MostUsed => "most_used",
    }
}

fn verdict_slug(verdict: TuningVerdict) -> &'static str {
    match verdict {
        TuningVerdict::PlanHelps => "yes",
        TuningVerdict::AllHelpsMore => "all",
        TuningVerdict::OnlyAllHelps => "all_only",
        TuningVerdict::Slower => "slower",
        TuningVerdict::NoHelp => "no_help",
        TuningVerdict::NoDifference => "no_difference",
        TuningVerdict::NotAllocated => "not_allocated",
        TuningVerdict::NothingPlanned => "nothing_planned",
        TuningVerdict::TooFew => "too_few",
        TuningVerdict::Undecided => "undecided",
        TuningVerdict::NothingMeasured => "nothing_measured",
    }
}
