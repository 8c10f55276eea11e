//! Verdict of a tuning in words, with its notes.

use pagelab_metrics::effect::{EffectVerdict, RatioInterval};
use pagelab_metrics::tune::{ArmResult, HELPFUL_SPEED_UP_MIN, TuningResult, TuningVerdict};
use pagelab_model::experiment::measures;
use pagelab_model::tune::{HugePageSelection, TuningRun};
use pagelab_model::{Bytes, PageSize};

use super::{PredictionBasis, format_times, speedup_cells};
use crate::effect_text::{format_interval, format_level, format_ratio, format_reduction, is_informative};
use crate::quantity_format::{format_duration, format_quantity};
use crate::style::{format_bytes, format_count, format_percent, format_plural};

fn find_arm(tuned: &TuningResult, tune: &TuningRun, selection: HugePageSelection) -> ArmResult {
    tune.arm_index(selection).and_then(|at| tuned.arms.get(at)).cloned().unwrap_or_default()
}

pub(crate) fn verdict_sentence(tuned: &TuningResult, tune: &TuningRun) -> String {
    let (plan_arm, all_arm) =
        (find_arm(tuned, tune, HugePageSelection::Plan), find_arm(tuned, tune, HugePageSelection::All));
    let by = match tuned.measure.as_str() {
        measures::CPU => " by CPU time; its run time shows no clear difference",
        _ => "",
    };
    let gain = |arm: &ArmResult| format!("{}{}{by}", format_gain(arm.speed_up), arm_size_text(arm, tune));
    let so_far = |arm: &ArmResult| arm.speed_up.map_or_else(String::new, format_gain_so_far);
    let measured_arm = if plan_arm.speed_up.is_some() { &plan_arm } else { &all_arm };
    match tuned.verdict {
        TuningVerdict::PlanHelps => {
            format!("yes: {}{}", gain(&plan_arm), all_gain_text(tuned, &plan_arm, &all_arm))
        }
        TuningVerdict::AllHelpsMore => format!(
            "yes, with all memory on huge pages: {}; the plan is slower, {}, and does not save memory",
            gain(&all_arm),
            so_far(&plan_arm)
        ),
        TuningVerdict::OnlyAllHelps if tune.arm_index(HugePageSelection::Plan).is_none() => {
            format!("yes, with all memory on huge pages: {}", gain(&all_arm))
        }
        TuningVerdict::OnlyAllHelps => format!(
            "only with all memory on huge pages: {}; with the plan: {}",
            gain(&all_arm),
            plan_not_faster_text(&plan_arm)
        ),
        TuningVerdict::Slower => {
            format!("no: huge pages make this program slower, {}{by}", format_gain(measured_arm.speed_up))
        }
        TuningVerdict::NoHelp => format!(
            "huge pages do not help this program: even with all its memory on huge pages it is {}{by}",
            gain_limit_text(&all_arm)
        ),
        TuningVerdict::NoDifference => no_difference_sentence(tuned.level, &plan_arm, &all_arm),
        TuningVerdict::NotAllocated => {
            "no verdict: the huge pages of the plan were not allocated, see below".to_owned()
        }
        TuningVerdict::NothingPlanned => {
            "nothing to plan: the profile shows no TLB miss cost that huge pages could save".to_owned()
        }
        TuningVerdict::TooFew => format!("too few rounds to decide; so far {}", so_far(measured_arm)),
        TuningVerdict::Undecided => undecided_sentence(&plan_arm, &all_arm),
        TuningVerdict::NothingMeasured => "nothing was measured: no round succeeded".to_owned(),
    }
}

fn no_difference_sentence(level: f64, plan_arm: &ArmResult, all_arm: &ArmResult) -> String {
    let is_none = |arm: &ArmResult| matches!(arm.verdict, Some(EffectVerdict::NoDifference));
    let shown = if is_none(all_arm) || plan_arm.speed_up.is_none() { all_arm } else { plan_arm };
    let within = match shown.speed_up {
        Some((_, Some(within))) if !is_informative(within) => format_interval(within),
        found => format!("{} interval {}", format_level(level), speedup_cells(found).1),
    };
    format!("no difference measured ({within}); hint: use more rounds or a quieter machine")
}

fn undecided_sentence(plan_arm: &ArmResult, all_arm: &ArmResult) -> String {
    let is_open = |arm: &ArmResult| matches!(arm.verdict, Some(EffectVerdict::Undecided(_)));
    let (shown, whose) =
        if is_open(plan_arm) { (plan_arm, "") } else { (all_arm, " with all memory on huge pages") };
    let value = shown.speed_up.map_or_else(String::new, format_gain_so_far);
    format!("undecided: {value}{whose} is within the noise floor, or depends on a few rounds")
}

/// Describes what all memory on huge pages would gain beyond the plan, and its cost in memory.
fn all_gain_text(tuned: &TuningResult, plan_arm: &ArmResult, all_arm: &ArmResult) -> String {
    let (Some(HugePageSelection::All), Some((value, interval))) =
        (tuned.faster_selection(), all_arm.speed_up)
    else {
        return String::new();
    };
    let more = plan_arm.peak_memory.zip(all_arm.peak_memory).filter(|(plan, _)| *plan > 0.0);
    let cost = more
        .map_or(String::new(), |(plan, all)| format!(", at {:.0} % more memory", (all / plan - 1.0) * 100.0));
    format!("; with all its memory on huge pages: {}×{cost}", format_ratio(value, interval))
}

/// Formats a speed-up: `1.24× faster (1.21 to 1.27)`, `1.20× slower (1.15 to 1.25)`.
fn format_gain(measured_gain: Option<(f64, Option<RatioInterval>)>) -> String {
    let Some((value, interval)) = measured_gain else { return "unknown".to_owned() };
    let (word, value, interval) = match value < 1.0 {
        true => ("slower", 1.0 / value, interval.map(|found| found.inverse())),
        false => ("faster", value, interval),
    };
    let told = interval.map_or(String::new(), |found| format!(" ({})", format_interval(found)));
    format!("{}× {word}{told}", format_ratio(value, interval))
}

fn format_gain_so_far(measured_gain: (f64, Option<RatioInterval>)) -> String {
    let (value, interval) = speedup_cells(Some(measured_gain));
    if interval == "–" { value } else { format!("{value} ({interval})") }
}

fn plan_not_faster_text(plan_arm: &ArmResult) -> String {
    match plan_arm.speed_up {
        Some((value, Some(within))) if within.high < 1.0 => format_gain(Some((value, Some(within)))),
        Some((_, Some(within))) => format!("no difference was measured ({})", format_interval(within)),
        _ => "unknown".to_owned(),
    }
}

fn gain_limit_text(all_arm: &ArmResult) -> String {
    match all_arm.speed_up {
        Some((_, Some(within))) if is_informative(within) => {
            format!("between {}× as fast", format_interval(within).replace(" to ", "× and "))
        }
        _ => format!("less than {HELPFUL_SPEED_UP_MIN}× as fast"),
    }
}

/// Formats the huge pages of an arm: ` with 96 huge pages, 192 MiB`, ` with 95 of 96 huge pages, 190 MiB`.
fn arm_size_text(arm: &ArmResult, tune: &TuningRun) -> String {
    let found = match arm.planned_and_allocated {
        Some((wanted, got)) if got < wanted => {
            Some((got, format!("{} of ", format_count(got as u128)), wanted))
        }
        _ => arm.huge_pages.map(|pages| (pages, String::new(), pages)),
    };
    let Some((pages, part, whole)) = found.filter(|(pages, ..)| pages.round() > 0.0) else {
        return String::new();
    };
    let bytes = format_bytes(Bytes((pages.round() as u64).saturating_mul(tune.huge)));
    format!(" with {part}{}, {bytes}", format_plural(whole.round() as u64, "huge page"))
}

/// Returns the notes beside the verdict, a sentence each.
pub(super) fn side_notes(tuned: &TuningResult, tune: &TuningRun, prediction: PredictionBasis) -> Vec<String> {
    let mut said = Vec::new();
    said.extend(value_range_text(tuned, tune));
    said.extend(own_huge_pages_text(tuned, tune));
    said.extend(plan_against_all_text(tuned));
    said.extend(cpu_time_text(tuned, tune));
    said.extend(savings_text(tuned, tune));
    said.extend(prediction_text(tuned, tune, prediction));
    said.extend(knee_text(tune));
    said
}

/// Lists the values of each arm where too few rounds have no verdict.
fn value_range_text(tuned: &TuningResult, tune: &TuningRun) -> Option<String> {
    if tuned.verdict != TuningVerdict::TooFew {
        return None;
    }
    let quantity = |value: f64| format_quantity(value, &tuned.unit, PageSize::DEFAULT);
    let arms = tune.arms.iter().zip(&tuned.arms).filter_map(|(arm, found)| {
        let (min, max, count) = found.range?;
        let range =
            if count == 1 { quantity(min) } else { format!("{} to {}", quantity(min), quantity(max)) };
        Some(format!("{} {range} ({})", arm.name, format_plural(count as u64, "run")))
    });
    Some(format!("values: {}", arms.collect::<Vec<_>>().join(" · ")))
}

/// Compares with no huge pages at all, where the program itself requests some.
fn own_huge_pages_text(tuned: &TuningResult, tune: &TuningRun) -> Option<String> {
    let own = find_arm(tuned, tune, HugePageSelection::None).speed_up_from_never?;
    let own = format!("the program requests huge pages itself: {} than without any", format_gain(Some(own)));
    let name = |arm: &ArmResult, name: &str| {
        let (from_never, from_own) = (arm.speed_up_from_never?, arm.speed_up?);
        Some(format!(
            "{name}: {} against none at all, {} against what it gets by itself",
            format_gain_so_far(from_never),
            format_gain_so_far(from_own)
        ))
    };
    let plan = name(&find_arm(tuned, tune, HugePageSelection::Plan), "plan");
    let all = name(&find_arm(tuned, tune, HugePageSelection::All), "all");
    Some([Some(own), plan, all].into_iter().flatten().collect::<Vec<_>>().join("; "))
}

/// Compares the plan with all: the plan's merit is speed per huge page.
fn plan_against_all_text(tuned: &TuningResult) -> Option<String> {
    let of_pages = tuned.huge_pages_share.filter(|share| *share < 0.995);
    let of_pages = of_pages.map(|share| format!("{} of the huge pages", format_percent(share)));
    let (value, interval) = tuned.plan_to_all?;
    let between =
        format!("{}× the time of all ({})", format_ratio(value, Some(interval)), format_interval(interval));
    Some(match (tuned.faster_selection(), tuned.gain_share, of_pages) {
        (Some(HugePageSelection::Plan), _, pages) => {
            let pages = pages.map_or(String::new(), |pages| format!(" with {pages}"));
            format!("the plan is faster than all memory on huge pages: {between}{pages}")
        }
        (Some(_), Some(share), Some(pages)) if share > 0.0 => {
            format!(
                "{} of the gain of all with {pages}; all is faster, the plan takes {between}",
                format_percent(share)
            )
        }
        (Some(_), _, _) => format!("all memory on huge pages is faster: the plan takes {between}"),
        (None, _, Some(pages)) => {
            format!("no difference between plan and all was measured: {between}, with {pages}")
        }
        (None, _, None) => {
            format!(
                "no difference between plan and all was measured: {between}; the plan covers all used memory"
            )
        }
    })
}

/// Describes the result by CPU time, if the verdict is by another measure.
fn cpu_time_text(tuned: &TuningResult, tune: &TuningRun) -> Option<String> {
    let of = |selection: HugePageSelection| {
        let of_arm = find_arm(tuned, tune, selection);
        let measured_gain = of_arm.cpu_speed_up.filter(|_| tuned.measure != measures::CPU)?;
        Some(format_gain_so_far(measured_gain))
    };
    match (of(HugePageSelection::Plan), of(HugePageSelection::All)) {
        (Some(plan), Some(all)) => Some(format!("by CPU time: plan {plan}, all {all}")),
        (Some(plan), None) => Some(format!("by CPU time: plan {plan}")),
        (None, Some(all)) => Some(format!("by CPU time: all {all}")),
        (None, None) => None,
    }
}

/// Describes page walks and page faults separately.
fn savings_text(tuned: &TuningResult, tune: &TuningRun) -> Option<String> {
    let (none, plan_arm) =
        (find_arm(tuned, tune, HugePageSelection::None), find_arm(tuned, tune, HugePageSelection::Plan));
    let user_less_ns = none.user_ns? - plan_arm.user_ns?;
    let system_less_ns = none.system_ns? - plan_arm.system_ns?;
    let faults = none.faults.zip(plan_arm.faults).filter(|(from, _)| *from > 0.0);
    Some(describe_savings(user_less_ns, system_less_ns, faults))
}

/// `user_less_ns`, `system_less_ns`: negative if the plan takes more. `page_faults`: without and with the
/// plan. Page walks and page faults are named as the cause of a difference only if they changed in its
/// direction.
fn describe_savings(user_less_ns: f64, system_less_ns: f64, page_faults: Option<(f64, f64)>) -> String {
    let text = |less_ns: f64| match less_ns < 0.0 {
        true => format!("{} more", format_duration(-less_ns as u64)),
        false => format!("{} less", format_duration(less_ns as u64)),
    };
    let walks = if user_less_ns > 0.0 { " (page walks)" } else { "" };
    let faults = page_faults.map_or(String::new(), |(from, to)| {
        let (from_text, to_text) = (format_count(from as u128), format_count(to as u128));
        let change = format!("page faults {from_text} → {to_text}, {}", format_reduction(to / from));
        match (from - to) * system_less_ns > 0.0 {
            true => format!(": {change}"),
            false => format!("; {change}, which does not explain it"),
        }
    });
    format!("plan: {} user time{walks}, {} system time{faults}", text(user_less_ns), text(system_less_ns))
}

fn prediction_text(tuned: &TuningResult, tune: &TuningRun, prediction: PredictionBasis) -> Option<String> {
    let measured_gain = tuned.arms.get(tune.arm_index(HugePageSelection::Plan)?)?;
    // The profile knows the cost without huge pages, also if the program requests some itself.
    let from_never = measured_gain.speed_up_from_never;
    let (value, walks_within) = from_never.or(measured_gain.speed_up)?;
    let (_, within) = measured_gain.speed_up?;
    let base = if from_never.is_some() { " against none at all" } else { "" };
    let against_measured = |foretold: f64| {
        let Some(within) = walks_within else { return "too few rounds to compare".to_owned() };
        if prediction == PredictionBasis::LowerBound && foretold < within.low {
            return "below the measured interval".to_owned();
        }
        match (within.contains(foretold), value > 1.0 && foretold > 1.0) {
            (true, _) => "within the measured interval".to_owned(),
            (false, true) => {
                format!("{:.0} % of the measured gain", (foretold - 1.0) / (value - 1.0) * 100.0)
            }
            (false, false) => "which the measurement does not show".to_owned(),
        }
    };
    let (least, basis) = match prediction {
        PredictionBasis::Misses => ("", ""),
        PredictionBasis::LowerBound => ("at least ", " (from a lower bound of the misses)"),
    };
    let walk_cost_text = measured_gain
        .predicted_speed_up
        .map(|of| format!("predicted {least}{}{base}{basis}, {}", format_times(of), against_measured(of)));
    let measured_pair_text =
        measured_gain.scaled_speed_up.zip(measured_gain.scaled_interval).map(|(of, foretold)| {
            let holds = match within {
                None => "too few rounds to compare",
                Some(within) if within.low <= foretold.high && foretold.low <= within.high => "which holds",
                Some(_) => "which does not hold",
            };
            format!(
                "scaled from the measured times of none and all: {}, interval {}, {holds}",
                format_times(of),
                format_interval(foretold).replace(" to ", "× to ") + "×"
            )
        });
    match (walk_cost_text, measured_pair_text) {
        (Some(cost), Some(pair)) => Some(format!("{cost}; {pair}")),
        (Some(cost), None) => Some(cost),
        (None, Some(pair)) => Some(format!("prediction {pair}")),
        (None, None) => None,
    }
}

/// Formats where the slope of the curve breaks, and what most of the gain needs.
fn knee_text(tune: &TuningRun) -> Option<String> {
    let share = |permille: u32| format_percent(f64::from(permille) / 1000.0);
    let planned = tune.arms.iter().find(|arm| arm.selection == HugePageSelection::Plan);
    let takes = planned.and_then(|arm| arm.planned).map_or(String::new(), |pages| {
        format!("; the plan takes {}, by {}", format_count(u128::from(pages)), tune.plan_arguments)
    });
    let most_text = |gain: &str| match tune.most_of_gain {
        Some(most) => {
            let pages = format_count(u128::from(most.pages));
            format!("; 90 % of {gain} needs {pages} ({}){takes}", share(most.share_permille))
        }
        None => String::new(),
    };
    let Some(knee) = tune.knee else {
        // Nothing to save has no curve, and needs no word on its knee.
        let absence = tune.knee_absence.as_ref().filter(|_| tune.most_of_gain.is_some())?;
        return Some(format!("according to the profile: {absence}{}", most_text("the possible gain")));
    };
    let range = tune.knee_range.filter(|range| range.low < range.high).map_or(String::new(), |range| {
        let (low, high) = (format_count(u128::from(range.low)), format_count(u128::from(range.high)));
        format!(" ({low} to {high})")
    });
    let before = || tune.curve.iter().rev().find(|point| point.pages <= knee);
    let permille =
        tune.knee_range.map(|range| range.share_permille).or_else(|| Some(before()?.share_permille))?;
    let pages = format_count(u128::from(knee));
    Some(format!(
        "according to the profile, the knee is at {pages} huge pages{range}: {} of the possible gain{}",
        share(permille),
        most_text("it")
    ))
}

#[cfg(test)]
mod tests {
    use super::describe_savings;

    #[test]
    fn page_faults_explain_system_time_only_in_its_direction() {
        let check = |user_ns: f64, system_ns: f64, faults: (f64, f64), expected: &str| {
            let said = describe_savings(user_ns, system_ns, Some(faults)).replace('\u{202f}', " ");
            assert_eq!(said, expected);
        };
        check(
            2.16e9,
            120e6,
            (16_900.0, 15_878.0),
            "plan: 2.16 s less user time (page walks), 120 ms less system time: page faults 16 900 → 15 878, \
             6.0 % fewer",
        );
        check(
            2.16e9,
            11.4e6,
            (24_403.0, 25_201.0),
            "plan: 2.16 s less user time (page walks), 11.4 ms less system time; page faults 24 403 → \
             25 201, 3.3 % more, which does not explain it",
        );
        check(
            -1e9,
            -50e6,
            (1000.0, 2000.0),
            "plan: 1 s more user time, 50 ms more system time: page faults 1 000 → 2 000, 100.0 % more",
        );
        check(
            1e9,
            -50e6,
            (1000.0, 1000.0),
            "plan: 1 s less user time (page walks), 50 ms more system time; page faults 1 000 → \
             1 000, as many, which does not explain it",
        );
        let without = describe_savings(1e9, 1e6, None);
        assert!(!without.contains("page faults"), "{without}");
    }
}
