//! The ratchets of the repository: rules that every file keeps, all violations reported at once.
//!
//! A rule may be loosened for one file (or one function of it) in [`EXEMPT`], with the reason. An
//! exemption that nothing needs any more is itself a violation.

mod crates;
mod fix;
mod lex;
mod places;
mod prose;
mod size;
mod skipped;
mod source;
#[cfg(test)]
mod tests;
mod unsafety;
mod words;

use std::fs;
use std::path::Path;

use source::Source;

use crate::tally::Failed;
use crate::tree;

/// One place where a rule is broken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// The file, relative to the root.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The rule's name, as in [`EXEMPT`].
    pub rule: &'static str,
    /// What is wrong.
    pub text: String,
    /// What an exemption names besides the file, where the rule has such a thing: a function.
    pub item: String,
}

impl Violation {
    fn new(file: &str, line: usize, rule: &'static str, text: impl Into<String>) -> Violation {
        Violation { file: file.to_owned(), line, rule, text: text.into(), item: String::new() }
    }
}

/// A rule loosened by name.
struct Exempt {
    rule: &'static str,
    /// A file, `file:function`, or a folder that ends in `/`.
    place: &'static str,
    reason: &'static str,
}

const EXEMPT: [Exempt; 6] = [
    Exempt {
        rule: "exit",
        place: "crates/pagelab/src/out.rs",
        reason: "the thread that watches for signals cannot return from `main`",
    },
    Exempt {
        rule: "kernel-path",
        place: "crates/pagelab-guest/src/places.rs",
        reason: "PID 1 of a guest mounts them, so they are under no root",
    },
    Exempt {
        rule: "page-size",
        place: "crates/pagelab-tlb/src/cpuid.rs",
        reason: "a field of a CPUID register is twelve bits wide",
    },
    Exempt {
        rule: "function-lines",
        place: "crates/pagelab-report/src/findings.rs:word",
        reason: "one table of wordings, an arm for each kind of finding",
    },
    Exempt {
        rule: "machine-path",
        place: "xtask/src/tidy/places.rs",
        reason: "the rule's own list of words",
    },
    Exempt {
        rule: "machine-path",
        place: "xtask/src/tidy/tests.rs",
        reason: "the violations that the rule's test plants",
    },
];

/// All files of the repository with their text, and whether the links in them lead somewhere.
pub struct Files<'a> {
    /// Path and text of each file that is UTF-8.
    pub texts: Vec<(String, String)>,
    /// Whether a path relative to the root exists.
    pub exists: &'a dyn Fn(&str) -> bool,
}

/// The command: `[--fix] [FOLDER]`, this repository or another checkout of it.
pub fn run(words: &[&str]) -> Result<(), Failed> {
    let (fix, words) = match words {
        ["--fix", rest @ ..] => (true, rest),
        words => (false, words),
    };
    let root = match words {
        [] => tree::root(),
        [folder] if !folder.starts_with('-') => folder.into(),
        _ => return Err(Failed::Usage(format!("`tidy` does not know `{}`", words.join(" ")))),
    };
    if fix {
        for path in tree::files(&root).into_iter().filter(|path| path.ends_with(".rs")) {
            let text = fs::read_to_string(root.join(&path))?;
            let fixed = fix::fixed(&path, &text);
            if fixed != text {
                fs::write(root.join(&path), fixed)?;
                println!("{path}: lines broken; `cargo fmt` and a look at them follow");
            }
        }
    }
    if print(&root) == 0 {
        println!("tidy");
        return Ok(());
    }
    Err(Failed::Said)
}

/// Prints all violations of the repository at `root` and returns their number.
pub fn print(root: &Path) -> usize {
    let violations = repository(root);
    for Violation { file, line, rule, text, .. } in &violations {
        println!("{file}:{line}: {text} [{rule}]");
    }
    violations.len()
}

/// The violations of the repository at `root`.
pub fn repository(root: &Path) -> Vec<Violation> {
    let read = |path: String| fs::read_to_string(root.join(&path)).ok().map(|text| (path, text));
    let texts = tree::files(root).into_iter().filter_map(read).collect();
    let exists = |path: &str| root.join(path).exists();
    let found = violations(&Files { texts, exists: &exists });
    exempted(found, &EXEMPT)
}

/// Everything that all rules find, exemptions aside, in order of file and line.
fn violations(files: &Files<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in &files.texts {
        size::file(path, text, &mut found);
        places::check(path, text, &mut found);
        if path.ends_with(".rs") {
            let source = Source::new(path, text);
            size::lines_and_functions(&source, &mut found);
            words::check(&source, &mut found);
            unsafety::check(&source, &mut found);
            crates::pure_source(&source, &mut found);
        }
        if path.ends_with("Cargo.toml") {
            crates::manifest(path, text, &mut found);
        }
        if path.ends_with(".md") {
            prose::links(path, text, files.exists, &mut found);
        }
    }
    prose::exit_codes(files, &mut found);
    skipped::check(files, &mut found);
    found.sort();
    found.dedup();
    found
}

/// Takes out what is exempt, and adds what no longer needs to be.
fn exempted(mut found: Vec<Violation>, table: &[Exempt]) -> Vec<Violation> {
    let mut idle = Vec::new();
    for exempt in table {
        let covers = |violation: &Violation| {
            let place = exempt.place;
            violation.rule == exempt.rule
                && (violation.file == place
                    || place.ends_with('/') && violation.file.starts_with(place)
                    || place.split_once(':') == Some((&violation.file, &violation.item)))
        };
        let before = found.len();
        found.retain(|violation| !covers(violation));
        if found.len() == before {
            let text = format!("nothing needs the exemption of {} ({})", exempt.place, exempt.reason);
            idle.push(Violation::new("xtask/src/tidy.rs", 1, exempt.rule, text));
        }
    }
    found.extend(idle);
    found
}
