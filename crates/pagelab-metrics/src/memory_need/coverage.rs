//! Coverage of the interval of the need, by simulation: curves of several shapes, several types of noise, few
//! rounds and the default number.

use pagelab_model::Bytes;
use pagelab_model::experiment::DEFAULT_LOSS;
use pagelab_model::random::SplitMix64;

use super::{LimitPoint, MemoryCurve};
use crate::effect::{CONFIDENCE_LEVEL, PAIRS_DEFAULT, PAIRS_MIN, PairedRatios};

/// Simulated experiments of each kind: the share that is found has a standard error of 1.1 %.
const EXPERIMENTS: usize = 400;
/// The limits, in pages of nothing in particular, ascending.
const LIMITS: [u64; 8] = [100, 130, 160, 200, 250, 320, 400, 500];

/// A number above 0 and at most 1.
fn uniform(random: &mut SplitMix64) -> f64 {
    ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// A normal number of mean 0 and deviation 1 (Box and Muller 1958).
fn normal(random: &mut SplitMix64) -> f64 {
    let (radius, angle) = (uniform(random), uniform(random));
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

/// The logarithm of the factor by which a machine disturbs a trial.
type Noise = fn(&mut SplitMix64) -> f64;
const NOISES: [(&str, Noise); 3] = [
    ("small", |random| 0.01 * normal(random)),
    ("large", |random| 0.05 * normal(random)),
    ("skewed", |random| (1.0 - 0.04 * uniform(random).ln()).ln()),
];

/// The time under a limit, as a ratio to that without one: never less with less memory.
type Shape = fn(f64) -> f64;
const SHAPES: [(&str, Shape); 5] = [
    // Just above a limit that is tried, and between two.
    ("cliff", |limit| if limit < 201.0 { 3.0 } else { 1.0 }),
    ("cliff between", |limit| if limit < 225.0 { 3.0 } else { 1.0 }),
    ("gentle", |limit| (300.0 / limit).max(1.0).powf(0.3)),
    // At many limits the loss is close to the requested one, on both sides.
    ("just enough", |limit| if limit < 140.0 { 2.0 } else { 1.0499 }),
    ("just too little", |limit| if limit < 390.0 { 1.0501 } else { 1.0 }),
];

/// The least memory under which the loss is at most the requested one.
fn truth(shape: Shape) -> f64 {
    let tenths = LIMITS[0] * 10..=LIMITS[7] * 10;
    let enough = tenths
        .map(|tenth| tenth as f64 / 10.0)
        .find(|&limit| shape(limit) / shape(500.0) <= 1.0 + DEFAULT_LOSS);
    enough.unwrap()
}

fn simulated(random: &mut SplitMix64, shape: Shape, noise: Noise, rounds: usize) -> MemoryCurve {
    let logs: Vec<Vec<f64>> = (0..rounds)
        .map(|_| LIMITS.iter().map(|&limit| shape(limit as f64).ln() + noise(random)).collect())
        .collect();
    let place = |(at, &limit): (usize, &u64)| {
        let pairs = logs.iter().map(|round| round[at] - round[LIMITS.len() - 1]);
        let pairs =
            if at + 1 < LIMITS.len() { PairedRatios::from_logs(pairs) } else { PairedRatios::default() };
        let (limit, interval) = (Some(Bytes(limit)), pairs.t_interval());
        LimitPoint { variant: at, limit, completed: rounds, pairs, interval, ..LimitPoint::default() }
    };
    let places = LIMITS.iter().enumerate().map(place).collect();
    MemoryCurve::from_points(0, String::new(), Vec::new(), DEFAULT_LOSS, rounds, places)
}

/// Whether the true value is between the ends, and their distance in steps.
fn holds(curve: &MemoryCurve, truth: f64) -> (bool, usize) {
    let need = curve.memory_need.unwrap();
    let limit = |place: usize| curve.points[place].limit.unwrap().0 as f64;
    let is_above = need.largest_insufficient.is_none_or(|place| truth > limit(place));
    let is_below = truth <= limit(need.smallest_sufficient);
    (is_above && is_below, need.smallest_sufficient - need.largest_insufficient.map_or(0, |place| place))
}

#[test]
fn the_interval_holds_the_truth_at_least_as_often_as_it_says() {
    let mut random = SplitMix64::new(20_261_122);
    for (name, shape) in SHAPES {
        for (kind, noise) in NOISES {
            for rounds in [PAIRS_MIN, PAIRS_DEFAULT] {
                let truth = truth(shape);
                let one = |_| holds(&simulated(&mut random, shape, noise, rounds), truth).0;
                let found = (0..EXPERIMENTS).map(one).filter(|holds| *holds).count();
                let share = found as f64 / EXPERIMENTS as f64;
                // Two standard errors of the simulation.
                assert!(share >= CONFIDENCE_LEVEL - 0.022, "{name}, {kind} noise, {rounds} rounds: {share}");
            }
        }
    }
}

/// An unbounded interval would also contain the true value.
#[test]
fn with_little_noise_a_cliff_is_found_between_two_neighbours() {
    let mut random = SplitMix64::new(3);
    let (cliff, small) = (SHAPES[1].1, NOISES[0].1);
    let sharp = (0..200).filter(|_| {
        let curve = simulated(&mut random, cliff, small, PAIRS_MIN);
        let estimate = curve.memory_need.unwrap().estimate.unwrap();
        holds(&curve, truth(cliff)) == (true, 1) && (200.0..=250.0).contains(&estimate)
    });
    assert!(sharp.count() > 180);
}

/// The number is between the ends of its interval at any noise.
#[test]
fn the_estimate_lies_in_its_interval() {
    let mut random = SplitMix64::new(4);
    for (_, shape) in SHAPES {
        for (_, noise) in NOISES {
            for _ in 0..100 {
                let curve = simulated(&mut random, shape, noise, PAIRS_MIN);
                let need = curve.memory_need.unwrap();
                let limit = |place: usize| curve.points[place].limit.unwrap().0 as f64;
                let Some(estimate) = need.estimate else { continue };
                assert!(estimate <= limit(need.smallest_sufficient) * (1.0 + 1e-9), "{curve:?}");
                assert!(need.largest_insufficient.is_none_or(|place| estimate >= limit(place)), "{curve:?}");
            }
        }
    }
}
