//! Each shape of a curve has its sentence; documents and tables have the numbers.

use pagelab_metrics::effect::ExperimentEffects;
use pagelab_metrics::memory_need::{self, FatalLimits};
use pagelab_model::experiment::TrialEnd;
use pagelab_model::run::Run;

use super::*;
use crate::run::tests::example::record;
use crate::run::tests::experiment::falling_limit_experiment;

/// Returns the report of the decreasing limit after a change of its experiment, its machine and its curve.
fn advice_lines(change: impl FnOnce(&mut Run), bend: impl FnOnce(&mut MemoryCurve)) -> Vec<String> {
    let mut run = record();
    run.experiment = Some(Box::new(falling_limit_experiment()));
    run.manifest.settings.swap = Ok(Vec::new());
    change(&mut run);
    let experiment = run.experiment.as_ref().unwrap();
    let effects = ExperimentEffects::from_experiment(experiment);
    let mut curve = memory_need::memory_curves(experiment, &effects).remove(0);
    bend(&mut curve);
    let settings = &run.manifest.settings;
    let ground =
        NeedContext { plan: &experiment.plan, settings, effects: &effects.workloads[0], page_bytes: 4 << 10 };
    describe_curve(&curve, ground)
}

fn first(need: Result<MemoryNeed, NeedUnknown>) -> String {
    advice_lines(|_| {}, |curve| curve.memory_need = need).remove(0)
}

#[test]
fn each_outcome_has_a_plain_sentence() {
    // Places, ascending: 256M, 384M, 512M, 768M, 1G, none.
    let known = |estimate: Option<f64>, too_little, enough| {
        Ok(MemoryNeed { estimate, largest_insufficient: too_little, smallest_sufficient: enough })
    };
    let mib = |of: f64| Some(of * f64::from(1 << 20));
    let cases = [
        (known(mib(700.0), Some(2), 3), "needs 700 MiB (512 MiB to 768 MiB) for at most 5 % loss"),
        (known(None, None, 0), "needs at most 256 MiB for at most 5 % loss, the smallest measured limit"),
        (known(mib(300.0), None, 2), "needs at most 512 MiB for at most 5 % loss; less may suffice"),
        (
            known(None, Some(4), 5),
            "needs more than 1 GiB for at most 5 % loss; larger limits were not measured",
        ),
        (known(None, None, 5), "its need for at most 5 % loss is unknown"),
        (Err(NeedUnknown::OneLimit), "one limit is not enough"),
        (Err(NeedUnknown::FatalEverywhere), "killed under every measured limit: it needs more than no limit"),
        (Err(NeedUnknown::FatalAtLargest), "killed under no limit, the largest limit"),
        (Err(NeedUnknown::NotMeasuredAtLargest), "nothing was measured under no limit"),
        (
            Err(NeedUnknown::TooFew { rounds: 1 }),
            "too few rounds to determine how much it needs: 1 round; at least 6 are required",
        ),
    ];
    for (need, expected) in cases {
        let found = first(need);
        assert!(found.starts_with(expected), "{need:?}: {found}");
    }
    let limited = advice_lines(
        |_| {},
        |curve| {
            curve.points.pop();
            curve.memory_need = Ok(MemoryNeed {
                estimate: mib(900.0),
                largest_insufficient: Some(3),
                smallest_sufficient: 4,
            });
        },
    );
    assert!(
        limited[0].starts_with("needs more than 768 MiB for at most 5 % loss; no limit below 1 GiB"),
        "{limited:?}"
    );
}

#[test]
fn where_it_dies_says_what_there_was_to_swap_to() {
    let dies = |change: fn(&mut Run), bend: fn(&mut MemoryCurve)| {
        advice_lines(change, bend).into_iter().find(|of| of.contains("below 384 MiB")).unwrap()
    };
    assert_eq!(dies(|_| {}, |_| {}), "dies below 384 MiB: no swap");
    let common = |curve: &mut MemoryCurve, of: &str| curve.common = vec![("swap".to_owned(), of.to_owned())];
    assert_eq!(
        dies(|_| {}, |curve| curve.common = vec![("swap".to_owned(), "2G".to_owned())]),
        "dies below 384 MiB: with 2G of swap"
    );
    let none = advice_lines(|_| {}, |curve| common(curve, "none"));
    assert!(none.contains(&"dies below 384 MiB: no swap".to_owned()), "{none:?}");
    let other = |run: &mut Run| {
        let variants = &mut run.experiment.as_mut().unwrap().plan.variants;
        let mut more = variants[1].clone();
        more.settings.push(("swap".to_owned(), "1G".to_owned()));
        variants.push(more);
    };
    assert_eq!(dies(other, |_| {}), "dies below 384 MiB: no swap", "the file of others is not for it");
    let area = |run: &mut Run| {
        let size = Bytes(1 << 30);
        let area = pagelab_model::settings::SwapArea {
            name: "/s".into(),
            kind: "file".into(),
            size,
            used: Bytes(0),
        };
        run.manifest.settings.swap = Ok(vec![area]);
    };
    assert_eq!(dies(area, |_| {}), "dies below 384 MiB: with the machine's swap");
    let some = advice_lines(
        |_| {},
        |curve| {
            curve.points[0].completed = 4;
            curve.points[0].fatal = 2;
            curve.fatal_limits =
                Some(FatalLimits { largest_fatal: 0, next_survived: Some(1), smaller_survived: None });
        },
    );
    assert!(some.iter().any(|of| of.ends_with("under 256 MiB in 2 of 6 trials")), "{some:?}");
    let slow = |run: &mut Run| {
        for trial in &mut run.experiment.as_mut().unwrap().trials {
            if trial.end == TrialEnd::OutOfMemory {
                trial.end = TrialEnd::TimedOut(1);
            }
        }
    };
    assert_eq!(dies(slow, |_| {}), "exceeds its time limit below 384 MiB");
}

#[test]
fn what_makes_a_need_doubtful_is_told() {
    let bumped = advice_lines(|_| {}, |curve| curve.contradiction = Some((2, 3)));
    assert!(
        bumped.iter().any(|of| of.starts_with("it was faster with 512 MiB than with 768 MiB")),
        "{bumped:?}"
    );
    let short = |run: &mut Run| {
        let experiment = run.experiment.as_mut().unwrap();
        experiment.plan.variants[0].settings = vec![("memory_limit".to_owned(), "2G".to_owned())];
        for trial in &mut experiment.trials {
            if let Some(wall) = trial.measures.first().cloned() {
                let (unit, better) = (wall.unit.clone(), wall.better);
                let name = "group.workingset_refault_anon";
                let refaults = pagelab_model::experiment::Measure::new(name, unit, better, Ok(10_000.0), "");
                trial.measures.push(refaults);
            }
        }
    };
    let found = advice_lines(short, |_| {});
    assert!(
        found.iter().any(|of| of.starts_with("under 2 GiB, the largest limit, 39.1 MiB of reclaimed pages")),
        "{found:?}"
    );
}

#[test]
fn documents_and_tables_have_the_same_numbers() {
    let mut run = record();
    run.experiment = Some(Box::new(falling_limit_experiment()));
    let experiment = run.experiment.as_ref().unwrap();
    let document = crate::json::experiment::to_document(experiment, &run.manifest);
    let need = &document["needs"][0];
    assert_eq!((need["workload"].as_str(), need["loss"].as_f64()), (Some("quicksort"), Some(0.05)));
    assert_eq!(need["too_little_bytes"].as_u64(), Some(512 << 20));
    assert_eq!(need["enough_bytes"].as_u64(), Some(768 << 20));
    assert_eq!(need["dies_at_bytes"].as_u64(), Some(256 << 20));
    assert_eq!(need["limits"].as_array().map(Vec::len), Some(6));
    assert_eq!(need["limits"][5]["limit_bytes_absent_reason"].as_str(), Some("this variant has no limit"));
    let text = |name: &str| -> String {
        let tables = crate::csv::list_tables(&run);
        tables.into_iter().find(|table| table.file == name).unwrap().into_lines().collect()
    };
    let estimate = need["need_bytes"].as_u64().unwrap();
    assert!(
        text("needs.csv").contains(&format!(",{estimate},536870912,805306368,")),
        "{}",
        text("needs.csv")
    );
    assert_eq!(text("limits.csv").lines().count(), 7);
}
