//! Which mode of transparent huge pages is best for a program, from an experiment that varied it.

use pagelab_model::experiment::{Plan, VariantHead};

use super::{Interval, PAIRS_MIN, Paired, Verdict, WorkloadEffects};

/// The mode that serves a program best, by its own figure of merit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Huge pages everywhere: faster than where the program asks for them.
    Always,
    /// Huge pages where the program asks for them: no slower than everywhere.
    Madvise,
    /// Huge pages cost more than they give.
    Never,
    /// It runs alike with and without.
    NoDifference,
    /// Too few pairs to decide.
    TooFew,
    /// No variant got the huge pages that it asked for.
    NotHuge,
    /// There may be a difference, and it is not known well enough.
    Undecided,
}

/// The mode that a variant sets: `never`, `madvise` or `always`; `None` where it sets none.
pub fn thp_mode(variant: &VariantHead) -> Option<&'static str> {
    let (_, value) = variant.settings.iter().find(|(key, _)| key == "thp")?;
    // `never-prctl` is never by another way, `advised-only` is madvise by another way.
    let words = [("never", "never"), ("advise", "madvise"), ("always", "always")];
    words.into_iter().find(|(word, _)| value.contains(word)).map(|(_, mode)| mode)
}

/// The advice where the baseline is without huge pages and others are with them.
pub(super) fn of(plan: &Plan, workload: &WorkloadEffects) -> Option<Advice> {
    let modes: Vec<Option<&str>> = plan.variants.iter().map(thp_mode).collect();
    if modes.get(plan.baseline).copied().flatten() != Some("never") {
        return None;
    }
    let others = |wanted: &'static str| modes.iter().position(move |mode| *mode == Some(wanted));
    let (always, madvise) = (others("always"), others("madvise"));
    if always.is_none() && madvise.is_none() {
        return None;
    }
    let judged = workload.judged()?;
    let verdict = |variant: Option<usize>| Some(judged.variants.get(variant?)?.effect.as_ref().ok()?.verdict);
    let verdicts = [verdict(always), verdict(madvise)];
    Some(match verdicts {
        [Some(Verdict::Better), Some(Verdict::Better)] => {
            let pairs = |variant: Option<usize>| judged.variants.get(variant?)?.effect.as_ref().ok();
            match pairs(always).zip(pairs(madvise)) {
                Some((one, other)) if gains(&one.pairs, &other.pairs, one.ratio < 1.0) => Advice::Always,
                _ => Advice::Madvise,
            }
        }
        [Some(Verdict::Better), _] => Advice::Always,
        [_, Some(Verdict::Better)] => Advice::Madvise,
        _ => without_gain(&verdicts),
    })
}

/// Whether the first of two ratios to the same baseline is better by more than its interval.
fn gains(one: &Paired, other: &Paired, lower_is_better: bool) -> bool {
    let between = one.to(other);
    let is_better = |found: Interval| if lower_is_better { found.high < 1.0 } else { found.low > 1.0 };
    between.count() >= PAIRS_MIN && between.by_t().is_some_and(is_better)
}

fn without_gain(verdicts: &[Option<Verdict>]) -> Advice {
    let known: Vec<Verdict> = verdicts.iter().flatten().copied().collect();
    let is = |test: fn(&Verdict) -> bool| known.iter().any(test);
    if !known.is_empty() && known.iter().all(|verdict| matches!(verdict, Verdict::NotHuge { .. })) {
        return Advice::NotHuge;
    }
    if is(|verdict| matches!(verdict, Verdict::Worse)) {
        return Advice::Never;
    }
    if is(|verdict| matches!(verdict, Verdict::TooFew { .. })) {
        return Advice::TooFew;
    }
    // What got no huge pages says nothing; the other one may.
    let said = known.iter().filter(|verdict| !matches!(verdict, Verdict::NotHuge { .. }));
    let said: Vec<&Verdict> = said.collect();
    match said.as_slice() {
        [] => Advice::Undecided,
        all if all.iter().all(|verdict| matches!(verdict, Verdict::NoDifference)) => Advice::NoDifference,
        _ => Advice::Undecided,
    }
}
