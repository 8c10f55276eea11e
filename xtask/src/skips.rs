//! Skipped checks, compared with the list `xtask/skips.txt`: an unlisted skip fails, and so does a listed one
//! that did not happen.

use std::collections::BTreeMap;

use crate::conditions::{Condition, Fact};

pub const LIST_PATH: &str = "xtask/skips.txt";

/// A check that printed `skipped: ID: WHY`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    /// Names the reason; the same in the list.
    pub id: String,
    /// Why, in the check's words.
    pub reason: String,
    /// The test or step that printed it.
    pub check: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListEntry {
    pub id: String,
    /// Where it is normal; everywhere without a condition.
    pub condition: Option<Condition>,
    /// Whether it must happen there.
    pub is_expected: bool,
    /// Its line in the list, from 1.
    pub line: usize,
}

impl ListEntry {
    fn is_normal(&self, is_true: &dyn Fn(&Fact) -> bool) -> bool {
        self.condition.as_ref().is_none_or(|condition| condition.holds(is_true))
    }
}

/// Reads the list: `id | when | why`, comments with `#`.
pub fn parse_list(text: &str) -> Result<Vec<ListEntry>, String> {
    let mut entries: Vec<ListEntry> = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let at = |problem: String| format!("{LIST_PATH}:{line}: {problem}");
        let fields: Vec<&str> = content.split('|').map(str::trim).collect();
        let [id, when, why] = fields[..] else {
            return Err(at("a line is `id | when | why`".to_owned()));
        };
        if !is_id(id) || why.is_empty() {
            return Err(at(format!("`{id}` needs small letters, digits and hyphens, and a reason")));
        }
        if entries.iter().any(|known| known.id == id) {
            return Err(at(format!("`{id}` is listed twice")));
        }
        let (is_expected, condition) = match when.split_once(' ') {
            None if when == "always" => (true, None),
            None if when == "may" => (false, None),
            Some(("iff", condition)) => (true, Some(condition)),
            Some(("may", rest)) if rest.starts_with("if ") => (false, rest.strip_prefix("if ")),
            _ => return Err(at(format!("`{when}`: expected always, iff COND, may if COND or may"))),
        };
        let condition = condition.map(Condition::parse).transpose().map_err(at)?;
        entries.push(ListEntry { id: id.to_owned(), condition, is_expected, line });
    }
    Ok(entries)
}

pub fn is_id(id: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_' || c == ':';
    id.starts_with(|c: char| c.is_ascii_lowercase()) && id.chars().all(inner)
}

/// A skip in a line of output: at its start, or after libtest's `test NAME ... `.
pub fn parse_skip(line: &str) -> Option<(String, String)> {
    let rest = match line.trim_start().strip_prefix("skipped:") {
        Some(rest) => rest,
        None if line.starts_with("test ") => line.split_once("... skipped:")?.1,
        None => return None,
    };
    let (id, why) = rest.trim().split_once(": ").unwrap_or((rest.trim(), ""));
    if is_id(id) && !why.trim().is_empty() {
        return Some((id.to_owned(), why.trim().to_owned()));
    }
    Some(("unnamed".to_owned(), format!("`{}` is not `skipped: id: why`", line.trim())))
}

/// Problems of the skips of a run. `is_complete`: every check was requested, so a missing expected skip is a
/// problem too.
pub fn check_skips(
    entries: &[ListEntry],
    skips: &[Skip],
    is_complete: bool,
    is_true: &dyn Fn(&Fact) -> bool,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let by_id: BTreeMap<&String, &Skip> = skips.iter().map(|skip| (&skip.id, skip)).collect();
    for (id, Skip { check, reason, .. }) in by_id {
        match entries.iter().find(|entry| entry.id == *id) {
            Some(entry) if entry.is_normal(is_true) => {}
            Some(ListEntry { line, .. }) => {
                wrong.push(format!("{check}: skipped `{id}`, but {LIST_PATH}:{line} does not allow it here"));
            }
            None => wrong.push(format!("{check}: skipped `{id}`, which {LIST_PATH} does not list: {reason}")),
        }
    }
    let expected = |entry: &&ListEntry| is_complete && entry.is_expected && entry.is_normal(is_true);
    for ListEntry { id, line, .. } in entries.iter().filter(expected) {
        if !skips.iter().any(|skip| skip.id == *id) {
            wrong.push(format!("{LIST_PATH}:{line}: `{id}` is expected here, but nothing was skipped"));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "# comment\n\nno-corpus | iff not corpus | data\nnot-root | may if not root | rights\n\
        flaky | may | moves\nnever-here | always | later\n";

    fn skip(id: &str) -> Skip {
        Skip { id: id.to_owned(), reason: "w".to_owned(), check: "t".to_owned() }
    }

    #[test]
    fn the_set_of_skips_must_be_the_listed_one() {
        let entries = parse_list(LISTED).unwrap();
        let check = |corpus: bool, root: bool, said: &[&str], complete: bool, wrong: &[&str]| {
            let ask = |fact: &Fact| match fact {
                Fact::HasCorpus => corpus,
                _ => root,
            };
            let said: Vec<Skip> = said.iter().map(|id| skip(id)).collect();
            let found = check_skips(&entries, &said, complete, &ask);
            assert_eq!(found.len(), wrong.len(), "{found:?}");
            for (found, wrong) in found.iter().zip(wrong) {
                assert!(found.contains(wrong), "{found}");
            }
        };
        check(true, true, &["never-here"], true, &[]);
        check(true, true, &["never-here", "flaky"], true, &[]);
        check(true, true, &[], true, &["`never-here` is expected"]);
        check(true, true, &[], false, &[]);
        check(false, true, &["never-here", "no-corpus", "no-corpus"], true, &[]);
        check(false, true, &["never-here"], true, &["`no-corpus` is expected"]);
        check(true, true, &["never-here", "no-corpus"], true, &["not allow it here"]);
        check(true, false, &["never-here"], true, &[]);
        check(true, false, &["never-here", "not-root"], true, &[]);
        check(true, true, &["never-here", "not-root"], true, &["not allow it here"]);
        check(true, true, &["never-here", "news"], true, &["does not list"]);
    }

    #[test]
    fn a_bad_list_is_refused_with_its_line() {
        for (text, problem) in [
            ("a | always", ":1: a line is"),
            ("\nA | always | w", ":2: `A` needs"),
            ("a | always |", ":1: `a` needs"),
            ("a | may | w\na | may | w", ":2: `a` is listed twice"),
            ("a | iff moon | w", ":1: unknown condition `moon`"),
            ("a | sometimes | w", ":1: `sometimes`: expected always"),
        ] {
            let error = parse_list(text).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn skips_are_found_in_lines_of_output() {
        let said = |line| parse_skip(line).map(|(id, why)| format!("{id}={why}"));
        assert_eq!(said("skipped: corpus-absent: no folder").as_deref(), Some("corpus-absent=no folder"));
        assert_eq!(said("test a::b ... skipped: x: y: z").as_deref(), Some("x=y: z"));
        assert_eq!(said("  skipped: x: y").as_deref(), Some("x=y"));
        assert!(said("skipped: Not An Id").unwrap().starts_with("unnamed="));
        assert_eq!(said("3 tests were skipped: x: y"), None);
        assert_eq!(said("test a ... ok"), None);
    }
}
