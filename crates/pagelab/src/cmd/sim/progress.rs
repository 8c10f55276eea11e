//! How far a study is: one line on a terminal, and now and then one in a log.

use std::time::{Duration, Instant};

use pagelab_model::study::StudyPlan;

use crate::out;

/// Where nobody watches, a line is written after this time, and then so often.
const LOGGED_EVERY: Duration = Duration::from_secs(60);
/// Before this time, and before this share of the work in thousandths, nothing is said of the time left.
const KNOWN_AFTER: Duration = Duration::from_secs(3);
const KNOWN_FROM: u128 = 30;

/// The progress of a study.
pub struct Progress {
    name: String,
    slots: usize,
    before: usize,
    done: usize,
    due: usize,
    threads: usize,
    began: Instant,
    is_watched: bool,
    logged: Duration,
    /// Thousandths of runs that were told of last.
    told: u64,
}

impl Progress {
    /// Of a plan of so many runs, of which some are due.
    pub fn new(plan: &StudyPlan, slots: usize, due: usize, threads: usize) -> Progress {
        Progress {
            name: plan.name.clone(),
            slots,
            before: slots - due,
            done: 0,
            due,
            threads,
            began: Instant::now(),
            is_watched: out::is_watched(),
            logged: Duration::ZERO,
            told: 0,
        }
    }

    /// A run has ended.
    pub fn one_more(&mut self) {
        self.done += 1;
        // Those at work are told of again soon.
        self.at(self.told.max(self.done as u64 * 1000));
    }

    /// So many thousandths of runs are done, those at work included.
    pub fn at(&mut self, thousandths: u64) {
        self.told = thousandths;
        let taken = self.began.elapsed();
        let is_logged = !self.is_watched && taken >= self.logged + LOGGED_EVERY;
        if !self.is_watched && !is_logged {
            return;
        }
        let left = left(taken, thousandths.into(), self.due as u128 * 1000);
        let left = left.map_or(String::new(), |left| format!("   {left}"));
        let (done, slots, threads) = (self.before + self.done, self.slots, self.threads);
        let of = if threads == 1 { "1 thread" } else { &format!("{threads} threads") };
        let share = share(self.before, thousandths, slots);
        let line = format!("{}: {done} of {slots} runs, {share} %, {of}{left}", self.name);
        if self.is_watched {
            out::status(&line);
        } else {
            self.logged = taken;
            out::complain(&format!("pagelab: {line}"));
        }
    }

    /// Takes the line away.
    pub fn clear(&self) {
        if self.is_watched {
            out::status("");
        }
    }
}

/// Percent of a study that are done: runs of before, thousandths of others, of so many runs.
fn share(before: usize, thousandths: u64, slots: usize) -> u64 {
    let done = before as u64 * 1000 + thousandths;
    (done / (10 * slots.max(1) as u64)).min(100)
}

/// `about 40 s left`, in whole seconds; `None` while that is a guess, and at the end.
fn left(taken: Duration, done: u128, all: u128) -> Option<String> {
    if taken < KNOWN_AFTER || done * 1000 < all * KNOWN_FROM || done >= all {
        return None;
    }
    let seconds = (taken.as_nanos() * (all - done) / done).div_ceil(1_000_000_000);
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
        assert_eq!((share(0, 0, 6), share(0, 599, 6), share(0, 600, 6), share(3, 1500, 6)), (0, 9, 10, 75));
        assert_eq!((share(0, 6000, 6), share(0, 7000, 6), share(0, 0, 0)), (100, 100, 0));
    }

    #[test]
    fn the_time_left_is_told_in_whole_seconds_and_not_guessed() {
        let of = |seconds, done, all| left(Duration::from_millis(seconds), done, all);
        assert_eq!(of(2_000, 500, 1000), None);
        assert_eq!(of(10_000, 29, 1000), None);
        assert_eq!(of(10_000, 1000, 1000), None);
        assert_eq!(of(10_000, 999, 1000).unwrap(), "about 1 s left");
        assert_eq!(of(10_000, 100, 1000).unwrap(), "about 90 s left".replace("90 s", "2 min"));
        assert_eq!(of(10_000, 200, 1000).unwrap(), "about 40 s left");
        assert_eq!(of(600_000, 30, 1000).unwrap(), "about 5 h 23 min left");
    }
}
