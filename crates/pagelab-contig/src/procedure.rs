//! A published procedure, step by step: compact, wait, score, fragment, score, compact while the fragmenter
//! holds its memory, score; without huge pages and with them.

use std::time::Duration;

use pagelab_metrics::published_scores::ProcedurePhase;
use pagelab_model::BuddyInfo;

/// Actions of a procedure on a machine.
pub trait ProcedureActions {
    /// Error of an action.
    type Error;
    /// Compacts all memory.
    fn compact(&mut self) -> Result<(), Self::Error>;
    /// Waits.
    fn wait(&mut self, duration: Duration) -> Result<(), Self::Error>;
    /// Free blocks now.
    fn read_free_blocks(&mut self, phase: ProcedurePhase) -> Result<BuddyInfo, Self::Error>;
    /// Fragments, and holds.
    fn fragment(&mut self, thp: bool) -> Result<(), Self::Error>;
    /// Releases held memory.
    fn release(&mut self) -> Result<(), Self::Error>;
}

/// One pass of the procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcedurePass {
    /// Whether the fragmenter had huge pages.
    pub thp: bool,
    /// Free blocks at each phase, in the order of [`ProcedurePhase::ALL`].
    pub scores: Vec<(ProcedurePhase, BuddyInfo)>,
}

/// Carries the procedure out once. If a step fails, held memory is released first.
pub fn run_pass<A: ProcedureActions>(
    machine: &mut A,
    thp: bool,
    wait_time: Duration,
) -> Result<ProcedurePass, A::Error> {
    let outcome = carry_out(machine, thp, wait_time);
    if outcome.is_err() {
        // The first failure is reported.
        let _ = machine.release();
    }
    outcome
}

fn carry_out<A: ProcedureActions>(
    machine: &mut A,
    thp: bool,
    wait_time: Duration,
) -> Result<ProcedurePass, A::Error> {
    let score = |machine: &mut A, phase| machine.read_free_blocks(phase).map(|free| (phase, free));
    machine.compact()?;
    machine.wait(wait_time)?;
    let compacted = score(machine, ProcedurePhase::Compacted)?;
    machine.fragment(thp)?;
    let fragmented = score(machine, ProcedurePhase::Fragmented)?;
    machine.compact()?;
    let compacted_again = score(machine, ProcedurePhase::CompactedAgain)?;
    machine.release()?;
    Ok(ProcedurePass { thp, scores: vec![compacted, fragmented, compacted_again] })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test double that records its requests and fails at one of them.
    #[derive(Default)]
    struct RecordingActions(Vec<String>, &'static str);

    impl RecordingActions {
        fn note(&mut self, what: &str) -> Result<(), String> {
            self.0.push(what.to_owned());
            if what == self.1 { Err(what.to_owned()) } else { Ok(()) }
        }
    }

    impl ProcedureActions for RecordingActions {
        type Error = String;
        fn compact(&mut self) -> Result<(), String> {
            self.note("compact")
        }
        fn wait(&mut self, time: Duration) -> Result<(), String> {
            self.note(&format!("wait {}", time.as_secs()))
        }
        fn read_free_blocks(&mut self, phase: ProcedurePhase) -> Result<BuddyInfo, String> {
            self.note(phase.name())?;
            Ok(BuddyInfo::default())
        }
        fn fragment(&mut self, thp: bool) -> Result<(), String> {
            self.note(if thp { "fragment with huge pages" } else { "fragment" })
        }
        fn release(&mut self) -> Result<(), String> {
            self.note("release")
        }
    }

    #[test]
    fn the_steps_are_those_of_the_report_and_end_in_a_release() {
        let mut diary = RecordingActions::default();
        let pass = run_pass(&mut diary, false, Duration::from_secs(60)).unwrap();
        assert_eq!(pass.scores.iter().map(|(phase, _)| *phase).collect::<Vec<_>>(), ProcedurePhase::ALL);
        assert_eq!(
            diary.0.join(", "),
            "compact, wait 60, compacted, fragment, fragmented, compact, compacted again, release"
        );
        for fails in ["compact", "fragment with huge pages", "fragmented", "release"] {
            let mut diary = RecordingActions(Vec::new(), fails);
            assert_eq!(run_pass(&mut diary, true, Duration::ZERO), Err(fails.to_owned()));
            assert_eq!(diary.0.last().map(String::as_str), Some("release"), "after {fails}");
        }
    }
}
