//! Comparison of the same experiment in several runs: on other machines, kernels, or days.
//!
//! Trials of different runs are not pairs, so their values are compared as independent sets. Only what is
//! equal in all runs is compared; the rest is rejected with its reason.

use std::sync::Arc;

use pagelab_model::experiment::{BetterDirection, Experiment, MeasureHead, PlannedWorkload};

use crate::effect::{
    DoubtReason, Effect, EffectVerdict, ExperimentEffects, MeasureEffects, NoiseFloor, PAIRS_MIN,
    RatioInterval, TrialCounts, WorkloadEffects, welch_difference, welch_ratio,
};

/// Common content of several runs of an experiment, side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct RunComparison {
    /// Measures by workload, variant and measure, in the order of the first run.
    pub rows: Vec<ComparisonRow>,
    /// Contents of the runs that are not compared, each with its reason.
    pub not_compared: Vec<String>,
}

/// One measure of one workload under one variant, in every run.
#[derive(Clone, Debug, PartialEq)]
pub struct ComparisonRow {
    /// The workload's name.
    pub workload: String,
    /// The variant's name.
    pub variant: String,
    /// The measure.
    pub head: Arc<MeasureHead>,
    /// Whether it judges the workload in the first run.
    pub is_judging_measure: bool,
    /// One for each run.
    pub cells: Vec<RunCell>,
}

/// One measure of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunCell {
    /// The values that count.
    pub values: Vec<f64>,
    /// Their median; `None` without any.
    pub median: Option<f64>,
    /// Against the first run; `None` of the first run itself, and if there is no ratio.
    pub to_first_run: Option<RunRatio>,
    /// Against the baseline of the same run, as its own report has it; `None` of the baseline.
    pub effect: Option<Effect>,
    /// How that effect differs from the first run's: ratio of the two ratios, interval and verdict.
    pub effect_to_first_run: Option<RunRatio>,
}

/// A run against the first one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunRatio {
    /// Geometric mean of this run's values by that of the first one's.
    pub ratio: f64,
    /// By Welch's t on the logarithms.
    pub interval: RatioInterval,
    /// Verdict.
    pub verdict: EffectVerdict,
}

struct ComparedRun<'a> {
    name: &'a str,
    experiment: &'a Experiment,
    effects: ExperimentEffects,
}

/// Compares runs, each a name and its experiment; the first one is what the others are compared with. `Err`:
/// the reason why nothing can be compared.
pub fn compare_runs(runs: &[(&str, &Experiment)]) -> Result<RunComparison, Vec<String>> {
    let all: Vec<ComparedRun<'_>> = runs
        .iter()
        .map(|(name, experiment)| ComparedRun {
            name,
            experiment,
            effects: ExperimentEffects::from_experiment(experiment),
        })
        .collect();
    let (Some(first), true) = (all.first(), all.len() > 1) else {
        return Err(vec!["a comparison needs at least two runs".to_owned()]);
    };
    let mut refused = Vec::new();
    let mut rows = Vec::new();
    for head in &first.experiment.plan.workloads {
        match find_workload(&all, head) {
            Ok(places) => compare_workload(&all, head, &places, &mut rows, &mut refused),
            Err(why) => refused.push(why),
        }
    }
    for one in &all[1..] {
        let known = |head: &&PlannedWorkload| {
            first.experiment.plan.workloads.iter().any(|of_first| of_first.name == head.name)
        };
        let more = one.experiment.plan.workloads.iter().filter(|head| !known(head));
        refused.extend(more.map(|head| describe_unmatched("workload", &head.name, one.name)));
    }
    if rows.is_empty() { Err(refused) } else { Ok(RunComparison { rows, not_compared: refused }) }
}

fn describe_unmatched(kind: &str, name: &str, run: &str) -> String {
    format!("{kind} {name} is in {run} but not in all runs")
}

/// The place of a workload in the plan of every run, if it is the same in all.
fn find_workload(all: &[ComparedRun<'_>], head: &PlannedWorkload) -> Result<Vec<usize>, String> {
    let first = all.first().map_or("", |one| one.name);
    // The position of the program is not informative.
    let words = |head: &PlannedWorkload| -> Vec<String> {
        let name = head.command.first().and_then(|program| program.rsplit('/').next());
        name.into_iter().map(str::to_owned).chain(head.command.iter().skip(1).cloned()).collect()
    };
    let place = |one: &ComparedRun<'_>| {
        let plan = &one.experiment.plan;
        let plan_workload = plan.workloads.iter().position(|of| of.name == head.name);
        let place = plan_workload.ok_or_else(|| describe_unmatched("workload", &head.name, first))?;
        let other_workload = &plan.workloads[place];
        let differs = |what: &str, in_first: &str, in_other: &str| {
            format!(
                "workload {}: its {what} is `{in_first}` in {first}, `{in_other}` in {}",
                head.name, one.name
            )
        };
        if words(head) != words(other_workload) {
            return Err(differs("command", &words(head).join(" "), &words(other_workload).join(" ")));
        }
        if head.generator != other_workload.generator {
            return Err(differs("input", &head.generator, &other_workload.generator));
        }
        if head.merit != other_workload.merit {
            let merit = |head: &PlannedWorkload| head.merit.clone().unwrap_or_else(|| "time".to_owned());
            return Err(differs("figure of merit", &merit(head), &merit(other_workload)));
        }
        Ok(place)
    };
    all.iter().map(place).collect()
}

fn compare_workload(
    all: &[ComparedRun<'_>],
    head: &PlannedWorkload,
    places: &[usize],
    rows: &mut Vec<ComparisonRow>,
    refused: &mut Vec<String>,
) {
    let workload_effects: Vec<&WorkloadEffects> =
        all.iter().zip(places).filter_map(|(one, place)| one.effects.workloads.get(*place)).collect();
    let (Some(first), true) = (all.first(), workload_effects.len() == all.len()) else { return };
    let plan = &first.experiment.plan;
    let baselines = all.iter().map(|one| {
        let plan = &one.experiment.plan;
        plan.variants.get(plan.baseline?).map(|variant| variant.name.as_str())
    });
    let same_baseline = baselines.collect::<std::collections::BTreeSet<_>>().len() == 1;
    if !same_baseline {
        refused.push(format!("workload {}: effects of variants, because the baselines differ", head.name));
    }
    let judged = workload_effects[0].primary_measure();
    for variant in &plan.variants {
        let variants = match find_variant(all, &variant.name) {
            Ok(variants) => variants,
            Err(why) => {
                // A variant is the same for every workload: it is refused once.
                if !refused.contains(&why) {
                    refused.push(why);
                }
                continue;
            }
        };
        for measure in &workload_effects[0].measures {
            let key = measure.key();
            let measures_of_runs: Option<Vec<&MeasureEffects>> =
                workload_effects.iter().map(|found| found.measure(&key)).collect();
            let Some(of_all) = measures_of_runs else { continue };
            if let Some((at, other)) = of_all.iter().enumerate().find(|(_, of)| of.unit != measure.unit) {
                refused.push(format!(
                    "measure {} of {}: the unit is {} in {}, {} in {}",
                    measure.name, head.name, measure.unit.0, first.name, other.unit.0, all[at].name
                ));
                continue;
            }
            let cells = compare_cells(&of_all, &workload_effects, &variants, same_baseline);
            if cells.iter().all(|cell| cell.values.is_empty()) {
                continue;
            }
            rows.push(ComparisonRow {
                workload: head.name.clone(),
                variant: variant.name.clone(),
                head: measure.head.clone(),
                is_judging_measure: judged.is_some_and(|of| of.has_key(&key)),
                cells,
            });
        }
    }
}

/// The place of a variant in the plan of every run, where its settings are the same in all.
fn find_variant(all: &[ComparedRun<'_>], name: &str) -> Result<Vec<usize>, String> {
    let mut settings: Option<(&str, Vec<(String, String)>)> = None;
    let mut places = Vec::new();
    for one in all {
        let variants = &one.experiment.plan.variants;
        let first = all.first().map_or("", |one| one.name);
        let place = variants.iter().position(|variant| variant.name == name);
        let place = place.ok_or_else(|| describe_unmatched("variant", name, first))?;
        let mut variant_settings = variants[place].settings.clone();
        variant_settings.sort();
        match &settings {
            None => settings = Some((one.name, variant_settings)),
            Some((_, known)) if *known == variant_settings => {}
            Some((first, known)) => {
                let shown = |of: &[(String, String)], other: &[(String, String)]| {
                    let own = of.iter().filter(|setting| !other.contains(setting));
                    let own: Vec<String> = own.map(|(key, value)| format!("{key} = {value}")).collect();
                    if own.is_empty() { "nothing extra".to_owned() } else { own.join(", ") }
                };
                return Err(format!(
                    "variant {name} sets {} in {first}, {} in {}",
                    shown(known, &variant_settings),
                    shown(&variant_settings, known),
                    one.name
                ));
            }
        }
        places.push(place);
    }
    Ok(places)
}

fn compare_cells(
    measures: &[&MeasureEffects],
    workload_effects: &[&WorkloadEffects],
    variants: &[usize],
    same_baseline: bool,
) -> Vec<RunCell> {
    let effect_of_run = |at: usize| measures[at].variants.get(variants[at]);
    let effect = |at: usize| effect_of_run(at).and_then(|of| of.effect().cloned()).filter(|_| same_baseline);
    let cell = |at: usize| {
        let values = effect_of_run(at).map(|of| of.values.clone()).unwrap_or_default();
        let against = (at > 0).then(|| {
            let base = effect_of_run(0)?;
            let (ratio, interval) = welch_ratio(&values, &base.values)?;
            let counted = values.len().min(base.values.len());
            let verdict = judge_ratio(
                (ratio, interval),
                counted,
                measures[0].better,
                [0, at].map(|at| measures[at].noise_floor.as_ref().ok()),
                [0, at].map(|at| workload_effects[at].trials[variants[at]]),
            );
            Some(RunRatio { ratio, interval, verdict })
        });
        let effect_against = (at > 0).then(|| compare_effects(&effect(0)?, &effect(at)?));
        RunCell {
            median: effect_of_run(at).and_then(|of| of.statistics).map(|found| found.median),
            effect: effect(at),
            to_first_run: against.flatten(),
            effect_to_first_run: effect_against.flatten(),
            values,
        }
    };
    (0..measures.len()).map(cell).collect()
}

/// Whether a variant gains more in one run than in another.
fn compare_effects(first: &Effect, other: &Effect) -> Option<RunRatio> {
    let (ratio, interval) = welch_difference(&other.pairs, &first.pairs)?;
    let counted = first.pairs.pair_count().min(other.pairs.pair_count());
    let verdict = match [first.verdict, other.verdict].into_iter().find(|verdict| verdict.is_void()) {
        Some(verdict) => verdict,
        None => judge_ratio((ratio, interval), counted, first.better, [None; 2], Default::default()),
    };
    Some(RunRatio { ratio, interval, verdict })
}

fn judge_ratio(
    (ratio, interval): (f64, RatioInterval),
    values: usize,
    better: BetterDirection,
    floors: [Option<&NoiseFloor>; 2],
    counts: [TrialCounts; 2],
) -> EffectVerdict {
    if let Some(verdict) = counts.iter().find_map(TrialCounts::void_verdict) {
        return verdict;
    }
    if values < PAIRS_MIN {
        return EffectVerdict::TooFew { pairs: values };
    }
    if interval.contains(1.0) {
        return EffectVerdict::NoDifference;
    }
    if floors.into_iter().flatten().any(|floor| floor.covers(ratio)) {
        return EffectVerdict::Undecided(DoubtReason::InsideFloor);
    }
    EffectVerdict::from_interval(better, interval)
}

#[cfg(test)]
mod tests {
    use pagelab_model::experiment::Measure;

    use super::*;
    use crate::effect::tests::rounds;

    const TWO: [(&str, &str); 2] = [("off", "never"), ("on", "always")];

    fn run(factor: f64, gain: f64) -> Experiment {
        let jitter =
            |variant: usize, round: u32| 1.0 + f64::from((round * 7 + variant as u32 * 3) % 10) / 1000.0;
        rounds(&TWO, 8, move |variant, round| {
            factor * [100.0, 100.0 / gain, 100.0][variant] * jitter(variant, round)
        })
    }

    fn cell<'a>(found: &'a RunComparison, variant: &str, measure: &str) -> &'a RunCell {
        let row = found.rows.iter().find(|row| row.variant == variant && row.head.name == measure).unwrap();
        &row.cells[1]
    }

    #[test]
    fn runs_stand_side_by_side_with_ratios_and_verdicts() {
        let (one, other) = (run(1.0, 2.0), run(0.8, 1.5));
        let found = compare_runs(&[("a", &one), ("b", &other)]).unwrap();
        assert_eq!(found.not_compared, Vec::<String>::new());
        let off = cell(&found, "off", "wall").to_first_run.unwrap();
        assert!((off.ratio - 0.8).abs() < 1e-9 && off.verdict == EffectVerdict::Better, "{off:?}");
        let on = cell(&found, "on", "wall");
        assert!((on.effect.as_ref().unwrap().speed_up().0 - 1.5).abs() < 0.01);
        // Its gain is smaller: the ratio of time to the baseline is 4/3 of the first run's.
        let gain = on.effect_to_first_run.unwrap();
        assert!((gain.ratio - 4.0 / 3.0).abs() < 0.01 && gain.verdict == EffectVerdict::Worse, "{gain:?}");
        let same = compare_runs(&[("a", &one), ("b", &one)]).unwrap();
        assert_eq!(cell(&same, "on", "wall").to_first_run.unwrap().verdict, EffectVerdict::NoDifference);
        assert!(same.rows[0].cells[0].to_first_run.is_none() && same.rows[0].is_judging_measure);
    }

    #[test]
    fn what_is_not_the_same_is_refused_with_its_reason() {
        let one = run(1.0, 2.0);
        let mut other = one.clone();
        other.plan.variants[1].settings[0].1 = "madvise".to_owned();
        let found = compare_runs(&[("a", &one), ("b", &other)]).unwrap();
        assert_eq!(found.not_compared, ["variant on sets thp = always in a, thp = madvise in b"]);
        assert!(found.rows.iter().all(|row| row.variant == "off"));

        let mut other = one.clone();
        other.plan.workloads[0].command = vec!["/bin/chase".to_owned()];
        assert!(compare_runs(&[("a", &one), ("b", &other)]).is_ok(), "the place of a program says nothing");
        other.plan.workloads[0].command.push("--size".to_owned());
        let refused = compare_runs(&[("a", &one), ("b", &other)]).unwrap_err();
        assert_eq!(refused, ["workload chase: its command is `chase` in a, `chase --size` in b"]);

        let mut other = one.clone();
        other.plan.workloads[0].name = "gups".to_owned();
        let refused = compare_runs(&[("a", &one), ("b", &other)]).unwrap_err();
        assert_eq!(
            refused,
            ["workload chase is in a but not in all runs", "workload gups is in b but not in all runs"]
        );
        assert!(compare_runs(&[("a", &one)]).is_err());

        let mut other = one.clone();
        other.trials.iter_mut().for_each(|trial| {
            let measure = &mut trial.measures[0];
            let (name, value) = (measure.name.clone(), measure.value.clone());
            *measure = Measure::new(name, "us", measure.better, value, "");
        });
        let found = compare_runs(&[("a", &one), ("b", &other)]).unwrap();
        assert_eq!(found.not_compared[0], "measure wall of chase: the unit is ns in a, us in b");
        assert!(found.rows.iter().all(|row| row.head.name != "wall"));
    }

    #[test]
    fn a_measure_of_two_phases_has_a_row_for_each() {
        let mut one = run(1.0, 2.0);
        for trial in &mut one.trials {
            let mut of_phase = trial.measures[0].clone();
            of_phase.head = Arc::new(MeasureHead { phase: "rest".to_owned(), ..(*of_phase.head).clone() });
            trial.measures.push(of_phase);
        }
        let found = compare_runs(&[("a", &one), ("b", &one)]).unwrap();
        let of_wall = found.rows.iter().filter(|row| row.variant == "on" && row.head.name == "wall");
        assert_eq!(of_wall.map(|row| row.head.key()).collect::<Vec<_>>(), ["wall", "rest/wall"]);
    }

    #[test]
    fn three_runs_are_compared_with_the_first_one() {
        let runs = [run(1.0, 2.0), run(2.0, 2.0), run(1.0, 2.0)];
        let named: Vec<(&str, &Experiment)> = ["a", "b", "c"].into_iter().zip(&runs).collect();
        let found = compare_runs(&named).unwrap();
        let verdicts: Vec<Option<EffectVerdict>> =
            found.rows[0].cells.iter().map(|cell| cell.to_first_run.map(|against| against.verdict)).collect();
        assert_eq!(verdicts, [None, Some(EffectVerdict::Worse), Some(EffectVerdict::NoDifference)]);
    }
}
