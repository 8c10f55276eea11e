//! `cargo xtask tidy --fix`: breaks wide lines in comments and strings where no judgement is needed. What a
//! text says, and what a string holds, stays the same.

use std::collections::VecDeque;

use super::limits::{COLUMNS_MAX, is_wide_allowed};
use super::source::SourceFile;

/// `text` with its wide comments and strings broken.
pub fn wrap_wide_lines(path: &str, text: &str) -> String {
    let mut text = text.to_owned();
    // Each round breaks every wide string once.
    for _ in 0..20 {
        let broken = wrap_strings(path, &text);
        if broken == text {
            break;
        }
        text = broken;
    }
    wrap_comments(&text)
}

fn wrap_strings(path: &str, text: &str) -> String {
    let source = SourceFile::new(path, text);
    let mut broken = String::with_capacity(text.len());
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        match find_string_break(&source, start, line) {
            Some((at, column)) => {
                broken.push_str(&line[..at]);
                broken.push_str("\\\n");
                broken.push_str(&" ".repeat(column));
                broken.push_str(&line[at..]);
            }
            None => broken.push_str(line),
        }
        start += line.len();
    }
    broken
}

/// Position at which the string beyond the limit can be broken, and the column of its continuation: after a
/// blank with no blank after it, because a broken string loses the blanks at the start of its next line.
fn find_string_break(source: &SourceFile<'_>, start: usize, line: &str) -> Option<(usize, usize)> {
    let content = line.trim_end_matches('\n');
    let (over, _) = content.char_indices().nth(COLUMNS_MAX)?;
    if is_wide_allowed(source, start, content, start + over) {
        return None;
    }
    let (edge, _) = line.char_indices().nth(COLUMNS_MAX - 1)?;
    let mut strings = source.lexed.strings.iter();
    let span = strings.find(|span| span.start < start + edge && start + edge < span.end)?;
    if source.text[span.start..].starts_with('r') {
        return None;
    }
    let indent = line.len() - line.trim_start().len();
    let from = (span.start + 1).max(start + indent) - start;
    let inside = &line[from..edge];
    let mut ends = inside.match_indices(' ').map(|(at, _)| from + at + 1);
    let at = ends.rfind(|&at| !line[at..].starts_with([' ', '\n']))?;
    let quote = if span.start >= start { span.start - start } else { indent.saturating_sub(1) };
    let column = if quote < COLUMNS_MAX / 2 { quote + 1 } else { indent + 4 };
    (at > from + 1 && at > column).then_some((at, column))
}

fn wrap_comments(text: &str) -> String {
    let mut lines: VecDeque<String> = text.split('\n').map(str::to_owned).collect();
    let mut broken: Vec<String> = Vec::new();
    let mut fenced = false;
    while let Some(line) = lines.pop_front() {
        let comment = parse_comment(&line);
        fenced ^= comment.is_some_and(|(_, body)| body.trim_start().starts_with("```"));
        let edge = line.char_indices().nth(COLUMNS_MAX).map(|(edge, _)| edge);
        let (Some((mark, body)), Some(edge), false) = (comment, edge, fenced) else {
            broken.push(line);
            continue;
        };
        let start = mark + (body.len() - body.trim_start().len());
        let end = line[..edge].rfind(' ').filter(|&end| end > start);
        let (Some(end), false) = (end, body.trim_start().starts_with('|') || line.contains("https://"))
        else {
            broken.push(line);
            continue;
        };
        let item = if body.trim_start().starts_with("- ") { "  " } else { "" };
        let prefix = format!("{}{item}", &line[..start]);
        let rest = line[end..].trim_start().to_owned();
        let next = lines.front().and_then(|next| parse_comment(next).map(|(mark, body)| (next, mark, body)));
        match next {
            Some((next, next_mark, body)) if is_continuation(body) && next[..next_mark] == line[..mark] => {
                let joined = format!("{prefix}{rest} {}", body.trim_start());
                lines[0] = joined;
            }
            _ => lines.push_front(format!("{prefix}{rest}")),
        }
        broken.push(line[..end].trim_end().to_owned());
    }
    broken.join("\n")
}

/// For a line that is a comment alone: where its body starts, and the body.
fn parse_comment(line: &str) -> Option<(usize, &str)> {
    let trimmed = line.trim_start();
    let mark = ["//!", "///", "//"].into_iter().find(|mark| trimmed.starts_with(mark))?;
    let start = line.len() - trimmed.len() + mark.len();
    Some((start, &line[start..]))
}

/// Whether a comment's body is the plain continuation of a paragraph.
fn is_continuation(body: &str) -> bool {
    let text = body.trim_start();
    let is_plain = !text.starts_with(['|', '#', '-', '*', '`', '<', '[']) && !text.is_empty();
    is_plain && body.len() - text.len() <= 3 && !text.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide_words(count: usize) -> String {
        vec!["abcd"; count].join(" ")
    }

    #[test]
    fn comments_flow_into_the_next_line_and_stop_at_lists_and_fences() {
        let wide = wide_words(24);
        let check = |text: String, lines: &[&str]| {
            let fixed = wrap_wide_lines("a.rs", &text);
            let ends: Vec<_> = fixed.lines().map(|line| line.trim_start().replace("abcd ", "")).collect();
            assert_eq!(ends, lines, "{fixed}");
            assert!(fixed.lines().all(|line| line.chars().count() <= 110));
            let words = |text: &str| text.replace('/', "").split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(words(&fixed), words(&text));
        };
        check(format!("    // {wide}\n    // more"), &["// abcd", "// more"]);
        check(format!("/// {wide}\n/// - more"), &["/// abcd", "/// abcd", "/// - more"]);
        check(format!("/// {wide}\nfn a() {{}}"), &["/// abcd", "/// abcd", "fn a() {}"]);
        let fence = format!("/// ```\n/// {wide}\n/// ```");
        assert_eq!(wrap_wide_lines("a.rs", &fence), fence);
    }

    #[test]
    fn strings_keep_what_they_hold() {
        let wide = wide_words(40);
        let fixed = wrap_wide_lines("crates/x/src/a.rs", &format!("    let a = f(\"{wide}\", 1);\n"));
        assert!(
            fixed.lines().count() > 1 && fixed.lines().all(|line| line.chars().count() <= 110),
            "{fixed}"
        );
        let joined = fixed.split("\\\n").map(str::trim_start).collect::<Vec<_>>().concat();
        assert_eq!(joined, format!("let a = f(\"{wide}\", 1);\n"));
        let raw = format!("let a = r\"{wide}\";");
        assert_eq!(wrap_wide_lines("crates/x/src/a.rs", &raw), raw);
    }
}
