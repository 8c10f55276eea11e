//! Report of how much memory a program needs: the need with its interval, the knee, the limit at which it is
//! killed, and doubts about these.

use pagelab_metrics::effect::{PAIRS_MIN, WorkloadEffects};
use pagelab_metrics::memory_need::{KneeAbsence, MemoryCurve, MemoryNeed, NeedUnknown};
use pagelab_model::Bytes;
use pagelab_model::experiment::Plan;
use pagelab_model::settings::Settings;

use crate::style::{format_bytes, format_plural, format_three_digits};

/// Key of the group's swap limit.
const SWAP_KEY: &str = "swap";
/// Counts of pages that were reclaimed and then read again.
const REFAULT_COUNTERS: [&str; 2] = ["group.workingset_refault_anon", "group.workingset_refault_file"];
/// Share of the largest limit in refaults above which that limit may itself be too small.
const REFAULT_SHARE_MAX: f64 = 0.01;

/// Further data for the description of a curve.
#[derive(Clone, Copy, Debug)]
pub struct NeedContext<'a> {
    /// Plan of the experiment.
    pub plan: &'a Plan,
    /// Setup of the machine.
    pub settings: &'a Settings,
    /// Values of the workload's measures.
    pub effects: &'a WorkloadEffects,
    /// Bytes of a page.
    pub page_bytes: u64,
}

/// Describes a curve: the answer first, a phrase each, without a trailing dot.
pub fn describe_curve(curve: &MemoryCurve, context: NeedContext<'_>) -> Vec<String> {
    let mut sentences = vec![match &curve.memory_need {
        Ok(need) => describe_need(curve, need),
        Err(why) => describe_unknown_need(curve, *why),
    }];
    match curve.knee {
        Ok(knee) => sentences.push(format!("the knee is at {}", format_limit(curve, knee))),
        Err(KneeAbsence::Straight) => {
            sentences.push(
                "there is no knee: performance degrades evenly, or mostly at the first step".to_owned(),
            );
        }
        Err(_) => {}
    }
    sentences.extend(describe_fatal_limits(curve, context));
    if let Some((less, more)) = curve.contradiction {
        sentences.push(format!(
            "it was faster with {} than with {}, beyond both intervals: the fit averages over this, and \
             memory is not the cause",
            format_limit(curve, less),
            format_limit(curve, more)
        ));
    }
    sentences.extend(describe_refaults(curve, context));
    sentences
}

/// Distinguishes a curve from others of the same workload: `swap 2G`.
pub fn curve_label(curve: &MemoryCurve) -> String {
    let pairs: Vec<String> = curve.common.iter().map(|(key, value)| format!("{key} {value}")).collect();
    if pairs.is_empty() { "no other settings".to_owned() } else { pairs.join(", ") }
}

fn format_limit(curve: &MemoryCurve, limit_index: usize) -> String {
    let limit = curve.points.get(limit_index).and_then(|place| place.limit);
    limit.map_or("no limit".to_owned(), format_bytes)
}

fn describe_need(curve: &MemoryCurve, need: &MemoryNeed) -> String {
    let most = format!("for at most {} % loss", format_three_digits(curve.loss * 100.0));
    let last = curve.points.len().saturating_sub(1);
    let (enough_text, largest) = (format_limit(curve, need.smallest_sufficient), format_limit(curve, last));
    let estimate = need.estimate.map(|estimate| format_bytes(Bytes(estimate as u64)));
    match (need.largest_insufficient, estimate) {
        (None, _) if need.smallest_sufficient == last => format!(
            "its need {most} is unknown: at every limit, the interval of the loss contains this loss; more \
             rounds are needed"
        ),
        (Some(less), _) if need.smallest_sufficient == last && curve.points[last].limit.is_some() => format!(
            "needs more than {} {most}; no limit below {largest}, the largest measured, was shown to be \
             enough",
            format_limit(curve, less)
        ),
        (Some(less), None) => {
            format!("needs more than {} {most}; larger limits were not measured", format_limit(curve, less))
        }
        (Some(less), Some(estimate)) => {
            format!("needs {estimate} ({} to {enough_text}) {most}", format_limit(curve, less))
        }
        (None, _) if need.smallest_sufficient == 0 => {
            format!("needs at most {enough_text} {most}, the smallest measured limit")
        }
        (None, _) => format!(
            "needs at most {enough_text} {most}; less may suffice: at the next smaller limit, the interval \
             of the loss contains this loss"
        ),
    }
}

fn describe_unknown_need(curve: &MemoryCurve, reason: NeedUnknown) -> String {
    let last = format_limit(curve, curve.points.len().saturating_sub(1));
    match reason {
        NeedUnknown::OneLimit => {
            "one limit is not enough to estimate the need: a curve needs at least two".to_owned()
        }
        NeedUnknown::FatalEverywhere => {
            format!("killed under every measured limit: it needs more than {last}")
        }
        NeedUnknown::FatalAtLargest => {
            format!("killed under {last}, the largest limit: no baseline; hint: use larger limits")
        }
        NeedUnknown::NotMeasuredAtLargest => {
            format!("nothing was measured under {last}, the largest limit: no baseline")
        }
        NeedUnknown::TooFew { rounds } => {
            let rounds = format_plural(rounds, "round");
            format!(
                "too few rounds to determine how much it needs: {rounds}; at least {PAIRS_MIN} are required"
            )
        }
    }
}

fn describe_fatal_limits(curve: &MemoryCurve, context: NeedContext<'_>) -> Option<String> {
    let fatal_limits = curve.fatal_limits?;
    let limit_text = &curve.points[fatal_limits.largest_fatal];
    // If it survives under no limit, the first sentence already says so.
    let lives_at = fatal_limits.next_survived?;
    let mut sentences = format!("dies below {}", format_limit(curve, lives_at));
    if let Some(swap) = describe_swap(curve, context) {
        sentences = format!("{sentences}: {swap}");
    }
    let dead: usize = curve.points.iter().map(|place| place.fatal).sum();
    let timed_out: usize = curve.points.iter().map(|place| place.timed_out).sum();
    if timed_out == dead {
        sentences = format!("exceeds its time limit below {}", format_limit(curve, lives_at));
    } else if timed_out > 0 {
        sentences = format!("{sentences} ({timed_out} of {dead} failed trials timed out instead)");
    }
    if limit_text.completed > 0 {
        let swap_of = limit_text.completed + limit_text.fatal;
        sentences = format!(
            "{sentences}; under {} in {} of {swap_of} trials",
            format_limit(curve, fatal_limits.largest_fatal),
            limit_text.fatal
        );
    }
    if let Some(below) = fatal_limits.smaller_survived {
        sentences = format!(
            "{sentences}; but it survived under {}: memory is not the only cause",
            format_limit(curve, below)
        );
    }
    Some(sentences)
}

fn describe_swap(curve: &MemoryCurve, context: NeedContext<'_>) -> Option<String> {
    let swap_of = |settings: &[(String, String)]| {
        settings.iter().find(|(key, _)| key == SWAP_KEY).map(|(_, of)| of.clone())
    };
    let is_file = |value: String| value != "none";
    match swap_of(&curve.common) {
        Some(value) if !is_file(value.clone()) => Some("no swap".to_owned()),
        Some(value) => Some(format!("with {value} of swap")),
        // A swap file for other variants does not count for variants without the setting.
        None if context.plan.variants.iter().filter_map(|of_| swap_of(&of_.settings)).any(is_file) => {
            Some("no swap".to_owned())
        }
        None => context.settings.swap.as_ref().ok().map(|areas| match areas.is_empty() {
            true => "no swap".to_owned(),
            false => "with the machine's swap".to_owned(),
        }),
    }
}

/// If memory is short even under the largest limit, the need may be larger than it appears.
fn describe_refaults(curve: &MemoryCurve, context: NeedContext<'_>) -> Option<String> {
    let largest = curve.points.last()?;
    let median = |name: &str| context.effects.measure(name)?.median(largest.variant);
    let pages: f64 = REFAULT_COUNTERS.iter().filter_map(|name| median(name)).sum();
    let wanted = Bytes((pages * context.page_bytes as f64) as u64);
    let is_much = wanted.0 as f64 > largest.limit?.0 as f64 * REFAULT_SHARE_MAX;
    is_much.then(|| {
        format!(
            "under {}, the largest limit, {} of reclaimed pages were refaulted: it may need more",
            format_limit(curve, curve.points.len() - 1),
            format_bytes(wanted)
        )
    })
}

#[cfg(test)]
mod tests;
