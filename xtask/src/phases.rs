//! Phases of a test run, and their CI budget.

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

/// The phases in the order of the enum, with their words on the command line and their lines of the budget.
const PHASES: [(Phase, &str, &str); 9] = [
    (Phase::Tools, "tools", "tools"),
    (Phase::Lint, "lint", "build"),
    (Phase::Build, "build", "build"),
    (Phase::Unit, "unit", "unit"),
    (Phase::Corpus, "corpus", "others"),
    (Phase::EndToEnd, "e2e", "end-to-end"),
    (Phase::Web, "web", "web"),
    (Phase::Guests, "guests", "guests"),
    (Phase::Fuzz, "fuzz", "fuzz"),
];

impl Phase {
    /// All phases in the order in which they run.
    pub fn all() -> impl Iterator<Item = Phase> {
        PHASES.iter().map(|(phase, ..)| *phase)
    }

    /// The word for it on the command line.
    pub fn name(self) -> &'static str {
        PHASES[self as usize].1
    }

    pub fn parse(word: &str) -> Option<Phase> {
        PHASES.iter().find(|(_, name, _)| *name == word).map(|(phase, ..)| *phase)
    }

    fn budget_line(self) -> &'static str {
        PHASES[self as usize].2
    }

    /// Time limit of a single program of this phase, after which it is killed as hung. A build may take twice
    /// its line: on a machine of half the speed it works on, and only the total says that this is too slow.
    pub fn program_timeout(self) -> Duration {
        let budget = BUDGET.iter().find(|(line, _)| *line == self.budget_line());
        let minutes = budget.map_or(1, |(_, minutes)| *minutes);
        Duration::from_secs(minutes * 60 * if self.budget_line() == "build" { 2 } else { 1 })
    }
}

/// The CI budget on 2 cores, 55 minutes: lines with their minutes.
const BUDGET: [(&str, u64); 8] = [
    ("tools", 2),
    ("build", 12),
    ("unit", 6),
    ("end-to-end", 12),
    ("guests", 12),
    ("web", 5),
    ("fuzz", 3),
    ("others", 3),
];

/// All of the budget. A run that takes longer has failed.
pub fn total_budget() -> Duration {
    Duration::from_secs(60 * BUDGET.iter().map(|(_, minutes)| minutes).sum::<u64>())
}

/// The budget before a run.
pub fn format_budget() -> String {
    let lines = BUDGET.map(|(line, minutes)| format!("{line} {minutes}"));
    format!("budget in minutes on 2 cores: {}; {} in all\n", lines.join(", "), total_budget().as_secs() / 60)
}

/// The budget beside what the phases took.
pub fn format_table(durations: &[(Phase, Duration)]) -> String {
    let mut table = format!("\n{:<12}{:>12}{:>12}\n", "", "took", "budget");
    for (line, minutes) in BUDGET {
        let phases: Vec<_> = durations.iter().filter(|(phase, _)| phase.budget_line() == line).collect();
        let sum: Duration = phases.iter().map(|(_, took)| *took).sum();
        let parts: Vec<String> = phases
            .iter()
            .map(|(phase, took)| format!("{} {}", phase.name(), format_duration(*took)))
            .collect();
        let over = if sum > Duration::from_secs(60 * minutes) { "  over" } else { "" };
        let parts = if parts.len() > 1 { format!("   {}", parts.join(", ")) } else { String::new() };
        let spent = if phases.is_empty() { "–".to_owned() } else { format_duration(sum) };
        table += &format!("{line:<12}{spent:>12}{minutes:>9} min{parts}{over}\n");
    }
    let sum: Duration = durations.iter().map(|(_, took)| *took).sum();
    table + &format!("{:<12}{:>12}{:>9} min\n", "all", format_duration(sum), total_budget().as_secs() / 60)
}

/// `4.2 s`, `3 min 07 s`.
pub fn format_duration(time: Duration) -> String {
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
        assert_eq!(total_budget(), Duration::from_secs(55 * 60));
        for (place, phase) in Phase::all().enumerate() {
            assert_eq!(phase as usize, place, "{phase:?}");
            assert!(BUDGET.iter().any(|(line, _)| *line == phase.budget_line()), "{phase:?}");
            assert_eq!(Phase::parse(phase.name()), Some(phase));
            assert!(phase.program_timeout() < total_budget() / 2, "{phase:?}");
        }
        assert!(Phase::Build.program_timeout() > Phase::Guests.program_timeout());
    }

    #[test]
    fn phases_of_one_line_are_added_and_a_line_over_budget_is_marked() {
        let seconds = Duration::from_secs;
        let table = format_table(&[
            (Phase::Lint, seconds(60)),
            (Phase::Build, seconds(67)),
            (Phase::Fuzz, seconds(181)),
        ]);
        assert!(table.contains("2 min 07 s       12 min   lint 1 min 00 s, build 1 min 07 s\n"), "{table}");
        assert!(table.contains("3 min 01 s        3 min  over\n"), "{table}");
        assert!(table.contains("5 min 08 s       55 min\n"), "{table}");
    }
}
