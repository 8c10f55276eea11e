//! Test programs that change or count something of the whole machine must be in the table of test programs,
//! which says what may run beside each.

use super::{RepositoryFiles, Violation};
use crate::{crate_graph, test_programs};

/// Settings and counts of the whole machine.
const MACHINE_WORDS: [&str; 7] =
    ["drop_caches", "compact_memory", "nr_hugepages", "mountinfo", "/proc/swaps", "kmem:", "kmem/"];

/// Unlisted test programs with a word of a machine-wide setting or count.
pub fn check(files: &RepositoryFiles<'_>, violations: &mut Vec<Violation>) {
    for (path, text) in &files.texts {
        let Some(program) = program_of(path, files.exists) else { continue };
        if test_programs::find(&program).is_some() {
            continue;
        }
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(word) = MACHINE_WORDS.iter().find(|word| line.contains(**word)) {
                let text = format!(
                    "`{word}` belongs to the whole machine: list `{program}` in xtask/src/test_programs.rs"
                );
                violations.push(Violation::new(path, number, "machine-setting", text));
            }
        }
    }
}

/// Display name of the test program that a file is a part of; `None` for pure crates and modules that several
/// programs include.
fn program_of(path: &str, exists: &dyn Fn(&str) -> bool) -> Option<String> {
    let program = test_programs::program_of_file(path)?;
    let (package, target) = program.split_once(' ')?;
    let place = format!("crates/{package}/{target}");
    let is_program = exists(&format!("{place}.rs")) || exists(&format!("{place}/main.rs"));
    (is_program && path.ends_with(".rs") && !crate_graph::is_pure(package)).then_some(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unlisted_program_with_a_machine_setting_is_found() {
        let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        let texts = vec![
            file("crates/pagelab/tests/new.rs", "//! New.\nwrite(\"drop_caches\")"),
            file("crates/pagelab/tests/new/part.rs", "let event = \"kmem:mm_page_alloc\";"),
            file("crates/pagelab/tests/new/notes.txt", "compact_memory"),
            file("crates/pagelab/tests/run.rs", "nr_hugepages"),
            file("crates/pagelab/tests/support/mod.rs", "nr_hugepages"),
            file("crates/pagelab-metrics/tests/new.rs", "nr_hugepages"),
            file("crates/pagelab/src/main.rs", "nr_hugepages"),
        ];
        let exists =
            |path: &str| ["new.rs", "run.rs"].iter().any(|name| path.ends_with(&format!("/tests/{name}")));
        let mut found = Vec::new();
        check(&RepositoryFiles { texts, exists: &exists }, &mut found);
        let found: Vec<_> = found.iter().map(|one| (one.file.as_str(), one.line, one.rule)).collect();
        assert_eq!(
            found,
            [
                ("crates/pagelab/tests/new.rs", 2, "machine-setting"),
                ("crates/pagelab/tests/new/part.rs", 1, "machine-setting"),
            ]
        );
    }
}
