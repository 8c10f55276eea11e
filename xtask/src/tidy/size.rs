//! Sizes: lines of a file, lines of a function, columns of a line, and the sentence at the start of a file.

use super::Violation;
use super::lex::Span;
use super::source::{Source, closing_brace};

const FILE_LINES: usize = 1000;
const FUNCTION_LINES: usize = 70;
/// How wide a line may be, in characters.
pub const COLUMNS: usize = 110;
/// What ARCHITECTURE.md may have, so that it is read.
const ARCHITECTURE_LINES: usize = 400;

/// Files of every language that is code.
pub fn file(path: &str, text: &str, found: &mut Vec<Violation>) {
    let suffix = path.rsplit('.').next().unwrap_or("");
    let is_code = ["rs", "c", "h", "ts", "mjs", "py", "sh"].contains(&suffix);
    let limit = match path {
        "ARCHITECTURE.md" => ARCHITECTURE_LINES,
        _ if is_code => FILE_LINES,
        _ => return,
    };
    let lines = text.lines().count();
    if lines > limit {
        let text = format!("{lines} lines, more than {limit}: name the parts and give each its file");
        found.push(Violation::new(path, limit + 1, "file-lines", text));
    }
    if ["ts", "mjs"].contains(&suffix) {
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| line.chars().count() > COLUMNS) {
            let text = format!("{} columns, more than {COLUMNS}", line.chars().count());
            found.push(Violation::new(path, number, "columns", text));
        }
    }
    if suffix == "rs" && !text.starts_with("//!") {
        let text = "the first line is not `//!` and what the file is for";
        found.push(Violation::new(path, 1, "purpose", text));
    }
}

/// Lines that are too wide and functions that are too long.
pub fn lines_and_functions(source: &Source<'_>, found: &mut Vec<Violation>) {
    let mut start = 0;
    for (number, line) in (1..).zip(source.text.split('\n')) {
        if let Some((wide, _)) = line.char_indices().nth(COLUMNS) {
            let columns = line.chars().count();
            if !may_be_wide(source, start, line, start + wide) {
                let text = format!("{columns} columns, more than {COLUMNS}");
                found.push(Violation::new(source.path, number, "columns", text));
            }
        }
        start += line.len() + 1;
    }
    functions(source, found);
}

/// A link and a row of a table cannot be broken, nor can a kernel's own line in a test.
pub fn may_be_wide(source: &Source<'_>, start: usize, line: &str, wide: usize) -> bool {
    let is_comment = line.trim_start().starts_with("//");
    let is_row = line.trim_start().trim_start_matches(['/', '!']).trim_start().starts_with('|');
    let is_link = line.contains("https://");
    let in_string = source.lexed.strings.iter().any(|span| span.start < wide && wide <= span.end);
    is_comment && (is_link || is_row) || source.in_test(start) && in_string
}

fn functions(source: &Source<'_>, found: &mut Vec<Violation>) {
    let tokens = source.tokens();
    for (place, token) in tokens.iter().enumerate() {
        let name = tokens.get(place + 1).map_or("", |next| next.text);
        if token.text != "fn" || !name.starts_with(|c: char| c.is_alphabetic() || c == '_') {
            continue;
        }
        let mut depth = 0_i64;
        let body = tokens[place..].iter().position(|token| {
            match token.text {
                "(" | "[" => depth += 1,
                ")" | "]" => depth -= 1,
                _ => {}
            }
            depth == 0 && matches!(token.text, "{" | ";")
        });
        let Some(end) = body.and_then(|body| closing_brace(&tokens[place + body..])) else { continue };
        // Lines inside of a string are data.
        let inside = |span: &&Span| token.at < span.start && span.end < end.at;
        let strings = source.lexed.strings.iter().filter(inside);
        let data: usize = strings.map(|span| source.line(span.end) - source.line(span.start)).sum();
        let lines = source.line(end.at) - source.line(token.at) + 1 - data;
        if lines > FUNCTION_LINES {
            let text = format!("`{name}` has {lines} lines, more than {FUNCTION_LINES}");
            let line = source.line(token.at);
            let item = name.to_owned();
            found.push(Violation { item, ..Violation::new(source.path, line, "function-lines", text) });
        }
    }
}
