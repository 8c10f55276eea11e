//! Progress of an experiment: one status line on a terminal, and a line for each problem.

use std::collections::BTreeSet;

use pagelab_experiment::engine::SessionEvent;
use pagelab_model::experiment::{Flag, Plan, Trial, TrialEnd};
use pagelab_report::effect_text::format_trial_end;
use pagelab_report::quantity_format::format_duration;

use crate::output;
use crate::value_parsers::bounded_ns;

/// The status line, and the messages printed so far.
pub struct RunProgress<'p> {
    plan: &'p Plan,
    reported: BTreeSet<(usize, usize, String)>,
}

impl<'p> RunProgress<'p> {
    /// Creates the progress before any message.
    pub fn new(plan: &'p Plan) -> RunProgress<'p> {
        RunProgress { plan, reported: BTreeSet::new() }
    }

    pub fn report(&mut self, news: &SessionEvent<'_>) {
        match news {
            SessionEvent::Note(text) => self.print_line(&format!("note: {text}")),
            SessionEvent::TrialStarted { number, total, workload, variant, round, remaining_time } => {
                let (most, about) = match self.plan.early_end {
                    Some(_) => ("at most ", "at most"),
                    None => ("", "about"),
                };
                let round = round.map_or("warm-up".to_owned(), |round| format!("round {round}"));
                let left = remaining_time
                    .map(|left| format!("   {about} {} left", format_duration(bounded_ns(left))))
                    .unwrap_or_default();
                output::show_status_line(&format!(
                    "{round}, trial {number} of {most}{total}: {workload}, {variant}{left}"
                ));
            }
            SessionEvent::Progress(_) => {}
            SessionEvent::TrialEnded(trial) => self.report_trial(trial),
        }
    }

    pub fn clear(&self) {
        output::show_status_line("");
    }

    fn print_line(&self, text: &str) {
        self.clear();
        output::warn(text);
    }

    fn report_trial(&mut self, trial: &Trial) {
        let Some(slot) = self.plan.schedule.get(trial.slot) else { return };
        let (workload, variant) = (slot.workload, slot.variant);
        let names = format!("{}, {}", self.plan.workloads[workload].name, self.plan.variants[variant].name);
        if let Some(how) = trial_end_text(&trial.end) {
            self.print_line(&format!("{names}: {how}"));
            for line in trial.last_output.lines() {
                self.print_line(&format!("  | {line}"));
            }
        }
        // Once for each pairing: the report counts them.
        for flag in &trial.flags {
            let is_loud =
                [Flag::NO_HUGE_PAGES, Flag::NOT_APPLIED, Flag::OTHERS_BUSY].contains(&flag.kind.as_str());
            if is_loud && self.reported.insert((workload, variant, flag.kind.clone())) {
                self.print_line(&format!("{names}: {}: {}", flag.kind, flag.text));
            }
        }
    }
}

/// Describes how a trial ended, if not normally.
fn trial_end_text(end: &TrialEnd) -> Option<String> {
    Some(match end {
        TrialEnd::Done | TrialEnd::Stopped => return None,
        TrialEnd::InvalidResult(why) => format!("no result: {why}"),
        TrialEnd::LeftProcesses(count) => format!("left {count} processes behind, which were killed"),
        TrialEnd::NotStarted(why) => format!("not started: {why}"),
        _ => format_trial_end(end),
    })
}
