//! The phases of a test run and the CI budget they are held against.

use std::time::Duration;

/// One part of a test run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Programs that the tests need.
    Tools,
    /// Format, clippy, tidy, documentation, licences.
    Lint,
    /// All test programs, and the release binary.
    Build,
    /// Tests inside the crates, tests of pure crates, documentation tests.
    Unit,
    /// Tests over other people's data.
    Corpus,
    /// Tests of the binary and of the crates that talk to the machine.
    EndToEnd,
    /// The page: its types, its build against the committed file, its tests in a browser.
    Web,
    /// Tests that boot guests.
    Guests,
    /// Parsers under a seeded mutator.
    Fuzz,
}

impl Phase {
    /// All phases in the order in which they run.
    pub const ALL: [Phase; 9] = [
        Phase::Tools,
        Phase::Lint,
        Phase::Build,
        Phase::Unit,
        Phase::Corpus,
        Phase::EndToEnd,
        Phase::Web,
        Phase::Guests,
        Phase::Fuzz,
    ];

    /// The word for it on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Phase::Tools => "tools",
            Phase::Lint => "lint",
            Phase::Build => "build",
            Phase::Unit => "unit",
            Phase::Corpus => "corpus",
            Phase::EndToEnd => "e2e",
            Phase::Web => "web",
            Phase::Guests => "guests",
            Phase::Fuzz => "fuzz",
        }
    }

    /// The phase of a word.
    pub fn of(word: &str) -> Option<Phase> {
        Phase::ALL.into_iter().find(|phase| phase.word() == word)
    }

    fn line(self) -> &'static str {
        match self {
            Phase::Tools => "tools",
            Phase::Lint | Phase::Build => "build",
            Phase::Unit => "unit",
            Phase::Corpus => "others",
            Phase::EndToEnd => "end-to-end",
            Phase::Web => "web",
            Phase::Guests => "guests",
            Phase::Fuzz => "fuzz",
        }
    }

    /// How long a single program of this phase may run before it is killed as hung.
    pub fn patience(self) -> Duration {
        let budget = BUDGET.iter().find(|line| line.name == self.line()).map_or(1, |line| line.minutes);
        Duration::from_secs(budget * 60)
    }
}

/// One line of the CI budget.
#[derive(Debug)]
pub struct Line {
    /// What it is for.
    pub name: &'static str,
    /// Minutes on 2 cores.
    pub minutes: u64,
}

/// The CI budget on 2 cores: 55 minutes.
pub const BUDGET: [Line; 8] = [
    Line { name: "tools", minutes: 2 },
    Line { name: "build", minutes: 12 },
    Line { name: "unit", minutes: 6 },
    Line { name: "end-to-end", minutes: 12 },
    Line { name: "guests", minutes: 12 },
    Line { name: "web", minutes: 5 },
    Line { name: "fuzz", minutes: 3 },
    Line { name: "others", minutes: 3 },
];

/// All of the budget. A run that takes longer has failed.
pub fn whole() -> Duration {
    Duration::from_secs(60 * BUDGET.iter().map(|line| line.minutes).sum::<u64>())
}

/// The budget before a run.
pub fn budget() -> String {
    let lines = BUDGET.iter().map(|line| format!("{} {}", line.name, line.minutes)).collect::<Vec<_>>();
    format!("budget in minutes on 2 cores: {}; {} in all\n", lines.join(", "), whole().as_secs() / 60)
}

/// The budget beside what the phases took.
pub fn table(took: &[(Phase, Duration)]) -> String {
    let mut table = format!("\n{:<12}{:>12}{:>12}\n", "", "took", "budget");
    for line in &BUDGET {
        let phases: Vec<_> = took.iter().filter(|(phase, _)| phase.line() == line.name).collect();
        let sum: Duration = phases.iter().map(|(_, took)| *took).sum();
        let parts: Vec<String> =
            phases.iter().map(|(phase, took)| format!("{} {}", phase.word(), clock(*took))).collect();
        let over = if sum > Duration::from_secs(60 * line.minutes) { "  over" } else { "" };
        let parts = if parts.len() > 1 { format!("   {}", parts.join(", ")) } else { String::new() };
        let spent = if phases.is_empty() { "–".to_owned() } else { clock(sum) };
        table += &format!("{:<12}{spent:>12}{:>9} min{parts}{over}\n", line.name, line.minutes);
    }
    let sum: Duration = took.iter().map(|(_, took)| *took).sum();
    table + &format!("{:<12}{:>12}{:>9} min\n", "all", clock(sum), whole().as_secs() / 60)
}

/// `4.2 s`, `3 min 07 s`.
pub fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 60 {
        format!("{:.1} s", time.as_secs_f64())
    } else {
        format!("{} min {:02} s", seconds / 60, seconds % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_fifty_five_minutes_and_every_phase_has_a_line_of_it() {
        assert_eq!(whole(), Duration::from_secs(55 * 60));
        for phase in Phase::ALL {
            assert!(BUDGET.iter().any(|line| line.name == phase.line()), "{phase:?}");
            assert_eq!(Phase::of(phase.word()), Some(phase));
        }
    }

    #[test]
    fn phases_of_one_line_are_added_and_a_line_over_budget_is_marked() {
        let seconds = Duration::from_secs;
        let table =
            table(&[(Phase::Lint, seconds(60)), (Phase::Build, seconds(67)), (Phase::Fuzz, seconds(181))]);
        assert!(table.contains("2 min 07 s       12 min   lint 1 min 00 s, build 1 min 07 s\n"), "{table}");
        assert!(table.contains("3 min 01 s        3 min  over\n"), "{table}");
        assert!(table.contains("5 min 08 s       55 min\n"), "{table}");
    }
}
