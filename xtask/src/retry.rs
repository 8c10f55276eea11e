//! Tests that failed once, run again alone: a test that then passes three times is flaky, and is
//! distinguished from one that fails.

use std::time::Duration;

use crate::cargo_build::BuiltProgram;
use crate::child::{self, OutputMode};
use crate::libtest;
use crate::passed;
use crate::queue::QueueRecord;
use crate::tally::{FailedTest, Tally, TaskError};
use crate::test::TestPrograms;
use crate::tree;

/// How often a failed test has to pass alone.
const RUNS: usize = 3;
/// Flaky tests that a run may have and still pass.
const FLAKY_MAX: usize = 1;

/// A test that failed and then passed alone, with the reason why a run does not pass with it.
#[derive(Debug)]
struct FlakyTest {
    test: FailedTest,
    refusal: Option<String>,
}

/// Runs the failed tests of `tally` again, alone, and moves those that are flaky out of its failures. What
/// may not be flaky stays a failure.
pub fn run_failed_again(
    programs: &TestPrograms,
    record: &QueueRecord,
    limit: &dyn Fn() -> Duration,
    tally: &mut Tally,
) -> Result<(), TaskError> {
    let failed = std::mem::take(&mut tally.failed_tests);
    let last_passed = if failed.is_empty() { None } else { passed::last_passed_commit() };
    let mut flaky = Vec::new();
    for test in failed.into_iter().filter(may_run_again) {
        let Some(program) = programs.find(&test.program) else { continue };
        if passes_alone(programs, program, &test, limit, tally)? {
            let refusal = changed_file(program, &test, last_passed.as_deref());
            flaky.push(FlakyTest { test, refusal });
        }
    }
    judge(flaky, record, last_passed.is_some(), tally);
    Ok(())
}

/// Moves flaky tests out of the failures, and adds the reasons why they may not be.
fn judge(flaky: Vec<FlakyTest>, record: &QueueRecord, has_passed_commit: bool, tally: &mut Tally) {
    if flaky.is_empty() {
        return;
    }
    tally.print("\nflaky: failed once, passed three times alone");
    let count = flaky.len();
    for FlakyTest { test, refusal } in flaky {
        let line = test.line();
        let beside = record.describe_neighbours(&test);
        tally.print(format!("  flaky: {line} ({}; {beside})", test.message));
        tally.failures.retain(|failure| *failure != line);
        tally.passed += 1;
        tally.failures.extend(refusal.map(|why| format!("{line}: flaky, and {why}")));
    }
    if !has_passed_commit {
        tally.print("  no commit is on record as passed: whether the tests' files changed is not known");
    }
    if count > FLAKY_MAX {
        tally.failures.push(format!("{count} flaky tests, {FLAKY_MAX} allowed"));
    }
}

/// Tests of the guard, of restoring, of kills and of fuzzing protect what cannot be repeated: each failure of
/// theirs counts.
fn may_run_again(test: &FailedTest) -> bool {
    let is_about = |word: &str| test.name.contains(word) || test.program.contains(word);
    !["guard", "restor", "kill", "fuzz"].into_iter().any(is_about)
}

fn passes_alone(
    programs: &TestPrograms,
    program: &BuiltProgram,
    test: &FailedTest,
    limit: &dyn Fn() -> Duration,
    tally: &mut Tally,
) -> Result<bool, TaskError> {
    for _ in 0..RUNS {
        let mut command = programs.command(program);
        command.args(["--show-output", "--exact", &test.name]);
        let ran = child::run(&mut command, OutputMode::Quiet, limit())?;
        let found = libtest::parse_output(&test.program, &[ran.stdout, ran.stderr].concat());
        if !ran.is_success || found.passed == 0 {
            let why = found.failed.first().map_or(&ran.failure, |again| &again.message);
            tally.print(format!("  {}: failed again alone: {why}", test.line()));
            return Ok(false);
        }
    }
    Ok(true)
}

/// That the file of a test differs from the last commit that passed, if it does.
fn changed_file(program: &BuiltProgram, test: &FailedTest, passed: Option<&str>) -> Option<String> {
    let commit = passed?;
    let name = test.name.rsplit("::").next()?;
    let folder = program.folder.to_str()?;
    let files = tree::git(&["grep", "-l", "--untracked", &format!("fn {name}(")]).ok()?;
    let files: Vec<&str> = files.lines().collect();
    let root = tree::root();
    let own: Vec<&str> = files
        .into_iter()
        .filter(|file| root.join(file).starts_with(folder))
        .filter(|file| tree::git(&["diff", "--quiet", commit, "--", file]).is_err())
        .collect();
    let short = commit.get(..12).unwrap_or(commit);
    (!own.is_empty()).then(|| format!("{} differs from {short}, which passed", own.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed_test(program: &str, name: &str) -> FailedTest {
        FailedTest { program: program.into(), name: name.into(), message: "left: 1".into() }
    }

    #[test]
    fn tests_of_guard_restore_kills_and_fuzzing_are_not_run_again() {
        for (program, name, may) in [
            ("pagelab tests/run", "two_variants_interleave", true),
            ("pagelab tests/run", "a_killed_run_goes_on", false),
            ("pagelab tests/restore", "nothing_is_left", false),
            ("pagelab-host tests/guard", "swap::a_file", false),
            ("pagelab-formats tests/fuzz", "all", false),
        ] {
            assert_eq!(may_run_again(&failed_test(program, name)), may, "{program} {name}");
        }
    }

    #[test]
    fn one_flaky_test_is_no_failure_and_two_are() {
        let check = |refusals: &[Option<&str>], failures: &[&str]| {
            let mut tally = Tally::with_held_lines();
            let flaky: Vec<FlakyTest> = refusals
                .iter()
                .enumerate()
                .map(|(at, refusal)| FlakyTest {
                    test: failed_test("p", &format!("t{at}")),
                    refusal: refusal.map(str::to_owned),
                })
                .collect();
            tally.failures = flaky.iter().map(|flaky| flaky.test.line()).chain(["q: t".into()]).collect();
            judge(flaky, &QueueRecord::default(), true, &mut tally);
            assert_eq!(tally.failures, failures);
            assert_eq!(tally.passed, refusals.len() as u64);
            let said = tally.held_lines().iter().filter(|line| line.contains("(left: 1; alone)")).count();
            assert_eq!(said, refusals.len());
        };
        check(&[], &["q: t"]);
        check(&[None], &["q: t"]);
        check(&[Some("new")], &["q: t", "p: t0: flaky, and new"]);
        check(&[None, None], &["q: t", "2 flaky tests, 1 allowed"]);
    }
}
