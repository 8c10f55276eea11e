//! Ratchets of the repository: rules for every file; all violations are reported at once.
//!
//! A rule may be loosened for one file (or one function of it) in [`EXEMPTIONS`], with the reason. An
//! exemption that nothing needs any more is itself a violation.

mod crate_edges;
mod dead_items;
mod documents;
mod fix;
mod lexer;
mod limits;
mod machine_settings;
mod masked_failures;
mod refused_names;
mod restricted_words;
mod source;
#[cfg(test)]
mod tests;
pub mod texts;

use std::path::Path;
use std::{fmt, fs};

use source::SourceFile;

use crate::tally::TaskError;
use crate::tree;

/// One place where a rule is broken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// The file, relative to the root.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The rule's name, as in [`EXEMPTIONS`].
    pub rule: &'static str,
    pub text: String,
    /// Further name in an exemption, if the rule has one: a function or a word.
    pub item: String,
}

impl Violation {
    fn new(file: &str, line: usize, rule: &'static str, text: impl Into<String>) -> Violation {
        Violation { file: file.to_owned(), line, rule, text: text.into(), item: String::new() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { file, line, rule, text, .. } = self;
        write!(f, "{file}:{line}: {text} [{rule}]")
    }
}

/// A rule loosened by name.
struct Exemption {
    rule: &'static str,
    /// A file, or a folder that ends in `/`; with `:ITEM`, one function or word of it.
    scope: &'static str,
    reason: &'static str,
}

const fn exempt(rule: &'static str, scope: &'static str, reason: &'static str) -> Exemption {
    Exemption { rule, scope, reason }
}

const fn refused_word(scope: &'static str, reason: &'static str) -> Exemption {
    exempt("refused-word", scope, reason)
}

const EXEMPTIONS: [Exemption; 30] = [
    exempt(
        "exit",
        "crates/pagelab-command/src/output.rs",
        "the thread that watches for signals cannot return from `main`",
    ),
    exempt(
        "kernel-path",
        "crates/pagelab-guest/src/paths.rs",
        "PID 1 of a guest mounts them, so they are under no root",
    ),
    exempt(
        "kernel-path",
        "crates/pagelab-report/src/findings/cgroup_limit.rs",
        "a command for the user's shell has the usual path; nothing is read",
    ),
    exempt("page-size", "crates/pagelab-tlb/src/cpuid.rs", "a field of a CPUID register is twelve bits wide"),
    exempt(
        "function-lines",
        "crates/pagelab-report/src/findings.rs:describe_finding",
        "one table of wordings, an arm for each kind of finding",
    ),
    exempt(
        "dead-item",
        "crates/pagelab-experiment/src/cgroup.rs:dir_paths",
        "tests compare the directories of a group with the file system, on this machine and in guests",
    ),
    exempt(
        "dead-item",
        "crates/pagelab-experiment/src/probe.rs:scan_count",
        "programs of tests end after some scans, on this machine and in guests",
    ),
    exempt(
        "dead-item",
        "crates/pagelab-formats/src/fuzz/mutate.rs:mutate",
        "tests of parsers mutate their inputs, in several crates",
    ),
    exempt(
        "dead-item",
        "crates/pagelab-host/src/guard.rs:mount_debugfs",
        "tests of the record `debugfs`, which `restore` undoes and docs/guard.md documents",
    ),
    exempt(
        "dead-item",
        "crates/pagelab-runfile/src/writer.rs:add_blob",
        "tests write blobs that are hostile, or of later versions",
    ),
    exempt(
        "dead-item",
        "crates/pagelab-sim/src/machine.rs:set_pinned",
        "the example in docs/policies.md uses it",
    ),
    exempt("machine-path", "xtask/src/tidy/restricted_words.rs", "the rule's own list of words"),
    exempt("machine-path", "xtask/src/tidy/tests.rs", "the violations that the rule's test plants"),
    refused_word("xtask/src/tidy/", "the rule's own list, and the violations that its test plants"),
    refused_word("xtask/src/tidy.rs", "the words of these exemptions"),
    refused_word("crates/pagelab-sim/src/loads/paper.rs:given back", "name of a figure in run files"),
    refused_word("CHANGELOG.md", "names the words of earlier releases"),
    refused_word("docs/json.md:spoil*", "the table of renamed fields"),
    refused_word("docs/json.md:dearest", "the table of renamed fields"),
    refused_word("crates/pagelab-runfile/src/earlier.rs:spoil*", "names in run files of earlier versions"),
    refused_word("crates/pagelab-model/src/extfrag.rs:spoil*", "names in run files of earlier versions"),
    refused_word("crates/pagelab-model/src/tune.rs:dearest", "names in run files of earlier versions"),
    refused_word("crates/pagelab-metrics/src/effect/:by chance", "term of statistics"),
    refused_word("crates/pagelab-report/src/simulated.rs:by chance", "term of statistics"),
    refused_word("crates/pagelab-report/src/simulated/:by chance", "term of statistics"),
    refused_word("docs/compare.md:by chance", "term of statistics"),
    refused_word("docs/json.md:by chance", "term of statistics"),
    refused_word("docs/sim.md:by chance", "term of statistics"),
    refused_word("docs/external.md:nobody", "name of a user"),
    refused_word("manifests/postgres.sh:nobody", "name of a user"),
];

/// All files of the repository with their text, and whether the links in them lead somewhere.
pub struct RepositoryFiles<'a> {
    /// Path and text of each file that is UTF-8.
    pub texts: Vec<(String, String)>,
    /// Whether a path relative to the root exists.
    pub exists: &'a dyn Fn(&str) -> bool,
}

/// The command: `[--fix] [FOLDER]`, this repository or another checkout of it.
pub fn run(arguments: &[&str]) -> Result<(), TaskError> {
    let (fix, words) = match arguments {
        ["--fix", rest @ ..] => (true, rest),
        words => (false, words),
    };
    let root = match words {
        [] => tree::root(),
        [folder] if !folder.starts_with('-') => folder.into(),
        _ => return Err(TaskError::Usage(format!("unknown argument `{}`", words.join(" ")))),
    };
    if fix {
        for path in tree::list_files(&root).into_iter().filter(|path| path.ends_with(".rs")) {
            let text = fs::read_to_string(root.join(&path))?;
            let fixed = fix::wrap_wide_lines(&path, &text);
            if fixed != text {
                fs::write(root.join(&path), fixed)?;
                println!("{path}: lines broken; run `cargo fmt` and review them");
            }
        }
    }
    let violations = check_repository(&root);
    if violations.is_empty() {
        println!("tidy");
        return Ok(());
    }
    violations.iter().for_each(|violation| println!("{violation}"));
    Err(TaskError::Reported)
}

/// The violations of the repository at `root`.
pub fn check_repository(root: &Path) -> Vec<Violation> {
    let exists = |path: &str| root.join(path).exists();
    let files = RepositoryFiles { texts: read_texts(root), exists: &exists };
    let sources = rust_sources(&files.texts);
    let mut found = check_files(&files, &sources);
    masked_failures::check(&sources, &mut found);
    texts::check(&files, &sources, &mut found);
    apply_exemptions(found, &EXEMPTIONS)
}

/// Path and text of each file below `root` that is UTF-8.
fn read_texts(root: &Path) -> Vec<(String, String)> {
    let read = |path: String| fs::read_to_string(root.join(&path)).ok().map(|text| (path, text));
    tree::list_files(root).into_iter().filter_map(read).collect()
}

fn rust_sources(texts: &[(String, String)]) -> Vec<SourceFile<'_>> {
    let rust = texts.iter().filter(|(path, _)| path.ends_with(".rs"));
    rust.map(|(path, text)| SourceFile::new(path, text)).collect()
}

/// Everything that the rules for files find, exemptions aside, in order of file and line. `sources` are the
/// Rust files among `files`.
fn check_files(files: &RepositoryFiles<'_>, sources: &[SourceFile<'_>]) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in sources {
        limits::check_lines_and_functions(source, &mut found);
        restricted_words::check(source, &mut found);
        refused_names::check_source(source, &mut found);
        restricted_words::check_unsafe_code(source, &mut found);
        crate_edges::check_pure_source(source, &mut found);
    }
    for (path, text) in &files.texts {
        limits::check_file(path, text, &mut found);
        restricted_words::check_machine_paths(path, text, &mut found);
        refused_names::check_text(path, text, &mut found);
        if path.ends_with("Cargo.toml") {
            crate_edges::check_manifest(path, text, &mut found);
        }
        if path.ends_with(".md") {
            documents::check_links(path, text, files.exists, &mut found);
        }
    }
    restricted_words::check_skip_ids(files, &mut found);
    machine_settings::check(files, &mut found);
    dead_items::check(sources, &mut found);
    found.sort();
    found.dedup();
    found
}

/// Removes exempt violations, and adds unused exemptions.
fn apply_exemptions(mut violations: Vec<Violation>, table: &[Exemption]) -> Vec<Violation> {
    let mut idle = Vec::new();
    for exempt in table {
        let covers = |violation: &Violation| {
            let (place, item) = exempt.scope.split_once(':').unwrap_or((exempt.scope, ""));
            violation.rule == exempt.rule
                && (violation.file == place || place.ends_with('/') && violation.file.starts_with(place))
                && (item.is_empty() || violation.item == item)
        };
        let before = violations.len();
        violations.retain(|violation| !covers(violation));
        if violations.len() == before {
            let text = format!("unused exemption of {} ({})", exempt.scope, exempt.reason);
            idle.push(Violation::new("xtask/src/tidy.rs", 1, exempt.rule, text));
        }
    }
    violations.extend(idle);
    violations
}
