//! The twin's marks: when they are raised, when they stand, and what is freed for them.

use super::{Check, Naive, Rule, same};

impl Naive {
    /// The high mark of a zone, with what it is raised by.
    pub(super) fn high(&self, zone: usize) -> u64 {
        self.config.zones[zone].marks.high + self.raised[zone].0
    }

    /// Kinds were mixed so often.
    pub(super) fn boosted(&mut self, zone: usize, times: u32, now: u64) -> Check {
        let setup = &self.config.zones[zone];
        let block = 1 << setup.shape.block_order;
        let most = setup.marks.high * u64::from(self.tuning.boost_factor) / 10_000;
        let is_small = u64::from(setup.shape.frames) < 4 * block;
        same("a zone is too small, or has no marks", is_small || most == 0, false)?;
        let mut expected = self.raised[zone].0;
        for _ in 0..times {
            expected = (expected + block).min(most.max(block));
        }
        self.raised[zone].0 = expected;
        same("marks are raised by", now, expected)
    }

    /// The turn before is over: what it has freed counts.
    pub(super) fn turn_ends(&mut self) {
        if let Some(since) = self.turn.since.take() {
            self.turn.left = self.turn.left.saturating_sub(self.reclaimed - since);
        }
        self.turn.is_boost = false;
    }

    /// A turn of background reclaim begins.
    pub(super) fn turns(&mut self, goal: (u8, u8), is_balanced: bool, boost: u64) -> Check {
        self.turn_ends();
        let (order, height) = goal;
        if !self.turn.has_begun {
            self.turn.left = 0;
            for zone in 0..self.raised.len() {
                let is_in = self.config.zones[zone].height <= height;
                self.raised[zone].1 = if is_in { self.raised[zone].0 } else { 0 };
                self.turn.left += self.raised[zone].1;
            }
            self.turn.has_begun = true;
        }
        let stands = |zone: usize| {
            let shape = self.config.zones[zone].shape;
            let least = if self.rule == Rule::Apart && order > 0 { shape.block_order } else { 0 };
            let flat = self.flat(zone);
            self.config.zones[zone].height <= height && flat.stands(self.high(zone), order, least)
        };
        same("marks stand", is_balanced, (0..self.raised.len()).any(stands))?;
        if !is_balanced {
            self.turn.left = 0;
        }
        same("pages to free for raised marks", boost, self.turn.left)?;
        self.turn.since = Some(self.reclaimed);
        (self.turn.is_new, self.turn.is_boost) = (true, boost > 0);
        Ok(())
    }

    /// Background reclaim is over.
    pub(super) fn done(&mut self) {
        self.turn_ends();
        self.turn.has_begun = false;
        self.turn.is_new = false;
    }

    /// What marks were raised by when it began is taken back.
    pub(super) fn lowered(&mut self, zone: usize, now: u64) -> Check {
        let (raised, before) = self.raised[zone];
        self.raised[zone] = (raised.saturating_sub(before), 0);
        same("marks are raised by, after it", now, self.raised[zone].0)
    }
}
