//! Effects of an experiment in words: ratios with their intervals, verdicts, how a trial ended.

use pagelab_metrics::effect::{Advice, Doubt, Effect, Floor, Interval, Verdict};
use pagelab_model::experiment::{Better, Plan, Sequence, TrialEnd, measures};
use pagelab_model::run::Unit;
use pagelab_model::{PageSize, Reading};

use crate::quantity::duration;
use crate::style::percent;

/// A ratio with as many digits as its interval is worth: `1.94`, `0.998`, `12.4`.
pub fn ratio(value: f64, interval: Option<Interval>) -> String {
    // Near 1 a third digit tells a small effect from none.
    let is_narrow = interval.is_some_and(|Interval { low, high }| {
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

/// Ends that are further apart than this, one by the other, say nothing of a ratio.
const USEFUL_MAX: f64 = 1000.0;

/// Whether an interval says anything.
pub fn is_useful(found: Interval) -> bool {
    found.low > 0.0 && found.high / found.low <= USEFUL_MAX
}

/// An interval around a ratio: `1.91 to 1.97`.
pub fn interval(found: Interval) -> String {
    if !is_useful(found) {
        return "no useful interval".to_owned();
    }
    format!("{} to {}", ratio(found.low, Some(found)), ratio(found.high, Some(found)))
}

/// An interval for a narrow column: `1.91–1.97`, or `–` if it says nothing.
pub fn narrow_interval(found: Interval) -> String {
    if is_useful(found) { interval(found).replace(" to ", "–") } else { "–".to_owned() }
}

/// The interval of an effect, or `–`.
pub fn interval_or_none(found: Option<Interval>) -> String {
    found.map_or("–".to_owned(), interval)
}

/// `1.94× faster (1.91 to 1.97)`, `1.20× slower (1.15 to 1.25)`, `2.10× as much (2.00 to 2.20)`.
pub fn gain(effect: &Effect) -> String {
    let (times, found) = effect.speed_up();
    let (word, times, found) = match effect.verdict {
        Verdict::TooFew { .. } => ("as fast", times, found),
        Verdict::Worse => ("slower", 1.0 / times, found.map(|found| found.inverse())),
        Verdict::Differs => ("as much", effect.ratio, effect.interval),
        _ => ("faster", times, found),
    };
    let within = found.map_or(String::new(), |found| format!(" ({})", interval(found)));
    format!("{}× {word}{within}", ratio(times, found))
}

/// `48 % of the time saved`, `3.2 % more time`; of a merit, which is often the time of one access and not of
/// the run: `merit 48 % lower`.
pub fn saved(effect: &Effect, by: &str) -> String {
    if by == measures::MERIT {
        return match effect.ratio - 1.0 {
            less if less < 0.0 => format!("merit {} lower", percent(-less)),
            higher => format!("merit {} higher", more(higher)),
        };
    }
    match effect.saved() {
        saved if saved >= 0.0 => format!("{} of the time saved", percent(saved)),
        lost => format!("{} more time", more(-lost)),
    }
}

/// A share that may be above 1: `3.2 %`, `150 %`.
fn more(share: f64) -> String {
    if share >= 0.995 { format!("{:.0} %", share * 100.0) } else { percent(share) }
}

/// How much less of something there is: `25.7 % fewer`, `12.0 % more`, `as many`.
pub fn fewer(ratio: f64) -> String {
    match (ratio - 1.0) * 100.0 {
        _ if ratio == 1.0 => "as many".to_owned(),
        less if less <= -99.95 && ratio > 0.0 => "more than 99.9 % fewer".to_owned(),
        less if less < 0.0 => format!("{:.1} % fewer", -less),
        more if more >= 999.5 => format!("{}× as many", self::ratio(ratio, None)),
        more => format!("{more:.1} % more"),
    }
}

/// A noise floor: `2.1 %`.
pub fn floor(floor: &Floor) -> String {
    more(floor.ratio - 1.0)
}

/// A verdict for a column.
pub fn verdict(verdict: Verdict) -> String {
    match verdict {
        Verdict::TooFew { .. } => "too few",
        Verdict::NotHuge { trials, unseen, .. } if trials == unseen => "UNSEEN",
        Verdict::NotHuge { .. } => "NOT HUGE",
        Verdict::NotApplied { .. } => "NOT APPLIED",
        Verdict::NoDifference => "no difference",
        Verdict::Undecided(_) => "undecided",
        Verdict::Better => "faster",
        Verdict::Worse => "slower",
        Verdict::Differs => "differs",
    }
    .to_owned()
}

/// The same of a measure that is not a speed.
pub fn verdict_of(verdict: Verdict, better: Better, ratio: f64) -> String {
    match (verdict, better) {
        (Verdict::Better | Verdict::Worse | Verdict::Differs, _) => {
            if ratio < 1.0 { "less" } else { "more" }.to_owned()
        }
        _ => self::verdict(verdict),
    }
}

/// A verdict with its reason, where it decides nothing.
pub fn why(effect: &Effect, noise: &Reading<Floor>, by: &str) -> String {
    let floor_words = match noise {
        Ok(found) => format!("noise floor {}", floor(found)),
        Err(_) => "noise floor unknown".to_owned(),
    };
    let found = interval_or_none(effect.speed_up().1);
    match effect.verdict {
        Verdict::TooFew { pairs } => {
            let word = if pairs == 1 { "pair" } else { "pairs" };
            let least = pagelab_metrics::effect::PAIRS_MIN;
            let so_far = format!("so far {}, {}", gain(effect), saved(effect, by));
            format!("too few to decide, {pairs} {word} of at least {least}; {so_far}")
        }
        Verdict::NotHuge { trials, unseen, of } if trials == unseen => format!(
            "huge pages were asked for, and whether they came is not known in {trials} of {of} trials: no \
             effect of huge pages was measured"
        ),
        Verdict::NotHuge { trials, of, .. } => format!(
            "huge pages were asked for and did not come in {trials} of {of} trials: no effect of huge pages \
             was measured"
        ),
        Verdict::NotApplied { trials, of } => {
            format!("a setting was not what was asked for in {trials} of {of} trials: nothing is said of it")
        }
        Verdict::NoDifference if !effect.speed_up().1.is_some_and(is_useful) => {
            format!("no difference measured (no useful interval; {floor_words})")
        }
        Verdict::NoDifference => {
            format!("no difference measured (interval {found} contains 1; {floor_words})")
        }
        Verdict::Undecided(Doubt::InsideFloor) => {
            format!("undecided: {found} is no further from 1 than two equal runs are ({floor_words})")
        }
        Verdict::Undecided(Doubt::Outliers) => {
            format!("undecided: a few pairs far from the others decide (interval {found}; {floor_words})")
        }
        Verdict::Better | Verdict::Worse | Verdict::Differs => gain(effect),
    }
}

/// The advice for transparent huge pages, as one says it of a program.
pub fn advice(advice: Advice) -> &'static str {
    match advice {
        Advice::Always => "always",
        Advice::Madvise => "madvise",
        Advice::Never => "never",
        Advice::NoDifference => "no difference for this program",
        Advice::TooFew => "too few to decide",
        Advice::NotHuge => "no verdict on huge pages",
        Advice::Undecided => "undecided",
    }
}

/// Advice that rests on an effect that decides nothing, with the reason; the word stands once.
pub fn undecided(of: Advice, effect: &Effect, noise: &Reading<Floor>, by: &str) -> String {
    let (head, why) = (advice(of), why(effect, noise, by));
    if why.starts_with(head) { why } else { format!("{head}: {why}") }
}

/// How a trial ended, in a phrase.
pub fn end(end: &TrialEnd) -> String {
    match end {
        TrialEnd::Done => "done".to_owned(),
        TrialEnd::Failed(code) => format!("failed with exit code {code}"),
        TrialEnd::Killed(signal) => format!("killed by signal {signal}"),
        TrialEnd::OutOfMemory => "killed for want of memory".to_owned(),
        TrialEnd::TimedOut(ns) => format!("took longer than {} and was ended", duration(*ns)),
        TrialEnd::Nonsense(what) => format!("ended well and said no result: {what}"),
        TrialEnd::LeftBehind(1) => "left a process behind, which was ended".to_owned(),
        TrialEnd::LeftBehind(processes) => format!("left {processes} processes behind, which were ended"),
        TrialEnd::NotBegun(why) => format!("could not be begun: {why}"),
        TrialEnd::Rejected(why) => format!("rejected: {why}"),
        TrialEnd::Stopped => "stopped, since the experiment was ended".to_owned(),
    }
}

/// The place of experiments that other tools made: nothing is known of it, nor of the order of trials.
pub const IMPORTED: &str = "imported";

/// The order of trials in words.
pub fn sequence(plan: &Plan) -> &'static str {
    match plan.sequence {
        _ if plan.place == IMPORTED => "order unknown",
        Sequence::Abba => "order A B B A",
        Sequence::Blocks => "order by chance in each round",
    }
}

/// A measure as a person says it: `time`, `peak memory`, or its own name.
pub fn measure_name(name: &str) -> String {
    match name {
        measures::WALL => "time".to_owned(),
        measures::CPU => "CPU time".to_owned(),
        measures::CPU_USER => "CPU time, user".to_owned(),
        measures::CPU_SYSTEM => "CPU time, kernel".to_owned(),
        measures::PEAK => "peak memory".to_owned(),
        measures::MERIT => "merit".to_owned(),
        measures::HUGE => "in huge pages".to_owned(),
        _ => match (name.strip_prefix(measures::COUNTER), name.strip_prefix(measures::LATENCY)) {
            (Some(counter), _) => counter.to_owned(),
            (_, Some(of)) => format!("latency {of}"),
            _ => name.to_owned(),
        },
    }
}

/// A value of a measure with its unit.
pub fn value(value: f64, unit: &Unit, page_size: PageSize) -> String {
    crate::quantity::quantity(value, unit, page_size)
}

/// Whether a measure counts things that are to be had as few as possible by the hardware: misses.
pub fn is_misses(name: &str) -> bool {
    name.starts_with(measures::COUNTER) && name.contains("miss")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(ratio: f64, low: f64, high: f64, better: Better, verdict: Verdict) -> Effect {
        let interval = Some(Interval { low, high });
        Effect { pairs: Default::default(), ratio, interval, verdict, better }
    }

    #[test]
    fn gains_read_as_one_says_them() {
        let cases = [
            (effect(0.5, 0.4, 0.6, Better::Lower, Verdict::Better), "2.00× faster (1.67 to 2.50)"),
            (effect(1.25, 1.2, 1.3, Better::Lower, Verdict::Worse), "1.25× slower (1.20 to 1.30)"),
            (effect(2.0, 1.9, 2.1, Better::Higher, Verdict::Better), "2.00× faster (1.90 to 2.10)"),
            (effect(0.5, 0.4, 0.6, Better::Higher, Verdict::Worse), "2.00× slower (1.67 to 2.50)"),
            (effect(1.5, 1.4, 1.6, Better::Neither, Verdict::Differs), "1.50× as much (1.40 to 1.60)"),
            (effect(0.998, 0.997, 0.999, Better::Lower, Verdict::Better), "1.002× faster (1.001 to 1.003)"),
        ];
        for (effect, text) in cases {
            assert_eq!(gain(&effect), text);
        }
        let slow = effect(1.5, 1.4, 1.6, Better::Lower, Verdict::Worse);
        assert_eq!(saved(&slow, measures::WALL), "50 % more time");
        assert_eq!(saved(&slow, measures::MERIT), "merit 50 % higher", "what it is of is not the run's time");
        let few = effect(0.07, 0.06, 0.08, Better::Lower, Verdict::TooFew { pairs: 2 });
        assert!(
            why(&few, &Ok(Floor { ratio: 1.03, pairs: 10, is_pooled: false }), measures::MERIT)
                .ends_with(", merit 93 % lower")
        );
        assert_eq!(
            saved(&effect(0.957, 0.9, 1.0, Better::Lower, Verdict::Better), measures::WALL),
            "4.3 % of the time saved"
        );
        for (ratio, text) in [
            (0.743, "25.7 % fewer"),
            (3.0, "200.0 % more"),
            (1.0, "as many"),
            (40.0, "40.0× as many"),
            (1e-9, "more than 99.9 % fewer"),
        ] {
            assert_eq!(fewer(ratio), text);
        }
    }

    #[test]
    fn nothing_is_decided_without_a_reason() {
        let noise = Ok(Floor { ratio: 1.03, pairs: 10, is_pooled: false });
        let same = effect(1.0, 0.99, 1.02, Better::Lower, Verdict::NoDifference);
        assert_eq!(
            why(&same, &noise, measures::WALL),
            "no difference measured (interval 0.98 to 1.01 contains 1; noise floor 3.0 %)"
        );
        let wide = effect(1.0, 1.4e-14, 2.3e14, Better::Lower, Verdict::NoDifference);
        assert_eq!(
            why(&wide, &noise, measures::WALL),
            "no difference measured (no useful interval; noise floor 3.0 %)"
        );
        assert_eq!(narrow_interval(Interval { low: 0.01, high: 11.0 }), "–");
        assert_eq!(interval(Interval { low: 0.01, high: 9.9 }), "0.010 to 9.90");
        let few = effect(0.5, 0.4, 0.6, Better::Lower, Verdict::TooFew { pairs: 1 });
        assert_eq!(
            why(&few, &noise, measures::WALL),
            "too few to decide, 1 pair of at least 6; so far 2.00× as fast (1.67 to 2.50), 50 % of the time saved"
        );
        let open = effect(0.95, 0.91, 0.98, Better::Lower, Verdict::Undecided(Doubt::InsideFloor));
        assert_eq!(
            undecided(Advice::Undecided, &open, &noise, measures::WALL),
            "undecided: 1.02 to 1.10 is no further from 1 than two equal runs are (noise floor 3.0 %)"
        );
        assert!(
            undecided(Advice::Always, &open, &noise, measures::WALL)
                .starts_with("always: undecided: 1.02 to 1.10")
        );
        let not_huge =
            effect(0.5, 0.4, 0.6, Better::Lower, Verdict::NotHuge { trials: 2, unseen: 0, of: 10 });
        assert!(why(&not_huge, &noise, measures::WALL).ends_with("no effect of huge pages was measured"));
        let unseen = effect(0.5, 0.4, 0.6, Better::Lower, Verdict::NotHuge { trials: 2, unseen: 2, of: 10 });
        assert!(why(&unseen, &noise, measures::WALL).contains("is not known in 2 of 10"));
    }
}
