//! Words that may stand in some files only: kernel paths, the bytes of a page, prints and exits, names
//! for odds and ends.

use super::Violation;
use super::source::Source;
use crate::edges;

/// Marks of unfinished work. They stand here as strings, which the rule does not read.
const UNFINISHED: [&str; 3] = ["FIXME", "XXX", "TODO"];
const UNFINISHED_MACROS: [&str; 2] = ["todo", "unimplemented"];
const PRINTS: [&str; 5] = ["println", "eprintln", "print", "eprint", "dbg"];
const ODDS_AND_ENDS: [&str; 7] = ["util", "utils", "shared", "common", "helpers", "helper", "misc"];

/// All rules about words.
pub fn check(source: &Source<'_>, found: &mut Vec<Violation>) {
    let mut at = |offset: usize, rule: &'static str, text: String| {
        found.push(Violation::new(source.path, source.line(offset), rule, text));
    };
    kernel_paths(source, &mut at);
    comments(source, &mut at);
    code(source, &mut at);
    let stem = source.path.rsplit('/').next().and_then(|name| name.strip_suffix(".rs")).unwrap_or("");
    let folder = source.path.rsplit('/').nth(1).unwrap_or("");
    if ODDS_AND_ENDS.contains(&stem) || stem == "mod" && ODDS_AND_ENDS.contains(&folder) {
        at(0, "odds-and-ends", "a module is named after its concept".to_owned());
    }
}

type At<'a> = dyn FnMut(usize, &'static str, String) + 'a;

/// The kernel's paths stand in one file, so that everything else can be asked of a saved tree.
fn kernel_paths(source: &Source<'_>, at: &mut At<'_>) {
    // What a fuzz target starts from is the kernel's own text.
    let is_seed = source.path.contains("/src/fuzz");
    if source.path == edges::PATHS_FILE || !source.path.starts_with("crates/") || is_seed {
        return;
    }
    for span in source.lexed.strings.iter().filter(|span| !source.in_test(span.start)) {
        let text = source.string(span);
        if ["/proc", "/sys"].iter().any(|path| has_path(text, path)) {
            let text = format!("a path of the kernel in a string: it belongs in {}", edges::PATHS_FILE);
            at(span.start, "kernel-path", text);
        }
    }
}

/// Whether `path` stands in `text` as the first part of an absolute path.
fn has_path(text: &str, path: &str) -> bool {
    let word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}');
    text.match_indices(path).any(|(place, _)| {
        let before = text[..place].chars().next_back();
        let after = text[place + path.len()..].chars().next();
        !before.is_some_and(word) && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

fn comments(source: &Source<'_>, at: &mut At<'_>) {
    for span in &source.lexed.comments {
        let text = &source.text[span.start..span.end];
        for (place, word) in words(text) {
            if UNFINISHED.contains(&word) {
                at(
                    span.start + place,
                    "unfinished",
                    format!("`{word}`: finish it, or say what is absent and why"),
                );
            }
        }
    }
}

fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.split(move |c: char| !is_word(c))
        .map(move |word| (word.as_ptr() as usize - text.as_ptr() as usize, word))
}

fn code(source: &Source<'_>, at: &mut At<'_>) {
    let tokens = source.tokens();
    let knows_pages = source.path.starts_with(edges::PAGE_SIZE_CRATE) || !source.path.starts_with("crates/");
    let is_build_script = source.path.ends_with("build.rs");
    let may_print = source.path == edges::OUT_FILE || !source.path.starts_with("crates/") || is_build_script;
    for (place, token) in tokens.iter().enumerate() {
        let next = |n: usize| tokens.get(place + n).map_or("", |token| token.text);
        let word = token.text;
        let test = source.in_test(token.at);
        if !test && !knows_pages && is_page_size(word, next(1), next(2)) {
            at(token.at, "page-size", "the size of a page is data of the machine".to_owned());
        }
        if UNFINISHED_MACROS.contains(&word) && next(1) == "!" {
            at(token.at, "unfinished", format!("`{word}!`"));
        }
        if !test && !may_print && PRINTS.contains(&word) && next(1) == "!" {
            at(token.at, "print", format!("`{word}!` outside {}", edges::OUT_FILE));
        }
        let exits = word == "process" && next(1) == ":" && next(3) == "exit";
        if exits && !test && source.path.starts_with("crates/") {
            at(token.at, "exit", "the exit code is returned to `main`".to_owned());
        }
        if word == "mod" && ODDS_AND_ENDS.contains(&next(1)) {
            at(token.at, "odds-and-ends", format!("`mod {}`: name the concept", next(1)));
        }
    }
}

/// `4096`, `0x1000`, `<< 12` and `>> 12`, at the first word or mark of them.
fn is_page_size(word: &str, second: &str, third: &str) -> bool {
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
