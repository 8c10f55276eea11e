//! Names and words that the repository does not use, each with the term of the field to use instead.
//!
//! `docs/glossary.md` defines the terms. A word is refused in declarations, in parts of identifiers, or in
//! texts: comments, strings, documents, recipes, manifests and the report page. A place that needs a word is
//! in `EXEMPTIONS`, as `PATH:WORD`.

use super::Violation;
use super::source::{SourceFile, Token, split_words};

/// Words that are refused for one reason.
struct Refused {
    /// Alternatives, separated by `|`. In texts a word may end in `*`, for any ending.
    words: &'static str,
    /// The term to use instead.
    instead: &'static str,
    /// Start of the paths that the row is for; empty for all.
    within: &'static str,
}

const fn refused(words: &'static str, instead: &'static str) -> Refused {
    Refused { words, instead, within: "" }
}

const fn refused_in_sim(words: &'static str, instead: &'static str) -> Refused {
    Refused { words, instead, within: "crates/pagelab-sim/" }
}

/// Names of structs, enums, traits, unions and type aliases.
const TYPES: [Refused; 5] = [
    refused("Told|Found|Came|Wanted|Seen|Asked|Ran|Was|Took|Kept|Gone|Want|Make", "a noun for the value"),
    refused("What|How|By|Of|On|At|One|Own|Where|Who|Which|Here|There|Apart|Ahead", "a noun for the value"),
    refused("Wrong|Stumble", "`Error`, or `…Error`"),
    refused_in_sim("Manner", "`AllocFlags`"),
    refused_in_sim("Kind", "`AllocationType`"),
];

const FUNCTIONS: [Refused; 2] = [
    refused("of", "`new`, `from_…`, or a verb with its object"),
    refused(
        "take|told|said|came|ran|look|ask|asks|asked|found|took|gone|seen|kept",
        "a verb with its object",
    ),
];

/// Names of modules, as `mod` declares them.
const MODULES: [Refused; 7] = [
    refused("words", "the concept, for example `types` or `figure_glossary`"),
    refused("besides|aside|apart|ahead|loose|through|outside|instead|own", "a noun for the concept"),
    refused("way|ground|hands|pieces|turns|world|crowd|rest|asking|ask", "a noun for the concept"),
    refused("shelf", "`pcp_list`"),
    refused("marks", "`watermarks`"),
    refused("plain|pace|truth|settle|signs|complain|stumble", "the concept"),
    refused("books", "`metadata`"),
];

/// Parts of any identifier, in small letters: `free_shelf`, `FreeShelf`.
const PARTS: [Refused; 6] = [
    refused("spoil|spoils|spoiled|spoiler|spoiling", "pollute, fragment"),
    refused("dear|dearest", "costliest"),
    refused("price|prices|priced", "cost"),
    refused("shelf|shelves", "pcp_list"),
    refused("stumble", "error"),
    refused_in_sim("marks|height|manner", "watermarks, zone_index, alloc_flags"),
];

/// Words and phrases of texts.
const TEXTS: [Refused; 18] = [
    refused("spoil*", "polluted; fragmented"),
    refused("dearest|price*", "costliest; cost"),
    refused("looked at", "scanned, read, checked"),
    refused("by chance", "random, at random"),
    refused("came of|what came", "result"),
    refused("be had", "available"),
    refused("page of zeros|pages of zeros", "zero page"),
    refused("shelf|shelves", "pcp list"),
    refused("the books|its books", "metadata, counters"),
    refused("given back|gives back|give back", "freed, released, returned"),
    refused("goes on", "continues"),
    refused("told apart", "distinguished"),
    refused("in sum", "total, in total"),
    refused("way out", "hint"),
    refused("whoever|everybody|nobody", "the caller, the process, all programs, no program"),
    refused("asked for", "requested"),
    refused("drawn at random", "chosen at random"),
    refused("is wanted|are wanted|was wanted", "expected, requested"),
];

/// Declarations, identifiers, comments and strings of a Rust file.
pub fn check_source(source: &SourceFile<'_>, violations: &mut Vec<Violation>) {
    let tokens = source.tokens();
    for (place, token) in tokens.iter().enumerate() {
        let next = tokens.get(place + 1);
        match (token.text, next) {
            ("struct" | "enum" | "trait" | "union" | "type", Some(name)) => {
                check_declaration(source, token.text, *name, &TYPES, violations);
            }
            ("fn", Some(name)) => check_declaration(source, "fn", *name, &FUNCTIONS, violations),
            ("mod", Some(name)) => check_declaration(source, "mod", *name, &MODULES, violations),
            _ => {}
        }
        check_identifier(source.path, source.line_of(token.offset), token.text, violations);
    }
    let mut spans: Vec<_> = source.lexed.comments.iter().chain(&source.lexed.strings).collect();
    spans.sort_by_key(|span| span.start);
    let words = spans.iter().flat_map(|span| split_words(&source.text[span.start..span.end], span.start));
    check_words(source.path, source.text, &words.collect::<Vec<_>>(), violations);
}

fn check_declaration(
    source: &SourceFile<'_>,
    keyword: &str,
    name: Token<'_>,
    table: &[Refused],
    violations: &mut Vec<Violation>,
) {
    if let Some(row) = table.iter().find(|row| is_for(row, source.path) && lists(row, name.text)) {
        let text = format!("`{keyword} {}`: use {}", name.text, row.instead);
        let line = source.line_of(name.offset);
        violations.push(to_violation(source.path, line, "refused-name", text, name.text));
    }
}

/// A document, script, recipe, manifest, or a source of the report page.
pub fn check_text(path: &str, text: &str, violations: &mut Vec<Violation>) {
    let suffix = path.rsplit('.').next().unwrap_or("");
    if !["md", "sh", "toml", "ts", "c", "py"].contains(&suffix) {
        return;
    }
    if suffix == "ts" {
        for (number, line) in (1..).zip(text.lines()) {
            for (_, word) in split_words(line, 0) {
                check_identifier(path, number, word, violations);
            }
        }
    }
    check_words(path, text, &split_words(text, 0).collect::<Vec<_>>(), violations);
}

fn check_identifier(path: &str, line: usize, name: &str, violations: &mut Vec<Violation>) {
    for part in identifier_parts(name) {
        for row in PARTS.iter().filter(|row| is_for(row, path) && lists(row, &part)) {
            let text = format!("`{name}` contains `{part}`: use {}", row.instead);
            violations.push(to_violation(path, line, "refused-name", text, &part));
        }
    }
}

/// Finds refused phrases in the words of a text. A phrase may continue on the next line of a comment.
fn check_words(path: &str, text: &str, words: &[(usize, &str)], violations: &mut Vec<Violation>) {
    for row in TEXTS.iter().filter(|row| is_for(row, path)) {
        for phrase in row.words.split('|') {
            let parts: Vec<&str> = phrase.split(' ').collect();
            for window in words.windows(parts.len()).filter(|window| matches(window[0].1, parts[0])) {
                let is_match = window.iter().zip(&parts).all(|((_, word), part)| matches(word, part))
                    && window.windows(2).all(|pair| is_gap(&text[pair[0].0 + pair[0].1.len()..pair[1].0]));
                if is_match {
                    let line = text[..window[0].0].matches('\n').count() + 1;
                    let text = format!("`{phrase}`: use {} (docs/glossary.md)", row.instead);
                    violations.push(to_violation(path, line, "refused-word", text, phrase));
                }
            }
        }
    }
}

fn matches(word: &str, pattern: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(stem) => word.get(..stem.len()).is_some_and(|start| start.eq_ignore_ascii_case(stem)),
        None => word.eq_ignore_ascii_case(pattern),
    }
}

/// Whether the text between two words is a space or the start of the next line of a comment or string.
fn is_gap(text: &str) -> bool {
    text.chars().all(|c| c.is_whitespace() || matches!(c, '/' | '!' | '#' | '*' | '\\'))
}

fn is_for(row: &Refused, path: &str) -> bool {
    path.starts_with(row.within)
}

fn lists(row: &Refused, name: &str) -> bool {
    row.words.split('|').any(|word| word == name)
}

/// An exemption may name the word besides the place.
fn to_violation(path: &str, line: usize, rule: &'static str, text: String, word: &str) -> Violation {
    Violation { item: word.to_owned(), ..Violation::new(path, line, rule, text) }
}

/// The parts of `snake_case`, `CamelCase` and `SHOUTING_CASE` in small letters.
fn identifier_parts(name: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for piece in name.split('_') {
        let mut previous_is_upper = true;
        for (place, c) in piece.char_indices() {
            if place == 0 || c.is_uppercase() && !previous_is_upper {
                parts.push(String::new());
            }
            previous_is_upper = c.is_uppercase();
            if let Some(last) = parts.last_mut() {
                last.extend(c.to_lowercase());
            }
        }
    }
    parts
}
