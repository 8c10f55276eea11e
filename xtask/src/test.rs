//! `cargo xtask test`: every check of the repository, phase by phase, against the CI budget.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::cargo_build::{self, BuiltProgram};
use crate::child::{self, OutputMode};
use crate::phases::{self, Phase};
use crate::tally::{Tally, TaskError};
use crate::{conditions, crate_graph, fuzz, libtest, skips, tidy, tools, tree, web};

/// Requested phases and options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestArgs {
    /// No installing, no documentation, no release build, little fuzzing.
    quick: bool,
    /// One phase alone.
    only_phase: Option<Phase>,
}

impl TestArgs {
    /// Reads the arguments after `test`.
    pub fn parse(arguments: &[&str]) -> Result<TestArgs, TaskError> {
        let mut asked = TestArgs::default();
        let mut words = arguments.iter();
        while let Some(&word) = words.next() {
            match word {
                "--quick" => asked.quick = true,
                "--only" => {
                    let name = words.next().copied().unwrap_or("");
                    let unknown = || TaskError::Usage(format!("`{name}` is no phase"));
                    asked.only_phase = Some(Phase::parse(name).ok_or_else(unknown)?);
                }
                _ => return Err(TaskError::Usage(format!("`test` does not know `{word}`"))),
            }
        }
        Ok(asked)
    }

    fn includes(&self, phase: Phase) -> bool {
        match self.only_phase {
            Some(only) => only == phase,
            None => !(self.quick && phase == Phase::Tools),
        }
    }

    fn is_complete(&self) -> bool {
        *self == TestArgs::default()
    }
}

struct TestRun {
    args: TestArgs,
    start: Instant,
    tally: Tally,
    durations: Vec<(Phase, Duration)>,
    /// Every program of the debug build, once it is made.
    programs: Vec<BuiltProgram>,
    /// The binary that end-to-end tests may use, the one that users run.
    release: Option<BuiltProgram>,
}

pub fn run_phases(args: &TestArgs) -> Result<(), TaskError> {
    let mut run = TestRun {
        args: args.clone(),
        start: Instant::now(),
        tally: Tally::default(),
        durations: vec![],
        programs: vec![],
        release: None,
    };
    for phase in Phase::all().filter(|&phase| args.includes(phase)) {
        let start = Instant::now();
        println!("{}", phase.name());
        // A phase that could not be carried out is a failure, and the phases after it still run.
        if let Err(TaskError::Message(why)) = run.run_phase(phase) {
            run.tally.failures.push(format!("{}: {why}", phase.name()));
        }
        run.durations.push((phase, start.elapsed()));
        if phase == Phase::Build && run.programs.is_empty() {
            break;
        }
    }
    run.judge_skips();
    print!("{}", phases::format_table(&run.durations));
    let all = run.start.elapsed();
    if all > phases::total_budget() {
        run.tally.failures.push(format!("it took {}, over the budget", phases::format_duration(all)));
    }
    run.tally.finish()
}

/// `cargo xtask corpus`: the tests over the corpus and no others.
pub fn run_corpus() -> Result<(), TaskError> {
    let Some(place) = tree::corpus_folder() else {
        return Err("there is no corpus: set PAGELAB_CORPUS, or put it at ../shared/corpus"
            .to_owned()
            .into());
    };
    println!("corpus at {}", place.display());
    let limit = phases::total_budget();
    let programs = cargo_build::build(&["test", "--workspace", "--no-run"], limit)?;
    let mut tally = Tally::default();
    for program in programs.iter().filter(|program| program.is_test) {
        let filter: &[&str] = if is_corpus(program) { &[] } else { &["corpus"] };
        let mut command = program.command(&programs);
        command.arg("--show-output").args(filter);
        run_tests(&program.display_name(), &mut command, limit, &mut tally)?;
    }
    if tally.passed == 0 {
        tally.failures.push("no test has `corpus` in its name".to_owned());
    }
    tally.finish()
}

impl TestRun {
    fn run_phase(&mut self, phase: Phase) -> Result<(), TaskError> {
        if !matches!(phase, Phase::Tools | Phase::Lint) && self.programs.is_empty() {
            let tests = ["test", "--workspace", "--no-run"];
            self.programs = cargo_build::build(&tests, self.time_limit(Phase::Build))?;
        }
        match phase {
            Phase::Tools => tools::check_tools(&mut self.tally),
            Phase::Lint => self.run_lint()?,
            Phase::Build => self.run_build()?,
            Phase::Unit => self.run_unit()?,
            Phase::Corpus | Phase::EndToEnd => self.run_programs(phase)?,
            Phase::Web => self.run_web()?,
            Phase::Guests => self.run_guests()?,
            Phase::Fuzz => self.run_fuzz()?,
        }
        Ok(())
    }

    /// Time limit of a program: the rest of the total budget, and at most the budget of its phase.
    fn time_limit(&self, phase: Phase) -> Duration {
        phases::total_budget().saturating_sub(self.start.elapsed()).min(phase.program_timeout())
    }

    fn run_lint(&mut self) -> Result<(), TaskError> {
        self.run_cargo(&["fmt", "--all", "--check"])?;
        let held = tidy::print_violations(&tree::root()) == 0;
        println!("  tidy{:>40}", if held { "ok" } else { "failed" });
        self.tally.record_check("cargo xtask tidy", held);
        self.run_cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])?;
        if self.args.quick {
            return Ok(());
        }
        self.run_cargo(&["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"])?;
        if tree::is_on_path("cargo-deny") {
            self.run_cargo(&["deny", "--workspace", "check", "licenses", "bans", "sources"])?;
        } else {
            self.tally.record_skip(
                "cargo-deny-not-installed",
                "licences of dependencies are not checked",
                "lint",
            );
        }
        Ok(())
    }

    fn run_cargo(&mut self, arguments: &[&str]) -> Result<(), TaskError> {
        let mut cargo = cargo_build::cargo_command();
        cargo.args(arguments).env("RUSTDOCFLAGS", "-D warnings");
        let name = format!("cargo {}", arguments.join(" "));
        run_step(&name, &mut cargo, self.time_limit(Phase::Build), &mut self.tally)?;
        Ok(())
    }

    fn run_build(&mut self) -> Result<(), TaskError> {
        self.tally.record_check("the build of all tests", true);
        if !self.args.quick {
            // The very command of the README, so that it is known to work.
            self.release = Some(cargo_build::build_pagelab(self.time_limit(Phase::Build))?);
            self.tally.record_check("cargo build --release gives pagelab", true);
        }
        Ok(())
    }

    fn run_unit(&mut self) -> Result<(), TaskError> {
        self.run_programs(Phase::Unit)?;
        let mut cargo = cargo_build::cargo_command();
        cargo.args(["test", "--workspace", "--doc", "--quiet"]);
        run_tests("documentation", &mut cargo, self.time_limit(Phase::Unit), &mut self.tally)?;
        Ok(())
    }

    fn run_programs(&mut self, phase: Phase) -> Result<(), TaskError> {
        for program in self.programs.iter().filter(|program| phase_of(program) == Some(phase)) {
            let mut command = program.command(&self.programs);
            command.arg("--show-output");
            command.envs(self.release.iter().map(|release| ("PAGELAB_BIN", &release.file)));
            run_tests(&program.display_name(), &mut command, self.time_limit(phase), &mut self.tally)?;
        }
        Ok(())
    }

    fn run_web(&mut self) -> Result<(), TaskError> {
        let limit = self.time_limit(Phase::Web);
        web::check_web(&self.programs, self.release.as_ref(), self.args.quick, limit, &mut self.tally)
    }

    fn run_guests(&mut self) -> Result<(), TaskError> {
        let debug = self.programs.iter().find(|program| program.kind == "bin" && program.target == "pagelab");
        if let Some(pagelab) = self.release.as_ref().or(debug) {
            tools::fetch_kernels(&pagelab.file);
        }
        self.run_programs(Phase::Guests)
    }

    fn run_fuzz(&mut self) -> Result<(), TaskError> {
        let plan = fuzz::FuzzPlan::for_commit(if self.args.quick { 1 } else { 5 });
        for program in self.programs.iter().filter(|program| fuzz::is_fuzzer(program)) {
            let limit = self.time_limit(Phase::Fuzz);
            fuzz::run_mutator(program, &self.programs, plan, limit, &mut self.tally)?;
        }
        fuzz::cargo_fuzz(plan.seconds, &mut self.tally)
    }

    fn judge_skips(&mut self) {
        let list = tree::root().join(skips::LIST_PATH);
        let entries = fs::read_to_string(list).map_err(|error| error.to_string());
        match entries.and_then(|text| skips::parse_list(&text)) {
            Ok(entries) => {
                let complete = self.args.is_complete() && self.durations.len() == Phase::all().count();
                let wrong =
                    skips::check_skips(&entries, &self.tally.skips, complete, &conditions::holds_here);
                self.tally.failures.extend(wrong);
            }
            Err(why) => self.tally.failures.push(why),
        }
    }
}

/// Runs a command with output of libtest and adds its results; returns whether it succeeded.
pub fn run_tests(
    name: &str,
    command: &mut Command,
    limit: Duration,
    tally: &mut Tally,
) -> Result<bool, TaskError> {
    let ran = child::run(command, OutputMode::Quiet, limit)?;
    let lines = [ran.stdout, ran.stderr].concat();
    let found = libtest::parse_output(name, &lines);
    if found.passed > 0 || !found.failed.is_empty() || !found.skips.is_empty() || !ran.is_success {
        print_step(name, ran.is_success, ran.wall_time, &format!("{} passed", found.passed));
    }
    // The cost of a boot belongs in the log of every run.
    lines.iter().filter(|line| line.starts_with("guest: ")).for_each(|line| println!("    {line}"));
    if !ran.is_success {
        libtest::failure_section(&lines).iter().for_each(|line| println!("    {line}"));
        println!("    {}", ran.failure);
    }
    tally.add(name, found, ran.is_success, &ran.failure);
    Ok(ran.is_success)
}

/// Runs a command that is one check, and returns whether it succeeded.
pub fn run_step(
    name: &str,
    command: &mut Command,
    limit: Duration,
    tally: &mut Tally,
) -> Result<bool, TaskError> {
    let ran = child::run(command, OutputMode::Quiet, limit)?;
    print_step(name, ran.is_success, ran.wall_time, "");
    if !ran.is_success {
        ran.stdout.iter().chain(&ran.stderr).for_each(|line| println!("    {line}"));
        println!("    {}", ran.failure);
    }
    tally.record_check(name, ran.is_success);
    Ok(ran.is_success)
}

/// Line of a step: name, result, duration.
pub fn print_step(name: &str, ok: bool, duration: Duration, details: &str) {
    let name: String = name.chars().take(60).collect();
    let verdict = if ok { "ok" } else { "failed" };
    println!("  {name:<62}{verdict:<8}{:>12}  {details}", phases::format_duration(duration));
}

/// Phase of a program's tests; `None` if it is no test.
fn phase_of(program: &BuiltProgram) -> Option<Phase> {
    match program.kind.as_str() {
        _ if !program.is_test => None,
        "test" if fuzz::is_fuzzer(program) => Some(Phase::Fuzz),
        "test" if program.target.starts_with("guest") => Some(Phase::Guests),
        "test" if is_corpus(program) => Some(Phase::Corpus),
        "test" if !crate_graph::is_pure(&program.package) => Some(Phase::EndToEnd),
        _ => Some(Phase::Unit),
    }
}

fn is_corpus(program: &BuiltProgram) -> bool {
    program.kind == "test" && program.target.contains("corpus")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_one_phase() {
        let phase = |package: &str, kind: &str, target: &str, is_test| {
            let (package, kind, target) = (package.to_owned(), kind.to_owned(), target.to_owned());
            let (folder, file) = Default::default();
            phase_of(&BuiltProgram { package, folder, kind, target, is_test, file })
        };
        assert_eq!(phase("pagelab", "bin", "pagelab", false), None);
        assert_eq!(phase("pagelab", "bin", "pagelab", true), Some(Phase::Unit));
        assert_eq!(phase("pagelab-host", "lib", "pagelab_host", true), Some(Phase::Unit));
        assert_eq!(phase("pagelab-host", "test", "guard", true), Some(Phase::EndToEnd));
        assert_eq!(phase("pagelab", "test", "alone", true), Some(Phase::EndToEnd));
        assert_eq!(phase("pagelab", "test", "guest", true), Some(Phase::Guests));
        assert_eq!(phase("pagelab", "test", "fake_guest", true), Some(Phase::EndToEnd));
        assert_eq!(phase("pagelab", "test", "corpus", true), Some(Phase::Corpus));
        assert_eq!(phase("pagelab-formats", "test", "fuzz", true), Some(Phase::Fuzz));
        assert_eq!(phase("pagelab-formats", "test", "round_trip", true), Some(Phase::Unit));
    }

    #[test]
    fn arguments_are_read_and_unknown_ones_refused() {
        assert!(TestArgs::parse(&[]).unwrap().is_complete());
        let asked = TestArgs::parse(&["--only", "e2e", "--quick"]).unwrap();
        assert!(asked.includes(Phase::EndToEnd) && !asked.includes(Phase::Lint) && !asked.is_complete());
        for words in [&["--only"][..], &["--only", "moon"], &["--fast"]] {
            assert!(TestArgs::parse(words).is_err(), "{words:?}");
        }
    }
}
