//! The twin with what processors keep: one flat list of blocks, looked through for each question.

use std::collections::HashMap;

use crate::words::{Frame, Kind, Stolen};

use super::{How, Naive, Page};

/// How much is fetched and given back, in the twin's own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HowMuch {
    /// Always a batch.
    Batches,
    /// More and more, as in Linux 5.18 to 6.6.
    Doubles,
    /// As in Linux 6.7 and later.
    New {
        /// The highest high mark.
        most: u32,
        /// Pages freed in a row before a block of order 1 to 3 flushes.
        in_a_row: u32,
    },
}

/// The twin with what processors keep: one flat list of blocks, looked through for each question.
#[derive(Clone, Debug)]
pub struct NaivePerCpu {
    /// The zone below.
    pub zone: Naive,
    batch: u32,
    high: u32,
    how_much: HowMuch,
    /// Whether reclaim is at work, and whether the zone was found below its high watermark.
    pub reclaims: bool,
    low: bool,
    /// The zone's high watermark.
    pub mark: i64,
    /// By processor: frees that were doubled, fetches that were, pages freed in a row, the high mark now, and
    /// whether the last block that was freed was of order 1 to 3.
    past: HashMap<u16, (u32, u32, i64, i64, bool)>,
    /// Processor, place of its list, order, frame and age: the highest is in front.
    kept: Vec<(u16, u8, u8, Frame, i64)>,
    age: i64,
}

impl NaivePerCpu {
    /// Nothing kept yet.
    pub fn new(zone: Naive, batch: u32, high: u32, how_much: HowMuch) -> NaivePerCpu {
        let past = HashMap::new();
        let kept = Vec::new();
        NaivePerCpu { zone, batch, high, how_much, reclaims: false, low: false, mark: 0, past, kept, age: 0 }
    }

    fn past(&mut self, cpu: u16) -> &mut (u32, u32, i64, i64, bool) {
        let high = i64::from(self.high);
        self.past.entry(cpu).or_insert((0, 0, 0, high, false))
    }

    fn count(&self, cpu: u16) -> i64 {
        self.kept.iter().filter(|kept| kept.0 == cpu).map(|kept| 1i64 << kept.2).sum()
    }

    fn free_pages(&self) -> i64 {
        self.zone.free_blocks().iter().enumerate().map(|(order, &blocks)| i64::from(blocks) << order).sum()
    }

    /// How many blocks are fetched.
    fn fetched(&mut self, cpu: u16, order: u8) -> u32 {
        let (batch, least) = (i64::from(self.batch), i64::from(self.high));
        let HowMuch::New { most, .. } = self.how_much else {
            return match (order, self.batch, self.how_much) {
                (0, batch, _) => batch,
                (_, 1, HowMuch::Doubles) => 1,
                (order, batch, _) => (batch / (1 << order)).max(2),
            };
        };
        let (count, low) = (self.count(cpu), self.low);
        let past = self.past(cpu);
        let wanted = if order == 0 { batch * (1 << past.1) } else { batch };
        if !low && i64::from(most) != least {
            past.3 = (past.3 + wanted).min(most.into());
        }
        if order > 0 {
            return if batch == 1 { 1 } else { (batch >> order).max(2) as u32 };
        }
        let limit = (past.3 - count - batch).max(batch);
        if wanted <= limit && past.1 < 5 {
            past.1 += 1;
        }
        wanted.min(limit) as u32
    }

    /// How many pages go back after a block was freed.
    fn given(&mut self, cpu: u16, order: u8) -> i64 {
        let (batch, least) = (i64::from(self.batch), i64::from(self.high));
        let (count, low, reclaims, how_much) = (self.count(cpu), self.low, self.reclaims, self.how_much);
        let past = self.past(cpu);
        match how_much {
            HowMuch::Batches => batch * i64::from(count >= least),
            HowMuch::Doubles => {
                if past.0 > 0 && (1..=3).contains(&order) {
                    return count;
                }
                let high = if reclaims { least.min(batch * 4) } else { least };
                if count < high {
                    return 0;
                }
                let gives = batch << past.0;
                past.0 += u32::from(gives < high - batch);
                gives.min(high - batch)
            }
            HowMuch::New { most, in_a_row } => {
                past.1 /= 2;
                let is_middle = (1..=3).contains(&order);
                let flushes = is_middle && past.4 && past.2 >= i64::from(in_a_row) && count >= batch;
                past.4 = is_middle;
                if past.2 < batch * 32 {
                    past.2 += 1 << order;
                }
                if flushes {
                    past.3 = (past.3 - batch * 32).max(least);
                    return count.min(batch * 32);
                }
                let before = past.3;
                let sunk = (before - past.2.max(batch)).max(least);
                let high = if reclaims {
                    past.3 = sunk;
                    sunk.min(batch * 4)
                } else if i64::from(most) == least {
                    before
                } else if low {
                    past.3 = sunk;
                    count.max(least)
                } else {
                    if count >= before {
                        past.3 = before.max((past.2 + batch).min(most.into()));
                    }
                    before
                };
                if count >= high { past.2.max(batch).min(high - batch) } else { 0 }
            }
        }
    }

    /// A second has passed.
    pub fn second(&mut self) {
        let least = i64::from(self.high);
        if !matches!(self.how_much, HowMuch::New { .. }) {
            return;
        }
        let mut cpus: Vec<u16> = self.kept.iter().map(|kept| kept.0).collect();
        cpus.extend(self.past.keys());
        cpus.sort_unstable();
        cpus.dedup();
        for cpu in cpus {
            let (count, batch) = (self.count(cpu), i64::from(self.batch));
            let past = self.past(cpu);
            if past.3 > least {
                past.3 = (count - batch * 32).max(past.3 - past.3 / 8).max(least);
            }
            let above = count - past.3;
            self.spill(cpu, 0, above);
        }
    }

    /// The oldest of a list go back until it is empty, then those of the next.
    fn spill(&mut self, cpu: u16, mut place: u8, pages: i64) {
        let mut left = pages.min(self.count(cpu));
        while left > 0 {
            let own = self.kept.iter().filter(|kept| (kept.0, kept.1) == (cpu, place));
            match own.min_by_key(|kept| kept.4).copied() {
                Some(oldest) => {
                    self.kept.retain(|kept| *kept != oldest);
                    left -= 1 << oldest.2;
                    let owner = self.zone.owner(oldest.3 - self.zone.shape.first);
                    let is_owners = self.zone.rule.is_strict() || owner >= self.zone.lists;
                    let list = if is_owners { owner } else { place % self.zone.lists };
                    self.zone.give(oldest.3, oldest.2, list);
                }
                None => place = (place + 1) % (5 * self.zone.lists),
            }
        }
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
        if self.free_pages() <= self.mark {
            self.low = true;
        }
        let past = self.past(cpu);
        (past.0, past.2) = (past.0 / 2, past.2 / 2);
        let mut last = None;
        if !self.kept.iter().any(|kept| (kept.0, kept.1) == (cpu, place)) {
            let mut how = How { is_atomic: false, ..how };
            for _ in 0..self.fetched(cpu, order) {
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
        let Some(place) = self.place(order, list) else { return self.zone.free(frame) };
        let age = self.age();
        self.keep((cpu, place, order, frame, age));
        let pages = self.given(cpu, order);
        if pages > 0 {
            self.spill(cpu, place, pages);
            if self.free_pages() > self.mark {
                self.low = false;
            }
        }
        Some(order)
    }
}
