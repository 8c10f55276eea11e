//! Playback of a recording, by keys or at some speed.

use pagelab_model::run::RunEnd;
use pagelab_model::{Absence, AbsenceReason};
use pagelab_report::quantity_format::format_duration;

use super::Source;
use super::keys::{Key, choose_step};
use super::replay::Recording;
use super::sample::SampleHistory;
use super::view::{FeedState, View};

/// Recorded seconds in one second.
const SPEEDS: [u64; 12] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
/// Duration of a playback at the initial speed, in seconds.
const PLAYED_S: u64 = 60;
/// Minimum time between frames during playback.
const FRAME_NS: u64 = 50_000_000;
/// Readings per jump, and the share of the recording if that is more.
const JUMP_READINGS_MIN: usize = 10;
const JUMP_DIVISOR: usize = 20;
/// Number of readings for which an event is shown.
const REMARK_READINGS: usize = 10;
const S: u64 = 1_000_000_000;

/// A recording as a source of samples.
pub struct Player<'a> {
    recording: Recording<'a>,
    position: usize,
    speed: u64,
    /// During playback: a time of CLOCK_BOOTTIME and the corresponding recorded time.
    playing: Option<(u64, u64)>,
}

impl<'a> Player<'a> {
    /// Opens a player at the end of the recording, and its view.
    pub fn open(recording: Recording<'a>) -> (Player<'a>, View) {
        let span_s = match recording.ticks[..] {
            [first, .., last] => (last - first) / S,
            _ => 0,
        };
        let speed = SPEEDS.into_iter().find(|speed| speed * PLAYED_S >= span_s).unwrap_or(SPEEDS[11]);
        let (last, about, modes) = (recording.ticks.len() - 1, recording.view_info(), recording.modes());
        let mut player = Player { recording, position: 0, speed, playing: None };
        let mut view = View::new(about, player.to_feed(), modes);
        view.extfrag_absent = (!player.recording.has_fallbacks())
            .then(|| Absence::new("extfrag", AbsenceReason::NotSaved, "not recorded"));
        // The first sample is the base of all growth, and determines the largest zone.
        view.push(player.recording.sample(0));
        player.seek(last, &mut view);
        (player, view)
    }
}

impl Source for Player<'_> {
    fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let (then_ns, recorded_ns) = self.playing?;
        let next = *self.recording.ticks.get(self.position + 1)?;
        let due = then_ns.saturating_add(next.saturating_sub(recorded_ns) / self.speed);
        Some(due.max(now_ns.saturating_add(FRAME_NS)))
    }

    fn advance(&mut self, now_ns: u64, view: &mut View) -> bool {
        let Some((then_ns, recorded_ns)) = self.playing else { return false };
        let passed = now_ns.saturating_sub(then_ns).saturating_mul(self.speed);
        let reached = recorded_ns.saturating_add(passed);
        let to = self.recording.ticks.partition_point(|&at_ns| at_ns <= reached).max(1) - 1;
        if to <= self.position {
            return false;
        }
        let last = self.recording.ticks.len() - 1;
        if to == last {
            self.playing = None;
        }
        self.seek(to, view);
        true
    }

    fn handle_key(&mut self, key: Key, now_ns: u64, view: &mut View) -> bool {
        let last_position = self.recording.ticks.len() - 1;
        let jump = (last_position / JUMP_DIVISOR).max(JUMP_READINGS_MIN);
        let to = match key {
            Key::Char(' ') => {
                let restart = self.playing.is_none() && self.position == last_position;
                self.playing = match self.playing {
                    Some(_) => None,
                    None => Some((now_ns, 0)),
                };
                if restart { 0 } else { self.position }
            }
            Key::Char(sign @ ('+' | '=' | '-' | '_')) => {
                self.speed = choose_step(sign, &SPEEDS, self.speed).unwrap_or(self.speed);
                self.position
            }
            Key::Left => self.position.saturating_sub(1),
            Key::Right => (self.position + 1).min(last_position),
            Key::PageUp => self.position.saturating_sub(jump),
            Key::PageDown => (self.position + jump).min(last_position),
            Key::Home => 0,
            Key::End => last_position,
            _ => return false,
        };
        // The clock starts again at this position. A manual step stops the playback.
        let by_hand = matches!(key, Key::Left | Key::Right | Key::End);
        self.playing = self.playing.filter(|_| !by_hand).map(|_| (now_ns, self.recording.ticks[to]));
        self.seek(to, view);
        true
    }
}

impl Player<'_> {
    /// Shows another sample. Near samples change the history at its ends, so that a repeated key is fast;
    /// others read it again.
    fn seek(&mut self, position: usize, view: &mut View) {
        if (self.position..self.position + SampleHistory::SAMPLES_MAX).contains(&position) {
            (self.position + 1..=position).for_each(|at| view.push(self.recording.sample(at)));
        } else if position < self.position && self.position - position < view.history.kept_count() {
            for at in (position + 1..=self.position).rev() {
                let older = at.checked_sub(view.history.kept_count());
                view.history.step_back(older.map(|older| self.recording.sample(older)));
            }
        } else {
            let from = (position + 1).saturating_sub(SampleHistory::SAMPLES_MAX);
            view.history.reset(from);
            (from..=position).for_each(|at| view.push(self.recording.sample(at)));
        }
        self.position = position;
        view.feed = self.to_feed();
    }

    fn to_feed(&self) -> FeedState {
        let ticks = &self.recording.ticks;
        FeedState::Replay {
            playing: self.playing.is_some(),
            speed: self.speed,
            position: self.position,
            count: ticks.len(),
            every_ns: self.recording.every_ns(),
            remark: self.latest_remark(),
        }
    }

    fn latest_remark(&self) -> String {
        let ticks = &self.recording.ticks;
        if let Some((at_ns, text)) = self.recording.remark(self.position, REMARK_READINGS) {
            let ago = ticks[self.position].saturating_sub(at_ns) / S;
            return if ago == 0 { text } else { format!("{} earlier: {text}", format_duration(ago * S)) };
        }
        match &self.recording.run.ending {
            RunEnd::NotClosed if self.position + 1 == ticks.len() => {
                "not closed: still being written, or its writer was killed; reopen for more".to_owned()
            }
            RunEnd::Stopped { reason: why, .. } if self.position + 1 == ticks.len() => {
                format!("recording stopped: {why}")
            }
            _ => String::new(),
        }
    }
}
