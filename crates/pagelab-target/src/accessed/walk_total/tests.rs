//! Tests of the error of the total on simulated sweeps of a known rate: what its interval covers.

use pagelab_model::random::SplitMix64;

use super::*;

const REGIONS: usize = 4;
const PAGES: u64 = 512;
const SWEEPS_PER_TURN: u64 = 4;
const LAG_NS: u64 = 1_000_000;
/// Walks of a page in a sweep, on average: few, since a number that varies from turn to turn seems smaller
/// the more of them a bit hides.
const MEAN_WALKS: f64 = 0.1;
/// The time of the program, in sweeps.
const RUN_SWEEPS: u64 = 10_000;

fn uniform(random: &mut SplitMix64) -> f64 {
    (random.next_below(1 << 52) as f64 + 0.5) / (1u64 << 52) as f64
}

fn normal(random: &mut SplitMix64) -> f64 {
    (-2.0 * uniform(random).ln()).sqrt() * (std::f64::consts::TAU * uniform(random)).cos()
}

/// Sweeps of a program whose turns differ by `spread` (of the logarithm of the rate) and have this
/// correlation with the turn before.
fn simulate(seed: u64, turns: u64, spread: f64, correlation: f64) -> (Vec<AccessSamples>, TurnCounts) {
    let mut random = SplitMix64::new(seed);
    let (mut samples, mut counts) = (vec![AccessSamples::default(); REGIONS], TurnCounts::default());
    let mut phase = normal(&mut random);
    for turn in 0..turns {
        phase = correlation * phase + (1.0 - correlation * correlation).sqrt() * normal(&mut random);
        // The mean of a log-normal factor is 1.
        let factor = (spread * phase - spread * spread / 2.0).exp();
        for _ in 0..SWEEPS_PER_TURN {
            counts.add_sweep(turn);
            for region in &mut samples {
                let share = 1.0 - (-MEAN_WALKS * factor).exp();
                let scatter = (PAGES as f64 * share * (1.0 - share)).sqrt() * normal(&mut random);
                let found = (PAGES as f64 * share + scatter).round().clamp(0.0, PAGES as f64);
                region.add_sweep_of_turn(turn, PAGES, found as u64, LAG_NS);
            }
        }
    }
    (samples, counts)
}

/// In how many of a thousand seeds the 95 % interval holds the true number: of blocks, and of independent
/// sweeps.
fn count_covered(turns: u64, spread: f64, correlation: f64) -> (u32, u32) {
    let truth = MEAN_WALKS * (PAGES * RUN_SWEEPS) as f64 * REGIONS as f64;
    let (mut by_blocks, mut by_sweeps) = (0, 0);
    for seed in 0..1000 {
        let (samples, counts) = simulate(seed, turns, spread, correlation);
        let total = SweptTotal::from_samples(samples.iter(), &counts, RUN_SWEEPS * LAG_NS);
        let off = (total.walks() as f64 / truth).ln().abs();
        let error = total_error(std::slice::from_ref(&total), 0, std::iter::empty()).unwrap();
        // Student's t for 15 blocks.
        assert!(error.blocks.unwrap() >= 15, "{error:?}");
        by_blocks += u32::from(off <= 2.13 * error.relative);
        let regions = total.regions.iter().map(|region| (region.walks, region.draw_error));
        let former = combined_error(turns * SWEEPS_PER_TURN, regions, std::iter::empty()).unwrap();
        by_sweeps += u32::from(off <= 1.96 * former);
    }
    (by_blocks, by_sweeps)
}

#[test]
fn intervals_of_blocks_hold_for_correlated_turns_and_those_of_sweeps_do_not() {
    let (by_blocks, by_sweeps) = count_covered(240, 0.4, 0.6);
    assert!(by_blocks >= 940, "{by_blocks} of 1000");
    assert!(by_sweeps < 800, "{by_sweeps} of 1000");
}

/// An even program is known better than its number of sweeps tells.
#[test]
fn intervals_of_an_even_program_are_narrower_and_hold_too() {
    let (by_blocks, _) = count_covered(60, 0.0, 0.0);
    assert!(by_blocks >= 930, "{by_blocks} of 1000");
    let (samples, counts) = simulate(7, 60, 0.0, 0.0);
    let total = SweptTotal::from_samples(samples.iter(), &counts, LAG_NS);
    let (error, blocks) = total.block_error.unwrap();
    assert!(error < 0.01 && blocks == 15, "{error} {blocks}");
}

#[test]
fn turns_are_in_eight_to_sixteen_blocks_and_no_sweep_is_lost() {
    for turns in [8, 16, 17, 100, 1000, 4097] {
        let (mut counts, mut samples) = (TurnCounts::default(), AccessSamples::default());
        for turn in 0..turns {
            counts.add_sweep(turn);
            counts.add_sweep(turn);
            samples.add_sweep_of_turn(turn, 10, turn % 10, LAG_NS);
        }
        assert!((8..=16).contains(&counts.sweeps.len()), "{turns}: {:?}", counts.sweeps);
        assert_eq!((counts.turns(), counts.all_sweeps()), (turns, 2.0 * turns as f64));
        assert_eq!(samples.sweep_count(), turns);
    }
}

/// A region that was not seen lately has its blocks joined when it is compared with the others.
#[test]
fn regions_of_different_ages_share_their_blocks() {
    let (mut counts, mut early, mut all) =
        (TurnCounts::default(), AccessSamples::default(), AccessSamples::default());
    for turn in 0..100 {
        counts.add_sweep(turn);
        all.add_sweep_of_turn(turn, 100, 40, LAG_NS);
        if turn < 16 {
            early.add_sweep_of_turn(turn, 100, 40, LAG_NS);
        }
    }
    let total = SweptTotal::from_samples([&early, &all].into_iter(), &counts, LAG_NS);
    let walks = |at: usize| total.regions[at].walks;
    assert_eq!((walks(0), walks(1)), (8, 51), "in proportion to the time in which it existed");
    assert!(total.regions[0].share_error > 3.0 * total.regions[1].share_error, "{:?}", total.regions);
}

#[test]
fn few_turns_fall_back_to_draws_and_moments() {
    let (samples, counts) = simulate(3, 3, 0.0, 0.0);
    let total = SweptTotal::from_samples(samples.iter(), &counts, LAG_NS);
    let error = total_error(std::slice::from_ref(&total), 0, std::iter::empty()).unwrap();
    assert!(error.blocks.is_none() && (0.57..0.6).contains(&error.relative), "{error:?}");
    assert_eq!(total_error(&[], 0, std::iter::empty()), None);
    let idle = total_error(&[SweptTotal { turns: 4, ..SweptTotal::default() }], 0, std::iter::empty());
    assert_eq!(idle, Some(TotalError { relative: 0.5, blocks: None }));
}

/// Draws of dropped entries are a part of their own: they are added to the spread of the sweeps once.
#[test]
fn sweeps_and_scans_add_up_once() {
    let swept = SweptTotal {
        regions: vec![RegionWalks { walks: 1000, draw_error: 0.9, share_error: 0.9 }],
        block_error: Some((0.03, 12)),
        turns: 100,
        saturated_walks: 0,
    };
    let error = total_error(std::slice::from_ref(&swept), 0, std::iter::empty()).unwrap();
    assert_eq!(error, TotalError { relative: 0.03, blocks: Some(12) });
    let with_scans = total_error(std::slice::from_ref(&swept), 10_000, (0..100).map(|_| (10, 0.5))).unwrap();
    // 30 of 1000, and of the other 1000: 5 % of draws and 1 % of moments.
    let expected = 30f64.hypot(50.0).hypot(10.0) / 2000.0;
    assert!((with_scans.relative - expected).abs() < 1e-9, "{with_scans:?}");
    let twice = total_error(&[swept.clone(), swept], 0, std::iter::empty()).unwrap();
    assert!((twice.relative - 0.03).abs() < 1e-9, "processes of one program have their phases together");
}

#[test]
fn a_jackknife_of_even_blocks_is_the_standard_error_of_their_mean() {
    let values = [9.0, 11.0, 10.0, 12.0, 8.0, 10.5, 9.5, 10.0];
    let sum: f64 = values.iter().sum();
    let without: Vec<f64> = values.iter().map(|value| (sum - value) / 7.0).collect();
    let (error, blocks) = jackknife_error(10.0, &without, &[5; 8]).unwrap();
    let variance: f64 = values.iter().map(|value| (value - 10.0) * (value - 10.0)).sum::<f64>() / 7.0 / 8.0;
    assert!((error / (variance.sqrt() / 10.0) - 1.0).abs() < 0.02, "{error}");
    assert_eq!(blocks, 8);
    assert_eq!(jackknife_error(10.0, &without[..3], &[5; 3]), None);
    assert_eq!(jackknife_error(10.0, &[10.0, 10.0, 0.0, 10.0], &[1; 4]), Some((ERROR_MAX, 4)));
    assert_eq!(jackknife_error(10.0, &[10.0; 4], &[1; 4]), Some((0.0, 4)));
}
