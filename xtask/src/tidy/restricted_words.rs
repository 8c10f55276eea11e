//! Rules about words: kernel paths, page sizes, prints, exits and `unsafe`, which are permitted in some files
//! only, traces of one machine, and IDs of skipped checks, which are in the list and in the code.

use super::source::{SourceFile, split_words};
use super::{RepositoryFiles, Violation};
use crate::crate_graph;
use crate::skips::{self, ListEntry};

/// Marks of unfinished work. They are strings here, which the rule does not check.
const UNFINISHED_MARKS: [&str; 3] = ["FIXME", "XXX", "TODO"];
const UNFINISHED_MACROS: [&str; 2] = ["todo", "unimplemented"];
const PRINT_MACROS: [&str; 5] = ["println", "eprintln", "print", "eprint", "dbg"];
const VAGUE_MODULE_NAMES: [&str; 7] = ["util", "utils", "shared", "common", "helpers", "helper", "misc"];

pub fn check(source: &SourceFile<'_>, violations: &mut Vec<Violation>) {
    let mut at = |offset: usize, rule: &'static str, text: String| {
        violations.push(Violation::new(source.path, source.line_of(offset), rule, text));
    };
    check_kernel_paths(source, &mut at);
    check_comments(source, &mut at);
    check_code(source, &mut at);
    let stem = source.path.rsplit('/').next().and_then(|name| name.strip_suffix(".rs")).unwrap_or("");
    let folder = source.path.rsplit('/').nth(1).unwrap_or("");
    if VAGUE_MODULE_NAMES.contains(&stem) || stem == "mod" && VAGUE_MODULE_NAMES.contains(&folder) {
        at(0, "odds-and-ends", "a module is named after its concept".to_owned());
    }
}

type ReportFn<'a> = dyn FnMut(usize, &'static str, String) + 'a;

/// The kernel's paths are in one file, so that all readings can come from a saved tree.
fn check_kernel_paths(source: &SourceFile<'_>, report: &mut ReportFn<'_>) {
    // Inputs of fuzz targets are texts of the kernel.
    let is_seed = source.path.contains("/src/fuzz");
    if source.path == crate_graph::PATHS_FILE || !source.path.starts_with("crates/") || is_seed {
        return;
    }
    for span in source.lexed.strings.iter().filter(|span| !source.is_in_test(span.start)) {
        let text = source.string_contents(span);
        if ["/proc", "/sys"].iter().any(|path| has_path(text, path)) {
            let text = format!("a path of the kernel in a string: it belongs in {}", crate_graph::PATHS_FILE);
            report(span.start, "kernel-path", text);
        }
    }
}

/// Whether `text` contains `path` as the first part of an absolute path.
fn has_path(text: &str, path: &str) -> bool {
    let word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}');
    text.match_indices(path).any(|(place, _)| {
        let before = text[..place].chars().next_back();
        let after = text[place + path.len()..].chars().next();
        !before.is_some_and(word) && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

fn check_comments(source: &SourceFile<'_>, report: &mut ReportFn<'_>) {
    for span in &source.lexed.comments {
        let text = &source.text[span.start..span.end];
        for (offset, word) in split_words(text, span.start) {
            if UNFINISHED_MARKS.contains(&word) {
                report(offset, "unfinished", format!("`{word}`: finish it, or say what is absent and why"));
            }
        }
    }
}

fn check_code(source: &SourceFile<'_>, report: &mut ReportFn<'_>) {
    let tokens = source.tokens();
    let knows_pages =
        source.path.starts_with(crate_graph::PAGE_SIZE_CRATE) || !source.path.starts_with("crates/");
    let is_build_script = source.path.ends_with("build.rs");
    let may_print =
        source.path == crate_graph::OUTPUT_FILE || !source.path.starts_with("crates/") || is_build_script;
    for (place, token) in tokens.iter().enumerate() {
        let next = |n: usize| tokens.get(place + n).map_or("", |token| token.text);
        let word = token.text;
        let test = source.is_in_test(token.offset);
        if !test && !knows_pages && is_page_size_literal(word, next(1), next(2)) {
            report(token.offset, "page-size", "the size of a page is data of the machine".to_owned());
        }
        if UNFINISHED_MACROS.contains(&word) && next(1) == "!" {
            report(token.offset, "unfinished", format!("`{word}!`"));
        }
        if !test && !may_print && PRINT_MACROS.contains(&word) && next(1) == "!" {
            report(token.offset, "print", format!("`{word}!` outside {}", crate_graph::OUTPUT_FILE));
        }
        let exits = word == "process" && next(1) == ":" && next(3) == "exit";
        if exits && !test && source.path.starts_with("crates/") {
            report(token.offset, "exit", "the exit code is returned to `main`".to_owned());
        }
        if word == "mod" && VAGUE_MODULE_NAMES.contains(&next(1)) {
            report(token.offset, "odds-and-ends", format!("`mod {}`: name the concept", next(1)));
        }
    }
}

/// `4096`, `0x1000`, `<< 12` and `>> 12`, at the first word or mark of them.
fn is_page_size_literal(word: &str, second: &str, third: &str) -> bool {
    let plain = |word: &str| {
        let word: String = word.chars().filter(|c| *c != '_').collect();
        let end = word.find(['u', 'i']).unwrap_or(word.len());
        word[..end].to_owned()
    };
    let shifts = (word, second) == ("<", "<") || (word, second) == (">", ">");
    shifts && plain(third) == "12"
        || word.starts_with(|c: char| c.is_ascii_digit()) && {
            let number = plain(word).to_ascii_lowercase();
            number == "4096" || number == "0x1000"
        }
}

/// Folders of one machine.
const FOLDERS: [&str; 3] = ["/work/", "/root/", "/home/"];
/// Package hosts; the choice of one is a setting of the machine.
const HOSTS: [&str; 8] = [
    "index.crates.io",
    "static.crates.io",
    "registry.npmjs.org",
    "registry.yarnpkg.com",
    "proxy.golang.org",
    "files.pythonhosted.org",
    "deb.debian.org",
    "pypi.org/simple",
];
/// The only source that a lock file may contain; it is a name, not a host that is contacted.
const LOCK_FILE_REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Directories of one machine, and hosts of package registries, in any text of the repository.
pub fn check_machine_paths(path: &str, text: &str, violations: &mut Vec<Violation>) {
    for (number, line) in (1..).zip(text.lines()) {
        for folder in FOLDERS.iter().filter(|folder| has_folder(line, folder)) {
            let text = format!("`{folder}` is a place on one machine");
            violations.push(Violation::new(path, number, "machine-path", text));
        }
        for host in HOSTS.iter().filter(|host| line.contains(**host)) {
            violations.push(Violation::new(
                path,
                number,
                "machine-path",
                format!("`{host}` is a registry's host"),
            ));
        }
        let locked = path.ends_with("Cargo.lock").then(|| line.strip_prefix("source = \"")).flatten();
        if let Some(source) = locked.filter(|source| !source.starts_with(LOCK_FILE_REGISTRY)) {
            let text = format!("`{}` is not the public registry", source.trim_end_matches('"'));
            violations.push(Violation::new(path, number, "machine-path", text));
        }
    }
}

/// Whether `line` contains an absolute path that starts with `folder`; a part of a longer path does not
/// count.
fn has_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(place, _)| {
        let before = line[..place].chars().next_back();
        !before.is_some_and(|c| {
            c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}' | '~' | '*' | '>' | ')')
        })
    })
}

/// Whether `text` contains `id` as a whole word.
fn mentions(text: &str, id: &str) -> bool {
    let inner = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || matches!(c, '-' | '_'));
    text.match_indices(id)
        .any(|(at, _)| !inner(text[..at].chars().next_back()) && !inner(text[at + id.len()..].chars().next()))
}

/// Each ID in the code is in the list, and the reverse.
pub fn check_skip_ids(files: &RepositoryFiles<'_>, violations: &mut Vec<Violation>) {
    let Some((_, list)) = files.texts.iter().find(|(path, _)| path == skips::LIST_PATH) else { return };
    let entries = match skips::parse_list(list) {
        Ok(entries) => entries,
        Err(problem) => {
            violations.push(Violation::new(skips::LIST_PATH, 1, "skips", problem));
            return;
        }
    };
    let mut unmentioned: Vec<&ListEntry> = entries.iter().collect();
    for (path, text) in files.texts.iter().filter(|(path, _)| path.ends_with(".rs")) {
        let source = SourceFile::new(path, text);
        // xtask's own tests make up ids.
        let is_own = path.starts_with("xtask/");
        let strings = source.lexed.strings.iter().filter(|span| !(is_own && source.is_in_test(span.start)));
        unmentioned.retain(|entry| {
            let test = entry.id.rsplit_once("::").map(|(_, test)| test);
            test.is_none_or(|test| !mentions(text, test))
                && !strings.clone().any(|span| mentions(source.string_contents(span), &entry.id))
        });
        // A bench is held against its bar.
        if is_own || path.contains("/benches/") {
            continue;
        }
        for span in &source.lexed.strings {
            let Some(rest) = source.string_contents(span).strip_prefix("skipped: ") else { continue };
            let id = rest.split(':').next().unwrap_or("");
            if skips::is_id(id) && entries.iter().all(|entry| entry.id != id) {
                let text = format!("`{id}` is not in {}", skips::LIST_PATH);
                violations.push(Violation::new(path, source.line_of(span.start), "skips", text));
            }
        }
    }
    // Tests of the page have theirs in TypeScript.
    for (_, text) in files.texts.iter().filter(|(path, _)| path.starts_with("web/test/")) {
        unmentioned.retain(|entry| !mentions(text, &entry.id));
    }
    for entry in unmentioned {
        let text = format!("no check prints `{}`", entry.id);
        violations.push(Violation::new(skips::LIST_PATH, entry.line, "skips", text));
    }
}

/// The two sentences required above each `unsafe` block and `unsafe impl`.
const REQUIRED_COMMENTS: [&str; 2] = ["SAFETY:", "JUSTIFICATION:"];

/// Permitted crates and files, and a reason for each use.
pub fn check_unsafe_code(source: &SourceFile<'_>, violations: &mut Vec<Violation>) {
    let tokens = source.tokens();
    for (place, token) in tokens.iter().enumerate().filter(|(_, token)| token.text == "unsafe") {
        let line = source.line_of(token.offset);
        if !crate_graph::UNSAFE.iter().any(|folder| source.path.starts_with(folder)) {
            let text = format!("`unsafe` outside {}", crate_graph::UNSAFE.join(", "));
            violations.push(Violation::new(source.path, line, "unsafe", text));
            continue;
        }
        // A function's obligations are in its documentation under `# Safety`, which clippy requires.
        if !matches!(tokens.get(place + 1).map(|next| next.text), Some("{" | "impl")) {
            continue;
        }
        let above = comment_above(source, line);
        for sentence in REQUIRED_COMMENTS.iter().filter(|sentence| !above.contains(**sentence)) {
            let text = format!("no `// {sentence}` above this `unsafe`");
            violations.push(Violation::new(source.path, line, "unsafe-reason", text));
        }
    }
}

/// The comment lines above the statement that has `line` in it.
fn comment_above(source: &SourceFile<'_>, line: usize) -> String {
    let texts: Vec<&str> = source.text.lines().collect();
    let codes: Vec<&str> = source.lexed.code.lines().collect();
    let code = |line: usize| codes.get(line).map_or("", |code| code.trim());
    let is_comment = |line: usize| code(line).is_empty() && texts[line].trim_start().starts_with("//");
    // Lines count from 0 here: `above` is the line above the statement so far.
    let mut above = line - 1;
    while above > 0 && !is_comment(above - 1) && !ends_statement(code(above - 1)) {
        above -= 1;
    }
    let mut comment = Vec::new();
    while above > 0 && is_comment(above - 1) {
        above -= 1;
        comment.push(texts[above]);
    }
    comment.join("\n")
}

fn ends_statement(code: &str) -> bool {
    code.is_empty() || code.ends_with([';', '{', '}']) || code.ends_with("},") || code.ends_with("=>")
}
