//! Going through a recording: by keys, or by itself at some speed.

use pagelab_model::run::Ending;
use pagelab_model::{Absence, AbsentWhy};
use pagelab_report::quantity::duration;

use super::keys::Key;
use super::replay::Recording;
use super::sample::History;
use super::view::{Feed, View};

/// Recorded seconds in one second.
const SPEEDS: [u64; 12] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
/// A recording plays in about this many seconds at the speed that it begins with.
const PLAYED_S: u64 = 60;
/// The screen is drawn at most this often while playing.
const FRAME_NS: u64 = 50_000_000;
/// Readings in a jump, and the share of the recording if that is more.
const JUMP_MIN: usize = 10;
const JUMP_SHARE: usize = 20;
/// An event is told for this many readings.
const REMARK_TICKS: usize = 10;
const S: u64 = 1_000_000_000;

/// A recording as a source of samples.
pub struct Player<'a> {
    recording: Recording<'a>,
    at: usize,
    speed: u64,
    /// While playing: a moment of CLOCK_BOOTTIME and the recorded time that belongs to it.
    playing: Option<(u64, u64)>,
}

impl<'a> Player<'a> {
    /// A player that stands at the end, and a view of it.
    pub fn open(recording: Recording<'a>) -> (Player<'a>, View) {
        let ticks = recording.ticks();
        let span_s = match ticks {
            [first, .., last] => (last - first) / S,
            _ => 0,
        };
        let speed = SPEEDS.into_iter().find(|speed| speed * PLAYED_S >= span_s).unwrap_or(SPEEDS[11]);
        let (last, about, modes) = (ticks.len() - 1, recording.about(), recording.modes());
        let mut player = Player { recording, at: 0, speed, playing: None };
        let mut view = View::new(about, player.feed(), modes);
        view.extfrag_absent = (!player.recording.has_fallbacks())
            .then(|| Absence::new("extfrag", AbsentWhy::NotSaved, "not recorded"));
        // The first moment of all decides what growth is counted from, and which zone is the largest.
        view.push(player.recording.sample(0));
        player.go(last, &mut view);
        (player, view)
    }

    /// When the next moment is due, if it plays.
    pub fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let (then_ns, recorded_ns) = self.playing?;
        let next = *self.recording.ticks().get(self.at + 1)?;
        let due = then_ns.saturating_add(next.saturating_sub(recorded_ns) / self.speed);
        Some(due.max(now_ns.saturating_add(FRAME_NS)))
    }

    /// Goes on to the moment that is due. Whether the screen has to be drawn again.
    pub fn advance(&mut self, now_ns: u64, view: &mut View) -> bool {
        let Some((then_ns, recorded_ns)) = self.playing else { return false };
        let passed = now_ns.saturating_sub(then_ns).saturating_mul(self.speed);
        let reached = recorded_ns.saturating_add(passed);
        let to = self.recording.ticks().partition_point(|&at_ns| at_ns <= reached).max(1) - 1;
        if to <= self.at {
            return false;
        }
        let last = self.recording.ticks().len() - 1;
        if to == last {
            self.playing = None;
        }
        self.go(to, view);
        true
    }

    /// Does what a key says about the place. Whether it had a meaning.
    pub fn press(&mut self, key: Key, now_ns: u64, view: &mut View) -> bool {
        let last = self.recording.ticks().len() - 1;
        let jump = (last / JUMP_SHARE).max(JUMP_MIN);
        let to = match key {
            Key::Char(' ') => {
                let restart = self.playing.is_none() && self.at == last;
                self.playing = match self.playing {
                    Some(_) => None,
                    None => Some((now_ns, 0)),
                };
                if restart { 0 } else { self.at }
            }
            Key::Char(sign @ ('+' | '=' | '-' | '_')) => {
                let to = if matches!(sign, '+' | '=') {
                    SPEEDS.into_iter().find(|&speed| speed > self.speed)
                } else {
                    SPEEDS.into_iter().rev().find(|&speed| speed < self.speed)
                };
                self.speed = to.unwrap_or(self.speed);
                self.at
            }
            Key::Left => self.at.saturating_sub(1),
            Key::Right => (self.at + 1).min(last),
            Key::PageUp => self.at.saturating_sub(jump),
            Key::PageDown => (self.at + jump).min(last),
            Key::Home => 0,
            Key::End => last,
            _ => return false,
        };
        // From here on the clock counts anew. A step by hand ends the playing.
        let by_hand = matches!(key, Key::Left | Key::Right | Key::End);
        self.playing = self.playing.filter(|_| !by_hand).map(|_| (now_ns, self.recording.ticks()[to]));
        self.go(to, view);
        true
    }

    /// Shows another moment. Near ones change the history at its ends, so that a key that is held down is
    /// followed; others read it anew.
    fn go(&mut self, to: usize, view: &mut View) {
        if (self.at..self.at + History::SAMPLES_MAX).contains(&to) {
            (self.at + 1..=to).for_each(|at| view.push(self.recording.sample(at)));
        } else if to < self.at && self.at - to < view.history.len() {
            for at in (to + 1..=self.at).rev() {
                let older = at.checked_sub(view.history.len());
                view.history.step_back(older.map(|older| self.recording.sample(older)));
            }
        } else {
            let from = (to + 1).saturating_sub(History::SAMPLES_MAX);
            view.history.restart(from);
            (from..=to).for_each(|at| view.push(self.recording.sample(at)));
        }
        self.at = to;
        view.feed = self.feed();
    }

    fn feed(&self) -> Feed {
        let ticks = self.recording.ticks();
        Feed::Replay {
            playing: self.playing.is_some(),
            speed: self.speed,
            at: self.at,
            count: ticks.len(),
            every_ns: self.recording.every_ns(),
            remark: self.remark(),
        }
    }

    fn remark(&self) -> String {
        let ticks = self.recording.ticks();
        if let Some((at_ns, text)) = self.recording.remark(self.at, REMARK_TICKS) {
            let ago = ticks[self.at].saturating_sub(at_ns) / S;
            return if ago == 0 { text } else { format!("{} before: {text}", duration(ago * S)) };
        }
        match &self.recording.run().ending {
            Ending::NotClosed if self.at + 1 == ticks.len() => {
                "not closed: its writer is at work or was killed; open it again for more".to_owned()
            }
            Ending::Stopped { why, .. } if self.at + 1 == ticks.len() => format!("it was stopped: {why}"),
            _ => String::new(),
        }
    }
}
