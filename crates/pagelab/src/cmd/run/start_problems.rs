//! Everything that keeps an experiment from its start, told at once.

use crate::exit::{Failure, FailureKind};
use crate::output;

/// Problems in the order in which they were found.
#[derive(Debug, Default)]
pub struct StartProblems(Vec<Failure>);

impl StartProblems {
    /// Adds a problem.
    pub fn add(&mut self, problem: Failure) {
        self.0.push(problem);
    }

    /// Adds the error of a result, and returns its value.
    pub fn add_error<T>(&mut self, result: Result<T, Failure>) -> Option<T> {
        result.map_err(|failure| self.add(failure)).ok()
    }

    /// Whether there is none so far.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends the process if a signal is among them.
    pub fn exit_if_stopped(&mut self) {
        let is_stop = |failure: &Failure| matches!(failure.kind(), FailureKind::Stopped(_));
        if let Some(at) = self.0.iter().position(is_stop) {
            let stop = output::exit_if_stopped(self.0.swap_remove(at));
            self.0.push(stop);
        }
    }

    /// All of them as one failure; `Ok` if there is none.
    pub fn into_result(mut self) -> Result<(), Failure> {
        if self.0.is_empty() {
            return Ok(());
        }
        let first = self.0.remove(0);
        Err(self.join_to(first))
    }

    /// That failure and all of these as one, a line each. A wrong command line or recipe decides the exit
    /// code, since it remains wrong on every machine; else the first failure does.
    pub fn join_to(self, first: Failure) -> Failure {
        if self.0.is_empty() {
            return first;
        }
        let is_usage = |failure: &Failure| failure.kind() == FailureKind::Usage;
        let kind = if self.0.iter().any(is_usage) { FailureKind::Usage } else { first.kind() };
        let all = std::iter::once(&first).chain(&self.0);
        let texts: Vec<String> = all.map(ToString::to_string).collect();
        Failure::new(kind, texts.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_request_outweighs_what_this_machine_lacks() {
        let failures = || {
            [
                Failure::new(FailureKind::NotAvailable, "cannot find qemu; hint: install it"),
                Failure::new(FailureKind::BadInput, "cannot use the kernel x: no such file"),
                Failure::new(FailureKind::Usage, "kernel 6.1 is given twice"),
            ]
        };
        let told = StartProblems(failures().into()).into_result().unwrap_err();
        assert_eq!(told.kind(), FailureKind::Usage);
        assert_eq!(told.to_string().lines().count(), 3, "{told}");
        let [first, second, _] = failures();
        let told = StartProblems(vec![first, second]).into_result().unwrap_err();
        assert_eq!(told.kind(), FailureKind::NotAvailable);
        assert!(StartProblems::default().into_result().is_ok());
    }
}
