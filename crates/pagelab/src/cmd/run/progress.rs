//! Progress of an experiment: one status line on a terminal, and a line for each problem.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pagelab_experiment::engine::SessionEvent;
use pagelab_model::experiment::{Flag, Plan, Trial, TrialEnd};
use pagelab_report::effect_text::describe_trial_end;
use pagelab_report::quantity_format::format_duration;

use crate::output;
use crate::value_parsers::bounded_ns;

/// The status line, and the messages printed so far.
pub struct RunProgress<'p> {
    plan: &'p Plan,
    reported: BTreeSet<(usize, usize, String)>,
    guests: GuestProgress,
    shown: String,
}

/// Trials in guests, which run side by side.
#[derive(Debug, Default)]
struct GuestProgress {
    done: usize,
    total: usize,
    /// By slot: the names of workload and variant; since when its guest boots, and how long it may.
    running: BTreeMap<usize, (String, Option<(Instant, Duration)>)>,
    /// The remaining time, as a phrase.
    left: String,
}

impl GuestProgress {
    /// `3 of 12 trials done, 2 running: chase, base: booting for 4 s, at most 2 min 0 s; chase, huge`
    fn line(&self, now: Instant) -> String {
        let trial = |(names, boot): &(String, Option<(Instant, Duration)>)| match boot {
            Some((since, limit)) => {
                let booting = format_seconds(now.saturating_duration_since(*since));
                format!("{names}: booting for {booting}, at most {}", format_seconds(*limit))
            }
            None => names.clone(),
        };
        let running: Vec<String> = self.running.values().map(trial).collect();
        format!(
            "{} of {} trials done, {} running: {}{}",
            self.done,
            self.total,
            running.len(),
            running.join("; "),
            self.left
        )
    }
}

/// A duration in whole seconds.
fn format_seconds(time: Duration) -> String {
    format_duration(time.as_secs().saturating_mul(1_000_000_000))
}

impl<'p> RunProgress<'p> {
    /// Creates the progress before any message.
    pub fn new(plan: &'p Plan) -> RunProgress<'p> {
        RunProgress {
            plan,
            reported: BTreeSet::new(),
            guests: GuestProgress::default(),
            shown: String::new(),
        }
    }

    pub fn report(&mut self, news: &SessionEvent<'_>) {
        match news {
            SessionEvent::Note(text) => self.print_line(&format!("note: {text}")),
            SessionEvent::TrialStarted {
                slot,
                done,
                number,
                total,
                workload,
                variant,
                round,
                remaining_time,
            } => {
                let (most, about) = match self.plan.early_end {
                    Some(_) => ("at most ", "at most"),
                    None => ("", "about"),
                };
                let round = round.map_or("warm-up".to_owned(), |round| format!("round {round}"));
                let left = remaining_time
                    .map(|left| format!("   {about} {} left", format_duration(bounded_ns(left))))
                    .unwrap_or_default();
                if self.plan.place == Plan::GUEST {
                    (self.guests.done, self.guests.total, self.guests.left) = (*done, *total, left);
                    self.guests.running.insert(*slot, (format!("{workload}, {variant}"), None));
                    return self.show_guests();
                }
                output::show_status_line(&format!(
                    "{round}, trial {number} of {most}{total}: {workload}, {variant}{left}"
                ));
            }
            SessionEvent::GuestBoot { slot, limit } => {
                if let Some((_, boot)) = self.guests.running.get_mut(slot) {
                    *boot = limit.map(|limit| (Instant::now(), limit));
                }
                self.show_guests();
            }
            SessionEvent::Progress(_) => self.show_guests(),
            SessionEvent::TrialEnded(trial) => {
                self.guests.running.remove(&trial.slot);
                self.guests.done += usize::from(!trial.end.is_repeated());
                self.report_trial(trial);
            }
        }
    }

    pub fn clear(&mut self) {
        self.shown.clear();
        output::show_status_line("");
    }

    /// Shows trials in guests; the line changes once a second.
    fn show_guests(&mut self) {
        if self.guests.running.is_empty() {
            return;
        }
        let line = self.guests.line(Instant::now());
        if line != self.shown {
            output::show_status_line(&line);
            self.shown = line;
        }
    }

    fn print_line(&mut self, text: &str) {
        self.clear();
        output::warn(text);
    }

    fn report_trial(&mut self, trial: &Trial) {
        let Some(slot) = self.plan.schedule.get(trial.slot) else { return };
        let (workload, variant) = (slot.workload, slot.variant);
        let names = format!("{}, {}", self.plan.workloads[workload].name, self.plan.variants[variant].name);
        if let Some(how) = trial_end_text(trial) {
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
fn trial_end_text(trial: &Trial) -> Option<String> {
    Some(match &trial.end {
        TrialEnd::Done | TrialEnd::Stopped => return None,
        TrialEnd::InvalidResult(why) => format!("no result: {why}"),
        TrialEnd::LeftProcesses(count) => format!("left {count} processes behind, which were killed"),
        TrialEnd::NotStarted(why) => format!("not started: {why}"),
        _ => describe_trial_end(trial),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_in_guests_are_counted_when_they_are_done_and_a_boot_has_its_deadline() {
        let start = Instant::now();
        let trial = |name: &str, boot| (format!("chase, {name}"), boot);
        let limit = Duration::from_secs(120);
        let mut progress = GuestProgress { done: 3, total: 12, ..GuestProgress::default() };
        progress.running.insert(4, trial("base", Some((start, limit))));
        progress.running.insert(5, trial("huge", None));
        progress.left = "   about 5 min left".to_owned();
        assert_eq!(
            progress.line(start + Duration::from_millis(4200)),
            "3 of 12 trials done, 2 running: chase, base: booting for 4 s, at most 2 min 0 s; chase, huge   \
             about 5 min left"
        );
        progress.running.remove(&4);
        assert!(progress.line(start).starts_with("3 of 12 trials done, 1 running: chase, huge"));
    }
}
