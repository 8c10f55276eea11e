//! What a run has found so far: passed, failed and skipped checks, and how it ends.

use std::io;

use crate::skips::Skip;

/// Why a command of xtask ended badly.
#[derive(Debug)]
pub enum Failed {
    /// The command line was wrong.
    Usage(String),
    /// Everything was already printed.
    Said,
    /// This, still to be printed.
    Because(String),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed::Because(error.to_string())
    }
}

impl From<String> for Failed {
    fn from(why: String) -> Failed {
        Failed::Because(why)
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
    pub fn check(&mut self, name: &str, held: bool) {
        if held {
            self.passed += 1;
        } else {
            self.failures.push(name.to_owned());
        }
    }

    /// One check that could not be made.
    pub fn skip(&mut self, id: &str, why: &str, by: &str) {
        self.skips.push(Skip { id: id.to_owned(), why: why.to_owned(), by: by.to_owned() });
    }

    /// The closing line, which CI looks for.
    pub fn closing(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failures.len(), self.skips.len())
    }

    /// Prints the skips, the failures and the closing line.
    pub fn close(&self) -> Result<(), Failed> {
        if !self.skips.is_empty() {
            println!("\nskipped checks");
            for skip in &self.skips {
                println!("  {}: {} ({})", skip.id, skip.why, skip.by);
            }
        }
        if !self.failures.is_empty() {
            println!("\nfailed");
            for failure in &self.failures {
                println!("  {failure}");
            }
        }
        println!("\n{}", self.closing());
        if self.failures.is_empty() { Ok(()) } else { Err(Failed::Said) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_has_the_form_that_ci_looks_for() {
        let mut tally = Tally { passed: 3, ..Tally::default() };
        tally.check("good", true);
        tally.check("bad", false);
        tally.skip("corpus-absent", "not here", "a test");
        assert_eq!(tally.closing(), "4 passed, 1 failed, 1 skipped");
    }
}
