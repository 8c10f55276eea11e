//! `cargo xtask test`: every check of the repository, phase by phase, against the CI budget.

use std::fs;
use std::time::{Duration, Instant};

use crate::built::{self, Program};
use crate::child::{self, Show};
use crate::phases::{self, Phase};
use crate::tally::{Failed, Tally};
use crate::{edges, facts, fuzz, libtest, skips, tidy, tools, tree, web};

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// No installing, no documentation, no release build, little fuzzing.
    quick: bool,
    /// One phase alone.
    only: Option<Phase>,
}

impl Asked {
    /// Reads the arguments behind `test`.
    pub fn parse(words: &[&str]) -> Result<Asked, Failed> {
        let mut asked = Asked::default();
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            match word {
                "--quick" => asked.quick = true,
                "--only" => {
                    let name = words.next().copied().unwrap_or("");
                    let unknown = || Failed::Usage(format!("`{name}` is no phase"));
                    asked.only = Some(Phase::of(name).ok_or_else(unknown)?);
                }
                _ => return Err(Failed::Usage(format!("`test` does not know `{word}`"))),
            }
        }
        Ok(asked)
    }

    fn wants(&self, phase: Phase) -> bool {
        match self.only {
            Some(only) => only == phase,
            None => !(self.quick && phase == Phase::Tools),
        }
    }

    fn is_complete(&self) -> bool {
        *self == Asked::default()
    }
}

/// One run of the phases.
struct Run {
    asked: Asked,
    start: Instant,
    tally: Tally,
    took: Vec<(Phase, Duration)>,
    /// Every program of the debug build, once it is made.
    programs: Vec<Program>,
    /// The binary that end-to-end tests may use, the one that users run.
    release: Option<Program>,
}

/// Runs the phases that were asked for and says how it went.
pub fn run(asked: &Asked) -> Result<(), Failed> {
    let mut run = Run {
        asked: asked.clone(),
        start: Instant::now(),
        tally: Tally::default(),
        took: vec![],
        programs: vec![],
        release: None,
    };
    for phase in Phase::ALL.into_iter().filter(|&phase| asked.wants(phase)) {
        let start = Instant::now();
        println!("{}", phase.word());
        // A phase that could not be carried out is a failure, and the phases behind it say more.
        if let Err(Failed::Because(why)) = run.phase(phase) {
            run.tally.failures.push(format!("{}: {why}", phase.word()));
        }
        run.took.push((phase, start.elapsed()));
        if phase == Phase::Build && run.programs.is_empty() {
            break;
        }
    }
    run.judge_skips();
    print!("{}", phases::table(&run.took));
    let all = run.start.elapsed();
    if all > phases::whole() {
        run.tally.failures.push(format!("it took {}, over the budget", phases::clock(all)));
    }
    run.tally.close()
}

/// `cargo xtask corpus`: the tests over the corpus and no others.
pub fn corpus() -> Result<(), Failed> {
    let Some(place) = tree::corpus() else {
        return Err("there is no corpus: set PAGELAB_CORPUS, or put it at ../shared/corpus"
            .to_owned()
            .into());
    };
    println!("corpus at {}", place.display());
    let limit = phases::whole();
    let programs = built::build(&["test", "--workspace", "--no-run"], limit)?;
    let mut tally = Tally::default();
    for program in programs.iter().filter(|program| program.is_test) {
        let filter: &[&str] = if is_corpus(program) { &[] } else { &["corpus"] };
        tests(program, &programs, filter, &[], limit, &mut tally)?;
    }
    if tally.passed == 0 {
        tally.failures.push("no test has `corpus` in its name".to_owned());
    }
    tally.close()
}

impl Run {
    fn phase(&mut self, phase: Phase) -> Result<(), Failed> {
        match phase {
            Phase::Tools => tools::check(&mut self.tally),
            Phase::Lint => self.lint()?,
            Phase::Build => self.build()?,
            Phase::Unit => self.unit()?,
            Phase::Corpus | Phase::EndToEnd => self.programs_of(phase)?,
            Phase::Web => self.web()?,
            Phase::Guests => self.guests()?,
            Phase::Fuzz => self.fuzz()?,
        }
        Ok(())
    }

    /// How long a program may run: what is left of the whole, and never more than its phase's own budget.
    fn limit(&self, phase: Phase) -> Duration {
        phases::whole().saturating_sub(self.start.elapsed()).min(phase.patience())
    }

    fn lint(&mut self) -> Result<(), Failed> {
        self.cargo(&["fmt", "--all", "--check"])?;
        let held = tidy::print(&tree::root()) == 0;
        println!("  tidy{:>40}", if held { "ok" } else { "failed" });
        self.tally.check("cargo xtask tidy", held);
        self.cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"])?;
        if self.asked.quick {
            return Ok(());
        }
        self.cargo(&["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"])?;
        if tree::on_path("cargo-deny") {
            self.cargo(&["deny", "--workspace", "check", "licenses", "bans", "sources"])?;
        } else {
            self.tally.skip("cargo-deny-not-installed", "licences of dependencies are not checked", "lint");
        }
        Ok(())
    }

    /// A step that is one command of cargo.
    fn cargo(&mut self, arguments: &[&str]) -> Result<(), Failed> {
        let mut cargo = built::cargo();
        cargo.args(arguments).env("RUSTDOCFLAGS", "-D warnings");
        let ran = child::run(&mut cargo, Show::Nothing, self.limit(Phase::Build))?;
        let name = format!("cargo {}", arguments.join(" "));
        said(&name, ran.ok, ran.took, "");
        if !ran.ok {
            ran.stdout.iter().chain(&ran.stderr).for_each(|line| println!("    {line}"));
        }
        self.tally.check(&name, ran.ok);
        Ok(())
    }

    fn build(&mut self) -> Result<(), Failed> {
        self.need_programs()?;
        self.tally.check("the build of all tests", true);
        if !self.asked.quick {
            // The very command of the README, so that it is known to work.
            let products = built::build(&["build", "--release"], self.limit(Phase::Build))?;
            self.release = products.into_iter().find(|program| program.target == "pagelab");
            self.tally.check("cargo build --release gives pagelab", self.release.is_some());
        }
        Ok(())
    }

    fn need_programs(&mut self) -> Result<(), Failed> {
        if self.programs.is_empty() {
            self.programs = built::build(&["test", "--workspace", "--no-run"], self.limit(Phase::Build))?;
        }
        Ok(())
    }

    fn unit(&mut self) -> Result<(), Failed> {
        self.programs_of(Phase::Unit)?;
        let mut cargo = built::cargo();
        cargo.args(["test", "--workspace", "--doc", "--quiet"]);
        let ran = child::run(&mut cargo, Show::Nothing, self.limit(Phase::Unit))?;
        let lines = [ran.stdout, ran.stderr].concat();
        let found = libtest::read("documentation", &lines);
        said("documentation tests", ran.ok, ran.took, &format!("{} passed", found.passed));
        if !ran.ok {
            libtest::failures(&lines).iter().for_each(|line| println!("    {line}"));
        }
        self.tally.add("documentation", found, ran.ok, &ran.ending);
        Ok(())
    }

    fn programs_of(&mut self, phase: Phase) -> Result<(), Failed> {
        self.need_programs()?;
        let release = self.release.iter().map(|program| ("PAGELAB_BIN", program.file.clone()));
        let environment: Vec<_> = release.collect();
        for program in self.programs.clone().iter().filter(|program| phase_of(program) == Some(phase)) {
            let limit = self.limit(phase);
            tests(program, &self.programs, &[], &environment, limit, &mut self.tally)?;
        }
        Ok(())
    }

    fn web(&mut self) -> Result<(), Failed> {
        self.need_programs()?;
        let made = web::Made::of(&self.programs, self.release.as_ref())?;
        let limit = self.limit(Phase::Web);
        web::check(&made, self.asked.quick, limit, &mut self.tally)
    }

    fn guests(&mut self) -> Result<(), Failed> {
        self.need_programs()?;
        let debug = self.programs.iter().find(|program| program.kind == "bin" && program.target == "pagelab");
        if let Some(pagelab) = self.release.as_ref().or(debug) {
            tools::kernels(&pagelab.file);
        }
        self.programs_of(Phase::Guests)
    }

    fn fuzz(&mut self) -> Result<(), Failed> {
        self.need_programs()?;
        let plan = fuzz::Plan::of_commit(if self.asked.quick { 1 } else { 5 });
        for program in self.programs.iter().filter(|program| fuzz::is_fuzzer(program)) {
            let limit = self.limit(Phase::Fuzz);
            fuzz::mutate(program, &self.programs, plan, limit, &mut self.tally)?;
        }
        fuzz::cargo_fuzz(plan.seconds, &mut self.tally)
    }

    fn judge_skips(&mut self) {
        let list = tree::root().join(skips::LIST);
        let entries = fs::read_to_string(list).map_err(|error| error.to_string());
        match entries.and_then(|text| skips::parse(&text)) {
            Ok(entries) => {
                let complete = self.asked.is_complete() && self.took.len() == Phase::ALL.len();
                let wrong = skips::judge(&entries, &self.tally.skips, complete, &facts::here);
                self.tally.failures.extend(wrong);
            }
            Err(why) => self.tally.failures.push(why),
        }
    }
}

/// Runs one test program and adds what it found.
fn tests(
    program: &Program,
    all: &[Program],
    filter: &[&str],
    environment: &[(&str, std::path::PathBuf)],
    limit: Duration,
    tally: &mut Tally,
) -> Result<(), Failed> {
    let mut command = program.command(all);
    command.arg("--show-output").args(filter).envs(environment.iter().cloned());
    let ran = child::run(&mut command, Show::Nothing, limit)?;
    let lines = [ran.stdout, ran.stderr].concat();
    let found = libtest::read(&program.name(), &lines);
    let tests = found.passed + (found.failed.len() + found.skips.len()) as u64;
    if tests > 0 || !ran.ok {
        said(&program.name(), ran.ok, ran.took, &format!("{} passed", found.passed));
    }
    // What a boot cost belongs into the log of every run.
    lines.iter().filter(|line| line.starts_with("guest: ")).for_each(|line| println!("    {line}"));
    if !ran.ok {
        libtest::failures(&lines).iter().for_each(|line| println!("    {line}"));
        println!("    {}", ran.ending);
    }
    tally.add(&program.name(), found, ran.ok, &ran.ending);
    Ok(())
}

/// A line of a step: what it was, how it went, how long it took.
pub fn said(name: &str, ok: bool, took: Duration, more: &str) {
    let name: String = name.chars().take(60).collect();
    let verdict = if ok { "ok" } else { "failed" };
    println!("  {name:<62}{verdict:<8}{:>12}  {more}", phases::clock(took));
}

/// The phase in which a program's tests run; `None` for what is no test.
fn phase_of(program: &Program) -> Option<Phase> {
    match program.kind.as_str() {
        _ if !program.is_test => None,
        "test" if fuzz::is_fuzzer(program) => Some(Phase::Fuzz),
        "test" if program.target.starts_with("guest") => Some(Phase::Guests),
        "test" if is_corpus(program) => Some(Phase::Corpus),
        "test" if !edges::is_pure(&program.package) => Some(Phase::EndToEnd),
        _ => Some(Phase::Unit),
    }
}

fn is_corpus(program: &Program) -> bool {
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
            phase_of(&Program { package, folder, kind, target, is_test, file })
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
        assert!(Asked::parse(&[]).unwrap().is_complete());
        let asked = Asked::parse(&["--only", "e2e", "--quick"]).unwrap();
        assert!(asked.wants(Phase::EndToEnd) && !asked.wants(Phase::Lint) && !asked.is_complete());
        for words in [&["--only"][..], &["--only", "moon"], &["--fast"]] {
            assert!(Asked::parse(words).is_err(), "{words:?}");
        }
    }
}
