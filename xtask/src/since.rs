//! `cargo xtask test --since REV`: the test programs that a change can affect.

use std::collections::BTreeSet;
use std::fs;

use crate::cargo_build::BuiltProgram;
use crate::crate_graph::{self, CRATES};
use crate::tally::TaskError;
use crate::test_programs::{self, BASE_CRATES};
use crate::tree;

/// What a change can affect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Crates whose sources or manifest changed.
    crates: BTreeSet<String>,
    /// Test programs whose own files changed, by display name.
    programs: BTreeSet<String>,
    /// Why everything is affected, if it is.
    everything: Option<String>,
    /// Files of the report page changed.
    has_page: bool,
    /// Changed documents, by file name.
    documents: BTreeSet<String>,
}

impl Changes {
    /// The differences between the work tree and a revision.
    pub fn since(revision: &str) -> Result<Changes, TaskError> {
        let changed = tree::git(&["diff", "--name-only", revision, "--"])?;
        let added = tree::git(&["ls-files", "--others", "--exclude-standard"])?;
        Ok(Changes::of_files(changed.lines().chain(added.lines())))
    }

    fn of_files<'a>(files: impl Iterator<Item = &'a str>) -> Changes {
        let mut changes = Changes::default();
        for file in files {
            changes.add_file(file);
        }
        changes
    }

    fn add_file(&mut self, file: &str) {
        let parts: Vec<&str> = file.split('/').collect();
        match parts[..] {
            ["crates", package, "tests", name, ..] => {
                let is_program =
                    |program: &String| test_programs::find(program).is_some() || name.ends_with(".rs");
                match test_programs::program_of_file(file).filter(is_program) {
                    Some(program) => self.programs.insert(program),
                    // Support and data of several programs.
                    None => self.crates.insert(package.to_owned()),
                };
            }
            ["crates", _, "benches", ..] => {}
            ["crates", package, ..] => drop(self.crates.insert(package.to_owned())),
            // The sources are embedded there.
            ["kmod", ..] => drop(self.crates.insert("pagelab-guest".to_owned())),
            ["xtask", ..] => drop(self.crates.insert("xtask".to_owned())),
            ["web", ..] => self.has_page = true,
            [.., name] if name.ends_with(".md") => drop(self.documents.insert(name.to_owned())),
            ["LICENSE-APACHE" | "LICENSE-MIT" | ".gitignore"] => {}
            _ => drop(self.everything.get_or_insert_with(|| file.to_owned())),
        }
    }

    /// One line that says what is tested.
    pub fn describe(&self) -> String {
        if let Some(file) = &self.everything {
            return format!("{file} changed: everything is tested");
        }
        let crates: Vec<&str> = self.crates.iter().map(String::as_str).collect();
        let crates = if crates.is_empty() { "none".to_owned() } else { crates.join(", ") };
        format!("changed crates: {crates}; only tests that they can affect run")
    }

    /// Whether the change can affect the result of a test program.
    pub fn affect(&self, program: &BuiltProgram) -> bool {
        let name = program.display_name();
        self.everything.is_some()
            || self.programs.contains(&name)
            || self.affect_crates_of(&name, &program.package)
            || self.has_page && name.contains("checkup_html")
            || self.is_read_by(program)
    }

    fn affect_crates_of(&self, name: &str, package: &str) -> bool {
        match test_programs::find(name).map(|row| row.crates) {
            Some(crates) if !crates.is_empty() => {
                let full = |short: &str| format!("pagelab-{short}");
                crates.split_whitespace().any(|short| self.crates.contains(&full(short)))
                    || BASE_CRATES.iter().any(|base| self.crates.contains(*base))
            }
            _ if package == "pagelab" || package == "xtask" => !self.crates.is_empty(),
            _ => self.crates.iter().any(|changed| changed == package || depends_on(package, changed)),
        }
    }

    /// Whether the sources of a test program name a changed document.
    fn is_read_by(&self, program: &BuiltProgram) -> bool {
        if self.documents.is_empty() || program.kind != "test" {
            return false;
        }
        let folder = program.folder.join("tests");
        let files =
            [folder.join(format!("{}.rs", program.target)), folder.join(&program.target).join("main.rs")];
        let texts: Vec<String> = files.iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
        self.documents.iter().any(|document| texts.iter().any(|text| text.contains(document.as_str())))
    }

    /// Whether the report page has to be tested.
    pub fn affect_page(&self) -> bool {
        let is_page = |name: &String| name == "pagelab-report" || name == "pagelab-model";
        self.everything.is_some() || self.has_page || self.crates.iter().any(is_page)
    }

    /// The crates whose documentation tests have to run: `-p NAME`, or `--workspace`.
    pub fn packages(&self) -> Vec<String> {
        if self.everything.is_some() {
            return vec!["--workspace".to_owned()];
        }
        let known = CRATES.iter().filter(|known| self.crates.contains(known.name));
        known.flat_map(|known| ["-p".to_owned(), known.name.to_owned()]).collect()
    }
}

/// Whether the crate `package` may see the crate `dependency`, directly or through others.
fn depends_on(package: &str, dependency: &str) -> bool {
    let Some(rules) = crate_graph::find_crate(package) else { return true };
    CRATES.iter().any(|known| {
        rules.may_depend_on(known.name) && (known.name == dependency || depends_on(known.name, dependency))
    })
}

/// The root of the repository has a revision of this name.
pub fn check_revision(revision: &str) -> Result<(), TaskError> {
    let name = format!("{revision}^{{commit}}");
    tree::git(&["rev-parse", "--verify", "--quiet", &name])
        .map(drop)
        .map_err(|_| TaskError::Usage(format!("`{revision}` is no revision of {}", tree::root().display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn affected(files: &[&str], program: &str) -> bool {
        let (package, target) = program.split_once(' ').unwrap();
        let (kind, target) = match target.strip_prefix("tests/") {
            Some(target) => ("test", target),
            None => (target, package),
        };
        let folder = tree::root().join("crates").join(package);
        let (package, kind, target) = (package.to_owned(), kind.to_owned(), target.to_owned());
        let file = Default::default();
        let program = BuiltProgram { package, folder, kind, target, is_test: true, file };
        Changes::of_files(files.iter().copied()).affect(&program)
    }

    #[test]
    fn a_change_reaches_the_programs_that_see_it_and_no_others() {
        let report = &["crates/pagelab-report/src/lib.rs"][..];
        let sim = &["crates/pagelab-sim/src/lib.rs"][..];
        for (files, program, is_affected) in [
            (report, "pagelab tests/report", true),
            (report, "pagelab tests/alone", true),
            (report, "pagelab tests/profile_exact", false),
            (report, "pagelab-guest lib", true),
            (report, "pagelab-sim lib", false),
            (report, "pagelab-host tests/guard", false),
            (report, "pagelab bin", true),
            (sim, "pagelab tests/sim_sweep", true),
            (sim, "pagelab tests/run", false),
            (sim, "pagelab-study lib", true),
            (&["crates/pagelab-sys/src/lib.rs"], "pagelab tests/run", true),
            (&["crates/pagelab-sys/src/lib.rs"], "pagelab-sim lib", false),
            (&["crates/pagelab/tests/run.rs"], "pagelab tests/run", true),
            (&["crates/pagelab/tests/run.rs"], "pagelab tests/lab", false),
            (&["crates/pagelab/tests/support/mod.rs"], "pagelab tests/lab", true),
            (&["crates/pagelab/benches/sim.rs"], "pagelab tests/sim", false),
            (&["Cargo.lock"], "pagelab-host tests/guard", true),
            (&["docs/json.md"], "pagelab tests/report", true),
            (&["docs/can.md"], "pagelab tests/run", false),
            (&[], "pagelab tests/alone", false),
        ] {
            assert_eq!(affected(files, program), is_affected, "{files:?} {program}");
        }
    }

    #[test]
    fn what_is_tested_is_told() {
        let changes = |file: &'static str| Changes::of_files([file].into_iter());
        assert!(changes("fixtures/a").describe().starts_with("fixtures/a changed: everything"));
        let report = changes("crates/pagelab-report/src/lib.rs");
        assert!(report.describe().starts_with("changed crates: pagelab-report;"));
        assert_eq!(report.packages(), ["-p", "pagelab-report"]);
        assert!(report.affect_page() && !changes("crates/pagelab-sim/src/lib.rs").affect_page());
        assert!(changes("web/src/main.ts").affect_page());
    }
}
