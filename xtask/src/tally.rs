//! Result of a run: passed, failed and skipped checks, and the exit code.

use std::io;

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

/// Counts over all test programs and steps.
#[derive(Debug, Default)]
pub struct Tally {
    /// Checks that held.
    pub passed: u64,
    /// Skipped checks, each with its reason.
    pub skips: Vec<Skip>,
    /// Checks that failed, a line each.
    pub failures: Vec<String>,
}

impl Tally {
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
    fn the_closing_line_has_the_form_that_ci_looks_for() {
        let mut tally = Tally { passed: 3, ..Tally::default() };
        tally.record_check("good", true);
        tally.record_check("bad", false);
        tally.record_skip("corpus-absent", "not here", "a test");
        assert_eq!(tally.closing_line(), "4 passed, 1 failed, 1 skipped");
    }
}
