//! `cargo xtask fuzz`: the parsers under the seeded mutator of `tests/fuzz*.rs`, and under cargo-fuzz
//! where it is installed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::cargo_build::{self, BuiltProgram};
use crate::child::{self, OutputMode};
use crate::tally::{Tally, TaskError};
use crate::test::run_tests;
use crate::tree;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuzzPlan {
    /// For how long each fuzz program looks.
    pub seconds: u64,
    pub seed: u64,
}

impl FuzzPlan {
    /// Default of `cargo xtask test`: the same inputs in every run on one commit, others on the next.
    pub fn for_commit(seconds: u64) -> FuzzPlan {
        let commit = tree::git(&["rev-parse", "HEAD"]).ok();
        let number = commit.and_then(|hash| u64::from_str_radix(hash.get(..16)?, 16).ok());
        FuzzPlan { seconds, seed: number.unwrap_or(1) }
    }
}

pub fn run(arguments: &[&str]) -> Result<(), TaskError> {
    let plan = parse_plan(arguments, fresh_seed())?;
    let limit = Duration::from_secs(3600);
    let programs = cargo_build::build_tests(limit)?;
    let fuzzers: Vec<&BuiltProgram> = programs.iter().filter(|program| is_fuzzer(program)).collect();
    if fuzzers.is_empty() {
        return Err(TaskError::Message("there is no tests/fuzz*.rs in the workspace".to_owned()));
    }
    let mut tally = Tally::default();
    for fuzzer in fuzzers {
        run_mutator(fuzzer, &programs, plan, limit + Duration::from_secs(plan.seconds * 4), &mut tally)?;
    }
    cargo_fuzz(plan.seconds, &mut tally)?;
    tally.finish()
}

fn parse_plan(arguments: &[&str], fresh_seed: u64) -> Result<FuzzPlan, TaskError> {
    let mut plan = FuzzPlan { seconds: 60, seed: fresh_seed };
    let mut words = arguments.iter();
    while let Some(&word) = words.next() {
        let number = |text: &str| {
            text.parse().map_err(|_| {
                TaskError::Usage(format!("`{text}` is not a number (fuzz [SECONDS] [--seed N])"))
            })
        };
        match word {
            "--seed" => plan.seed = number(words.next().copied().unwrap_or(""))?,
            word => plan.seconds = number(word)?,
        }
    }
    Ok(plan)
}

fn fresh_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Whether a test program is one of the seeded mutators.
pub fn is_fuzzer(program: &BuiltProgram) -> bool {
    program.kind == "test" && program.target.starts_with("fuzz")
}

pub fn run_mutator(
    program: &BuiltProgram,
    programs: &[BuiltProgram],
    plan: FuzzPlan,
    limit: Duration,
    tally: &mut Tally,
) -> Result<(), TaskError> {
    let mut command = program.command(programs);
    command.arg("--show-output").env("PAGELAB_FUZZ_SECONDS", plan.seconds.to_string());
    command.env("PAGELAB_FUZZ_SEED", plan.seed.to_string());
    tally.print(format!("  {} s, seed {}", plan.seconds, plan.seed));
    if !run_tests(&program.display_name(), &mut command, limit, tally)? {
        tally.print(format!("    again: cargo xtask fuzz {} --seed {}", plan.seconds, plan.seed));
    }
    Ok(())
}

/// Runs every target of `fuzz/` under cargo-fuzz, if that is installed.
pub fn cargo_fuzz(seconds: u64, tally: &mut Tally) -> Result<(), TaskError> {
    if !tree::is_on_path("cargo-fuzz") {
        tally.record_skip(
            "cargo-fuzz-not-installed",
            "coverage-guided fuzzing needs cargo-fuzz and nightly",
            "fuzz",
        );
        return Ok(());
    }
    let limit = Duration::from_secs(600 + seconds);
    let listed =
        child::run(cargo_build::cargo_command().args(["fuzz", "list"]), OutputMode::Progress, limit)?;
    tally.record_check("cargo fuzz list", listed.is_success);
    for target in &listed.stdout {
        let time = format!("-max_total_time={seconds}");
        let mut cargo = cargo_build::cargo_command();
        cargo.args(["fuzz", "run", target, "--", &time]);
        let outcome = child::run(&mut cargo, OutputMode::Progress, limit)?;
        tally.record_check(&format!("cargo fuzz run {target}: {}", outcome.failure), outcome.is_success);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_seed_are_read() {
        let plan = |words: &[&str]| parse_plan(words, 9).map(|plan| (plan.seconds, plan.seed)).ok();
        assert_eq!(plan(&[]), Some((60, 9)));
        assert_eq!(plan(&["5"]), Some((5, 9)));
        assert_eq!(plan(&["--seed", "7", "5"]), Some((5, 7)));
        assert_eq!(plan(&["--seed"]), None);
        assert_eq!(plan(&["long"]), None);
    }
}
