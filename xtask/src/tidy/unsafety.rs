//! `unsafe` stands in one crate, and each use says why it is sound and why it is there.

use super::Violation;
use super::source::Source;
use crate::edges;

/// Both sentences that stand above each `unsafe` block and `unsafe impl`.
const SENTENCES: [&str; 2] = ["SAFETY:", "JUSTIFICATION:"];

/// The rule.
pub fn check(source: &Source<'_>, found: &mut Vec<Violation>) {
    let tokens = source.tokens();
    for (place, token) in tokens.iter().enumerate().filter(|(_, token)| token.text == "unsafe") {
        let line = source.line(token.at);
        if !edges::UNSAFE.iter().any(|folder| source.path.starts_with(folder)) {
            let text = format!("`unsafe` outside {}", edges::UNSAFE.join(", "));
            found.push(Violation::new(source.path, line, "unsafe", text));
            continue;
        }
        // A function's duties stand in its documentation under `# Safety`, which clippy asks for.
        if !matches!(tokens.get(place + 1).map(|next| next.text), Some("{" | "impl")) {
            continue;
        }
        let above = comment_above(source, line);
        for sentence in SENTENCES.iter().filter(|sentence| !above.contains(**sentence)) {
            let text = format!("no `// {sentence}` above this `unsafe`");
            found.push(Violation::new(source.path, line, "unsafe-reason", text));
        }
    }
}

/// The comment lines above the statement that has `line` in it.
fn comment_above(source: &Source<'_>, line: usize) -> String {
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
