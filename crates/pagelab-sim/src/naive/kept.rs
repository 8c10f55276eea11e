//! The twin with what processors keep: one flat list of blocks, looked through for each question.

use crate::words::{Frame, Kind, Stolen};

use super::{How, Naive, Page};

/// The twin with what processors keep: one flat list of blocks, looked through for each question.
#[derive(Clone, Debug)]
pub struct NaivePerCpu {
    /// The zone below.
    pub zone: Naive,
    batch: u32,
    high: u32,
    /// Processor, place of its list, order, frame and age: the highest is in front.
    kept: Vec<(u16, u8, u8, Frame, i64)>,
    age: i64,
}

impl NaivePerCpu {
    /// Nothing kept yet.
    pub fn new(zone: Naive, batch: u32, high: u32) -> NaivePerCpu {
        NaivePerCpu { zone, batch, high, kept: Vec::new(), age: 0 }
    }

    fn place(&self, order: u8, list: u8) -> Option<u8> {
        let row = match order {
            0..=3 => order,
            _ if order == self.zone.shape.block_order => 4,
            _ => return None,
        };
        Some(row * self.zone.lists + list)
    }

    fn keep(&mut self, kept: (u16, u8, u8, Frame, i64)) {
        self.zone.pages[(kept.3 - self.zone.shape.first) as usize] = Page::Kept;
        self.kept.push(kept);
    }

    fn age(&mut self) -> i64 {
        self.age += 1;
        self.age
    }

    /// Allocates.
    pub fn take(&mut self, cpu: u16, order: u8, kind: Kind, mut how: How) -> Option<(Frame, Option<Stolen>)> {
        let wanted = self.zone.list(kind);
        let Some(place) = self.place(order, wanted) else {
            return self.zone.take_as(order, kind, &mut how);
        };
        let mut last = None;
        if !self.kept.iter().any(|kept| (kept.0, kept.1) == (cpu, place)) {
            let mut how = How { is_atomic: false, ..how };
            for _ in 0..if order == 0 { self.batch } else { (self.batch / (1 << order)).max(2) } {
                let Some((frame, stolen)) = self.zone.take_as(order, kind, &mut how) else { break };
                last = stolen.or(last);
                // Behind all others.
                let age = -self.age();
                self.keep((cpu, place, order, frame, age));
            }
        }
        let own = self.kept.iter().filter(|kept| (kept.0, kept.1) == (cpu, place));
        let Some(front) = own.max_by_key(|kept| kept.4).copied() else {
            return if how.is_atomic { self.zone.take_as(order, kind, &mut how) } else { None };
        };
        self.kept.retain(|kept| *kept != front);
        let at = front.3 - self.zone.shape.first;
        self.zone.pages[at as usize] = Page::Used { order, kind };
        self.zone.set_aside(at, order, &how);
        Some((front.3, last))
    }

    /// Frees.
    pub fn free(&mut self, cpu: u16, frame: Frame) -> Option<u8> {
        let (order, list) = self.zone.used(frame)?;
        // What is a reserve's is kept with what is movable.
        let list = if list >= self.zone.lists { self.zone.list(Kind::Movable) } else { list };
        let Some(mut place) = self.place(order, list) else { return self.zone.free(frame) };
        let age = self.age();
        self.keep((cpu, place, order, frame, age));
        let frames = |naive: &NaivePerCpu| -> u32 {
            naive.kept.iter().filter(|kept| kept.0 == cpu).map(|kept| 1 << kept.2).sum()
        };
        if frames(self) >= self.high {
            let mut left = self.batch.min(frames(self));
            while left > 0 {
                let own = self.kept.iter().filter(|kept| (kept.0, kept.1) == (cpu, place));
                match own.min_by_key(|kept| kept.4).copied() {
                    Some(oldest) => {
                        self.kept.retain(|kept| *kept != oldest);
                        left = left.saturating_sub(1 << oldest.2);
                        let owner = self.zone.owner(oldest.3 - self.zone.shape.first);
                        let is_owners = self.zone.rule.is_strict() || owner >= self.zone.lists;
                        let list = if is_owners { owner } else { place % self.zone.lists };
                        self.zone.give(oldest.3, oldest.2, list);
                    }
                    None => place = (place + 1) % (5 * self.zone.lists),
                }
            }
        }
        Some(order)
    }
}
