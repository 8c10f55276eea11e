//! What is said while an experiment goes on: one line on a terminal, and a line for what did not go well.

use std::collections::BTreeSet;

use pagelab_experiment::session::News;
use pagelab_model::experiment::{Flag, Plan, Trial, TrialEnd};
use pagelab_report::quantity::duration;

use crate::out;

/// The line, and what was told already.
pub struct Progress<'p> {
    plan: &'p Plan,
    is_watched: bool,
    told: BTreeSet<(usize, usize, String)>,
}

impl<'p> Progress<'p> {
    /// Nothing was told yet.
    pub fn new(plan: &'p Plan) -> Progress<'p> {
        Progress { plan, is_watched: out::is_watched(), told: BTreeSet::new() }
    }

    /// Tells what happens.
    pub fn tell(&mut self, news: &News<'_>) {
        match news {
            News::Preflight(text, is_quiet) => {
                if !is_quiet {
                    self.line(&format!("note: {text}"));
                }
            }
            News::Told(text) => self.line(&format!("note: {text}")),
            News::Begins { number, of, workload, variant, left } => {
                let left = left.map_or(String::new(), |left| {
                    let ns = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
                    format!("   about {} left", duration(ns))
                });
                if self.is_watched {
                    out::status(&format!("trial {number} of {of}: {workload}, {variant}{left}"));
                }
            }
            News::Ended(trial) => self.ended(trial),
        }
    }

    /// Takes the line away.
    pub fn clear(&self) {
        if self.is_watched {
            out::status("");
        }
    }

    fn line(&self, text: &str) {
        self.clear();
        out::complain(text);
    }

    fn ended(&mut self, trial: &Trial) {
        let Some(slot) = self.plan.schedule.get(trial.slot) else { return };
        let (workload, variant) = (slot.workload, slot.variant);
        let names = format!("{}, {}", self.plan.workloads[workload].name, self.plan.variants[variant].name);
        if let Some(how) = in_words(&trial.end) {
            self.line(&format!("{names}: {how}"));
            for line in trial.last_output.lines() {
                self.line(&format!("  | {line}"));
            }
        }
        // Once for each pairing: the report counts them.
        for flag in &trial.flags {
            let is_loud = [Flag::NO_HUGE_PAGES, Flag::NOT_APPLIED].contains(&flag.kind.as_str());
            if is_loud && self.told.insert((workload, variant, flag.kind.clone())) {
                self.line(&format!("{names}: {}: {}", flag.kind, flag.text));
            }
        }
    }
}

/// How a trial ended, if not as it should.
fn in_words(end: &TrialEnd) -> Option<String> {
    Some(match end {
        TrialEnd::Done | TrialEnd::Stopped => return None,
        TrialEnd::Failed(code) => format!("failed with exit code {code}"),
        TrialEnd::Killed(signal) => format!("killed by signal {signal}"),
        TrialEnd::OutOfMemory => "killed by the kernel for want of memory".to_owned(),
        TrialEnd::TimedOut(ns) => format!("ended after its time limit of {}", duration(*ns)),
        TrialEnd::Nonsense(why) => format!("no result: {why}"),
        TrialEnd::LeftBehind(count) => format!("left {count} processes behind, which were ended"),
        TrialEnd::NotBegun(why) => format!("not begun: {why}"),
        TrialEnd::Rejected(why) => format!("rejected: {why}"),
    })
}
