//! Reports of tunings, whole; and the verdict's sentence, case by case.

use expect_test::expect_file;
use pagelab_metrics::tune::Tuned;
use pagelab_model::experiment::Flag;
use pagelab_model::run::Run;
use pagelab_model::tune::On;

use super::sentence;
use crate::run::tests::tuning::tuned;
use crate::run::tests::{SUMMARY, VERBOSE, check};

type ArmOf = (&'static str, On, Option<u64>);
const THREE: [ArmOf; 3] =
    [("none", On::Nothing, Some(0)), ("plan", On::Plan, Some(2)), ("all", On::All, None)];

#[test]
fn a_tuning_that_gains() {
    let run = tuned(&THREE, &[12.4, 10.0, 9.5], 7);
    check(&run, SUMMARY, &expect_file!["tests/gains.txt"]);
    check(&run, VERBOSE, &expect_file!["tests/gains_verbose.txt"]);
}

#[test]
fn a_curve_with_its_controls() {
    let mut arms = THREE.to_vec();
    arms.extend([
        ("8", On::Dearest, Some(8)),
        ("8 by chance", On::Random, Some(8)),
        ("8 most used", On::MostUsed, Some(8)),
        ("16", On::Dearest, Some(16)),
    ]);
    let run = tuned(&arms, &[12.4, 11.5, 9.5, 11.0, 12.3, 11.7, 10.0], 7);
    check(&run, SUMMARY, &expect_file!["tests/curve.txt"]);
}

fn verdict(run: &Run) -> String {
    let (Some(tune), Some(experiment)) = (&run.tune, &run.experiment) else { return String::new() };
    Tuned::of(experiment, tune).map_or(String::new(), |found| sentence::verdict(&found, tune))
}

#[test]
fn the_verdict_is_one_sentence_that_sells_nothing() {
    let cases: [([f64; 3], u32, &str); 6] = [
        ([12.4, 10.0, 9.9], 10, "yes: 1.24× faster ("),
        ([12.4, 12.4, 9.9], 10, "only with all memory on huge pages: 1.25× faster ("),
        ([12.4, 12.4, 12.4], 10, "huge pages do not help this program: even with all of its memory on"),
        ([10.0, 12.0, 13.0], 10, "no: huge pages make this program slower, 1.2"),
        ([12.4, 10.0, 9.9], 4, "too few rounds to decide; so far 1.2"),
        ([12.4, 10.0, 9.9], 0, "nothing was measured: no round of the arms ended well"),
    ];
    for (seconds, rounds, begins) in cases {
        let said = verdict(&tuned(&THREE, &seconds, rounds));
        assert!(said.starts_with(begins), "{seconds:?} {rounds}: {said}");
        assert_eq!(said.matches(". ").count(), 0, "one sentence: {said}");
    }
    let mut run = tuned(&THREE, &[12.4, 10.0, 9.9], 10);
    for trial in run.experiment.iter_mut().flat_map(|of| &mut of.trials) {
        trial.flags.push(Flag { kind: Flag::NO_HUGE_PAGES.to_owned(), text: "none of 2".to_owned() });
    }
    assert!(verdict(&run).starts_with("nothing is said of huge pages"), "{}", verdict(&run));
    let nothing = tuned(&[THREE[0], THREE[2]], &[12.4, 12.4], 0);
    assert!(verdict(&nothing).starts_with("nothing to plan"), "{}", verdict(&nothing));
}

#[test]
fn a_plan_is_called_faster_than_all_only_where_it_was() {
    let beside = |seconds: [f64; 3]| {
        let run = tuned(&THREE, &seconds, 10);
        let found = Tuned::of(run.experiment.as_ref()?, run.tune.as_ref()?)?;
        sentence::beside(&found, run.tune.as_ref()?).into_iter().next()
    };
    let cases = [
        ([12.4, 10.0, 10.0], "between plan and all no difference was measured"),
        ([12.4, 10.0, 9.0], "70 % of the gain of all with 6.2 % of the huge pages; all are faster"),
        ([12.4, 10.0, 11.5], "the plan is faster than all memory on huge pages"),
    ];
    for (seconds, begins) in cases {
        let said = beside(seconds).unwrap_or_default();
        assert!(said.starts_with(begins), "{said}");
    }
}
