//! Result of a run: passed, failed and skipped checks, and the exit code.

use std::io;
use std::time::Duration;

use crate::phases;
use crate::skips::Skip;

/// Why a command of xtask ended badly.
#[derive(Debug)]
pub enum TaskError {
    /// The command line was wrong.
    Usage(String),
    /// Everything was already printed.
    Reported,
    /// This, still to be printed.
    Message(String),
}

impl TaskError {
    /// The reason, for a line of a report.
    pub fn into_reason(self) -> String {
        match self {
            TaskError::Usage(why) | TaskError::Message(why) => why,
            TaskError::Reported => "the program said why".to_owned(),
        }
    }
}

impl From<io::Error> for TaskError {
    fn from(error: io::Error) -> TaskError {
        TaskError::Message(error.to_string())
    }
}

impl From<String> for TaskError {
    fn from(message: String) -> TaskError {
        TaskError::Message(message)
    }
}

/// Counts over all test programs and steps, and what is printed of them.
#[derive(Debug, Default)]
pub struct Tally {
    /// Checks that held.
    pub passed: u64,
    /// Skipped checks, each with its reason.
    pub skips: Vec<Skip>,
    /// Checks that failed, a line each.
    pub failures: Vec<String>,
    /// Tests of libtest among the failures, which may run again.
    pub failed_tests: Vec<FailedTest>,
    /// Lines that are not printed yet; `None` if each is printed at once.
    held_lines: Option<Vec<String>>,
}

/// A test of libtest that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedTest {
    /// Its program, as [`crate::cargo_build::BuiltProgram::display_name`] has it.
    pub program: String,
    /// Its path in the program: `module::name`.
    pub name: String,
    /// First line of its failure.
    pub message: String,
}

impl FailedTest {
    /// Its line among the failures.
    pub fn line(&self) -> String {
        format!("{}: {}", self.program, self.name)
    }
}

impl Tally {
    /// A tally that keeps its lines until [`Tally::append`] prints them: jobs that run side by side would mix
    /// theirs.
    pub fn with_held_lines() -> Tally {
        Tally { held_lines: Some(Vec::new()), ..Tally::default() }
    }

    /// Prints a line, now or when the tally is appended.
    pub fn print(&mut self, line: impl Into<String>) {
        match &mut self.held_lines {
            Some(lines) => lines.push(line.into()),
            None => println!("{}", line.into()),
        }
    }

    /// The lines that are not printed yet.
    #[cfg(test)]
    pub fn held_lines(&self) -> &[String] {
        self.held_lines.as_deref().unwrap_or_default()
    }

    /// Prints the line of a step: name, result, duration.
    pub fn print_step(&mut self, name: &str, ok: bool, duration: Duration, details: &str) {
        let name: String = name.chars().take(60).collect();
        let verdict = if ok { "ok" } else { "failed" };
        self.print(format!("  {name:<62}{verdict:<8}{:>12}  {details}", phases::format_duration(duration)));
    }

    /// Adds the counts of `other`, and prints its lines.
    pub fn append(&mut self, other: Tally) {
        other.held_lines.into_iter().flatten().for_each(|line| self.print(line));
        self.passed += other.passed;
        self.skips.extend(other.skips);
        self.failures.extend(other.failures);
        self.failed_tests.extend(other.failed_tests);
    }

    /// One check that is not a test of libtest.
    pub fn record_check(&mut self, name: &str, passed: bool) {
        if passed {
            self.passed += 1;
        } else {
            self.failures.push(name.to_owned());
        }
    }

    /// One check that could not be made.
    pub fn record_skip(&mut self, id: &str, reason: &str, check: &str) {
        self.skips.push(Skip { id: id.to_owned(), reason: reason.to_owned(), check: check.to_owned() });
    }

    /// The closing line, which CI searches for.
    pub fn closing_line(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failures.len(), self.skips.len())
    }

    /// Prints the skips, the failures and the closing line.
    pub fn finish(&self) -> Result<(), TaskError> {
        if !self.skips.is_empty() {
            println!("\nskipped checks");
            for skip in &self.skips {
                println!("  {}: {} ({})", skip.id, skip.reason, skip.check);
            }
        }
        if !self.failures.is_empty() {
            println!("\nfailed");
            for failure in &self.failures {
                println!("  {failure}");
            }
        }
        println!("\n{}", self.closing_line());
        if self.failures.is_empty() { Ok(()) } else { Err(TaskError::Reported) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_lines_are_printed_in_the_order_of_appending() {
        let mut tally = Tally::with_held_lines();
        let mut first = Tally::with_held_lines();
        first.print("a");
        first.record_check("bad", false);
        let mut second = Tally::with_held_lines();
        second.print_step("b", true, Duration::from_secs(1), "");
        tally.append(first);
        tally.append(second);
        let lines = tally.held_lines.unwrap();
        assert_eq!(lines.len(), 2);
        assert!(lines[0] == "a" && lines[1].trim_start().starts_with("b "), "{lines:?}");
        assert_eq!(tally.failures, ["bad"]);
    }

    #[test]
    fn the_closing_line_has_the_form_that_ci_looks_for() {
        let mut tally = Tally { passed: 3, ..Tally::default() };
        tally.record_check("good", true);
        tally.record_check("bad", false);
        tally.record_skip("corpus-absent", "not here", "a test");
        assert_eq!(tally.closing_line(), "4 passed, 1 failed, 1 skipped");
    }
}
