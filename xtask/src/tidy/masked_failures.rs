//! Values in place of failures: a count for each crate that reads the machine or acts on it, which may only
//! fall.
//!
//! `unwrap_or`, `unwrap_or_default` and `.ok()` turn a failure into a value. Most of them are right: an empty
//! iterator, a number that fits. The others print 0 for what could not be read. The count makes a new one a
//! decision.

use super::Violation;
use super::source::SourceFile;

/// The crates, and their counts outside of tests.
const COUNTS: [(&str, usize); 4] =
    [("pagelab-contig", 73), ("pagelab-host", 220), ("pagelab-runfile", 21), ("pagelab-target", 163)];
const DEFAULTS: [&str; 2] = ["unwrap_or", "unwrap_or_default"];
const TABLE: &str = "xtask/src/tidy/masked_failures.rs";

/// Compares the counts with the table. `sources`: all Rust files of the repository.
pub fn check(sources: &[SourceFile<'_>], violations: &mut Vec<Violation>) {
    for (crate_name, limit) in COUNTS {
        let own = format!("crates/{crate_name}/src/");
        let count: usize = sources.iter().filter(|source| source.path.starts_with(&own)).map(count_in).sum();
        let advice = match count {
            count if count == limit => continue,
            count if count > limit => "hand the failure on, or raise the count with a reason in the commit",
            _ => "lower the count in the table",
        };
        let text = format!("{crate_name} has {count} values in place of failures, not {limit}: {advice}");
        violations.push(Violation::new(TABLE, 1, "masked-failure", text));
    }
}

/// Calls outside of tests that replace a failure by a value.
fn count_in(source: &SourceFile<'_>) -> usize {
    let tokens = source.tokens();
    let word = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let is_call = |at: usize| {
        word(at + 1) == "("
            && (DEFAULTS.contains(&word(at))
                || word(at) == "ok" && word(at + 2) == ")" && at > 0 && word(at - 1) == ".")
    };
    (0..tokens.len()).filter(|&at| is_call(at) && !source.is_in_test(tokens[at].offset)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_outside_of_tests_are_counted() {
        let text = "fn f() { a.unwrap_or(0); b.unwrap_or_default(); c.ok()?; d.ok_or(1)?; ok(); }\n\
                    #[cfg(test)] mod tests { fn g() { a.unwrap_or(0); } }";
        assert_eq!(count_in(&SourceFile::new("crates/pagelab-host/src/a.rs", text)), 3);
    }
}
