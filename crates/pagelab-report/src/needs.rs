//! How much memory a program needs, in words: the need with its interval, the knee, where it dies, and what
//! makes that doubtful.

use pagelab_metrics::effect::{PAIRS_MIN, WorkloadEffects};
use pagelab_metrics::need::{Curve, Need, NoKnee, NotKnown};
use pagelab_model::Bytes;
use pagelab_model::experiment::Plan;
use pagelab_model::settings::Settings;

use crate::style::{bytes, three_digits};

/// The key of what a group may swap.
const SWAP: &str = "swap";
/// Counts of pages that were reclaimed and wanted back.
const REFAULTS: [&str; 2] = ["group.workingset_refault_anon", "group.workingset_refault_file"];
/// The part of the largest limit that may be wanted back before it counts as too little itself.
const REFAULTED_MAX: f64 = 0.01;

/// What else must be known to speak of a curve.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    /// The plan of the experiment.
    pub plan: &'a Plan,
    /// How the machine was set up.
    pub settings: &'a Settings,
    /// What the workload's measures say.
    pub effects: &'a WorkloadEffects,
    /// Bytes of a page.
    pub page_bytes: u64,
}

/// What a curve says: the answer first, a phrase each, without a trailing dot.
pub fn sentences(curve: &Curve, ground: Ground<'_>) -> Vec<String> {
    let mut said = vec![match &curve.need {
        Ok(need) => needed(curve, need),
        Err(why) => not_known(curve, *why),
    }];
    match curve.knee {
        Ok(knee) => said.push(format!("the knee is at {}", limit(curve, knee))),
        Err(NoKnee::Straight) => {
            said.push("there is no knee: it loses evenly, or most of it at the first step".to_owned());
        }
        Err(_) => {}
    }
    said.extend(dies(curve, ground));
    if let Some((less, more)) = curve.bump {
        said.push(format!(
            "it was faster with {} than with {}, beyond both intervals: the fit levels that out, and \
             something besides memory made the difference",
            limit(curve, less),
            limit(curve, more)
        ));
    }
    said.extend(wanted_back(curve, ground));
    said
}

/// What tells a curve from others of the same workload: `swap 2G`.
pub fn label(curve: &Curve) -> String {
    let pairs: Vec<String> = curve.common.iter().map(|(key, value)| format!("{key} {value}")).collect();
    if pairs.is_empty() { "nothing else set".to_owned() } else { pairs.join(", ") }
}

fn limit(curve: &Curve, place: usize) -> String {
    let limit = curve.places.get(place).and_then(|place| place.limit);
    limit.map_or("no limit".to_owned(), bytes)
}

fn needed(curve: &Curve, need: &Need) -> String {
    let most = format!("for at most {} % loss", three_digits(curve.loss * 100.0));
    let last = curve.places.len().saturating_sub(1);
    let (enough, largest) = (limit(curve, need.enough), limit(curve, last));
    let estimate = need.estimate.map(|estimate| bytes(Bytes(estimate as u64)));
    match (need.too_little, estimate) {
        (None, _) if need.enough == last => format!(
            "it is not known how much it needs {most}: under each limit the interval of the loss holds that \
             loss, or lies on the wrong side of one that does; more rounds tell"
        ),
        (Some(less), _) if need.enough == last && curve.places[last].limit.is_some() => format!(
            "needs more than {} {most}; no limit below {largest}, the largest that was tried, was shown to \
             be enough",
            limit(curve, less)
        ),
        (Some(less), None) => {
            format!("needs more than {} {most}; how much more was not tried", limit(curve, less))
        }
        (Some(less), Some(estimate)) => {
            format!("needs {estimate} ({} to {enough}) {most}", limit(curve, less))
        }
        (None, _) if need.enough == 0 => {
            format!("needs no more than {enough} {most}, the smallest limit that was tried")
        }
        (None, _) => format!(
            "needs no more than {enough} {most}; whether less would do is not known: under the next smaller \
             limit the interval of the loss holds that loss"
        ),
    }
}

fn not_known(curve: &Curve, why: NotKnown) -> String {
    let last = limit(curve, curve.places.len().saturating_sub(1));
    match why {
        NotKnown::OneLimit => {
            "one limit alone says nothing of how much it needs: a curve takes two at least".to_owned()
        }
        NotKnown::DiesEverywhere => {
            format!("dies under every limit that was tried: it needs more than {last}")
        }
        NotKnown::DiesAtTheLargest => format!(
            "dies under {last}, the largest limit that was tried: there is nothing to compare with; try \
             larger ones"
        ),
        NotKnown::NothingAtTheLargest => {
            format!("nothing was measured under {last}, the largest limit: there is nothing to compare with")
        }
        NotKnown::TooFew { rounds } => {
            let word = if rounds == 1 { "round" } else { "rounds" };
            format!("too few to decide how much it needs, {rounds} {word} of at least {PAIRS_MIN}")
        }
    }
}

fn dies(curve: &Curve, ground: Ground<'_>) -> Option<String> {
    let found = curve.dies?;
    let at = &curve.places[found.at];
    // Where it lives nowhere above, the first sentence says so.
    let lives_at = found.lives_at?;
    let mut said = format!("dies below {}", limit(curve, lives_at));
    if let Some(swap) = swap(curve, ground) {
        said = format!("{said}: {swap}");
    }
    let dead: usize = curve.places.iter().map(|place| place.dead).sum();
    let timed_out: usize = curve.places.iter().map(|place| place.timed_out).sum();
    if timed_out == dead {
        said = format!("is not done within its time limit below {}", limit(curve, lives_at));
    } else if timed_out > 0 {
        said = format!("{said} ({timed_out} of {dead} such trials were ended at their time limit instead)");
    }
    if at.done > 0 {
        let of = at.done + at.dead;
        said = format!("{said}; under {} in {} of {of} trials", limit(curve, found.at), at.dead);
    }
    if let Some(below) = found.lives_below {
        said =
            format!("{said}; yet it lived under {}: that is no matter of memory alone", limit(curve, below));
    }
    Some(said)
}

/// What there was to swap to.
fn swap(curve: &Curve, ground: Ground<'_>) -> Option<String> {
    let of = |settings: &[(String, String)]| {
        settings.iter().find(|(key, _)| key == SWAP).map(|(_, of)| of.clone())
    };
    let is_file = |value: String| value != "none";
    match of(&curve.common) {
        Some(value) if !is_file(value.clone()) => Some("no swap".to_owned()),
        Some(value) => Some(format!("with {value} of swap")),
        // A file that is there for other variants is not for those that say nothing.
        None if ground.plan.variants.iter().filter_map(|of_| of(&of_.settings)).any(is_file) => {
            Some("no swap".to_owned())
        }
        None => ground.settings.swap.as_ref().ok().map(|areas| match areas.is_empty() {
            true => "no swap".to_owned(),
            false => "with the machine's own swap".to_owned(),
        }),
    }
}

/// Where memory is short under the largest limit already, the need may be larger than it looks.
fn wanted_back(curve: &Curve, ground: Ground<'_>) -> Option<String> {
    let largest = curve.places.last()?;
    let median = |name: &str| {
        let variants = &ground.effects.measure(name)?.variants;
        Some(variants.get(largest.variant)?.statistics?.median)
    };
    let pages: f64 = REFAULTS.iter().filter_map(|name| median(name)).sum();
    let wanted = Bytes((pages * ground.page_bytes as f64) as u64);
    let is_much = wanted.0 as f64 > largest.limit?.0 as f64 * REFAULTED_MAX;
    is_much.then(|| {
        format!(
            "under {}, the largest limit, {} of what was reclaimed were wanted back already: it may need \
             more",
            limit(curve, curve.places.len() - 1),
            bytes(wanted)
        )
    })
}

#[cfg(test)]
mod tests;
