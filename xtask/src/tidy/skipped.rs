//! The ids of skipped checks: each one said in the code is listed, each listed one is said somewhere.

use super::source::Source;
use super::{Files, Violation};
use crate::skips;

/// Whether `id` stands in `text` as a whole.
fn says(text: &str, id: &str) -> bool {
    let inner = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || matches!(c, '-' | '_'));
    text.match_indices(id)
        .any(|(at, _)| !inner(text[..at].chars().next_back()) && !inner(text[at + id.len()..].chars().next()))
}

/// The rule.
pub fn check(files: &Files<'_>, found: &mut Vec<Violation>) {
    let Some((_, list)) = files.texts.iter().find(|(path, _)| path == skips::LIST) else { return };
    let entries = match skips::parse(list) {
        Ok(entries) => entries,
        Err(problem) => {
            found.push(Violation::new(skips::LIST, 1, "skips", problem));
            return;
        }
    };
    let mut mentioned = vec![false; entries.len()];
    for (path, text) in files.texts.iter().filter(|(path, _)| path.ends_with(".rs")) {
        let source = Source::new(path, text);
        // xtask's own tests make up ids.
        let is_own = path.starts_with("xtask/");
        let strings = source.lexed.strings.iter().filter(|span| !(is_own && source.in_test(span.start)));
        for (mentioned, entry) in mentioned.iter_mut().zip(&entries) {
            let name = entry.id.rsplit("::").next().filter(|_| entry.id.contains("::"));
            *mentioned |= name.is_some_and(|test| says(text, test))
                || strings.clone().any(|span| says(source.string(span), &entry.id));
        }
        // A bench is held against its bar.
        if is_own || path.contains("/benches/") {
            continue;
        }
        for span in &source.lexed.strings {
            let Some(rest) = source.string(span).strip_prefix("skipped: ") else { continue };
            let id = rest.split(':').next().unwrap_or("");
            if skips::is_id(id) && entries.iter().all(|entry| entry.id != id) {
                let text = format!("`{id}` is not in {}", skips::LIST);
                found.push(Violation::new(path, span.line, "skips", text));
            }
        }
    }
    // Tests of the page say theirs in TypeScript.
    for (_, text) in files.texts.iter().filter(|(path, _)| path.starts_with("web/test/")) {
        for (mentioned, entry) in mentioned.iter_mut().zip(&entries) {
            *mentioned |= says(text, &entry.id);
        }
    }
    for (entry, _) in entries.iter().zip(mentioned).filter(|(_, mentioned)| !mentioned) {
        let text = format!("no check says `{}`", entry.id);
        found.push(Violation::new(skips::LIST, entry.line, "skips", text));
    }
}
