//! A judgement in words: one sentence for each comparison, and the verdict.

use pagelab_metrics::effect::{PAIRS_MIN, RatioInterval};
use pagelab_metrics::judge::{
    ComparisonVerdict, JudgeVerdict, JudgedComparison, Judgement, UndecidedReason, badness,
};
use pagelab_model::experiment::{BetterDirection, MeasureHead, Plan};
use pagelab_model::run::Unit;

use crate::effect_text::{explain_verdict, format_share, is_informative};
use crate::json::experiment::{baseline_name, variant_name, workload_name};
use crate::style::{TextStyle, format_plural};

/// Renders a judgement: lines that begin with `judge: `, and are not wrapped.
pub fn render_judgement(judgement: &Judgement, plan: &Plan, style: TextStyle) -> String {
    let sentences = judgement.comparisons.iter().map(|of| describe_comparison(judgement, of, plan));
    let lines = sentences.chain([describe_judgement(judgement)]);
    lines.map(|line| format!("judge: {}\n", style.to_one_line(&line))).collect()
}

/// Describes one comparison: `wall of chase: 6.12 is 4.0 % slower than 6.1 (1.0 to 7.0 %): not worse than the
/// accepted 10 %`.
pub fn describe_comparison(judgement: &Judgement, of: &JudgedComparison, plan: &Plan) -> String {
    let variant = variant_name(plan, of.variant);
    let baseline = baseline_name(plan).unwrap_or_default();
    let place = format!("{} of {}", judgement.measure, workload_name(plan, of.workload));
    let accepted = format_loss(judgement.loss);
    let verdict = match &of.verdict {
        ComparisonVerdict::NotWorse => format!("not worse than the accepted {accepted}"),
        ComparisonVerdict::Worse => format!("worse than the accepted {accepted}"),
        ComparisonVerdict::OutOfMemory { trials } => {
            let all = format_plural(*trials, "trial");
            let none = format!("and none of {baseline}");
            return format!(
                "{place}: {variant} against {baseline}: worse: all {all} ran out of memory, {none}"
            );
        }
        ComparisonVerdict::Undecided(UndecidedReason::Interval) => {
            format!("undecided, since the interval contains the accepted {accepted}")
        }
        ComparisonVerdict::Undecided(reason) => {
            return format!("{place}: {variant} against {baseline}: {}", explain_undecided(of, reason));
        }
    };
    format!("{place}: {}: {verdict}", describe_difference(of, [variant, baseline]))
}

fn explain_undecided(of: &JudgedComparison, reason: &UndecidedReason) -> String {
    let text = match (reason, &of.effect, &of.noise_floor) {
        (UndecidedReason::NotAnEffect(_), Some(effect), Some(floor)) => {
            let name = of.head.as_ref().map_or("", |head| head.name.as_str());
            explain_verdict(effect, floor, name)
        }
        (UndecidedReason::TooFewPairs { pairs }, ..) => {
            let missing = PAIRS_MIN.saturating_sub(*pairs);
            let verb = if missing == 1 { "is" } else { "are" };
            format!("{}, {missing} more {verb} needed", format_plural(*pairs, "complete pair"))
        }
        (UndecidedReason::Absent(absence), ..) => absence.reason_and_hint(),
        (UndecidedReason::OutOfMemory { variant, baseline }, ..) => {
            let trials = format_plural(*variant, "trial");
            format!("{trials} ran out of memory, and {baseline} of the baseline")
        }
        (UndecidedReason::ZeroValue, ..) => "a value is 0, which has no ratio".to_owned(),
        (UndecidedReason::Interval | UndecidedReason::NotAnEffect(_), ..) => String::new(),
    };
    if text.starts_with("undecided") { text } else { format!("undecided: {text}") }
}

/// `6.12 is 4.0 % slower than 6.1 (1.0 to 7.0 %)`.
fn describe_difference(of: &JudgedComparison, [variant, baseline]: [&str; 2]) -> String {
    let (Some(effect), Some(head)) = (&of.effect, &of.head) else { return String::new() };
    let (times, interval) = badness(effect);
    let is_speed = is_speed(head);
    let [worse, better] = if is_speed { ["slower", "faster"] } else { ["more", "less"] };
    let word = if times > 1.0 { worse } else { better };
    let within = interval.map_or(String::new(), |found| format_share_interval(found, [worse, better]));
    let share = format_distance(times);
    // Of a measure of which more is better, the baseline has more where the variant is worse.
    let [first, other] = match effect.better {
        BetterDirection::Higher if !is_speed => [baseline, variant],
        _ => [variant, baseline],
    };
    match (times == 1.0, is_speed) {
        (true, true) => format!("{first} is as fast as {other}{within}"),
        (true, false) => format!("{first} has as much as {other}{within}"),
        (false, true) => format!("{first} is {share} {word} than {other}{within}"),
        (false, false) => format!("{first} has {share} {word} than {other}{within}"),
    }
}

/// ` (1.0 to 7.0 %)`, and with both words if the interval contains no difference.
fn format_share_interval(found: RatioInterval, [worse, better]: [&str; 2]) -> String {
    if !is_informative(found) {
        return " (no useful interval)".to_owned();
    }
    let [low, high] = [found.low, found.high].map(format_distance);
    let without_unit = |text: &str| text.trim_end_matches(" %").to_owned();
    match (found.low >= 1.0, found.high <= 1.0) {
        (true, _) => format!(" ({} to {high})", without_unit(&low)),
        (_, true) => format!(" ({} to {low})", without_unit(&high)),
        _ => format!(" ({low} {better} to {high} {worse})"),
    }
}

/// Formats how far a ratio is from 1: `4.0 %`, `150 %`.
fn format_distance(times: f64) -> String {
    format_share((times - 1.0).abs())
}

/// Formats an accepted loss: `10 %`, `2.5 %`.
fn format_loss(loss: f64) -> String {
    format!("{} %", (loss * 1e5).round() / 1e3)
}

/// Whether it is a time, or work in a time.
fn is_speed(head: &MeasureHead) -> bool {
    const TIMES: [&str; 7] = [Unit::NANOSECONDS, Unit::MICROSECONDS, "µs", "ms", "s", "min", "h"];
    let unit = head.unit.0.as_str();
    let [numerator, denominator] = [unit.split(['/', ' ']).next(), unit.rsplit_once('/').map(|of| of.1)];
    let part = if head.better == BetterDirection::Higher { denominator } else { numerator };
    part.is_some_and(|part| TIMES.contains(&part))
}

/// Describes the verdict on all comparisons.
pub fn describe_judgement(judgement: &Judgement) -> String {
    let accepted = format_loss(judgement.loss);
    let all = judgement.comparisons.len();
    let comparisons = format_plural(all, "comparison");
    let failed = match judgement.failed_trials {
        0 => String::new(),
        failed => {
            let trials = format_plural(judgement.ended_trials, "trial");
            format!("; {failed} of {trials} failed")
        }
    };
    let text = match judgement.verdict() {
        JudgeVerdict::Worse => {
            let worse = judgement.count(JudgeVerdict::Worse);
            let verb = if worse == 1 { "exceeds" } else { "exceed" };
            let is_short =
                |of: &&JudgedComparison| matches!(of.verdict, ComparisonVerdict::OutOfMemory { .. });
            match judgement.comparisons.iter().filter(is_short).count() {
                0 => format!("worse: {worse} of {comparisons} {verb} the accepted {accepted}"),
                short if short == worse => format!("worse: {worse} of {comparisons} ran out of memory"),
                short => {
                    let rest = worse - short;
                    format!(
                        "worse: {rest} of {comparisons} beyond the accepted {accepted}, {short} out of memory"
                    )
                }
            }
        }
        JudgeVerdict::NotWorse => {
            let verb = if all == 1 { "is" } else { "are" };
            format!("not worse: {comparisons} {verb} within the accepted {accepted}")
        }
        JudgeVerdict::Undecided => {
            let open = judgement.count(JudgeVerdict::Undecided);
            let verb = if open == 1 { "is" } else { "are" };
            format!("undecided: {open} of {comparisons} {verb} undecided, and none is worse")
        }
    };
    text + &failed
}

#[cfg(test)]
mod tests;
