//! Size limits: lines of a file, lines of a function, columns of a line; and the purpose line of a file.

use super::Violation;
use super::lexer::TextSpan;
use super::source::{SourceFile, closing_brace};

const FILE_LINES_MAX: usize = 1000;
const FUNCTION_LINES_MAX: usize = 70;
/// Maximum width of a line, in characters.
pub const COLUMNS_MAX: usize = 110;
const ARCHITECTURE_LINES_MAX: usize = 400;

/// Files of every language that is code.
pub fn check_file(path: &str, text: &str, violations: &mut Vec<Violation>) {
    let suffix = path.rsplit('.').next().unwrap_or("");
    let is_code = ["rs", "c", "h", "ts", "mjs", "py", "sh"].contains(&suffix);
    let limit = match path {
        "ARCHITECTURE.md" => ARCHITECTURE_LINES_MAX,
        _ if is_code => FILE_LINES_MAX,
        _ => usize::MAX,
    };
    let lines = text.lines().count();
    if lines > limit {
        let text = format!("{lines} lines, more than {limit}: name the parts and give each its file");
        violations.push(Violation::new(path, limit + 1, "file-lines", text));
    }
    if ["ts", "mjs", "md"].contains(&suffix) || path.starts_with("kmod/") {
        let is_wide = |line: &str| line.chars().count() > COLUMNS_MAX && !is_unbreakable(suffix, line);
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| is_wide(line)) {
            let text = format!("{} columns, more than {COLUMNS_MAX}", line.chars().count());
            violations.push(Violation::new(path, number, "columns", text));
        }
    }
    if suffix == "rs" && !text.starts_with("//!") {
        let text = "the first line is not `//!` with the purpose of the file";
        violations.push(Violation::new(path, 1, "purpose", text));
    }
}

/// A row of a table and a link of a document cannot be broken.
fn is_unbreakable(suffix: &str, line: &str) -> bool {
    suffix == "md" && (line.trim_start().starts_with('|') || line.contains("https://"))
}

/// Lines that are too wide and functions that are too long.
pub fn check_lines_and_functions(source: &SourceFile<'_>, violations: &mut Vec<Violation>) {
    let mut start = 0;
    for (number, line) in (1..).zip(source.text.split('\n')) {
        if let Some((wide, _)) = line.char_indices().nth(COLUMNS_MAX) {
            let columns = line.chars().count();
            if !is_wide_allowed(source, start, line, start + wide) {
                let text = format!("{columns} columns, more than {COLUMNS_MAX}");
                violations.push(Violation::new(source.path, number, "columns", text));
            }
        }
        start += line.len() + 1;
    }
    check_functions(source, violations);
}

/// A link and a row of a table cannot be broken, nor can a kernel's own line in a test.
pub fn is_wide_allowed(source: &SourceFile<'_>, start: usize, line: &str, width: usize) -> bool {
    let is_comment = line.trim_start().starts_with("//");
    let is_row = line.trim_start().trim_start_matches(['/', '!']).trim_start().starts_with('|');
    let is_link = line.contains("https://");
    let in_string = source.lexed.strings.iter().any(|span| span.start < width && width <= span.end);
    is_comment && (is_link || is_row) || source.is_in_test(start) && in_string
}

fn check_functions(source: &SourceFile<'_>, violations: &mut Vec<Violation>) {
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
        let inside = |span: &&TextSpan| token.offset < span.start && span.end < end.offset;
        let strings = source.lexed.strings.iter().filter(inside);
        let data: usize = strings.map(|span| source.line_of(span.end) - source.line_of(span.start)).sum();
        let lines = source.line_of(end.offset) - source.line_of(token.offset) + 1 - data;
        if lines > FUNCTION_LINES_MAX {
            let text = format!("`{name}` has {lines} lines, more than {FUNCTION_LINES_MAX}");
            let line = source.line_of(token.offset);
            let item = name.to_owned();
            violations.push(Violation { item, ..Violation::new(source.path, line, "function-lines", text) });
        }
    }
}
