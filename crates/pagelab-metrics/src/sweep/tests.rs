//! Tests: simulated experiments with known answers.

use std::sync::Arc;

use pagelab_model::experiment::{Fraction, Measure, Plan};
use pagelab_model::simulation::{SimulatedConfiguration, SimulatedWorkload, Sweep, figure_head};

use super::{find_leading_figure, *};
use crate::effect::{DifferenceVerdict, ExperimentEffects};

fn cell(scheme: &str, values: &[&str]) -> SimulatedConfiguration {
    SimulatedConfiguration {
        workload: SimulatedWorkload {
            machine: "x86".to_owned(),
            kernelcore: None,
            load: "churn".to_owned(),
            parameters: Vec::new(),
        },
        scheme: scheme.to_owned(),
        values: values.iter().map(|&value| value.to_owned()).collect(),
        lists: Vec::new(),
        zones: Vec::new(),
    }
}

/// A figure of the simulator.
fn figure(phase: &str, name: &str, value: u64) -> Measure {
    let head = Arc::new(figure_head(phase.to_owned(), name.to_owned(), "blocks"));
    Measure::from_fraction(head, Fraction { numerator: value, denominator: 1 })
}

/// An experiment in which the figure of each point is a function of point and seed.
fn simulated(
    cells: Vec<SimulatedConfiguration>,
    seeds: u64,
    varied: Vec<SweepFactor>,
    of: impl Fn(usize, u64) -> u64,
) -> Experiment {
    let is_sweep = !varied.is_empty();
    let plan = Plan::for_simulator("t", "0", cells, (1..=seeds).collect());
    let plan = if is_sweep { plan.into_sweep(Sweep { varied, judged: None }) } else { plan };
    let trial = |slot: usize| {
        let (point, seed) = plan.point_and_seed(slot).unwrap();
        Trial { measures: vec![figure("end", "blocks", of(point, seed))], ..Trial::new(slot, 0) }
    };
    let trials = (0..plan.schedule.len()).map(trial).collect();
    Experiment { plan, trials }
}

#[test]
fn pairs_of_a_seed_show_a_difference_that_seeds_hide() {
    // Seeds differ by hundreds, schemes by three: only pairs see it.
    let noise = |seed: u64| seed * 7919 % 1000;
    let cells = vec![cell("standard", &[]), cell("list", &[]), cell("zone", &[])];
    let of = simulated(cells, 12, Vec::new(), |cell, seed| {
        1000 + noise(seed) + [0, 3, 0][cell] + u64::from(cell == 1 && seed % 3 == 0)
    });
    let found = ExperimentEffects::from_experiment(&of);
    let [workload] = &found.workloads[..] else { panic!("{found:?}") };
    let [standard, list, zone] = &workload.measures[0].variants[..] else { panic!("{workload:?}") };
    assert_eq!(standard.difference(), None);
    let difference = list.difference().unwrap();
    assert_eq!((difference.pairs, difference.verdict), (12, DifferenceVerdict::More), "{difference:?}");
    assert!((3.0..=4.0).contains(&difference.hodges_lehmann), "{difference:?}");
    assert_eq!(zone.difference().unwrap().verdict, DifferenceVerdict::Equal);
    // Both intervals of the medians overlap widely.
    let (one, other) = (standard.median_interval().unwrap(), list.median_interval().unwrap());
    assert!(one.low < other.low && other.low < one.high, "{one:?} {other:?}");
    assert_eq!(found.differences.judged, 2);
    assert!(workload.measures[0].noise_floor.is_err(), "equals are equal bit by bit");
}

#[test]
fn few_seeds_give_no_verdict_and_no_interval() {
    let of =
        simulated(vec![cell("a", &[]), cell("b", &[])], 5, Vec::new(), |cell, seed| cell as u64 * 50 + seed);
    let found = ExperimentEffects::from_experiment(&of);
    let variant = &found.workloads[0].measures[0].variants[1];
    assert_eq!(
        (variant.median_interval(), variant.difference().unwrap().verdict),
        (None, DifferenceVerdict::TooFew)
    );
    assert_eq!(variant.statistics.unwrap().median, 53.0);
    assert_eq!(found.differences.judged, 0);
}

/// A sweep has a column for each point, and none for a combination that is not a point.
#[test]
fn a_sweep_is_sparse_and_has_no_baseline() {
    let mut cells: Vec<SimulatedConfiguration> =
        ["list", "zone", "list"].iter().map(|scheme| cell(scheme, &["1"])).collect();
    cells[2].workload.parameters.push(("pairs".to_owned(), 7));
    let varied = vec![SweepFactor { name: "x".to_owned(), is_number: true }];
    let found = ExperimentEffects::from_experiment(&simulated(cells, 8, varied, |cell, _| cell as u64));
    let points =
        found.workloads.iter().map(|of| of.columns.iter().map(|column| column.point.unwrap()).collect());
    let points: Vec<Vec<usize>> = points.collect();
    assert_eq!(points, [vec![0, 1], vec![2]]);
    let mut variants = found.workloads.iter().flat_map(|of| &of.measures[0].variants);
    assert!(variants.all(|variant| variant.difference().is_none()));
}

#[test]
fn a_sweep_names_the_parameter_that_mattered() {
    let varied = vec![
        SweepFactor { name: "builds".to_owned(), is_number: true },
        SweepFactor { name: "scheme".to_owned(), is_number: false },
        SweepFactor { name: "nothing".to_owned(), is_number: true },
    ];
    let mut cells = Vec::new();
    for builds in ["2", "10", "30", "100"] {
        for scheme in ["list", "zone"] {
            for nothing in ["1", "2", "3"] {
                cells.push(cell(scheme, &[builds, scheme, nothing]));
            }
        }
    }
    // As a text, 100 would precede 2.
    let mut of = simulated(cells.clone(), 2, varied, |at, seed| {
        let builds: u64 = cells[at].values[0].parse().unwrap();
        1000 - builds * 5 + u64::from(cells[at].scheme == "zone") * 3 + seed
    });
    let found = judge_sweep(&of).unwrap();
    assert_eq!(found.figure, "end/blocks");
    let names: Vec<&str> = found.influences.iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names, ["builds", "scheme", "nothing"], "{found:?}");
    let [builds, scheme, nothing] = &found.influences[..] else { panic!("{found:?}") };
    assert!(
        builds.variance_share > 0.9 && builds.spearman_rho.unwrap() < -0.9 && builds.p_value <= 0.002,
        "{builds:?}"
    );
    assert!(scheme.spearman_rho.is_none() && nothing.p_value > 0.5, "{found:?}");
    let (best, worst) = (found.points.first().unwrap(), found.points.last().unwrap());
    assert_eq!((&*cells[best.point].values[0], &*cells[worst.point].values[0]), ("2", "100"));
    of.plan.sweep.as_mut().unwrap().judged = Some("no/such".to_owned());
    assert_eq!(judge_sweep(&of), Err(vec!["end/blocks".to_owned()]));
}

#[test]
fn a_figure_that_some_schemes_have_alone_stands_in_its_phase() {
    let mut of = simulated(vec![cell("list", &[]), cell("zone", &[])], 2, Vec::new(), |_, _| 1);
    let (load, zone, rest) =
        (figure("load", "blocks", 1), figure("load", "movable", 1), figure("rest", "blocks", 1));
    for trial in &mut of.trials {
        trial.measures = match trial.slot % 2 {
            0 => vec![load.clone(), rest.clone()],
            _ => vec![load.clone(), zone.clone(), rest.clone()],
        };
    }
    let found = ExperimentEffects::from_experiment(&of);
    let measures = &found.workloads[0].measures;
    let keys: Vec<String> = measures.iter().map(|measure| measure.key()).collect();
    assert_eq!(keys, ["load/blocks", "load/movable", "rest/blocks"]);
    assert!(measures[1].variants[0].values.is_empty());
}

#[test]
fn ranks_and_correlations_are_those_of_the_textbook() {
    assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [3.5, 1.0, 3.5, 2.0]);
    // scipy.stats.spearmanr([106, 86, 100, 101, 99, 103, 97, 113, 112, 110],
    //   [7, 0, 27, 50, 28, 29, 20, 12, 6, 17]) = -0.17575757…: the example of Wikipedia.
    let iq = [106.0, 86.0, 100.0, 101.0, 99.0, 103.0, 97.0, 113.0, 112.0, 110.0];
    let hours = [7.0, 0.0, 27.0, 50.0, 28.0, 29.0, 20.0, 12.0, 6.0, 17.0];
    let rho = correlation(&ranks(&iq), &ranks(&hours)).unwrap();
    assert!((rho + 29.0 / 165.0).abs() < 1e-12, "{rho}");
    assert_eq!(correlation(&[1.0, 2.0], &[5.0, 5.0]), None);
}

#[test]
fn of_few_values_all_orders_are_looked_at() {
    let orders = |values: &[f64]| {
        let mut all = Vec::new();
        for_each_permutation(values, |order| all.push(order.to_vec()));
        all
    };
    let mut all = orders(&[1.0, 2.0, 3.0, 4.0]);
    assert_eq!(all.len(), 23, "all but the one that is there");
    all.sort_by(|one, other| one.partial_cmp(other).unwrap());
    all.dedup();
    assert_eq!(all.len(), 23);
    assert_eq!(orders(&[0.0; 7]).len(), RANDOM_PERMUTATIONS as usize);
    assert!(orders(&[1.0]).is_empty());
}

#[test]
fn the_share_between_levels_is_that_of_the_analysis_of_variance() {
    // Two levels 1, 2, 3 and 4, 5, 6: between 13.5 of 17.5 in all.
    let found = eta_squared(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[0, 0, 0, 1, 1, 1], 2);
    assert!((found - 13.5 / 17.5).abs() < 1e-12, "{found}");
    assert_eq!(eta_squared(&[2.0, 2.0], &[0, 1], 2), 0.0);
}

#[test]
fn what_can_be_had_leads_then_f_u_and_the_last_phase_of_either() {
    for (names, place) in [
        (&["pages: kernel", "F_u(9)", "huge pages", "success", "F_u(9)", "success"][..], Some(5)),
        (&["success", "F_u(9)"], Some(0)),
        (&["pages: kernel", "F_u(9)", "pages: free", "F_u(10) at the end", "polluted pageblocks"], Some(3)),
        (&["pages: kernel", "F_i(9)"], None),
        (&[], None),
    ] {
        assert_eq!(find_leading_figure(names.iter().copied()), place, "{names:?}");
    }
}
