//! `cargo xtask fuzz`: the parsers under the seeded mutator of `tests/fuzz*.rs`, and under cargo-fuzz
//! where it is installed.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::built::{self, Program};
use crate::child::{self, Show};
use crate::libtest;
use crate::tally::{Failed, Tally};
use crate::tree;

/// Seconds and seed of a fuzzing run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// For how long each fuzz program looks.
    pub seconds: u64,
    /// The seed of the mutator.
    pub seed: u64,
}

impl Plan {
    /// What `cargo xtask test` does: the same inputs in every run on one commit, others on the next.
    pub fn of_commit(seconds: u64) -> Plan {
        let asked = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(tree::root()).output();
        let commit = asked.ok().and_then(|output| String::from_utf8(output.stdout).ok());
        let number = commit.and_then(|hash| u64::from_str_radix(hash.get(..16)?, 16).ok());
        Plan { seconds, seed: number.unwrap_or(1) }
    }
}

/// The command.
pub fn run(words: &[&str]) -> Result<(), Failed> {
    let plan = parse(words, fresh_seed())?;
    let limit = Duration::from_secs(3600);
    let programs = built::build(&["test", "--workspace", "--no-run"], limit)?;
    let mut tally = Tally::default();
    let fuzzers: Vec<&Program> = programs.iter().filter(|program| is_fuzzer(program)).collect();
    if fuzzers.is_empty() {
        return Err(Failed::Because("there is no tests/fuzz*.rs in the workspace".to_owned()));
    }
    for fuzzer in fuzzers {
        mutate(fuzzer, &programs, plan, limit + Duration::from_secs(plan.seconds * 4), &mut tally)?;
    }
    cargo_fuzz(plan.seconds, &mut tally)?;
    tally.close()
}

fn parse(words: &[&str], fresh: u64) -> Result<Plan, Failed> {
    let mut plan = Plan { seconds: 60, seed: fresh };
    let mut words = words.iter();
    while let Some(&word) = words.next() {
        let number = |text: &str| {
            text.parse()
                .map_err(|_| Failed::Usage(format!("`{text}` is not a number (fuzz [SECONDS] [--seed N])")))
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
pub fn is_fuzzer(program: &Program) -> bool {
    program.kind == "test" && program.target.starts_with("fuzz")
}

/// Runs one seeded mutator.
pub fn mutate(
    program: &Program,
    all: &[Program],
    plan: Plan,
    limit: Duration,
    tally: &mut Tally,
) -> Result<(), Failed> {
    let mut command = program.command(all);
    command.arg("--show-output").env("PAGELAB_FUZZ_SECONDS", plan.seconds.to_string());
    command.env("PAGELAB_FUZZ_SEED", plan.seed.to_string());
    let ran = child::run(&mut command, Show::Nothing, limit)?;
    let lines = [ran.stdout, ran.stderr].concat();
    println!("  {:<44}{} s, seed {}", program.name(), plan.seconds, plan.seed);
    if !ran.ok {
        libtest::failures(&lines).iter().for_each(|line| println!("    {line}"));
        println!("    again: cargo xtask fuzz {} --seed {}", plan.seconds, plan.seed);
    }
    tally.add(&program.name(), libtest::read(&program.name(), &lines), ran.ok, &ran.ending);
    Ok(())
}

/// Runs every target of `fuzz/` under cargo-fuzz, if both are there.
pub fn cargo_fuzz(seconds: u64, tally: &mut Tally) -> Result<(), Failed> {
    if !tree::root().join("fuzz/Cargo.toml").is_file() {
        return Ok(());
    }
    if !tree::on_path("cargo-fuzz") {
        tally.skip(
            "cargo-fuzz-not-installed",
            "coverage-guided fuzzing needs cargo-fuzz and nightly",
            "fuzz",
        );
        return Ok(());
    }
    let limit = Duration::from_secs(600 + seconds);
    let listed = child::run(built::cargo().args(["fuzz", "list"]), Show::Progress, limit)?;
    tally.check("cargo fuzz list", listed.ok);
    for target in &listed.stdout {
        let time = format!("-max_total_time={seconds}");
        let mut cargo = built::cargo();
        cargo.args(["fuzz", "run", target, "--", &time]);
        let ran = child::run(&mut cargo, Show::Progress, limit)?;
        tally.check(&format!("cargo fuzz run {target}: {}", ran.ending), ran.ok);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_seed_are_read() {
        let plan = |words: &[&str]| parse(words, 9).map(|plan| (plan.seconds, plan.seed)).ok();
        assert_eq!(plan(&[]), Some((60, 9)));
        assert_eq!(plan(&["5"]), Some((5, 9)));
        assert_eq!(plan(&["--seed", "7", "5"]), Some((5, 7)));
        assert_eq!(plan(&["--seed"]), None);
        assert_eq!(plan(&["long"]), None);
    }
}
