//! Tests of knees on counts of known rates.

use pagelab_model::random::SplitMix64;

use super::*;

const SEEDS: u64 = 20;

struct Draws(SplitMix64);

impl Draws {
    fn new(seed: u64) -> Draws {
        Draws(SplitMix64::new(seed))
    }

    fn uniform(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Box and Muller 1958.
    fn normal(&mut self) -> f64 {
        let (radius, angle) = ((-2.0 * self.uniform().ln()).sqrt(), std::f64::consts::TAU * self.uniform());
        radius * angle.cos()
    }

    /// Arrivals of rate 1 in this time; a rounded normal for large means.
    fn poisson(&mut self, mean: f64) -> f64 {
        if mean > 500.0 {
            return (mean + mean.sqrt() * self.normal()).round().max(0.0);
        }
        let (mut count, mut time) = (0.0, -self.uniform().ln());
        while time < mean {
            count += 1.0;
            time -= self.uniform().ln();
        }
        count
    }
}

/// What was found for the hot regions of all seeds.
#[derive(Debug, Default)]
struct Outcomes {
    near: u64,
    covered: u64,
    narrow: u64,
    no_knee: u64,
    too_few: u64,
}

impl Outcomes {
    fn add(&mut self, found: Result<Knee, KneeAbsence>, hot: usize) {
        match found {
            Ok(knee) => {
                self.near += u64::from(knee.pages.abs_diff(hot) <= 2);
                self.covered += u64::from((knee.low..=knee.high).contains(&hot));
                self.narrow += u64::from(2 * (knee.high - knee.low) <= knee.pages);
            }
            Err(KneeAbsence::TooFewSamples) => self.too_few += 1,
            Err(_) => self.no_knee += 1,
        }
    }
}

const REGIONS: [usize; 3] = [128, 512, 2048];

/// Tries the knees of `hot` regions of `regions`, `ratio` times as hot as the others, with all seeds.
fn find_hot(mean: f64, regions: usize, hot: usize, ratio: f64, noise: CountNoise) -> Outcomes {
    let mut outcomes = Outcomes::default();
    for seed in 0..SEEDS {
        let mut draws = Draws::new(seed * 7919 + 1);
        let draw = |region: usize| {
            let rate = if region < hot { mean * ratio } else { mean };
            draws.poisson(rate) * (noise.relative * draws.normal()).exp() * noise.per_event
        };
        outcomes.add(find_knee(&(0..regions).map(draw).collect::<Vec<f64>>(), noise), hot);
    }
    outcomes
}

fn check_grid(mean: f64, check: impl Fn(usize, usize, f64, Outcomes)) {
    for regions in REGIONS {
        for hot in [8, 16, 32, 64] {
            for ratio in [5.0, 10.0, 50.0] {
                check(regions, hot, ratio, find_hot(mean, regions, hot, ratio, CountNoise::EXACT));
            }
        }
    }
}

#[test]
fn hot_regions_are_counted_to_within_two() {
    for mean in [20.0, 200.0] {
        check_grid(mean, |regions, hot, ratio, found| {
            let is_good = found.near >= 19 && found.covered >= 19 && found.narrow == SEEDS;
            assert!(is_good, "mean {mean}, {hot} of {regions}, {ratio} times: {found:?}");
        });
    }
}

/// With a relative error of 30 %, 5 times as hot is 5 deviations, which some of 2 048 regions are off.
#[test]
fn noise_that_hides_hot_regions_is_not_taken_for_their_absence() {
    for relative in [0.2, 0.3] {
        for regions in REGIONS {
            let found = find_hot(200.0, regions, 8, 5.0, CountNoise { per_event: 1.0, relative });
            assert!(found.no_knee == 0 && found.covered + found.too_few >= 19, "{regions}: {found:?}");
        }
    }
}

/// Of Poisson counts with a mean of 5, some of 2 048 are as large as those of regions 5 times as hot.
#[test]
fn few_samples_are_said_to_be_few() {
    check_grid(5.0, |regions, hot, ratio, found| {
        let text = format!("{hot} of {regions}, {ratio} times: {found:?}");
        assert!(found.covered + found.too_few >= 18, "{text}");
        assert!(ratio < 10.0 || found.near == SEEDS, "{text}");
    });
}

#[test]
fn noise_of_each_region_widens_the_range_or_hides_the_knee() {
    for (relative, mean, ratio, hot_min) in
        [(0.2, 20.0, 10.0, 8), (0.3, 200.0, 10.0, 16), (0.3, 20.0, 50.0, 8), (0.2, 200.0, 5.0, 32)]
    {
        for regions in REGIONS {
            for hot in [8, 16, 32, 64].into_iter().filter(|&hot| hot >= hot_min) {
                let noise = CountNoise { per_event: 1.0, relative };
                let found = find_hot(mean, regions, hot, ratio, noise);
                let text = format!("{relative}, {hot} of {regions}, {ratio} times: {found:?}");
                assert!(found.covered >= 18 && found.narrow >= 18, "{text}");
            }
        }
    }
}

#[test]
fn samples_count_for_their_period() {
    let sampled = CountNoise { per_event: 100_003.0, relative: 0.0 };
    for (hot, ratio) in [(8, 5.0), (64, 10.0)] {
        let exact = find_hot(20.0, 512, hot, ratio, CountNoise::EXACT);
        assert_eq!(format!("{exact:?}"), format!("{:?}", find_hot(20.0, 512, hot, ratio, sampled)));
    }
    // As if each of them were known exactly, 5 samples a region would have knees between whole samples.
    let found = find_hot(5.0, 2048, 16, 5.0, sampled);
    assert!(found.too_few + found.covered == SEEDS, "{found:?}");
}

/// The number of seeds with each answer for rates without two groups: no knee, too few samples.
fn count_absences(regions: usize, mean: f64, rate: impl Fn(usize, &mut Draws) -> f64) -> (u64, u64) {
    let mut outcomes = Outcomes::default();
    for seed in 0..SEEDS {
        let mut draws = Draws::new(seed * 104_729 + 3);
        let rates: Vec<f64> = (0..regions).map(|region| rate(region, &mut draws)).collect();
        let factor = mean * regions as f64 / rates.iter().sum::<f64>();
        let values: Vec<f64> = rates.iter().map(|rate| draws.poisson(rate * factor)).collect();
        outcomes.add(find_knee(&values, CountNoise::EXACT), 0);
    }
    (outcomes.no_knee, outcomes.too_few)
}

#[test]
fn rates_of_one_kind_have_no_knee() {
    fn check(name: &str, rate: impl Fn(usize, &mut Draws) -> f64 + Copy) {
        for (regions, mean) in REGIONS.iter().flat_map(|&regions| [20.0, 200.0].map(|mean| (regions, mean))) {
            let (no_knee, too_few) = count_absences(regions, mean, rate);
            assert!(no_knee >= 19, "{name}, {regions}, mean {mean}: {no_knee}, {too_few} too few");
        }
    }
    let zipf = |power: f64| move |region: usize, _: &mut Draws| (region as f64 + 1.0).powf(-power);
    check("uniform", |_, _| 1.0);
    check("zipf 0.7", zipf(0.7));
    check("zipf 1.0", zipf(1.0));
    check("zipf 1.5", zipf(1.5));
    check("log-normal", |_, draws| draws.normal().exp());
    check("linear", |_, draws| draws.uniform());
    check("log-uniform", |_, draws| (4.0 * draws.uniform()).exp());
}

/// Of several breaks, the one that is proved by most regions.
#[test]
fn the_likeliest_of_two_breaks_is_the_knee() {
    for seed in 0..SEEDS {
        let mut draws = Draws::new(seed);
        let rate = |region| [1000.0, 160.0, 20.0][usize::from(region >= 8) + usize::from(region >= 32)];
        let values: Vec<f64> = (0..512).map(|region| draws.poisson(rate(region))).collect();
        let knee = find_knee(&values, CountNoise::EXACT).unwrap();
        assert!(knee.pages.abs_diff(32) <= 1, "{seed}: {knee:?}");
    }
}

#[test]
fn most_regions_can_be_hot() {
    let found = find_hot(20.0, 512, 450, 10.0, CountNoise::EXACT);
    assert!(found.near >= 19, "{found:?}");
}

#[test]
fn odd_values_have_an_answer() {
    let noises = [f64::NAN, f64::INFINITY, 0.0, -1.0, 1e-300, 1e300, 0.3].map(|odd| {
        [CountNoise { per_event: odd, relative: 0.0 }, CountNoise { per_event: 1.0, relative: odd }]
    });
    let lists = [
        vec![],
        vec![1.0; 7],
        vec![0.0; 100],
        vec![7.0; 100],
        vec![f64::NAN; 100],
        vec![f64::INFINITY; 100],
        vec![-1.0; 100],
        vec![f64::MAX; 9],
        [vec![f64::INFINITY; 16], vec![f64::NAN; 100]].concat(),
        [vec![1e300; 16], vec![1e-300; 100]].concat(),
        (0..100).map(|power| 2f64.powi(power)).collect(),
    ];
    for list in &lists {
        for noise in noises.as_flattened() {
            if let Ok(knee) = find_knee(list, *noise) {
                let is_ordered = knee.low <= knee.pages && knee.pages <= knee.high;
                assert!(is_ordered && knee.high <= list.len(), "{knee:?} of {list:?}");
            }
        }
    }
    let absence = |list: &[f64]| find_knee(list, CountNoise::EXACT).unwrap_err();
    assert_eq!(absence(&[1.0; 7]), KneeAbsence::TooFewRegions);
    assert_eq!(absence(&[0.0; 100]), KneeAbsence::TooFewSamples);
    assert_eq!(absence(&[700.0; 100]), KneeAbsence::NoKnee);
    assert_eq!(absence(&(0..100).map(|power| 2f64.powi(power)).collect::<Vec<f64>>()), KneeAbsence::NoKnee);
}

#[test]
fn a_million_regions_are_few_enough() {
    let mut random = SplitMix64::new(3);
    let value = |region: usize| {
        let scatter = random.next_below(1000) as f64;
        if region < 4000 { 1e9 + scatter * 1e6 } else { 1e4 + scatter * 40.0 }
    };
    let values: Vec<f64> = (0..1_000_000).map(value).collect();
    let knee = find_knee(&values, CountNoise::EXACT).unwrap();
    assert_eq!((knee.low, knee.pages, knee.high), (4000, 4000, 4000));
}
