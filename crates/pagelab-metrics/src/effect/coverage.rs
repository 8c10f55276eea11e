//! Coverage of the intervals: how often they contain the true ratio, by simulation with the default number of
//! pairs.

use pagelab_model::random::SplitMix64;

use super::paired::{CONFIDENCE_LEVEL, PAIRS_DEFAULT, PairedRatios, RatioInterval};

/// Simulated experiments of each kind: the share that is found has a standard error of 0.44 %.
const EXPERIMENTS: usize = 2500;
/// How far the share may be from the level.
const OFF_MAX: f64 = 0.02;
/// True effect of the variant.
const TRUE_RATIO: f64 = 0.97;

/// A number above 0 and at most 1.
fn uniform(random: &mut SplitMix64) -> f64 {
    ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// A normal number of mean 0 and deviation 1 (Box and Muller 1958).
pub(super) fn normal(random: &mut SplitMix64) -> f64 {
    let (radius, angle) = (uniform(random), uniform(random));
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

/// Disturbance factor of a machine for trial `place` of `of`, with the state that it carries from one trial
/// to the next.
pub(super) type Noise = fn(random: &mut SplitMix64, place: f64, kept: &mut f64) -> f64;

/// Disturbances that are as often up as down.
fn symmetric(random: &mut SplitMix64, _: f64, _: &mut f64) -> f64 {
    (0.02 * normal(random)).exp()
}

/// Mostly small, and now and then much slower, as interrupts and other programs do.
fn skewed(random: &mut SplitMix64, _: f64, _: &mut f64) -> f64 {
    1.0 - 0.04 * uniform(random).ln()
}

/// A machine that becomes slower by 8 % while it wanders about.
fn drifting(random: &mut SplitMix64, place: f64, kept: &mut f64) -> f64 {
    *kept += 0.004 * normal(random);
    (0.08 * place + *kept + 0.015 * normal(random)).exp()
}

/// Log ratios of pairs of equal arms in the order A B B A. A drift continues beyond [`PAIRS_DEFAULT`].
pub(super) fn draw_logs(random: &mut SplitMix64, noise: Noise, pairs: usize) -> Vec<f64> {
    let (mut kept, mut logs) = (0.0, Vec::new());
    for round in 0..pairs {
        let mut value = |half: usize| {
            let place = (2 * round + half) as f64 / (2 * PAIRS_DEFAULT) as f64;
            100.0 * noise(random, place, &mut kept)
        };
        let (first, second) = (value(0), value(1));
        let (baseline, variant) = if round % 2 == 0 { (first, second) } else { (second, first) };
        logs.push((variant / baseline).ln());
    }
    logs
}

/// The pairs of one simulated experiment.
fn experiment(random: &mut SplitMix64, noise: Noise) -> PairedRatios {
    let logs = draw_logs(random, noise, PAIRS_DEFAULT);
    PairedRatios::from_logs(logs.into_iter().map(|log| log + TRUE_RATIO.ln()))
}

/// The share of experiments whose interval holds the true ratio.
fn coverage(
    noise: Noise,
    interval: impl Fn(&PairedRatios) -> Option<RatioInterval>,
    experiments: usize,
) -> f64 {
    let mut random = SplitMix64::new(20_261_122);
    let holds = |_: &usize| {
        let pairs = experiment(&mut random, noise);
        interval(&pairs).is_some_and(|interval| interval.contains(TRUE_RATIO))
    };
    (0..experiments).filter(holds).count() as f64 / experiments as f64
}

pub(super) const NOISES: [(&str, Noise); 3] =
    [("symmetric", symmetric), ("skewed", skewed), ("drifting", drifting)];

#[test]
fn intervals_hold_the_truth_as_often_as_they_say() {
    for (name, noise) in NOISES {
        let by_t = coverage(noise, PairedRatios::t_interval, EXPERIMENTS);
        let by_ranks = coverage(noise, |pairs| pairs.rank_interval().map(|(found, _)| found), EXPERIMENTS);
        assert!((by_t - CONFIDENCE_LEVEL).abs() <= OFF_MAX, "t, {name}: {by_t}");
        assert!((by_ranks - CONFIDENCE_LEVEL).abs() <= OFF_MAX, "ranks, {name}: {by_ranks}");
    }
}

/// It is shown beside the others and decides nothing, for this reason.
#[test]
fn a_bootstrap_of_few_pairs_is_too_narrow() {
    let found = coverage(symmetric, |pairs| pairs.bootstrap_interval(7), 300);
    assert!((0.84..0.94).contains(&found), "{found}");
}

/// Taking turns as A A A … B B B … would take the drift for an effect.
#[test]
fn the_simulation_would_find_a_bad_order() {
    let mut random = SplitMix64::new(7);
    let mut holds = 0;
    for _ in 0..200 {
        let mut kept = 0.0;
        let mut value =
            |at: usize| drifting(&mut random, at as f64 / (2 * PAIRS_DEFAULT) as f64, &mut kept).ln();
        let all: Vec<f64> = (0..2 * PAIRS_DEFAULT).map(&mut value).collect();
        let (first, second) = all.split_at(PAIRS_DEFAULT);
        let pairs = PairedRatios::from_logs(first.iter().zip(second).map(|(one, other)| other - one));
        holds += usize::from(pairs.t_interval().is_some_and(|interval| interval.contains(1.0)));
    }
    assert!(holds < 100, "{holds} of 200");
}
