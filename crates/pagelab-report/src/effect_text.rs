//! Texts for the effects of an experiment: ratios with their intervals, verdicts, and how a trial ended.

use pagelab_metrics::effect::{DoubtReason, Effect, EffectVerdict, NoiseFloor, RatioInterval, ThpAdvice};
use pagelab_model::Absence;
use pagelab_model::experiment::{MeasureHead, Plan, Sequence, Trial, TrialEnd, TrialRole, measures};
use pagelab_model::kernel_panic::PANIC_START;

use crate::quantity_format::format_duration;
use crate::style::{format_percent, format_plural};

/// Formats a ratio with as many digits as its interval justifies: `1.94`, `0.998`, `12.4`.
pub fn format_ratio(value: f64, interval: Option<RatioInterval>) -> String {
    // Near 1, the third digit separates a small effect from no effect.
    let is_narrow = interval.is_some_and(|RatioInterval { low, high }| {
        (1e-9..0.02).contains(&(high - low)) && low > 0.85 && high < 1.15
    });
    match value {
        _ if !value.is_finite() => "–".to_owned(),
        _ if value >= 1e4 || value > 0.0 && value < 9.95e-3 => format!("{value:.1e}"),
        _ if value >= 99.95 => format!("{value:.0}"),
        _ if value >= 9.995 => format!("{value:.1}"),
        _ if value < 0.0995 || is_narrow => format!("{value:.3}"),
        _ => format!("{value:.2}"),
    }
}

/// Largest quotient of the ends of an interval that still informs about the ratio.
const INTERVAL_SPAN_MAX: f64 = 1000.0;

/// Returns whether an interval is narrow enough to be useful.
pub fn is_informative(interval: RatioInterval) -> bool {
    interval.low > 0.0 && interval.high / interval.low <= INTERVAL_SPAN_MAX
}

/// Formats the interval of a ratio: `1.91 to 1.97`.
pub fn format_interval(found: RatioInterval) -> String {
    if !is_informative(found) {
        return "no useful interval".to_owned();
    }
    format!("{} to {}", format_ratio(found.low, Some(found)), format_ratio(found.high, Some(found)))
}

/// Formats an interval for a narrow column: `1.91–1.97`, or `–` if it is not useful.
pub fn format_narrow_interval(interval: RatioInterval) -> String {
    if is_informative(interval) { format_interval(interval).replace(" to ", "–") } else { "–".to_owned() }
}

/// Formats a confidence level: `95 %`, `95.7 %`.
pub fn format_level(level: f64) -> String {
    let percent = (level * 1000.0).round() / 10.0;
    format!("{percent} %")
}

/// Formats the interval of an effect, or `–`.
pub fn format_optional_interval(found: Option<RatioInterval>) -> String {
    found.map_or("–".to_owned(), format_interval)
}

/// Formats a gain: `1.94× faster (1.91 to 1.97)`, `1.20× slower (1.15 to 1.25)`, `2.10× as much (2.00 to
/// 2.20)`.
pub fn format_gain(effect: &Effect) -> String {
    let (times, interval) = effect.speed_up();
    let (word, times, interval) = match effect.verdict {
        EffectVerdict::TooFew { .. } => ("as fast", times, interval),
        EffectVerdict::Worse => ("slower", 1.0 / times, interval.map(|found| found.inverse())),
        EffectVerdict::Differs => ("as much", effect.ratio, effect.interval),
        _ => ("faster", times, interval),
    };
    let within = interval.map_or(String::new(), |found| format!(" ({})", format_interval(found)));
    format!("{}× {word}{within}", format_ratio(times, interval))
}

/// Formats the time saved: `48 % of the time saved`, `3.2 % more time`; for a merit, which is often the time
/// of one access and not of the run: `merit 48 % lower`.
pub fn format_time_saved(effect: &Effect, measure_name: &str) -> String {
    if measure_name == measures::MERIT {
        return match effect.ratio - 1.0 {
            less if less < 0.0 => format!("merit {} lower", format_percent(-less)),
            higher => format!("merit {} higher", format_share(higher)),
        };
    }
    match effect.saved_share() {
        saved if saved >= 0.0 => format!("{} of the time saved", format_percent(saved)),
        lost => format!("{} more time", format_share(-lost)),
    }
}

/// Formats a share that may exceed 1: `3.2 %`, `150 %`.
pub(crate) fn format_share(share: f64) -> String {
    if share >= 0.995 { format!("{:.0} %", share * 100.0) } else { format_percent(share) }
}

/// Formats a reduction of a count: `25.7 % fewer`, `12.0 % more`, `as many`.
pub fn format_reduction(ratio: f64) -> String {
    match (ratio - 1.0) * 100.0 {
        _ if ratio == 1.0 => "as many".to_owned(),
        less if less <= -99.95 && ratio > 0.0 => "more than 99.9 % fewer".to_owned(),
        less if less < 0.0 => format!("{:.1} % fewer", -less),
        more if more >= 999.5 => format!("{}× as many", format_ratio(ratio, None)),
        more => format!("{more:.1} % more"),
    }
}

/// Formats a noise floor: `2.1 %`.
pub fn format_noise_floor(floor: &NoiseFloor) -> String {
    format_share(floor.ratio - 1.0)
}

/// Formats a verdict for a column.
pub fn format_verdict(verdict: EffectVerdict) -> &'static str {
    match verdict {
        EffectVerdict::TooFew { .. } => "too few",
        EffectVerdict::WithoutHugePages { trials, unknown: unseen, .. } if trials == unseen => "UNSEEN",
        EffectVerdict::WithoutHugePages { .. } => "NOT HUGE",
        EffectVerdict::NotApplied { .. } => "NOT APPLIED",
        EffectVerdict::NoDifference => "no difference",
        EffectVerdict::Undecided(_) => "undecided",
        EffectVerdict::Better => "faster",
        EffectVerdict::Worse => "slower",
        EffectVerdict::Differs => "differs",
    }
}

/// Formats the verdict on a measure that is not a speed.
pub fn format_measure_verdict(verdict: EffectVerdict, ratio: f64) -> &'static str {
    match verdict.is_difference() {
        true if ratio < 1.0 => "less",
        true => "more",
        false => format_verdict(verdict),
    }
}

/// The noise floor of a measure, or the reason for its absence.
type FloorReading = Result<NoiseFloor, std::sync::Arc<Absence>>;

/// Formats a verdict, with its reason where it is not a decision.
pub fn explain_verdict(effect: &Effect, noise: &FloorReading, measure_name: &str) -> String {
    let floor_words = match noise {
        Ok(found) => format!("noise floor {}", format_noise_floor(found)),
        Err(_) => "noise floor unknown".to_owned(),
    };
    let found = format_optional_interval(effect.speed_up().1);
    match effect.verdict {
        EffectVerdict::TooFew { pairs } => {
            let pairs = format_plural(pairs, "pair");
            let least = pagelab_metrics::effect::PAIRS_MIN;
            let so_far =
                format!("so far {}, {}", format_gain(effect), format_time_saved(effect, measure_name));
            format!("too few to decide: {pairs}, at least {least} needed; {so_far}")
        }
        EffectVerdict::WithoutHugePages { trials, unknown, trials_counted: of } => {
            let how = if trials == unknown { ", with unknown result," } else { " but not allocated" };
            format!(
                "huge pages were requested{how} in {trials} of {of} trials: their effect was not measured"
            )
        }
        EffectVerdict::NotApplied { trials, trials_counted: of } => {
            format!("a setting was not applied in {trials} of {of} trials: no verdict")
        }
        EffectVerdict::NoDifference if !effect.speed_up().1.is_some_and(is_informative) => {
            format!("no difference measured (no useful interval; {floor_words})")
        }
        EffectVerdict::NoDifference => {
            format!("no difference measured (interval {found} contains 1; {floor_words})")
        }
        EffectVerdict::Undecided(DoubtReason::InsideFloor) => {
            format!("undecided: {found} is within the noise floor ({floor_words})")
        }
        EffectVerdict::Undecided(DoubtReason::Outliers) => {
            format!("undecided: the result depends on a few outlying pairs (interval {found}; {floor_words})")
        }
        EffectVerdict::Better | EffectVerdict::Worse | EffectVerdict::Differs => format_gain(effect),
    }
}

/// The advice for transparent huge pages, in words.
pub fn format_advice(advice: ThpAdvice) -> &'static str {
    match advice {
        ThpAdvice::Always => "always",
        ThpAdvice::Madvise => "madvise",
        ThpAdvice::Never => "never",
        ThpAdvice::NoDifference => "no difference for this program",
        ThpAdvice::TooFew => "too few to decide",
        ThpAdvice::NotAllocated => "no verdict on huge pages",
        ThpAdvice::Undecided => "undecided",
    }
}

/// Formats advice that rests on an undecided effect, with the reason and without repeating a word.
pub fn explain_undecided(
    advice: ThpAdvice,
    effect: &Effect,
    noise: &FloorReading,
    measure_name: &str,
) -> String {
    let (head, why) = (format_advice(advice), explain_verdict(effect, noise, measure_name));
    if why.starts_with(head) { why } else { format!("{head}: {why}") }
}

/// Formats the end of a trial as a phrase.
pub fn format_trial_end(end: &TrialEnd) -> String {
    match end {
        TrialEnd::Done => "done".to_owned(),
        TrialEnd::Failed(code) => format!("failed with exit code {code}"),
        TrialEnd::Killed(signal) => format!("killed by signal {signal}"),
        TrialEnd::OutOfMemory => "killed by the OOM killer".to_owned(),
        TrialEnd::TimedOut(ns) => format!("stopped at its time limit of {}", format_duration(*ns)),
        TrialEnd::InvalidResult(what) => format!("succeeded without a valid result: {what}"),
        TrialEnd::LeftProcesses(1) => "left a process, which was killed".to_owned(),
        TrialEnd::LeftProcesses(processes) => {
            format!("left {processes} processes, which were killed")
        }
        TrialEnd::NotStarted(why) => format!("could not be started: {why}"),
        TrialEnd::Rejected(why) => format!("rejected: {why}"),
        TrialEnd::Lost(why) => format!("lost: {why}"),
        TrialEnd::Stopped => "stopped with the experiment".to_owned(),
    }
}

/// Formats the end of a trial, of which the last output says more: in a guest that ran out of memory the
/// kernel may have panicked, and killed nothing.
pub fn describe_trial_end(trial: &Trial) -> String {
    match trial.end {
        TrialEnd::OutOfMemory if trial.last_output.contains(PANIC_START) => {
            "the guest's kernel panicked: out of memory".to_owned()
        }
        _ => format_trial_end(&trial.end),
    }
}

/// The place of experiments that other tools made: unknown of it, nor of the order of trials.
pub const IMPORTED_PLACE: &str = "imported";

/// The order of trials in words.
pub fn format_sequence(plan: &Plan) -> &'static str {
    match plan.sequence {
        _ if plan.place == IMPORTED_PLACE => "order unknown",
        Sequence::Abba => "order A B B A",
        Sequence::Blocks => "random order in each round",
        Sequence::BySeed => "all points of one seed before the next",
    }
}

/// Counts the rounds of a plan without warm-ups.
pub(crate) fn counted_rounds(plan: &Plan) -> usize {
    let counted = plan.schedule.iter().filter(|slot| slot.role == TrialRole::Measured);
    counted.map(|slot| slot.round).collect::<std::collections::BTreeSet<_>>().len()
}

/// The display name of a measure: `time`, `peak memory`, or its own name.
pub fn display_measure_name(name: &str) -> String {
    match name {
        measures::WALL => "time".to_owned(),
        measures::CPU => "CPU time".to_owned(),
        measures::CPU_USER => "CPU time, user".to_owned(),
        measures::CPU_SYSTEM => "CPU time, system".to_owned(),
        measures::PEAK_MEMORY => "peak memory".to_owned(),
        measures::MERIT => "merit".to_owned(),
        measures::HUGE_BYTES => "in huge pages".to_owned(),
        _ => match (name.strip_prefix(measures::COUNTER_PREFIX), name.strip_prefix(measures::LATENCY_PREFIX))
        {
            (Some(counter), _) => counter.to_owned(),
            (_, Some(of)) => format!("latency {of}"),
            _ => name.to_owned(),
        },
    }
}

/// The display name of a measure, after its phase if it is of one.
pub fn display_measure_key(head: &MeasureHead) -> String {
    let name = display_measure_name(&head.name);
    if head.phase.is_empty() { name } else { format!("{}/{name}", head.phase) }
}

/// Returns whether a measure counts misses of the hardware, where fewer is better.
pub fn is_miss_count(name: &str) -> bool {
    name.starts_with(measures::COUNTER_PREFIX) && name.contains("miss")
}

#[cfg(test)]
mod tests {
    use pagelab_model::experiment::BetterDirection;

    use super::*;

    fn effect(ratio: f64, low: f64, high: f64, better: BetterDirection, verdict: EffectVerdict) -> Effect {
        let interval = Some(RatioInterval { low, high });
        Effect { pairs: Default::default(), ratio, interval, level: 0.95, verdict, better }
    }

    #[test]
    fn gains_read_as_one_says_them() {
        let cases = [
            (
                effect(0.5, 0.4, 0.6, BetterDirection::Lower, EffectVerdict::Better),
                "2.00× faster (1.67 to 2.50)",
            ),
            (
                effect(1.25, 1.2, 1.3, BetterDirection::Lower, EffectVerdict::Worse),
                "1.25× slower (1.20 to 1.30)",
            ),
            (
                effect(2.0, 1.9, 2.1, BetterDirection::Higher, EffectVerdict::Better),
                "2.00× faster (1.90 to 2.10)",
            ),
            (
                effect(0.5, 0.4, 0.6, BetterDirection::Higher, EffectVerdict::Worse),
                "2.00× slower (1.67 to 2.50)",
            ),
            (
                effect(1.5, 1.4, 1.6, BetterDirection::Neither, EffectVerdict::Differs),
                "1.50× as much (1.40 to 1.60)",
            ),
            (
                effect(0.998, 0.997, 0.999, BetterDirection::Lower, EffectVerdict::Better),
                "1.002× faster (1.001 to 1.003)",
            ),
        ];
        for (effect, text) in cases {
            assert_eq!(format_gain(&effect), text);
        }
        let slow = effect(1.5, 1.4, 1.6, BetterDirection::Lower, EffectVerdict::Worse);
        assert_eq!(format_time_saved(&slow, measures::WALL), "50 % more time");
        assert_eq!(
            format_time_saved(&slow, measures::MERIT),
            "merit 50 % higher",
            "what it is of is not the run's time"
        );
        let few = effect(0.07, 0.06, 0.08, BetterDirection::Lower, EffectVerdict::TooFew { pairs: 2 });
        assert!(
            explain_verdict(
                &few,
                &Ok(NoiseFloor { ratio: 1.03, pairs: 10, is_pooled: false }),
                measures::MERIT
            )
            .ends_with(", merit 93 % lower")
        );
        assert_eq!(
            format_time_saved(
                &effect(0.957, 0.9, 1.0, BetterDirection::Lower, EffectVerdict::Better),
                measures::WALL
            ),
            "4.3 % of the time saved"
        );
        for (ratio, text) in [
            (0.743, "25.7 % fewer"),
            (3.0, "200.0 % more"),
            (1.0, "as many"),
            (40.0, "40.0× as many"),
            (1e-9, "more than 99.9 % fewer"),
        ] {
            assert_eq!(format_reduction(ratio), text);
        }
    }

    #[test]
    fn nothing_is_decided_without_a_reason() {
        let noise = Ok(NoiseFloor { ratio: 1.03, pairs: 10, is_pooled: false });
        let same = effect(1.0, 0.99, 1.02, BetterDirection::Lower, EffectVerdict::NoDifference);
        assert_eq!(
            explain_verdict(&same, &noise, measures::WALL),
            "no difference measured (interval 0.98 to 1.01 contains 1; noise floor 3.0 %)"
        );
        let wide = effect(1.0, 1.4e-14, 2.3e14, BetterDirection::Lower, EffectVerdict::NoDifference);
        assert_eq!(
            explain_verdict(&wide, &noise, measures::WALL),
            "no difference measured (no useful interval; noise floor 3.0 %)"
        );
        assert_eq!(format_narrow_interval(RatioInterval { low: 0.01, high: 11.0 }), "–");
        assert_eq!(format_interval(RatioInterval { low: 0.01, high: 9.9 }), "0.010 to 9.90");
        let few = effect(0.5, 0.4, 0.6, BetterDirection::Lower, EffectVerdict::TooFew { pairs: 1 });
        assert_eq!(
            explain_verdict(&few, &noise, measures::WALL),
            "too few to decide: 1 pair, at least 6 needed; so far 2.00× as fast (1.67 to 2.50), 50 % of \
             the time saved"
        );
        let open = effect(
            0.95,
            0.91,
            0.98,
            BetterDirection::Lower,
            EffectVerdict::Undecided(DoubtReason::InsideFloor),
        );
        assert_eq!(
            explain_undecided(ThpAdvice::Undecided, &open, &noise, measures::WALL),
            "undecided: 1.02 to 1.10 is within the noise floor (noise floor 3.0 %)"
        );
        assert!(
            explain_undecided(ThpAdvice::Always, &open, &noise, measures::WALL)
                .starts_with("always: undecided: 1.02 to 1.10")
        );
        let not_huge = effect(
            0.5,
            0.4,
            0.6,
            BetterDirection::Lower,
            EffectVerdict::WithoutHugePages { trials: 2, unknown: 0, trials_counted: 10 },
        );
        assert!(
            explain_verdict(&not_huge, &noise, measures::WALL).ends_with("their effect was not measured")
        );
        let unseen = effect(
            0.5,
            0.4,
            0.6,
            BetterDirection::Lower,
            EffectVerdict::WithoutHugePages { trials: 2, unknown: 2, trials_counted: 10 },
        );
        assert!(explain_verdict(&unseen, &noise, measures::WALL).contains("with unknown result, in 2 of 10"));
    }
}
