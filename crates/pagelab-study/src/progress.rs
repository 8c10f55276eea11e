//! Progress of a simulated experiment, as a status line.

use std::time::{Duration, Instant};

use pagelab_model::experiment::Plan;
use pagelab_report::style::format_plural;

use pagelab_command::output;

/// No estimate of the remaining time before this time, and before this share of the work in thousandths.
const ESTIMATE_AFTER: Duration = Duration::from_secs(3);
const ESTIMATE_FROM_PERMILLE: u128 = 30;

pub struct SimulationProgress {
    /// The size of the experiment, until it is printed: after the run file was created, before the first run
    /// ends.
    size_note: Option<String>,
    name: String,
    slots: usize,
    done_before: usize,
    done: usize,
    threads: usize,
    started: Instant,
    /// Thousandths of runs in the last report.
    reported_permille: u64,
}

impl SimulationProgress {
    /// Progress of a plan with `slots` runs, of which `due` remain.
    pub fn new(plan: &Plan, slots: usize, due: usize, threads: usize) -> SimulationProgress {
        SimulationProgress {
            size_note: Some(size_note(plan, slots, due, threads)),
            name: plan.name.clone(),
            slots,
            done_before: slots - due,
            done: 0,
            threads,
            started: Instant::now(),
            reported_permille: 0,
        }
    }

    /// Counts a completed run.
    pub fn count_run(&mut self) {
        self.done += 1;
        // Runs in progress are counted in the next update.
        self.update(self.reported_permille.max(self.done as u64 * 1000));
    }

    /// Updates the thousandths of completed runs, including those in progress.
    pub fn update(&mut self, thousandths: u64) {
        self.reported_permille = thousandths;
        if let Some(note) = self.size_note.take() {
            output::warn(&note);
        }
        let elapsed = self.started.elapsed();
        let left =
            remaining_text(elapsed, thousandths.into(), (self.slots - self.done_before) as u128 * 1000);
        let left = left.map_or(String::new(), |left| format!("   {left}"));
        let (done, slots, threads) = (self.done_before + self.done, self.slots, self.threads);
        let of = format_plural(threads, "thread");
        let share = percent_done(self.done_before, thousandths, slots);
        output::show_status_line(&format!("{}: {done} of {slots} runs, {share} %, {of}{left}", self.name));
    }

    /// Clears the line.
    pub fn clear(&self) {
        output::show_status_line("");
    }
}

/// Describes the size of an experiment. The time of a simulation is unknown before one has run.
fn size_note(plan: &Plan, slots: usize, due: usize, threads: usize) -> String {
    let rest = if due == slots { String::new() } else { format!(", {} done", slots - due) };
    format!(
        "note: {}: {}: {} with {} each{rest}; {threads} at a time",
        plan.name,
        format_plural(slots, "simulation"),
        format_plural(plan.points().len(), "configuration"),
        format_plural(plan.seeds().len(), "seed"),
    )
}

/// Percent of an experiment that is complete: earlier runs, thousandths of others, all runs.
fn percent_done(before: usize, thousandths: u64, slots: usize) -> u64 {
    let done = before as u64 * 1000 + thousandths;
    (done / (10 * slots.max(1) as u64)).min(100)
}

/// `about 40 s left`, in whole seconds; `None` while the estimate is uncertain, and at the end.
fn remaining_text(elapsed: Duration, done: u128, total: u128) -> Option<String> {
    if elapsed < ESTIMATE_AFTER || done * 1000 < total * ESTIMATE_FROM_PERMILLE || done >= total {
        return None;
    }
    let seconds = (elapsed.as_nanos() * (total - done) / done).div_ceil(1_000_000_000);
    let text = match seconds {
        0..90 => format!("{seconds} s"),
        90..5400 => format!("{} min", (seconds + 30) / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    };
    Some(format!("about {text} left"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_shows_before_it_ends() {
        assert_eq!(
            (
                percent_done(0, 0, 6),
                percent_done(0, 599, 6),
                percent_done(0, 600, 6),
                percent_done(3, 1500, 6)
            ),
            (0, 9, 10, 75)
        );
        assert_eq!(
            (percent_done(0, 6000, 6), percent_done(0, 7000, 6), percent_done(0, 0, 0)),
            (100, 100, 0)
        );
    }

    #[test]
    fn the_time_left_is_told_in_whole_seconds_and_not_guessed() {
        let of = |seconds, done, all| remaining_text(Duration::from_millis(seconds), done, all);
        assert_eq!(of(2_000, 500, 1000), None);
        assert_eq!(of(10_000, 29, 1000), None);
        assert_eq!(of(10_000, 1000, 1000), None);
        assert_eq!(of(10_000, 999, 1000).unwrap(), "about 1 s left");
        assert_eq!(of(10_000, 100, 1000).unwrap(), "about 90 s left".replace("90 s", "2 min"));
        assert_eq!(of(10_000, 200, 1000).unwrap(), "about 40 s left");
        assert_eq!(of(600_000, 30, 1000).unwrap(), "about 5 h 23 min left");
    }
}
