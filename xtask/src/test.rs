//! `cargo xtask test`: every check of the repository, phase by phase, against the CI budget.
//!
//! Lint and the builds come first. The programs of all other phases are jobs of one queue, which two lanes
//! empty; a job runs beside those that it tolerates ([`crate::test_programs`]).

use std::fs;
use std::process::Command;
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use crate::cargo_build::{self, BuiltProgram};
use crate::child::{self, OutputMode};
use crate::phases::{self, Phase};
use crate::queue::{self, Job, Kind, QueueRecord, Sharing};
use crate::since::{self, Changes};
use crate::tally::{Tally, TaskError};
use crate::{
    conditions, crate_graph, fuzz, libtest, passed, retry, run_lock, skips, test_programs, tidy, tools, tree,
    web,
};

/// Requested phases and options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestArgs {
    /// No installing, no documentation, no release build, little fuzzing.
    quick: bool,
    /// One phase alone.
    only_phase: Option<Phase>,
    /// Jobs that run side by side.
    lanes: usize,
    /// Only what a change since this revision can affect.
    since: Option<String>,
}

impl Default for TestArgs {
    fn default() -> TestArgs {
        TestArgs { quick: false, only_phase: None, lanes: 2, since: None }
    }
}

impl TestArgs {
    /// Reads the arguments after `test`.
    pub fn parse(arguments: &[&str]) -> Result<TestArgs, TaskError> {
        let mut asked = TestArgs::default();
        let mut words = arguments.iter();
        while let Some(&word) = words.next() {
            let mut value = || words.next().copied().unwrap_or("");
            match word {
                "--quick" => asked.quick = true,
                "--only" => {
                    let name = value();
                    let unknown = || TaskError::Usage(format!("`{name}` is no phase"));
                    asked.only_phase = Some(Phase::parse(name).ok_or_else(unknown)?);
                }
                "--lanes" => {
                    let number = value();
                    let lanes = number.parse().ok().filter(|lanes| (1..=LANES_MAX).contains(lanes));
                    let refusal = || format!("`--lanes {number}`: expected 1 to {LANES_MAX}");
                    asked.lanes = lanes.ok_or_else(|| TaskError::Usage(refusal()))?;
                }
                "--since" => {
                    let revision = value();
                    if revision.is_empty() || revision.starts_with('-') {
                        return Err(TaskError::Usage("`--since` expects a revision".to_owned()));
                    }
                    asked.since = Some(revision.to_owned());
                }
                _ => return Err(TaskError::Usage(format!("`test` does not know `{word}`"))),
            }
        }
        Ok(asked)
    }

    fn includes(&self, phase: Phase) -> bool {
        match self.only_phase {
            Some(only) => only == phase,
            None => !(phase == Phase::Tools && (self.quick || self.since.is_some())),
        }
    }

    /// Every check is requested.
    fn is_complete(&self) -> bool {
        !self.quick && self.only_phase.is_none() && self.since.is_none()
    }

    /// The release binary is to be built.
    fn needs_release(&self) -> bool {
        let uses_it = |phase| matches!(phase, Phase::Build | Phase::EndToEnd | Phase::Web | Phase::Guests);
        !self.quick && self.only_phase.is_none_or(uses_it)
    }

    /// Programs run, which another run on this machine would disturb.
    fn runs_programs(&self) -> bool {
        let is_quiet = |phase| matches!(phase, Phase::Tools | Phase::Lint | Phase::Build);
        !self.only_phase.is_some_and(is_quiet)
    }
}

/// Time limit of `pagelab restore` before the tests.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum of `--lanes`.
const LANES_MAX: usize = 8;

/// The built programs.
#[derive(Default)]
pub struct TestPrograms {
    /// Every program of the debug build.
    pub programs: Vec<BuiltProgram>,
    /// The binary that users run.
    release: Option<BuiltProgram>,
}

impl TestPrograms {
    /// The test program of this display name.
    pub fn find(&self, name: &str) -> Option<&BuiltProgram> {
        self.programs.iter().find(|program| program.is_test && program.display_name() == name)
    }

    /// The command that runs a test program, with the binary that it tests.
    pub fn command(&self, program: &BuiltProgram) -> Command {
        let mut command = program.command(&self.programs);
        let release =
            self.release.iter().filter(|_| !test_programs::uses_debug_binary(&program.display_name()));
        command.envs(release.map(|release| ("PAGELAB_BIN", &release.file)));
        command
    }

    /// The release binary, else the debug one.
    pub fn pagelab(&self) -> Option<&BuiltProgram> {
        let is_debug = |one: &&BuiltProgram| one.kind == "bin" && one.target == "pagelab" && !one.is_test;
        self.release.as_ref().or_else(|| self.programs.iter().find(is_debug))
    }
}

struct TestRun {
    args: TestArgs,
    start: Instant,
    durations: Vec<(Phase, Duration)>,
    built: TestPrograms,
    changes: Option<Changes>,
}

pub fn run_phases(args: &TestArgs) -> Result<(), TaskError> {
    let changes = args.since.as_deref().map(|revision| {
        since::check_revision(revision)?;
        Changes::since(revision)
    });
    let changes = changes.transpose()?;
    if let Some(changes) = &changes {
        println!("{}", changes.describe());
    }
    let _lock = args.runs_programs().then(run_lock::lock_machine).transpose()?;
    let tree = args.is_complete().then(passed::clean_tree);
    let mut run = TestRun {
        args: args.clone(),
        start: Instant::now(),
        durations: vec![],
        built: TestPrograms::default(),
        changes,
    };
    let mut tally = Tally::default();
    run.run_all(&mut tally);
    run.judge_skips(&mut tally);
    print!("{}", phases::format_table(&run.durations));
    let all = run.start.elapsed();
    if all > phases::total_budget() {
        tally.failures.push(format!("it took {}, over the budget", phases::format_duration(all)));
    }
    let ended = tally.finish();
    match tree {
        Some(tree) if ended.is_ok() => record_passed_run(tree, all)?,
        _ => {}
    }
    ended
}

/// A whole run that passed is recorded for the tree that it tested.
fn record_passed_run(tree_before: Result<String, String>, took: Duration) -> Result<(), TaskError> {
    let is_unchanged = |tree: String| match passed::clean_tree()? {
        now if now == tree => Ok(tree),
        _ => Err("HEAD changed during the run".to_owned()),
    };
    match tree_before.and_then(is_unchanged) {
        Ok(tree) => passed::record(&tree, took),
        Err(why) => {
            println!("not recorded as passed: {why}");
            Ok(())
        }
    }
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
    let programs = cargo_build::build_tests(limit)?;
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
    fn run_all(&mut self, tally: &mut Tally) {
        if self.args.includes(Phase::Tools) {
            let start = Instant::now();
            println!("{}", Phase::Tools.name());
            tools::check_tools(tally);
            self.durations.push((Phase::Tools, start.elapsed()));
        }
        self.run_lint_and_build(tally);
        if self.args.runs_programs() && !self.built.programs.is_empty() {
            self.restore_settings(tally);
            let record = self.run_queue(tally);
            let ran = retry::run_failed_again(&self.built, &record, &|| self.time_left(), tally);
            if let Err(TaskError::Message(why)) = ran {
                tally.failures.push(format!("running failed tests again: {why}"));
            }
            self.durations.extend(record.durations);
        }
    }

    /// Lint, the build of the tests and the release build. The last runs beside the others: one compilation
    /// leaves a processor idle at its end.
    fn run_lint_and_build(&mut self, tally: &mut Tally) {
        let dev_build = Sharing::OneOf(Kind::DevBuild);
        let (programs, release) = (Mutex::new(Vec::new()), Mutex::new(None));
        let job = |phase: Phase, name: &str, sharing, seconds, task| Job {
            phase,
            name: name.to_owned(),
            sharing,
            seconds,
            task,
        };
        let mut jobs: Vec<Job<'_>> = Vec::new();
        if self.args.includes(Phase::Lint) {
            let lint = |tally: &mut Tally| self.run_lint(tally);
            jobs.push(job(Phase::Lint, "lint", dev_build, 250, Box::new(lint)));
        }
        if self.args.includes(Phase::Build) || self.args.runs_programs() {
            let build = |tally: &mut Tally| {
                let built = cargo_build::build_tests(self.time_limit(Phase::Build))?;
                tally.record_check("the build of all tests", true);
                *programs.lock().unwrap_or_else(PoisonError::into_inner) = built;
                Ok(())
            };
            jobs.push(job(Phase::Build, "the build of all tests", dev_build, 200, Box::new(build)));
        }
        if self.args.needs_release() {
            let build = |tally: &mut Tally| {
                // The very command of the README, so that it is known to work.
                let built = cargo_build::build_pagelab(self.time_limit(Phase::Build))?;
                tally.record_check("cargo build --release gives pagelab", true);
                *release.lock().unwrap_or_else(PoisonError::into_inner) = Some(built);
                Ok(())
            };
            jobs.push(job(Phase::Build, "the release build", Sharing::Any, 300, Box::new(build)));
        }
        let record = queue::run_jobs(jobs, self.args.lanes, tally);
        self.durations.extend(record.durations);
        let programs = programs.into_inner().unwrap_or_else(PoisonError::into_inner);
        let release = release.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.built = TestPrograms { programs, release };
    }

    /// Time limit of a program: the rest of the total budget, and at most the budget of its phase.
    fn time_limit(&self, phase: Phase) -> Duration {
        self.time_left().min(phase.program_timeout())
    }

    /// The rest of the total budget.
    fn time_left(&self) -> Duration {
        phases::total_budget().saturating_sub(self.start.elapsed())
    }

    /// Undoes what the pagelab of a killed run left changed on the machine.
    fn restore_settings(&self, tally: &mut Tally) {
        let Some(pagelab) = self.built.pagelab() else { return };
        let mut command = Command::new(&pagelab.file);
        let restored = child::run(command.arg("restore"), OutputMode::Quiet, RESTORE_TIMEOUT);
        let Ok(outcome) = restored else { return };
        let has_journals = |line: &&String| !line.starts_with("nothing to restore");
        for line in outcome.stdout.iter().filter(has_journals).chain(&outcome.stderr) {
            tally.print(format!("  pagelab restore: {line}"));
        }
    }

    /// Runs the programs of all requested phases in lanes.
    fn run_queue(&self, tally: &mut Tally) -> QueueRecord {
        let kernels = Once::new();
        let mut jobs: Vec<Job<'_>> = Vec::new();
        for phase in Phase::all().filter(|&phase| self.args.includes(phase)) {
            match phase {
                Phase::Tools | Phase::Lint | Phase::Build => {}
                Phase::Web => jobs.extend(self.web_job()),
                Phase::Fuzz => jobs.extend(self.fuzz_jobs()),
                phase => {
                    let programs = self.built.programs.iter();
                    let programs = programs.filter(|program| phase_of(program) == Some(phase));
                    let affected = programs.filter(|program| self.affects(program));
                    jobs.extend(affected.map(|program| self.program_job(phase, program, &kernels)));
                }
            }
            if phase == Phase::Unit {
                jobs.extend(self.documentation_job());
            }
        }
        queue::run_jobs(jobs, self.args.lanes, tally)
    }

    /// Whether a program is to run: always, but for `--since`.
    fn affects(&self, program: &BuiltProgram) -> bool {
        self.changes.as_ref().is_none_or(|changes| changes.affect(program))
    }

    fn program_job<'a>(&'a self, phase: Phase, program: &'a BuiltProgram, kernels: &'a Once) -> Job<'a> {
        let name = program.display_name();
        let is_guest = phase == Phase::Guests;
        Job {
            phase,
            sharing: test_programs::sharing(&name),
            seconds: test_programs::find(&name).map_or(0, |known| known.seconds),
            name,
            task: Box::new(move |tally| {
                if is_guest && let Some(pagelab) = self.built.pagelab() {
                    kernels.call_once(|| tools::fetch_kernels(&pagelab.file, tally));
                }
                let mut command = self.built.command(program);
                command.arg("--show-output");
                run_tests(&program.display_name(), &mut command, self.time_limit(phase), tally)?;
                Ok(())
            }),
        }
    }

    fn documentation_job(&self) -> Option<Job<'_>> {
        let packages =
            self.changes.as_ref().map_or_else(|| vec!["--workspace".to_owned()], Changes::packages);
        (!packages.is_empty()).then(|| Job {
            phase: Phase::Unit,
            name: "documentation".to_owned(),
            sharing: Sharing::Any,
            seconds: 30,
            task: Box::new(move |tally| {
                let mut cargo = cargo_build::cargo_command();
                cargo.arg("test").args(packages).args(["--doc", "--quiet"]);
                run_tests("documentation", &mut cargo, self.time_limit(Phase::Unit), tally)?;
                Ok(())
            }),
        })
    }

    fn web_job(&self) -> Option<Job<'_>> {
        let is_affected = self.changes.as_ref().is_none_or(Changes::affect_page);
        is_affected.then(|| Job {
            phase: Phase::Web,
            name: Phase::Web.name().to_owned(),
            sharing: Sharing::Any,
            seconds: 120,
            task: Box::new(move |tally| {
                web::check_web(&self.built, self.args.quick, self.time_limit(Phase::Web), tally)
            }),
        })
    }

    fn fuzz_jobs(&self) -> Vec<Job<'_>> {
        let plan = fuzz::FuzzPlan::for_commit(if self.args.quick { 1 } else { 5 });
        let fuzzers = self.built.programs.iter().filter(|program| fuzz::is_fuzzer(program));
        let job =
            |name: String, task| Job { phase: Phase::Fuzz, name, sharing: Sharing::Any, seconds: 0, task };
        let mut jobs: Vec<Job<'_>> = Vec::new();
        for program in fuzzers.filter(|program| self.affects(program)) {
            jobs.push(job(
                program.display_name(),
                Box::new(move |tally: &mut Tally| {
                    let limit = self.time_limit(Phase::Fuzz);
                    fuzz::run_mutator(program, &self.built.programs, plan, limit, tally)
                }),
            ));
        }
        if self.changes.is_none() {
            let task = move |tally: &mut Tally| fuzz::cargo_fuzz(plan.seconds, tally);
            jobs.push(job("cargo fuzz".to_owned(), Box::new(task)));
        }
        jobs
    }

    fn run_lint(&self, tally: &mut Tally) -> Result<(), TaskError> {
        self.run_cargo(&["fmt", "--all", "--check"], tally)?;
        let violations = tidy::check_repository(&tree::root());
        violations.iter().for_each(|violation| tally.print(violation.to_string()));
        let held = violations.is_empty();
        tally.print(format!("  tidy{:>40}", if held { "ok" } else { "failed" }));
        tally.record_check("cargo xtask tidy", held);
        self.run_cargo(
            &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"],
            tally,
        )?;
        if self.args.quick {
            return Ok(());
        }
        self.run_cargo(&["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"], tally)?;
        if tree::is_on_path("cargo-deny") {
            self.run_cargo(&["deny", "--workspace", "check", "licenses", "bans", "sources"], tally)?;
        } else {
            tally.record_skip("cargo-deny-not-installed", "licences of dependencies are not checked", "lint");
        }
        Ok(())
    }

    fn run_cargo(&self, arguments: &[&str], tally: &mut Tally) -> Result<(), TaskError> {
        let mut cargo = cargo_build::cargo_command();
        cargo.args(arguments).env("RUSTDOCFLAGS", "-D warnings");
        let name = format!("cargo {}", arguments.join(" "));
        run_step(&name, &mut cargo, self.time_limit(Phase::Build), tally)?;
        Ok(())
    }

    fn judge_skips(&self, tally: &mut Tally) {
        let list = tree::root().join(skips::LIST_PATH);
        let entries = fs::read_to_string(list).map_err(|error| error.to_string());
        match entries.and_then(|text| skips::parse_list(&text)) {
            Ok(entries) => {
                let has_run = |phase| self.durations.iter().any(|(known, _)| *known == phase);
                let complete = self.args.is_complete() && Phase::all().all(has_run);
                let wrong = skips::check_skips(&entries, &tally.skips, complete, &conditions::holds_here);
                tally.failures.extend(wrong);
            }
            Err(why) => tally.failures.push(why),
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
        tally.print_step(name, ran.is_success, ran.wall_time, &format!("{} passed", found.passed));
    }
    // The cost of a boot belongs in the log of every run.
    let boots = lines.iter().filter(|line| line.starts_with("guest: "));
    boots.for_each(|line| tally.print(format!("    {line}")));
    if !ran.is_success {
        libtest::failure_section(&lines).iter().for_each(|line| tally.print(format!("    {line}")));
        tally.print(format!("    {}", ran.failure));
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
    tally.print_step(name, ran.is_success, ran.wall_time, "");
    if !ran.is_success {
        ran.stdout.iter().chain(&ran.stderr).for_each(|line| tally.print(format!("    {line}")));
        tally.print(format!("    {}", ran.failure));
    }
    tally.record_check(name, ran.is_success);
    Ok(ran.is_success)
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
        let asked = TestArgs::parse(&["--lanes", "1"]).unwrap();
        assert!(asked.is_complete() && asked.lanes == 1 && asked.runs_programs());
        let asked = TestArgs::parse(&["--since", "main"]).unwrap();
        assert!(!asked.is_complete() && asked.since.as_deref() == Some("main"));
        assert!(!TestArgs::parse(&["--only", "lint"]).unwrap().runs_programs());
        let wrong: [&[&str]; 7] = [
            &["--only"],
            &["--only", "moon"],
            &["--fast"],
            &["--lanes", "0"],
            &["--lanes"],
            &["--since"],
            &["--since", "--quick"],
        ];
        for words in wrong {
            assert!(TestArgs::parse(words).is_err(), "{words:?}");
        }
    }
}
