//! `cargo xtask texts`: every string literal outside of tests that people may read, by file and function, in
//! one committed listing. A change of wording is a diff of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::ops::Range;

use super::source::{SourceFile, Token, item_end};
use super::{RepositoryFiles, Violation, read_texts, rust_sources};
use crate::tally::TaskError;
use crate::tree;

/// The listing, from the root.
const LISTING: &str = "xtask/texts.txt";
const HEAD: &str = "\
Texts of the program, by file and function. `cargo xtask texts` writes this file, `cargo xtask tidy` compares.
";

/// The command: writes the listing.
pub fn run(arguments: &[&str]) -> Result<(), TaskError> {
    if !arguments.is_empty() {
        return Err(TaskError::Usage(format!("unexpected argument `{}`", arguments.join(" "))));
    }
    let root = tree::root();
    let texts = read_texts(&root);
    let listing = format_listing(&rust_sources(&texts));
    fs::write(root.join(LISTING), &listing)?;
    println!("{LISTING}: {} texts", listing.lines().filter(|line| line.starts_with("    ")).count());
    Ok(())
}

/// Compares the committed listing with the texts of `sources`.
pub fn check(files: &RepositoryFiles<'_>, sources: &[SourceFile<'_>], violations: &mut Vec<Violation>) {
    let committed = files.texts.iter().find(|(path, _)| path == LISTING).map_or("", |(_, text)| text);
    let expected = format_listing(sources);
    let differs = committed.lines().zip(expected.lines()).position(|(one, other)| one != other);
    let line = match differs {
        None if committed == expected => return,
        None => committed.lines().count().min(expected.lines().count()) + 1,
        Some(at) => at + 1,
    };
    let text = "the texts are not those of the sources: run `cargo xtask texts`, and review its diff";
    violations.push(Violation::new(LISTING, line, "texts", text));
}

fn format_listing(sources: &[SourceFile<'_>]) -> String {
    let mut listing = HEAD.to_owned();
    for source in sources.iter().filter(|source| is_of_program(source.path)) {
        let texts = texts_by_function(source);
        if texts.is_empty() {
            continue;
        }
        let _ = write!(listing, "\n{}\n", source.path);
        for (function, texts) in texts.into_values() {
            let _ = writeln!(listing, "  {function}");
            for text in texts {
                let _ = writeln!(listing, "    {text}");
            }
        }
    }
    listing
}

/// The sources of the binary and its crates; build scripts and the repository's own tasks speak to us alone.
fn is_of_program(path: &str) -> bool {
    path.starts_with("crates/") && path.contains("/src/") && path.ends_with(".rs")
}

/// Texts by the offset and name of the innermost function, in the order of the file.
fn texts_by_function(source: &SourceFile<'_>) -> BTreeMap<usize, (String, Vec<String>)> {
    let tokens = source.tokens();
    let functions = functions_of(&tokens);
    let silent = silent_attributes(&tokens);
    let mut found: BTreeMap<usize, (String, Vec<String>)> = BTreeMap::new();
    for span in source.lexed.strings.iter().filter(|span| !source.is_in_test(span.start)) {
        let text = join_lines(source.string_contents(span));
        if !is_read_by_people(&text) || silent.iter().any(|range| range.contains(&span.start)) {
            continue;
        }
        let inside = functions.iter().filter(|(range, _)| range.contains(&span.start));
        let (at, name) = match inside.max_by_key(|(range, _)| range.start) {
            Some((range, name)) => (range.start, format!("fn {name}")),
            None => (0, "constants".to_owned()),
        };
        found.entry(at).or_insert_with(|| (name, Vec::new())).1.push(text);
    }
    found
}

fn functions_of<'a>(tokens: &[Token<'a>]) -> Vec<(Range<usize>, &'a str)> {
    let names = tokens.windows(2).enumerate().filter(|(_, pair)| pair[0].text == "fn");
    let of = |(at, pair): (usize, &[Token<'a>])| (pair[0].offset..item_end(&tokens[at..]), pair[1].text);
    names.map(of).filter(|(_, name)| name.starts_with(|c: char| c.is_alphabetic() || c == '_')).collect()
}

/// Attributes whose texts the compiler reads: all but those of clap.
fn silent_attributes(tokens: &[Token<'_>]) -> Vec<Range<usize>> {
    let word = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let mut ranges = Vec::new();
    for start in (0..tokens.len()).filter(|&at| word(at) == "#") {
        let open = start + 1 + usize::from(word(start + 1) == "!");
        if word(open) != "[" || matches!(word(open + 1), "arg" | "command" | "group" | "value") {
            continue;
        }
        let mut depth = 0_i64;
        let end = tokens[open..].iter().find(|token| {
            match token.text {
                "[" => depth += 1,
                "]" => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        ranges.push(tokens[start].offset..end.map_or(usize::MAX, |end| end.offset));
    }
    ranges
}

/// A literal on one line: a line that ends in `\` continues without the blanks before the next.
fn join_lines(text: &str) -> String {
    let mut joined = String::new();
    let mut continues = false;
    for line in text.split('\n') {
        let line = if continues { line.trim_start() } else { line };
        continues = line.ends_with('\\') && !line.ends_with("\\\\");
        match continues {
            true => joined.push_str(line.trim_end_matches('\\')),
            false => joined = joined + line + "\\n",
        }
    }
    joined.trim_end_matches("\\n").to_owned()
}

/// Whether a literal has two words beside each other; names, paths, keys and formats have not.
fn is_read_by_people(text: &str) -> bool {
    let is_word = |word: &str| {
        let letters = word.trim_matches(|c: char| !c.is_alphanumeric());
        letters.len() > 1 && letters.chars().all(|c| c.is_alphabetic() || c == '\'' || c == '-')
    };
    let words: Vec<&str> = text.split(' ').collect();
    words.windows(2).any(|pair| pair.iter().all(|word| is_word(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_listed_by_function_and_nothing_else_is() {
        let text = "const A: &str = \"one two\";\n\
                    #[allow(clippy::x, reason = \"for the compiler\")]\n\
                    fn f() {\n    g(\"/proc/vmstat\", \"nr_free_pages\", \"{:>6} {}\");\n\
                    \x20   fail(\"cannot read {name}: \\\n          no permission\");\n}\n\
                    #[arg(help = \"Read this file\")]\nstruct B;\n\
                    #[cfg(test)]\nmod tests { fn t() { panic!(\"not for people\"); } }\n";
        let path = "crates/pagelab-host/src/a.rs";
        let listing = format_listing(&[SourceFile::new(path, text)]);
        let expected = "crates/pagelab-host/src/a.rs\n  constants\n    one two\n    Read this file\n  fn f\n    \
                        cannot read {name}: no permission\n";
        assert_eq!(listing.strip_prefix(HEAD).unwrap().trim_start(), expected);
    }
}
