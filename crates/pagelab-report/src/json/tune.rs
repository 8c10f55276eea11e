//! The JSON of a tuning: fields and units stand in `docs/json.md`.

use pagelab_metrics::effect::Interval;
use pagelab_metrics::tune::regions::{Region, regions};
use pagelab_metrics::tune::{ArmFound, Says, Tuned};
use pagelab_model::run::Run;
use pagelab_model::tune::{Arm, CurvePoint, On};
use serde_json::Value;

use super::object::{Object, array};
use crate::run::tune::{mapping_name, verdict};

/// Regions that are listed, most misses first.
const REGIONS_MAX: usize = 4_000;
const UNSCALED: &str = "none, all, or a share of the gain is missing";
const NOT_SO: &str = "it was not measured";

/// How the arms were chosen, and what they came to; `None` where the run is no tuning.
pub fn document(run: &Run) -> Option<Value> {
    let (tune, experiment) = (run.tune.as_deref()?, run.experiment.as_deref()?);
    let tuned = Tuned::of(experiment, tune)?;
    let arms: Vec<(&Arm, &ArmFound)> = tune.arms.iter().zip(&tuned.arms).collect();
    let regions = run.profile.as_deref().map(|profile| regions(tune, profile)).unwrap_or_default();
    let shown = &regions[..regions.len().min(REGIONS_MAX)];
    let between = tuned.plan_to_all.map(|(ratio, within)| interval(ratio, Some(within)));
    let head = match run.profile.as_deref() {
        Some(profile) => super::profile::misses(Object::new(), profile),
        None => Object::new(),
    };
    let object = head
        .put("verdict", verdict(&tuned, tune))
        .put("says", says(tuned.says))
        .put("by", tuned.by.as_str())
        .put("by_unit", tuned.unit.0.as_str())
        .option("noise_floor", tuned.floor.as_ref().map(|floor| floor.ratio), "too few pairs of equals")
        .put("asked", tune.asked.as_str())
        .put("plan_file", tune.plan_file.as_str())
        .put("huge_page_bytes", tune.huge)
        .option("pid", tune.pid, "its program was started for each trial")
        .option("plan_to_all", between, "both arms have too few rounds")
        .option("share_of_gain", tuned.share, "all memory on huge pages is not known to be faster")
        .option("share_of_pages", tuned.pages_share, NOT_SO)
        .option("knee", tune.knee, "the predicted curve has none")
        .put("arms", array(&arms, |(arm, found)| self::arm(arm, found)))
        .put("curve", array(&tune.curve, point))
        .put("regions_total", regions.len())
        .put("regions", array(shown, region))
        .put("notes", tune.notes.clone());
    Some(object.into())
}

fn arm(arm: &Arm, found: &ArmFound) -> Object {
    let speed = |of: Option<(f64, Option<Interval>)>| of.map(|(ratio, within)| interval(ratio, within));
    let no_price = "the profile has no price of a page walk, or it is no part of the time";
    Object::new()
        .put("name", arm.name.as_str())
        .put("on", on(arm.on))
        .option("planned", arm.planned, "all memory is meant")
        .option("value", found.value, NOT_SO)
        .option("speed_up", speed(found.speed_up), "it is the baseline, or was not measured")
        .option("cpu_speed_up", speed(found.cpu), "it is the baseline, or was not measured")
        .option("wall_ns", found.wall_ns, NOT_SO)
        .option("cpu_ns", found.cpu_ns, NOT_SO)
        .option("user_ns", found.user_ns, NOT_SO)
        .option("system_ns", found.system_ns, NOT_SO)
        .option("page_faults", found.faults, NOT_SO)
        .option("huge_pages", found.huge_pages, NOT_SO)
        .option("regions_got", found.regions.map(|(_, got)| got), "nothing is planned for it")
        .option("memory_bytes", found.memory, NOT_SO)
        .option("saved_ns", arm.saved_ns, "the profile has no price of a page walk")
        .option("predicted_speed_up", found.predicted, no_price)
        .option("scaled_speed_up", found.scaled, UNSCALED)
        .option("scaled_speed_up_low", found.scaled_within.map(|of| of.low), UNSCALED)
        .option("scaled_speed_up_high", found.scaled_within.map(|of| of.high), UNSCALED)
}

fn interval(ratio: f64, within: Option<Interval>) -> Object {
    Object::new()
        .put("ratio", ratio)
        .option("low", within.map(|found| found.low), "one round has no interval")
        .option("high", within.map(|found| found.high), "one round has no interval")
}

fn point(of: &CurvePoint) -> Object {
    Object::new().put("pages", of.pages).put("share_permille", of.share_permille)
}

fn region(of: &Region) -> Object {
    Object::new()
        .put("image", of.image)
        .put("mapping", mapping_name(&of.key))
        .put("offset", of.offset)
        .put("is_planned", of.is_planned)
        .put("misses_before", of.before)
        .option("misses_after", of.after, "the misses were not recounted under the plan")
}

fn on(of: On) -> &'static str {
    match of {
        On::Nothing => "nothing",
        On::Plan => "plan",
        On::All => "all",
        On::Dearest => "dearest",
        On::Random => "random",
        On::MostUsed => "most_used",
    }
}

fn says(of: Says) -> &'static str {
    match of {
        Says::Yes => "yes",
        Says::All => "all",
        Says::AllOnly => "all_only",
        Says::Slower => "slower",
        Says::NoHelp => "no_help",
        Says::NoDifference => "no_difference",
        Says::NotObtained => "not_obtained",
        Says::NothingPlanned => "nothing_planned",
        Says::TooFew => "too_few",
        Says::Undecided => "undecided",
        Says::NothingMeasured => "nothing_measured",
    }
}
