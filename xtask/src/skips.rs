//! Skipped checks against the checked-in list `xtask/skips.txt`: what was skipped but may not be, and what
//! should have been skipped but was not, both fail.

use std::collections::BTreeMap;

use crate::facts::{Condition, Fact};

/// Where the list stands.
pub const LIST: &str = "xtask/skips.txt";

/// A check that said `skipped: ID: WHY`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    /// Names the reason; the same in the list.
    pub id: String,
    /// Why, in the check's words.
    pub why: String,
    /// The test or step that said so.
    pub by: String,
}

/// When a check is skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    /// On every machine.
    Always,
    /// Exactly where the condition holds.
    Iff(Condition),
    /// Perhaps where the condition holds, never elsewhere.
    MayIf(Condition),
    /// Perhaps, anywhere.
    May,
}

/// One line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The id of the skip.
    pub id: String,
    /// When it is normal.
    pub when: When,
    /// Its line in the list, from 1.
    pub line: usize,
}

/// Reads the list: `id | when | why`, comments with `#`.
pub fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let mut entries: Vec<Entry> = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let at = |problem: String| format!("{LIST}:{line}: {problem}");
        let fields: Vec<&str> = content.split('|').map(str::trim).collect();
        let [id, when, why] = fields[..] else {
            return Err(at("a line is `id | when | why`".to_owned()));
        };
        if !is_id(id) || why.is_empty() {
            return Err(at(format!("`{id}` needs small letters, digits and hyphens, and a reason")));
        }
        if entries.iter().any(|known| known.id == id) {
            return Err(at(format!("`{id}` stands twice")));
        }
        let when = match when.split_once(' ').unwrap_or((when, "")) {
            ("always", "") => When::Always,
            ("may", "") => When::May,
            ("iff", condition) => When::Iff(Condition::parse(condition).map_err(at)?),
            ("may", rest) if rest.starts_with("if ") => {
                When::MayIf(Condition::parse(&rest["if ".len()..]).map_err(at)?)
            }
            _ => return Err(at(format!("`{when}` is none of always, iff COND, may if COND, may"))),
        };
        entries.push(Entry { id: id.to_owned(), when, line });
    }
    Ok(entries)
}

/// Whether `id` can name a skip.
pub fn is_id(id: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_' || c == ':';
    id.starts_with(|c: char| c.is_ascii_lowercase()) && id.chars().all(inner)
}

/// A skip said in a line of output: at its start, or behind libtest's `test NAME ... `.
pub fn said(line: &str) -> Option<(String, String)> {
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

/// What is wrong with the skips of a run. `complete`: every check was asked to run, so that an expected skip
/// which was not said is wrong too.
pub fn judge(entries: &[Entry], said: &[Skip], complete: bool, ask: &dyn Fn(&Fact) -> bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for (id, skip) in said.iter().map(|skip| (&skip.id, skip)).collect::<BTreeMap<_, _>>() {
        let Some(entry) = entries.iter().find(|entry| entry.id == *id) else {
            wrong.push(format!("{}: skipped `{id}`, which {LIST} does not list: {}", skip.by, skip.why));
            continue;
        };
        let allowed = match &entry.when {
            When::Always | When::May => true,
            When::Iff(condition) | When::MayIf(condition) => condition.holds(ask),
        };
        if !allowed {
            let line = entry.line;
            wrong.push(format!("{}: skipped `{id}`, but {LIST}:{line} does not allow it here", skip.by));
        }
    }
    for entry in entries.iter().filter(|_| complete) {
        let expected = match &entry.when {
            When::Always => true,
            When::Iff(condition) => condition.holds(ask),
            When::MayIf(_) | When::May => false,
        };
        if expected && !said.iter().any(|skip| skip.id == entry.id) {
            wrong.push(format!(
                "{LIST}:{}: `{}` is expected here, but nothing was skipped",
                entry.line, entry.id
            ));
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
        Skip { id: id.to_owned(), why: "w".to_owned(), by: "t".to_owned() }
    }

    #[test]
    fn the_set_of_skips_must_be_the_listed_one() {
        let entries = parse(LISTED).unwrap();
        let check = |corpus: bool, root: bool, said: &[&str], complete: bool, wrong: &[&str]| {
            let ask = |fact: &Fact| match fact {
                Fact::Corpus => corpus,
                _ => root,
            };
            let said: Vec<Skip> = said.iter().map(|id| skip(id)).collect();
            let found = judge(&entries, &said, complete, &ask);
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
            ("a | may | w\na | may | w", ":2: `a` stands twice"),
            ("a | iff moon | w", ":1: `moon` is no fact"),
            ("a | sometimes | w", ":1: `sometimes` is none of"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn skips_are_found_in_lines_of_output() {
        let said = |line| said(line).map(|(id, why)| format!("{id}={why}"));
        assert_eq!(said("skipped: corpus-absent: no folder").as_deref(), Some("corpus-absent=no folder"));
        assert_eq!(said("test a::b ... skipped: x: y: z").as_deref(), Some("x=y: z"));
        assert_eq!(said("  skipped: x: y").as_deref(), Some("x=y"));
        assert!(said("skipped: Not An Id").unwrap().starts_with("unnamed="));
        assert_eq!(said("3 tests were skipped: x: y"), None);
        assert_eq!(said("test a ... ok"), None);
    }
}
