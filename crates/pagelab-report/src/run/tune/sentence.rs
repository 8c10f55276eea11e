//! The verdict of a tuning as one says it, and what must stand beside it.

use pagelab_metrics::effect::{Interval, Verdict};
use pagelab_metrics::tune::{ArmFound, HELP_MIN, Says, Tuned};
use pagelab_model::Bytes;
use pagelab_model::experiment::measures;
use pagelab_model::tune::{On, Tune};

use super::{speed_up, times};
use crate::effects::{fewer, interval, is_useful, ratio};
use crate::quantity::duration;
use crate::style::{bytes, count, percent};

fn found(tuned: &Tuned, tune: &Tune, on: On) -> ArmFound {
    tune.arm(on).and_then(|at| tuned.arms.get(at)).cloned().unwrap_or_default()
}

/// The first line of the report.
pub(crate) fn verdict(tuned: &Tuned, tune: &Tune) -> String {
    let (plan, all) = (found(tuned, tune, On::Plan), found(tuned, tune, On::All));
    let by = match tuned.by.as_str() {
        measures::CPU => " by CPU time, while its time was no clear difference",
        _ => "",
    };
    match tuned.says {
        Says::Yes => {
            format!(
                "yes: {}{}{by}{}",
                gain(plan.speed_up),
                with(&plan, tune),
                faster_still(tuned, &plan, &all)
            )
        }
        Says::All => format!(
            "yes, with all memory on huge pages: {}{}{by}; the plan is slower than that, {}, and takes no \
             less memory",
            gain(all.speed_up),
            with(&all, tune),
            plan.speed_up.map_or_else(String::new, so_far)
        ),
        Says::AllOnly if tune.arm(On::Plan).is_none() => {
            format!("yes, with all memory on huge pages: {}{}{by}", gain(all.speed_up), with(&all, tune))
        }
        Says::AllOnly => format!(
            "only with all memory on huge pages: {}{}{by}; with the plan {}",
            gain(all.speed_up),
            with(&all, tune),
            not_faster(&plan)
        ),
        Says::Slower => {
            let worse = if plan.speed_up.is_some() { &plan } else { &all };
            format!("no: huge pages make this program slower, {}{by}", gain(worse.speed_up))
        }
        Says::NoHelp => format!(
            "huge pages do not help this program: even with all of its memory on them it is {}{by}",
            at_most(&all)
        ),
        Says::NoDifference => {
            let is_none = |arm: &ArmFound| matches!(arm.verdict, Some(Verdict::NoDifference));
            let shown = if is_none(&all) || plan.speed_up.is_none() { &all } else { &plan };
            let within = match shown.speed_up {
                Some((_, Some(within))) if !is_useful(within) => interval(within),
                found => format!("95 % interval {}", speed_up(found).1),
            };
            format!("no difference measured ({within}); more rounds or a quieter machine tell more")
        }
        Says::NotObtained => {
            "nothing is said of huge pages: those of the plan did not come, see below".to_owned()
        }
        Says::NothingPlanned => {
            "nothing to plan: the profile shows no cost of TLB misses that huge pages could save".to_owned()
        }
        Says::TooFew => {
            let shown = if plan.speed_up.is_some() { &plan } else { &all };
            format!("too few rounds to decide; so far {}", shown.speed_up.map_or_else(String::new, so_far))
        }
        Says::Undecided => {
            let is_open = |arm: &ArmFound| matches!(arm.verdict, Some(Verdict::Undecided(_)));
            let (shown, whose) = if is_open(&plan) { (&plan, "") } else { (&all, " of all memory") };
            let value = shown.speed_up.map_or_else(String::new, so_far);
            format!(
                "undecided: {value}{whose} is no further from 1 than two equal runs are, or a few rounds \
                 decide"
            )
        }
        Says::NothingMeasured => "nothing was measured: no round of the arms ended well".to_owned(),
    }
}

/// What all memory on huge pages would bring beyond the plan, and at which price.
fn faster_still(tuned: &Tuned, plan: &ArmFound, all: &ArmFound) -> String {
    let (Some(On::All), Some((value, within))) = (tuned.faster_of_both(), all.speed_up) else {
        return String::new();
    };
    let more = plan.memory.zip(all.memory).filter(|(plan, _)| *plan > 0.0);
    let price = more.map_or(String::new(), |(plan, all)| format!(", at {} more memory", more_of(all / plan)));
    format!("; with all of its memory on huge pages {}×{price}", ratio(value, within))
}

fn more_of(ratio: f64) -> String {
    format!("{:.0} %", (ratio - 1.0) * 100.0)
}

/// `1.24× faster (1.21 to 1.27)`, `1.20× slower (1.15 to 1.25)`.
fn gain(found: Option<(f64, Option<Interval>)>) -> String {
    let Some((value, within)) = found else { return "unknown".to_owned() };
    let (word, value, within) = match value < 1.0 {
        true => ("slower", 1.0 / value, within.map(|found| found.inverse())),
        false => ("faster", value, within),
    };
    let told = within.map_or(String::new(), |found| format!(" ({})", interval(found)));
    format!("{}× {word}{told}", ratio(value, within))
}

fn so_far(found: (f64, Option<Interval>)) -> String {
    let (value, within) = speed_up(Some(found));
    if within == "–" { value } else { format!("{value} ({within})") }
}

fn not_faster(plan: &ArmFound) -> String {
    match plan.speed_up {
        Some((value, Some(within))) if within.high < 1.0 => gain(Some((value, Some(within)))),
        Some((_, Some(within))) => format!("no difference was measured ({})", interval(within)),
        _ => "nothing is known".to_owned(),
    }
}

fn at_most(all: &ArmFound) -> String {
    match all.speed_up {
        Some((_, Some(within))) if is_useful(within) => {
            format!("between {}× as fast", interval(within).replace(" to ", "× and "))
        }
        _ => format!("less than {HELP_MIN}× as fast"),
    }
}

/// ` with 96 huge pages, 192 MiB`
fn with(arm: &ArmFound, tune: &Tune) -> String {
    let Some(pages) = arm.huge_pages.map(|pages| pages.round() as u64).filter(|pages| *pages > 0) else {
        return String::new();
    };
    let word = if pages == 1 { "page" } else { "pages" };
    let all = bytes(Bytes(pages.saturating_mul(tune.huge)));
    format!(" with {} huge {word}, {all}", count(pages.into()))
}

/// What must stand beside the verdict, a sentence each.
pub(super) fn beside(tuned: &Tuned, tune: &Tune) -> Vec<String> {
    let mut said = Vec::new();
    said.extend(plan_and_all(tuned));
    said.extend(by_cpu(tuned, tune));
    said.extend(saved(tuned, tune));
    said.extend(predicted(tuned, tune));
    said.extend(knee(tune));
    said
}

/// The plan beside all: its worth is speed by huge page.
fn plan_and_all(tuned: &Tuned) -> Option<String> {
    let of_pages = tuned.pages_share.filter(|share| *share < 0.995);
    let of_pages = of_pages.map(|share| format!("{} of the huge pages", percent(share)));
    let (value, within) = tuned.plan_to_all?;
    let between = format!("{} of the time of all ({})", ratio(value, Some(within)), interval(within));
    Some(match (tuned.faster_of_both(), tuned.share, of_pages) {
        (Some(On::Plan), _, pages) => {
            let pages = pages.map_or(String::new(), |pages| format!(" with {pages}"));
            format!("the plan is faster than all memory on huge pages: {between}{pages}")
        }
        (Some(_), Some(share), Some(pages)) if share > 0.0 => {
            format!(
                "{} of the gain of all with {pages}; all are faster, the plan takes {between}",
                percent(share)
            )
        }
        (Some(_), _, _) => format!("all memory on huge pages is faster: the plan takes {between}"),
        (None, _, Some(pages)) => {
            format!("between plan and all no difference was measured: {between}, with {pages}")
        }
        (None, _, None) => {
            format!(
                "between plan and all no difference was measured: {between}; the plan is all that is used"
            )
        }
    })
}

/// By CPU time, where the verdict is by another measure.
fn by_cpu(tuned: &Tuned, tune: &Tune) -> Option<String> {
    let of = |on: On| {
        let of_arm = found(tuned, tune, on);
        let found = of_arm.cpu.filter(|_| tuned.by != measures::CPU)?;
        Some(so_far(found))
    };
    match (of(On::Plan), of(On::All)) {
        (Some(plan), Some(all)) => Some(format!("by CPU time: plan {plan}, all {all}")),
        (Some(plan), None) => Some(format!("by CPU time: plan {plan}")),
        (None, Some(all)) => Some(format!("by CPU time: all {all}")),
        (None, None) => None,
    }
}

/// Walks and page faults apart.
fn saved(tuned: &Tuned, tune: &Tune) -> Option<String> {
    let (none, plan) = (found(tuned, tune, On::Nothing), found(tuned, tune, On::Plan));
    let less = |from: Option<f64>, to: Option<f64>| match from? - to? {
        more if more < 0.0 => Some(format!("{} more", duration(-more as u64))),
        less => Some(format!("{} less", duration(less as u64))),
    };
    let user = less(none.user_ns, plan.user_ns)?;
    let system = less(none.system_ns, plan.system_ns)?;
    let faults = none.faults.zip(plan.faults).filter(|(from, _)| *from > 0.0).map(|(from, to)| {
        let (from_text, to_text) = (count(from as u128), count(to as u128));
        format!(": page faults {from_text} → {to_text}, {}", fewer(to / from))
    });
    let faults = faults.unwrap_or_default();
    Some(format!("plan: {user} CPU time in user mode (page walks), {system} in the kernel{faults}"))
}

/// Prediction beside truth.
fn predicted(tuned: &Tuned, tune: &Tune) -> Option<String> {
    let found = tuned.arms.get(tune.arm(On::Plan)?)?;
    let (value, within) = found.speed_up?;
    let beside = |foretold: f64| {
        let Some(within) = within else { return "beside too few rounds to tell".to_owned() };
        match (within.contains(foretold), value > 1.0 && foretold > 1.0) {
            (true, _) => "inside of the measured interval".to_owned(),
            (false, true) => {
                format!("{:.0} % of the measured gain", (foretold - 1.0) / (value - 1.0) * 100.0)
            }
            (false, false) => "which is not what was measured".to_owned(),
        }
    };
    let by_price = found.predicted.map(|of| format!("predicted {}, {}", times(of), beside(of)));
    let by_pair = found.scaled.zip(found.scaled_within).map(|(of, foretold)| {
        let holds = match within {
            None => "beside too few rounds to tell",
            Some(within) if within.low <= foretold.high && foretold.low <= within.high => "which holds",
            Some(_) => "which does not hold",
        };
        format!(
            "scaled between the measured times of none and all {}, between {}, {holds}",
            times(of),
            interval(foretold).replace(" to ", "× and ") + "×"
        )
    });
    match (by_price, by_pair) {
        (Some(price), Some(pair)) => Some(format!("{price}; {pair}")),
        (Some(price), None) => Some(price),
        (None, Some(pair)) => Some(format!("predicted by shares: {pair}")),
        (None, None) => None,
    }
}

/// Where more huge pages bring little more, as the profile has it.
fn knee(tune: &Tune) -> Option<String> {
    let knee = tune.knee?;
    let point = tune.curve.iter().rev().find(|point| point.pages <= knee)?;
    let share = f64::from(point.share_permille) / 1000.0;
    let pages = count(u128::from(knee));
    Some(format!(
        "the knee is at {pages} huge pages, by the profile: {} of what can be gained",
        percent(share)
    ))
}
