//! Rust file as the rules see it: words with their lines, and the parts that are tests.

use std::ops::Range;

use super::lexer::{self, LexedSource, TextSpan};

/// A word (name, keyword or number) or a single mark of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    pub text: &'a str,
    pub offset: usize,
}

/// A Rust file taken apart.
#[derive(Debug)]
pub struct SourceFile<'a> {
    /// Its path from the root.
    pub path: &'a str,
    pub text: &'a str,
    /// Its comments and strings, and the code without them.
    pub lexed: LexedSource,
    test_ranges: Vec<Range<usize>>,
    line_starts: Vec<usize>,
}

impl<'a> SourceFile<'a> {
    pub fn new(path: &'a str, text: &'a str) -> SourceFile<'a> {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let mut source =
            SourceFile { path, text, lexed: lexer::lex(text), test_ranges: Vec::new(), line_starts: starts };
        source.test_ranges = test_item_ranges(&source.tokens());
        if is_test_path(path) {
            source.test_ranges.push(0..text.len());
        }
        source
    }

    /// The words and marks of the code.
    pub fn tokens(&self) -> Vec<Token<'_>> {
        let code = self.lexed.code.as_str();
        let mut tokens = Vec::new();
        let mut at = 0;
        for piece in code.split_inclusive(|c: char| !(c.is_alphanumeric() || c == '_')) {
            let mark = piece.chars().next_back().filter(|c| !(c.is_alphanumeric() || *c == '_'));
            let word = piece.len() - mark.map_or(0, char::len_utf8);
            if word > 0 {
                tokens.push(Token { text: &piece[..word], offset: at });
            }
            if mark.is_some_and(|mark| !mark.is_whitespace()) {
                tokens.push(Token { text: &piece[word..], offset: at + word });
            }
            at += piece.len();
        }
        tokens
    }

    /// The line of an offset, from 1.
    pub fn line_of(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|&start| start <= offset)
    }

    pub fn is_in_test(&self, offset: usize) -> bool {
        self.test_ranges.iter().any(|range| range.contains(&offset))
    }

    /// The inside of a string literal, escapes as they are written.
    pub fn string_contents(&self, span: &TextSpan) -> &'a str {
        let whole = &self.text[span.start..span.end];
        whole.trim_start_matches('r').trim_matches('#').trim_matches('"')
    }

    /// The name of the crate's folder: `pagelab-host` for `crates/pagelab-host/src/root.rs`.
    pub fn crate_name(&self) -> &'a str {
        let mut parts = self.path.split('/');
        match parts.next() {
            Some("crates") => parts.next().unwrap_or(""),
            first => first.unwrap_or(""),
        }
    }
}

/// The words of a text that starts at this offset, each with its offset.
pub fn split_words(text: &str, offset: usize) -> impl Iterator<Item = (usize, &str)> {
    let base = text.as_ptr() as usize;
    text.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
        .map(move |word| (offset + word.as_ptr() as usize - base, word))
}

/// Files that are tests, benches or examples as a whole.
fn is_test_path(path: &str) -> bool {
    let is_test = |part: &str| matches!(part, "tests" | "benches" | "examples" | "tests.rs");
    path.starts_with("fuzz/") || path.ends_with("_tests.rs") || path.split('/').any(is_test)
}

/// The byte ranges of items under `#[cfg(test)]`, `#[cfg(doctest)]` or `#[test]`.
fn test_item_ranges(tokens: &[Token<'_>]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (place, token) in tokens.iter().enumerate() {
        let next = |n: usize| tokens.get(place + n).map_or("", |t| t.text);
        let attribute = token.text == "#" && next(1) == "[";
        let is_test = attribute
            && (next(2) == "test" && next(3) == "]"
                || next(2) == "cfg" && matches!(next(4), "test" | "doctest"));
        if is_test && ranges.last().is_none_or(|range| !range.contains(&token.offset)) {
            ranges.push(token.offset..item_end(&tokens[place..]));
        }
    }
    ranges
}

/// End of the item at the start of `tokens`: after its braces, or at its semicolon.
pub fn item_end(tokens: &[Token<'_>]) -> usize {
    let mut round = 0_i64;
    for (place, token) in tokens.iter().enumerate() {
        match token.text {
            "(" | "[" => round += 1,
            ")" | "]" => round -= 1,
            ";" if round == 0 => return token.offset + 1,
            "{" if round == 0 => {
                return closing_brace(&tokens[place..]).map_or(usize::MAX, |brace| brace.offset + 1);
            }
            _ => {}
        }
    }
    usize::MAX
}

/// The brace that closes the one at the start of `tokens`.
pub fn closing_brace<'a>(tokens: &[Token<'a>]) -> Option<Token<'a>> {
    let mut depth = 0_i64;
    tokens.iter().copied().find(|token| {
        match token.text {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        depth == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_marks_and_lines_are_found() {
        let source =
            SourceFile::new("crates/pagelab-host/src/a.rs", "//! x\nlet a_1 = b << 12; // c\n\"é\" d");
        let tokens: Vec<_> =
            source.tokens().iter().map(|t| (t.text.to_owned(), source.line_of(t.offset))).collect();
        let words: Vec<&str> = tokens.iter().map(|(text, _)| text.as_str()).collect();
        assert_eq!(words, ["let", "a_1", "=", "b", "<", "<", "12", ";", "\"", "\"", "d"]);
        assert_eq!((tokens[0].1, tokens[10].1), (2, 3));
        assert_eq!(source.crate_name(), "pagelab-host");
    }

    #[test]
    fn tests_are_told_from_the_rest() {
        let text = "fn a() {}\n#[cfg(test)]\n#[allow(x)]\nmod tests { fn b() { { } } }\nfn c() {}\n#[test]\nfn d() {}\n\
            #[cfg(test)]\nmod e;\nfn f() {}";
        let source = SourceFile::new("src/a.rs", text);
        for (name, is_test) in [("a", false), ("b", true), ("c", false), ("d", true), ("f", false)] {
            let at = text.find(&format!("fn {name}")).unwrap();
            assert_eq!(source.is_in_test(at), is_test, "{name}");
        }
        assert!(SourceFile::new("crates/x/tests/a.rs", "fn a() {}").is_in_test(3));
    }
}
