//! A published procedure, step by step: compact, wait, score, fragment, score, compact while the fragmenter
//! holds its memory, score; without huge pages and with them.

use std::time::Duration;

use pagelab_metrics::known_scores::Phase;
use pagelab_model::BuddyInfo;

/// What is done. The steps between two scores belong to the second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Compact all memory.
    Compact,
    /// Wait until what compaction set off has come to rest.
    Settle,
    /// Read the free lists.
    Score(Phase),
    /// Fragment, and hold.
    Fragment,
    /// Give everything back.
    Release,
}

/// The procedure, for one setting of huge pages.
pub const STEPS: [Step; 8] = [
    Step::Compact,
    Step::Settle,
    Step::Score(Phase::Compacted),
    Step::Fragment,
    Step::Score(Phase::Fragmented),
    Step::Compact,
    Step::Score(Phase::CompactedAgain),
    Step::Release,
];

/// What the machine of a procedure can do.
pub trait Acts {
    /// What goes wrong.
    type Error;
    /// Compacts all memory.
    fn compact(&mut self) -> Result<(), Self::Error>;
    /// Waits.
    fn settle(&mut self, time: Duration) -> Result<(), Self::Error>;
    /// Free blocks now.
    fn score(&mut self, phase: Phase) -> Result<BuddyInfo, Self::Error>;
    /// Fragments, and holds.
    fn fragment(&mut self, thp: bool) -> Result<(), Self::Error>;
    /// Gives back what is held.
    fn release(&mut self) -> Result<(), Self::Error>;
}

/// One pass of the procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Whether the fragmenter had huge pages.
    pub thp: bool,
    /// Free blocks at each phase, in the order of [`Phase::ALL`].
    pub scores: Vec<(Phase, BuddyInfo)>,
}

/// Carries the procedure out once. Where a step fails, what is held is given back first.
pub fn pass<A: Acts>(machine: &mut A, thp: bool, settle: Duration) -> Result<Pass, A::Error> {
    let mut scores = Vec::new();
    let mut step = |machine: &mut A, step| -> Result<(), A::Error> {
        match step {
            Step::Compact => machine.compact(),
            Step::Settle => machine.settle(settle),
            Step::Score(phase) => machine.score(phase).map(|free| scores.push((phase, free))),
            Step::Fragment => machine.fragment(thp),
            Step::Release => machine.release(),
        }
    };
    for this in STEPS {
        if let Err(error) = step(machine, this) {
            // The first failure is the one to tell.
            let _ = machine.release();
            return Err(error);
        }
    }
    Ok(Pass { thp, scores })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes down what it is asked for, and fails at one of it.
    #[derive(Default)]
    struct Diary(Vec<String>, &'static str);

    impl Diary {
        fn note(&mut self, what: &str) -> Result<(), String> {
            self.0.push(what.to_owned());
            if what == self.1 { Err(what.to_owned()) } else { Ok(()) }
        }
    }

    impl Acts for Diary {
        type Error = String;
        fn compact(&mut self) -> Result<(), String> {
            self.note("compact")
        }
        fn settle(&mut self, time: Duration) -> Result<(), String> {
            self.note(&format!("wait {}", time.as_secs()))
        }
        fn score(&mut self, phase: Phase) -> Result<BuddyInfo, String> {
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
        let mut diary = Diary::default();
        let pass = pass(&mut diary, false, Duration::from_secs(60)).unwrap();
        assert_eq!(pass.scores.iter().map(|(phase, _)| *phase).collect::<Vec<_>>(), Phase::ALL);
        assert_eq!(
            diary.0.join(", "),
            "compact, wait 60, compacted, fragment, fragmented, compact, compacted again, release"
        );
        for fails in ["compact", "fragment with huge pages", "fragmented", "release"] {
            let mut diary = Diary(Vec::new(), fails);
            assert_eq!(super::pass(&mut diary, true, Duration::ZERO), Err(fails.to_owned()));
            assert_eq!(diary.0.last().map(String::as_str), Some("release"), "after {fails}");
        }
    }
}
