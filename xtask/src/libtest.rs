//! Parser of the output of Rust's libtest.

use crate::skips::{self, Skip};
use crate::tally::{FailedTest, Tally};

#[derive(Debug, Default, PartialEq, Eq)]
pub struct TestResults {
    /// Tests that passed without skipping anything.
    pub passed: u64,
    pub failed: Vec<FailedTest>,
    pub skips: Vec<Skip>,
    /// Whether libtest's closing line was there.
    pub has_summary: bool,
}

/// Reads the output of a run with `--show-output`. A test that printed a skip is counted as skipped, not as
/// passed.
pub fn parse_output(program: &str, lines: &[String]) -> TestResults {
    let mut found = TestResults::default();
    let mut block: Option<&str> = None;
    let mut skipping: Vec<&str> = Vec::new();
    for line in lines {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            block = Some(name);
        } else if line == "failures:" || line == "successes:" {
            block = None;
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            block = None;
            found.has_summary = true;
            found.passed += parse_count(counts, "passed");
        } else if let Some((name, result)) =
            line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "))
        {
            if result.starts_with("FAILED") {
                let message = failure_message(name, lines);
                found.failed.push(FailedTest { program: program.to_owned(), name: name.to_owned(), message });
            } else if let Some(why) = result.strip_prefix("ignored") {
                let why = why.trim_start_matches([',', ' ']);
                let why = if why.is_empty() { "marked as ignored" } else { why };
                let by = format!("{program}: {name}");
                // A reason may name the row of the list that it belongs to: `runs-in-a-guest: by another`.
                let is_id = |id: &str| id.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
                let (id, why) = why.split_once(": ").filter(|(id, _)| is_id(id)).unwrap_or((name, why));
                found.skips.push(Skip { id: id.to_owned(), reason: why.to_owned(), check: by });
            }
        }
        if let Some((id, why)) = skips::parse_skip(line) {
            let by = block.map_or_else(|| program.to_owned(), |name| format!("{program}: {name}"));
            skipping.extend(block.filter(|name| !skipping.contains(name)));
            found.skips.push(Skip { id, reason: why, check: by });
        }
    }
    let failed_too =
        skipping.iter().filter(|name| found.failed.iter().any(|test| test.name == **name)).count();
    found.passed = found.passed.saturating_sub((skipping.len() - failed_too) as u64);
    found
}

/// Failure section of a test program's output; all of it if there is no such section.
pub fn failure_section(lines: &[String]) -> &[String] {
    let first = lines.iter().position(|line| line == "failures:");
    &lines[first.unwrap_or(0)..]
}

/// The first line of a test's failure: of the panic message, without the line that names its place.
fn failure_message(test: &str, lines: &[String]) -> String {
    let head = format!("---- {test} stdout ----");
    let section = lines.iter().skip_while(|line| **line != head).skip(1);
    let mut section = section.take_while(|line| !line.starts_with("---- ") && *line != "failures:");
    let panic = section.find(|line| line.starts_with("thread '") && line.contains(" panicked at "));
    let message = section.find(|line| !line.trim().is_empty()).filter(|_| panic.is_some());
    message.map_or_else(|| "no panic message".to_owned(), |line| line.trim().to_owned())
}

fn parse_count(counts: &str, label: &str) -> u64 {
    let mut words = counts.split([' ', ';', '.']).filter(|word| !word.is_empty());
    let mut before = "";
    words
        .find_map(|word| {
            let number = (word == label).then(|| before.parse().ok()).flatten();
            before = word;
            number
        })
        .unwrap_or(0)
}

impl Tally {
    /// Adds the results of a test program; `is_success` and `ending` are its end.
    pub fn add(&mut self, program: &str, results: TestResults, is_success: bool, ending: &str) {
        self.passed += results.passed;
        let silent = results.failed.is_empty();
        self.failures.extend(results.failed.iter().map(FailedTest::line));
        self.failed_tests.extend(results.failed);
        self.skips.extend(results.skips);
        match (is_success, results.has_summary) {
            (true, true) => {}
            // A program without libtest is one check.
            (true, false) => self.passed += 1,
            (false, true) if !silent => {}
            (false, _) => self.failures.push(format!("{program}: {ending}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    const OUTPUT: &str = "\
running 5 tests
test a ... ok
test b ... FAILED
test c ... ignored, needs the moon
test e ... ignored, in-a-guest: by another
test d ... ok

successes:

---- d stdout ----
skipped: corpus-absent: no folder

successes:
    a
    d

failures:

---- b stdout ----
thread 'b' (71) panicked at src/b.rs:7:5:
2 passed; 9 failed

failures:
    b

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn counts_failures_ignored_and_skips_are_read() {
        let found = parse_output("p", &lines(OUTPUT));
        assert_eq!((found.passed, found.has_summary), (1, true));
        let failed: Vec<_> = found.failed.iter().map(|test| (test.line(), test.message.as_str())).collect();
        assert_eq!(failed, [("p: b".to_owned(), "2 passed; 9 failed")]);
        let skips: Vec<_> =
            found.skips.iter().map(|s| format!("{} {} {}", s.id, s.reason, s.check)).collect();
        assert_eq!(failure_section(&lines(OUTPUT))[2], "---- b stdout ----");
        assert_eq!(
            skips,
            ["c needs the moon p: c", "in-a-guest by another p: e", "corpus-absent no folder p: d"]
        );
    }

    #[test]
    fn a_program_that_dies_is_a_failure_and_one_without_libtest_is_one_check() {
        let mut tally = Tally::default();
        tally.add("p", parse_output("p", &lines("running 1 test\ntest a ... ")), false, "signal: 6");
        assert_eq!(tally.closing_line(), "0 passed, 1 failed, 0 skipped");
        tally.add("q", parse_output("q", &lines("fine")), true, "exit status: 0");
        assert_eq!(tally.closing_line(), "1 passed, 1 failed, 0 skipped");
        tally.add("r", parse_output("r", &lines(OUTPUT)), false, "exit status: 101");
        assert_eq!(tally.closing_line(), "2 passed, 2 failed, 3 skipped");
    }
}
