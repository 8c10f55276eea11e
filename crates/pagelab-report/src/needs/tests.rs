//! Each shape of a curve has its sentence; documents and tables have the numbers.

use pagelab_metrics::effect::Effects;
use pagelab_metrics::need::{self, Dies};
use pagelab_model::experiment::TrialEnd;
use pagelab_model::run::Run;

use super::*;
use crate::run::tests::example::record;
use crate::run::tests::experiment::falling;

/// What is said of the falling limit after a change of its experiment, its machine and its curve.
fn said(change: impl FnOnce(&mut Run), bend: impl FnOnce(&mut Curve)) -> Vec<String> {
    let mut run = record();
    run.experiment = Some(Box::new(falling()));
    run.manifest.settings.swap = Ok(Vec::new());
    change(&mut run);
    let experiment = run.experiment.as_ref().unwrap();
    let effects = Effects::of(experiment);
    let mut curve = need::curves(experiment, &effects).remove(0);
    bend(&mut curve);
    let settings = &run.manifest.settings;
    let ground =
        Ground { plan: &experiment.plan, settings, effects: &effects.workloads[0], page_bytes: 4 << 10 };
    sentences(&curve, ground)
}

fn first(need: Result<Need, NotKnown>) -> String {
    said(|_| {}, |curve| curve.need = need).remove(0)
}

#[test]
fn each_outcome_has_a_plain_sentence() {
    // Places, ascending: 256M, 384M, 512M, 768M, 1G, none.
    let known = |estimate: Option<f64>, too_little, enough| Ok(Need { estimate, too_little, enough });
    let mib = |of: f64| Some(of * f64::from(1 << 20));
    let cases = [
        (known(mib(700.0), Some(2), 3), "needs 700 MiB (512 MiB to 768 MiB) for at most 5 % loss"),
        (
            known(None, None, 0),
            "needs no more than 256 MiB for at most 5 % loss, the smallest limit that was tried",
        ),
        (
            known(mib(300.0), None, 2),
            "needs no more than 512 MiB for at most 5 % loss; whether less would do is",
        ),
        (known(None, Some(4), 5), "needs more than 1 GiB for at most 5 % loss; how much more was not tried"),
        (known(None, None, 5), "it is not known how much it needs for at most 5 % loss"),
        (Err(NotKnown::OneLimit), "one limit alone says nothing"),
        (Err(NotKnown::DiesEverywhere), "dies under every limit that was tried: it needs more than no limit"),
        (Err(NotKnown::DiesAtTheLargest), "dies under no limit, the largest limit that was tried"),
        (Err(NotKnown::NothingAtTheLargest), "nothing was measured under no limit"),
        (Err(NotKnown::TooFew { rounds: 1 }), "too few to decide how much it needs, 1 round of at least 6"),
    ];
    for (need, expected) in cases {
        let found = first(need);
        assert!(found.starts_with(expected), "{need:?}: {found}");
    }
    let limited = said(
        |_| {},
        |curve| {
            curve.places.pop();
            curve.need = Ok(Need { estimate: mib(900.0), too_little: Some(3), enough: 4 });
        },
    );
    assert!(
        limited[0].starts_with("needs more than 768 MiB for at most 5 % loss; no limit below 1 GiB"),
        "{limited:?}"
    );
}

#[test]
fn where_it_dies_says_what_there_was_to_swap_to() {
    let dies = |change: fn(&mut Run), bend: fn(&mut Curve)| {
        said(change, bend).into_iter().find(|of| of.contains("below 384 MiB")).unwrap()
    };
    assert_eq!(dies(|_| {}, |_| {}), "dies below 384 MiB: no swap");
    let common = |curve: &mut Curve, of: &str| curve.common = vec![("swap".to_owned(), of.to_owned())];
    assert_eq!(
        dies(|_| {}, |curve| curve.common = vec![("swap".to_owned(), "2G".to_owned())]),
        "dies below 384 MiB: with 2G of swap"
    );
    let none = said(|_| {}, |curve| common(curve, "none"));
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
    assert_eq!(dies(area, |_| {}), "dies below 384 MiB: with the machine's own swap");
    let some = said(
        |_| {},
        |curve| {
            curve.places[0].done = 4;
            curve.places[0].dead = 2;
            curve.dies = Some(Dies { at: 0, lives_at: Some(1), lives_below: None });
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
    assert_eq!(dies(slow, |_| {}), "is not done within its time limit below 384 MiB");
}

#[test]
fn what_makes_a_need_doubtful_is_told() {
    let bumped = said(|_| {}, |curve| curve.bump = Some((2, 3)));
    assert!(
        bumped.iter().any(|of| of.starts_with("it was faster with 512 MiB than with 768 MiB")),
        "{bumped:?}"
    );
    let short = |run: &mut Run| {
        let experiment = run.experiment.as_mut().unwrap();
        experiment.plan.variants[0].settings = vec![("memory_limit".to_owned(), "2G".to_owned())];
        for trial in &mut experiment.trials {
            if let Some(wall) = trial.measures.first().cloned() {
                let name = "group.workingset_refault_anon".to_owned();
                trial.measures.push(pagelab_model::experiment::Measure { name, value: Ok(10_000.0), ..wall });
            }
        }
    };
    let found = said(short, |_| {});
    assert!(
        found.iter().any(|of| of.starts_with("under 2 GiB, the largest limit, 39.1 MiB of what was")),
        "{found:?}"
    );
}

#[test]
fn documents_and_tables_have_the_same_numbers() {
    let mut run = record();
    run.experiment = Some(Box::new(falling()));
    let experiment = run.experiment.as_ref().unwrap();
    let document = crate::json::experiment::document(experiment, &run.manifest);
    let need = &document["needs"][0];
    assert_eq!((need["workload"].as_str(), need["loss"].as_f64()), (Some("quicksort"), Some(0.05)));
    assert_eq!(need["too_little_bytes"].as_u64(), Some(512 << 20));
    assert_eq!(need["enough_bytes"].as_u64(), Some(768 << 20));
    assert_eq!(need["dies_at_bytes"].as_u64(), Some(256 << 20));
    assert_eq!(need["limits"].as_array().map(Vec::len), Some(6));
    assert_eq!(need["limits"][5]["limit_bytes_absent_reason"].as_str(), Some("this variant has no limit"));
    let text = |name: &str| -> String {
        let tables = crate::csv::tables(&run);
        tables.into_iter().find(|table| table.file == name).unwrap().lines().collect()
    };
    let estimate = need["need_bytes"].as_u64().unwrap();
    assert!(
        text("needs.csv").contains(&format!(",{estimate},536870912,805306368,")),
        "{}",
        text("needs.csv")
    );
    assert_eq!(text("limits.csv").lines().count(), 7);
}
