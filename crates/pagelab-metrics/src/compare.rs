//! The same experiment in several runs: on other machines, kernels, or days.
//!
//! Trials of different runs are no pairs, so their values are compared as independent sets. Only what is the
//! same in all runs is compared; what is not is refused with its reason.

use pagelab_model::experiment::{Better, Experiment, WorkloadHead};
use pagelab_model::run::Unit;

use crate::effect::{
    Doubt, Effect, Effects, Floor, Interval, MeasureEffects, PAIRS_MIN, Verdict, WorkloadEffects, difference,
    unpaired,
};

/// What several runs of an experiment have in common, side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Measures by workload, variant and measure, in the order of the first run.
    pub rows: Vec<Row>,
    /// What is in the runs and is not compared, each with its reason.
    pub refused: Vec<String>,
}

/// One measure of one workload under one variant, in every run.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The workload's name.
    pub workload: String,
    /// The variant's name.
    pub variant: String,
    /// The measure's name.
    pub measure: String,
    /// Its unit.
    pub unit: Unit,
    /// Which direction is good.
    pub better: Better,
    /// Whether it judges the workload in the first run.
    pub is_judged: bool,
    /// One for each run.
    pub cells: Vec<Cell>,
}

/// One measure of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The values that count.
    pub values: Vec<f64>,
    /// Their median; `None` without any.
    pub median: Option<f64>,
    /// Against the first run; `None` of the first run itself, and where there is no ratio.
    pub against: Option<Against>,
    /// Against the baseline of the same run, as its own report has it; `None` of the baseline.
    pub effect: Option<Effect>,
    /// How that effect differs from the first run's: ratio of the two ratios, interval and verdict.
    pub effect_against: Option<Against>,
}

/// A run against the first one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Against {
    /// Geometric mean of this run's values by that of the first one's.
    pub ratio: f64,
    /// By Welch's t on the logarithms.
    pub interval: Interval,
    /// What it says.
    pub verdict: Verdict,
}

/// One run as it is compared.
struct One<'a> {
    name: &'a str,
    experiment: &'a Experiment,
    effects: Effects,
}

/// Compares runs, each a name and its experiment; the first one is what the others are compared with. `Err`
/// says what stood in the way of comparing anything at all.
pub fn compare(runs: &[(&str, &Experiment)]) -> Result<Comparison, Vec<String>> {
    let all: Vec<One<'_>> = runs
        .iter()
        .map(|(name, experiment)| One { name, experiment, effects: Effects::of(experiment) })
        .collect();
    let (Some(first), true) = (all.first(), all.len() > 1) else {
        return Err(vec!["two runs at least are needed for a comparison".to_owned()]);
    };
    let mut refused = Vec::new();
    let mut rows = Vec::new();
    for head in &first.experiment.plan.workloads {
        match same_workload(&all, head) {
            Ok(places) => workload(&all, head, &places, &mut rows, &mut refused),
            Err(why) => refused.push(why),
        }
    }
    for one in &all[1..] {
        let known = |head: &&WorkloadHead| {
            first.experiment.plan.workloads.iter().any(|of_first| of_first.name == head.name)
        };
        let more = one.experiment.plan.workloads.iter().filter(|head| !known(head));
        refused.extend(more.map(|head| alone("workload", &head.name, one.name)));
    }
    if rows.is_empty() { Err(refused) } else { Ok(Comparison { rows, refused }) }
}

fn alone(what: &str, name: &str, run: &str) -> String {
    format!("{what} {name} is in {run} and not in all runs")
}

/// The place of a workload in the plan of every run, where it is the same in all.
fn same_workload(all: &[One<'_>], head: &WorkloadHead) -> Result<Vec<usize>, String> {
    let first = all.first().map_or("", |one| one.name);
    // Where the program stood says nothing.
    let words = |head: &WorkloadHead| -> Vec<String> {
        let name = head.command.first().and_then(|program| program.rsplit('/').next());
        name.into_iter().map(str::to_owned).chain(head.command.iter().skip(1).cloned()).collect()
    };
    let place = |one: &One<'_>| {
        let plan = &one.experiment.plan;
        let place = plan.workloads.iter().position(|of| of.name == head.name);
        let place = place.ok_or_else(|| alone("workload", &head.name, first))?;
        let other = &plan.workloads[place];
        let differs = |what: &str, in_first: &str, in_other: &str| {
            format!(
                "workload {}: its {what} is `{in_first}` in {first}, `{in_other}` in {}",
                head.name, one.name
            )
        };
        if words(head) != words(other) {
            return Err(differs("command", &words(head).join(" "), &words(other).join(" ")));
        }
        if head.generator != other.generator {
            return Err(differs("input", &head.generator, &other.generator));
        }
        if head.merit != other.merit {
            let merit = |head: &WorkloadHead| head.merit.clone().unwrap_or_else(|| "time".to_owned());
            return Err(differs("figure of merit", &merit(head), &merit(other)));
        }
        Ok(place)
    };
    all.iter().map(place).collect()
}

fn workload(
    all: &[One<'_>],
    head: &WorkloadHead,
    places: &[usize],
    rows: &mut Vec<Row>,
    refused: &mut Vec<String>,
) {
    let found: Vec<&WorkloadEffects> =
        all.iter().zip(places).filter_map(|(one, place)| one.effects.workloads.get(*place)).collect();
    let (Some(first), true) = (all.first(), found.len() == all.len()) else { return };
    let plan = &first.experiment.plan;
    let baselines = all.iter().map(|one| {
        let plan = &one.experiment.plan;
        plan.variants.get(plan.baseline).map(|variant| variant.name.as_str())
    });
    let same_baseline = baselines.collect::<std::collections::BTreeSet<_>>().len() == 1;
    if !same_baseline {
        refused.push(format!("workload {}: the effects of variants, since the baselines differ", head.name));
    }
    for variant in &plan.variants {
        let variants = match same_variant(all, &variant.name) {
            Ok(variants) => variants,
            Err(why) => {
                // A variant is the same for every workload: it is refused once.
                if !refused.contains(&why) {
                    refused.push(why);
                }
                continue;
            }
        };
        let judged = found[0].judged().map(|measure| measure.name.as_str());
        for measure in &found[0].measures {
            let of_all: Option<Vec<&MeasureEffects>> =
                found.iter().map(|found| found.measure(&measure.name)).collect();
            let Some(of_all) = of_all else { continue };
            if let Some((at, other)) = of_all.iter().enumerate().find(|(_, of)| of.unit != measure.unit) {
                refused.push(format!(
                    "measure {} of {}: it is in {} in {}, in {} in {}",
                    measure.name, head.name, measure.unit.0, first.name, other.unit.0, all[at].name
                ));
                continue;
            }
            let cells = cells(&of_all, &found, &variants, same_baseline);
            if cells.iter().all(|cell| cell.values.is_empty()) {
                continue;
            }
            rows.push(Row {
                workload: head.name.clone(),
                variant: variant.name.clone(),
                measure: measure.name.clone(),
                unit: measure.unit.clone(),
                better: measure.better,
                is_judged: Some(measure.name.as_str()) == judged,
                cells,
            });
        }
    }
}

/// The place of a variant in the plan of every run, where its settings are the same in all.
fn same_variant(all: &[One<'_>], name: &str) -> Result<Vec<usize>, String> {
    let mut settings: Option<(&str, Vec<(String, String)>)> = None;
    let mut places = Vec::new();
    for one in all {
        let variants = &one.experiment.plan.variants;
        let first = all.first().map_or("", |one| one.name);
        let place = variants.iter().position(|variant| variant.name == name);
        let place = place.ok_or_else(|| alone("variant", name, first))?;
        let mut own = variants[place].settings.clone();
        own.sort();
        match &settings {
            None => settings = Some((one.name, own)),
            Some((_, known)) if *known == own => {}
            Some((first, known)) => {
                let shown = |of: &[(String, String)], other: &[(String, String)]| {
                    let own = of.iter().filter(|setting| !other.contains(setting));
                    let own: Vec<String> = own.map(|(key, value)| format!("{key} = {value}")).collect();
                    if own.is_empty() { "nothing of it".to_owned() } else { own.join(", ") }
                };
                return Err(format!(
                    "variant {name}: it sets {} in {first}, {} in {}",
                    shown(known, &own),
                    shown(&own, known),
                    one.name
                ));
            }
        }
        places.push(place);
    }
    Ok(places)
}

fn cells(
    measures: &[&MeasureEffects],
    found: &[&WorkloadEffects],
    variants: &[usize],
    same_baseline: bool,
) -> Vec<Cell> {
    let one = |at: usize| measures[at].variants.get(variants[at]);
    let effect = |at: usize| one(at).and_then(|of| of.effect.clone().ok()).filter(|_| same_baseline);
    let cell = |at: usize| {
        let values = one(at).map(|of| of.values.clone()).unwrap_or_default();
        let against = (at > 0).then(|| {
            let base = one(0)?;
            let (ratio, interval) = unpaired(&values, &base.values)?;
            let counted = values.len().min(base.values.len());
            let verdict = verdict(
                (ratio, interval),
                counted,
                measures[0].better,
                [0, at].map(|at| measures[at].floor.as_ref().ok()),
                [0, at].map(|at| found[at].trials[variants[at]]),
            );
            Some(Against { ratio, interval, verdict })
        });
        let effect_against = (at > 0).then(|| effects_against(&effect(0)?, &effect(at)?));
        Cell {
            median: one(at).and_then(|of| of.statistics).map(|found| found.median),
            effect: effect(at),
            against: against.flatten(),
            effect_against: effect_against.flatten(),
            values,
        }
    };
    (0..measures.len()).map(cell).collect()
}

/// Whether a variant gains more in one run than in another.
fn effects_against(first: &Effect, other: &Effect) -> Option<Against> {
    let (ratio, interval) = difference(&other.pairs, &first.pairs)?;
    let is_void =
        |effect: &Effect| matches!(effect.verdict, Verdict::NotHuge { .. } | Verdict::NotApplied { .. });
    let counted = first.pairs.count().min(other.pairs.count());
    let verdict = match [first, other].into_iter().find(|effect| is_void(effect)) {
        Some(effect) => effect.verdict,
        None => verdict((ratio, interval), counted, first.better, [None; 2], Default::default()),
    };
    Some(Against { ratio, interval, verdict })
}

fn verdict(
    (ratio, interval): (f64, Interval),
    values: usize,
    better: Better,
    floors: [Option<&Floor>; 2],
    counts: [crate::effect::Counts; 2],
) -> Verdict {
    for of in counts {
        if of.not_huge > 0 {
            return Verdict::NotHuge { trials: of.not_huge, unseen: of.unseen, of: of.done };
        }
        if of.not_applied > 0 {
            return Verdict::NotApplied { trials: of.not_applied, of: of.done };
        }
    }
    if values < PAIRS_MIN {
        return Verdict::TooFew { pairs: values };
    }
    if interval.contains(1.0) {
        return Verdict::NoDifference;
    }
    if floors.into_iter().flatten().any(|floor| floor.covers(ratio)) {
        return Verdict::Undecided(Doubt::InsideFloor);
    }
    match (better, interval.low > 1.0) {
        (Better::Neither, _) => Verdict::Differs,
        (Better::Higher, true) | (Better::Lower, false) => Verdict::Better,
        (Better::Higher, false) | (Better::Lower, true) => Verdict::Worse,
    }
}

#[cfg(test)]
mod tests {
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

    fn cell<'a>(found: &'a Comparison, variant: &str, measure: &str) -> &'a Cell {
        let row = found.rows.iter().find(|row| row.variant == variant && row.measure == measure).unwrap();
        &row.cells[1]
    }

    #[test]
    fn runs_stand_side_by_side_with_ratios_and_verdicts() {
        let (one, other) = (run(1.0, 2.0), run(0.8, 1.5));
        let found = compare(&[("a", &one), ("b", &other)]).unwrap();
        assert_eq!(found.refused, Vec::<String>::new());
        let off = cell(&found, "off", "wall").against.unwrap();
        assert!((off.ratio - 0.8).abs() < 1e-9 && off.verdict == Verdict::Better, "{off:?}");
        let on = cell(&found, "on", "wall");
        assert!((on.effect.as_ref().unwrap().speed_up().0 - 1.5).abs() < 0.01);
        // Its gain is smaller: the ratio of time to the baseline is 4/3 of the first run's.
        let gain = on.effect_against.unwrap();
        assert!((gain.ratio - 4.0 / 3.0).abs() < 0.01 && gain.verdict == Verdict::Worse, "{gain:?}");
        let same = compare(&[("a", &one), ("b", &one)]).unwrap();
        assert_eq!(cell(&same, "on", "wall").against.unwrap().verdict, Verdict::NoDifference);
        assert!(same.rows[0].cells[0].against.is_none() && same.rows[0].is_judged);
    }

    #[test]
    fn what_is_not_the_same_is_refused_with_its_reason() {
        let one = run(1.0, 2.0);
        let mut other = one.clone();
        other.plan.variants[1].settings[0].1 = "madvise".to_owned();
        let found = compare(&[("a", &one), ("b", &other)]).unwrap();
        assert_eq!(found.refused, ["variant on: it sets thp = always in a, thp = madvise in b"]);
        assert!(found.rows.iter().all(|row| row.variant == "off"));

        let mut other = one.clone();
        other.plan.workloads[0].command = vec!["/bin/chase".to_owned()];
        assert!(compare(&[("a", &one), ("b", &other)]).is_ok(), "the place of a program says nothing");
        other.plan.workloads[0].command.push("--size".to_owned());
        let refused = compare(&[("a", &one), ("b", &other)]).unwrap_err();
        assert_eq!(refused, ["workload chase: its command is `chase` in a, `chase --size` in b"]);

        let mut other = one.clone();
        other.plan.workloads[0].name = "gups".to_owned();
        let refused = compare(&[("a", &one), ("b", &other)]).unwrap_err();
        assert_eq!(
            refused,
            ["workload chase is in a and not in all runs", "workload gups is in b and not in all runs"]
        );
        assert!(compare(&[("a", &one)]).is_err());

        let mut other = one.clone();
        other.trials.iter_mut().for_each(|trial| trial.measures[0].unit = "us".into());
        let found = compare(&[("a", &one), ("b", &other)]).unwrap();
        assert_eq!(found.refused[0], "measure wall of chase: it is in ns in a, in us in b");
        assert!(found.rows.iter().all(|row| row.measure != "wall"));
    }

    #[test]
    fn three_runs_are_compared_with_the_first_one() {
        let runs = [run(1.0, 2.0), run(2.0, 2.0), run(1.0, 2.0)];
        let named: Vec<(&str, &Experiment)> = ["a", "b", "c"].into_iter().zip(&runs).collect();
        let found = compare(&named).unwrap();
        let verdicts: Vec<Option<Verdict>> =
            found.rows[0].cells.iter().map(|cell| cell.against.map(|against| against.verdict)).collect();
        assert_eq!(verdicts, [None, Some(Verdict::Worse), Some(Verdict::NoDifference)]);
    }
}
