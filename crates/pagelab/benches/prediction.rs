//! Benchmark of the predictions of `pagelab plan`: chases are profiled, planned, and run with and without
//! huge pages.
//!
//! Prints a table of measured and predicted gains, then one JSON line for each bar. All arms of a pattern
//! run under the same supervisor, in turns that go there and back. Plans of the same pages are one arm: on
//! AMD Zen 4 a quarter by cost, by misses and by accesses has nearly the same regions. `--size 512M --steps
//! N --rounds N` change the work, `--only NAME` takes one pattern; without room for two buffers of that
//! size the calibration takes what it gets.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a bench panics to fail, and prints what it measured"
)]

use std::collections::BTreeMap;
use std::path::Path;

use pagelab_metrics::effect::RatioInterval;
use serde_json::Value;

mod arms;

use arms::{Arm, median, print_bar, read_time, run_pagelab};

const PATTERNS: [(&str, &[&str], f64); 3] = [
    ("zipf_1_0", &["--pattern", "zipf", "--zipf", "1.0"], 0.55),
    ("hot", &["--pattern", "hot"], 0.55),
    ("zipf_1_5", &["--pattern", "zipf", "--zipf", "1.5"], 0.60),
];

/// Plans whose other pages have no more of the misses than this are one arm.
const SAME_PLAN_SHARE: f64 = 0.05;

/// Options of the command line.
struct ChaseOptions {
    size: String,
    steps: String,
    rounds: usize,
}

/// What all patterns come to.
#[derive(Default)]
struct PredictionErrors {
    errors: Vec<f64>,
    /// By how much a prediction is beyond what its measured interval allows, to the gain there.
    errors_beyond_interval: Vec<f64>,
    flat_errors: Vec<f64>,
    wrong_orders: usize,
    quarter_to_best: Vec<f64>,
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let value = |name: &str, usual: &str| {
        let place = words.iter().position(|word| word == name);
        place.and_then(|at| words.get(at + 1)).map_or(usual.to_owned(), Clone::clone)
    };
    let rounds = value("--rounds", "12").parse().unwrap();
    let ask = ChaseOptions { size: value("--size", "1G"), steps: value("--steps", "4000000"), rounds };
    let folder = tempfile::tempdir().unwrap();
    run_pagelab(folder.path(), &["plan", &format!("--calibrate={}", ask.size), "--json"]);
    let mut found = PredictionErrors::default();
    println!("pattern     arm            ns/read  measured  predicted  error  flat  error   interval");
    let only = value("--only", "");
    for (pattern, options, least) in PATTERNS.into_iter().filter(|of| only.is_empty() || of.0 == only) {
        let share = measure_pattern(folder.path(), &ask, pattern, options, &mut found);
        let how = format!("of the gain of all, by a quarter of the pages; at least {least}");
        print_bar(&format!("chase_quarter_share_{pattern}"), share, &how);
    }
    let (error, flat) = (median(&found.errors), median(&found.flat_errors));
    let worst = found.errors_beyond_interval.iter().copied().fold(0.0, f64::max);
    let ranking = found.quarter_to_best.iter().copied().fold(f64::INFINITY, f64::min);
    println!(
        "median error {error:.3}, of a flat cost {flat:.3}; pairs in the wrong order: {}",
        found.wrong_orders
    );
    print_bar(
        "prediction_error_to_flat",
        error / flat,
        "median error of predicted gains, to that of a flat cost",
    );
    print_bar(
        "prediction_worst_error",
        worst,
        "the largest error of a predicted gain, to the nearest gain of its interval",
    );
    print_bar("quarter_to_best_ranking", ranking, "gain by cost, to the best by cost, misses, accesses");
}

/// Runs one pattern; the share of the gain that a quarter of the pages has.
fn measure_pattern(
    folder: &Path,
    ask: &ChaseOptions,
    pattern: &str,
    options: &[&str],
    results: &mut PredictionErrors,
) -> f64 {
    let binary = env!("CARGO_BIN_EXE_pagelab");
    let mut command = vec![binary, "workload", "chase", "--size", &ask.size, "--steps", &ask.steps];
    command.extend(options);
    let file = format!("{pattern}.pagelab");
    let mut profile = vec!["profile", "--source", "exact", "-o", &file, "--"];
    profile.extend(&command);
    run_pagelab(folder, &profile);
    let all = plan_shares(folder, &file, "1", "cost", &format!("{pattern}-1.toml")).1;
    let quarter = (all / 4).max(1);
    let mut arms = vec![Arm::new("none", "none", None), Arm::new("all", "all", None)];
    for n in [8, 32, quarter] {
        let plan = format!("{pattern}-{n}.toml");
        let (shares, _) = plan_shares(folder, &file, &n.to_string(), "cost", &plan);
        arms.push(Arm::new(&format!("cost {n}"), &plan, Some(shares)));
    }
    let by_cost = plan_misses(folder, &file, quarter, "cost");
    for by in ["misses", "accesses"] {
        let plan = format!("{pattern}-{by}.toml");
        plan_shares(folder, &file, &quarter.to_string(), by, &plan);
        let apart = plan_distance(&by_cost, &plan_misses(folder, &file, quarter, by));
        println!("{pattern:<11} by {by}: other pages than by cost have {:.1} % of the misses", 100.0 * apart);
        // Two runs of the same pages differ only by noise.
        if apart > SAME_PLAN_SHARE {
            arms.push(Arm::new(by, &plan, None));
        }
    }
    arms::run_interleaved(&mut arms, ask.rounds, |arm| read_time(folder, &[&arm.plan], &command));
    print_pattern(pattern, &arms, results)
}

/// Shares of the gain of a plan by cost and by flat misses, and how many regions there are.
fn plan_shares(folder: &Path, file: &str, n: &str, by: &str, plan: &str) -> ((f64, f64), usize) {
    let text = run_pagelab(folder, &["plan", file, "-n", n, "--by", by, "-o", plan, "--json"]);
    let made: Value = serde_json::from_str(&text).unwrap();
    assert!(made["walk_cost"].is_object(), "the walks have no cost");
    let whole: Value =
        serde_json::from_str(&run_pagelab(folder, &["plan", file, "--share", "1", "--json"])).unwrap();
    let misses = |document: &Value| {
        let regions = document["regions"].as_array().unwrap().iter();
        regions.map(|region| region["misses"].as_f64().unwrap()).sum::<f64>()
    };
    let cost = made["chosen"]["share"].as_f64().unwrap();
    ((cost, misses(&made) / misses(&whole)), made["regions_touched"].as_u64().unwrap() as usize)
}

/// Misses by address of the regions of a plan.
fn plan_misses(folder: &Path, file: &str, n: usize, by: &str) -> BTreeMap<u64, u64> {
    let text = run_pagelab(folder, &["plan", file, "-n", &n.to_string(), "--by", by, "--json"]);
    let made: Value = serde_json::from_str(&text).unwrap();
    let of = |region: &Value| (region["address"].as_u64().unwrap(), region["misses"].as_u64().unwrap());
    made["regions"].as_array().unwrap().iter().map(of).collect()
}

/// Share of the misses of two plans in regions of only one of them, relative to the larger.
fn plan_distance(a: &BTreeMap<u64, u64>, b: &BTreeMap<u64, u64>) -> f64 {
    let alone = |of: &BTreeMap<u64, u64>, other: &BTreeMap<u64, u64>| {
        let misses = |of: &BTreeMap<u64, u64>| of.values().sum::<u64>().max(1) as f64;
        let own = of.iter().filter(|(at, _)| !other.contains_key(at)).map(|(&at, &misses)| (at, misses));
        misses(&own.collect()) / misses(of)
    };
    alone(a, b).max(alone(b, a))
}

fn print_pattern(pattern: &str, arms: &[Arm], results: &mut PredictionErrors) -> f64 {
    let (none, all) = (arms[0].median(), arms[1].median());
    let ratio = |share: f64| none / (none - share * (none - all));
    for arm in arms {
        let (measured, ns) = (none / arm.median(), arm.median());
        let name = &arm.name;
        let Some((cost, flat)) = arm.shares else {
            println!("{pattern:<11} {name:<12} {ns:9.1} {measured:9.3}");
            continue;
        };
        let error = |predicted: f64, gain: f64| (predicted - gain).abs() / (gain - 1.0).abs();
        let (by_cost, by_flat) = (ratio(cost), ratio(flat));
        let RatioInterval { low, high } = arm.interval(&arms[0]);
        let sure = error(by_cost, by_cost.clamp(low, high));
        let (error, flat_error) = (error(by_cost, measured), error(by_flat, measured));
        println!(
            "{pattern:<11} {name:<12} {ns:9.1} {measured:9.3} {by_cost:10.3} {error:6.2} {by_flat:5.3} \
             {flat_error:6.2}   {low:.3} to {high:.3}"
        );
        results.errors_beyond_interval.push(sure);
        results.errors.push(error);
        results.flat_errors.push(flat_error);
    }
    let predicted: Vec<_> = arms.iter().filter_map(|arm| Some((arm, arm.shares?.0))).collect();
    for (place, (a, share_a)) in predicted.iter().enumerate() {
        for (b, share_b) in &predicted[..place] {
            let (slower, faster) = if share_a < share_b { (a, b) } else { (b, a) };
            // The plan that was predicted to be faster is clearly slower.
            results.wrong_orders += usize::from(faster.range().0 > slower.range().1);
        }
    }
    let gain = |arm: &Arm| none - arm.median();
    let by_cost = gain(&arms[4]);
    results.quarter_to_best.push(by_cost / arms[4..].iter().map(gain).fold(by_cost, f64::max));
    by_cost / (none - all)
}
