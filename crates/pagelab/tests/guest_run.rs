//! Tests of `pagelab run --place guest` with real kernels: a boot of 6.1 with a round of two variants, and
//! one of 6.12 whose second trial takes its guest with it.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // a test's helpers may fail where they stand, and say so

#[path = "guest/trial.rs"]
#[allow(dead_code, reason = "the other tests use more of it")]
mod trial;

use std::path::Path;

use pagelab_model::experiment::{Experiment, Measure, TrialEnd};
use pagelab_runfile::read_run_file;

/// A round of two variants, in guests that panic as soon as a control group has no memory left
/// (Documentation/admin-guide/sysctl/vm.rst, `panic_on_oom`).
fn recipe(second: &str) -> String {
    format!(
        "name = \"t\"\nquestion = \"?\"\nrepeats = 1\nwarm_up = 0\ntwins = false\nplace = \"guest\"\n\
         time_limit = \"10s\"\n[guest]\nboot = \"round\"\nmemory = \"256M\"\n\
         settings = {{ \"vm.panic_on_oom\" = 2, lru_gen = true }}\n\
         [[workload]]\nbuilt_in = \"chase\"\noptions = {{ size = \"32M\", steps = 100000 }}\n\
         [[variant]]\nname = \"plain\"\n[[variant]]\nname = \"other\"\n{second}\n"
    )
}

/// Runs the experiment, and returns its exit code, its errors and its trials.
fn run(folder: &Path, kernel: &str, second: &str) -> (Option<i32>, String, Experiment) {
    std::fs::write(folder.join("t.toml"), recipe(second)).unwrap();
    let mut command = trial::pagelab_here();
    command.current_dir(folder).args(["run", "t.toml", "--kernel", kernel, "-o", "t.pagelab", "--force"]);
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let file = read_run_file(&folder.join("t.pagelab")).unwrap_or_else(|error| panic!("{error}\n{stderr}"));
    (output.status.code(), stderr, *file.experiment.unwrap())
}

fn measure<'e>(experiment: &'e Experiment, trial: usize, name: &str) -> &'e Measure {
    let measures = &experiment.trials[trial].measures;
    let found = measures.iter().find(|measure| measure.name == name);
    found.unwrap_or_else(|| panic!("no {name} in {measures:?}"))
}

#[test]
fn a_round_of_two_variants_comes_back() {
    if trial::plan("6.1", Vec::new()).is_none() {
        return;
    }
    let _turn = trial::lock_guests();
    let folder = tempfile::tempdir().unwrap();
    let second = "advise = \"nohuge\"\nmemory_limit = \"128M\"";
    let (code, stderr, experiment) = run(folder.path(), "6.1", second);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("Linux 6.1."), "{stderr}");
    for (at, trial) in experiment.trials.iter().enumerate() {
        assert_eq!(trial.end, TrialEnd::Done);
        let value = |name| *measure(&experiment, at, name).value.as_ref().unwrap();
        assert!(value("wall") > 1e6 && value("merit") > 0.0);
        // What the workload touched was charged to the trial's own group.
        assert!((32e6..128e6).contains(&value("memory.peak")), "{}", value("memory.peak"));
    }
    eprintln!("guest: seen: two trials of one boot in {} s", experiment.trials[1].ended_ns / 1_000_000_000);
}

#[test]
fn a_trial_that_takes_its_guest_with_it_is_lost_and_the_others_are_not() {
    if trial::plan("6.12", Vec::new()).is_none() {
        return;
    }
    let _turn = trial::lock_guests();
    let folder = tempfile::tempdir().unwrap();
    let (code, stderr, experiment) = run(folder.path(), "6.12", "memory_limit = \"16M\"");
    assert_eq!(code, Some(5), "{stderr}");
    let [plain, other] = &experiment.trials[..] else { panic!("{:?}", experiment.trials) };
    assert_eq!(plain.end, TrialEnd::Done, "{stderr}");
    let TrialEnd::Lost(reason) = &other.end else { panic!("{:?}\n{stderr}", other.end) };
    assert!(reason.contains("its guest was lost") && reason.contains("panic_on_oom"), "{reason}");
    assert!(other.last_output.contains("Kernel panic"), "{}", other.last_output);
    assert!(stderr.contains("1 trial lost, also when repeated"), "{stderr}");
}
