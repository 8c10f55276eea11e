//! The model of one core's TLBs: several passes over the same accesses side by side, each with its own sizes
//! of pages. The first pass has base pages alone.
//!
//! An access crosses no page: one that does counts for the page that it begins in. Replacement is exact LRU
//! in a set. Instruction fetches are not seen.

use super::front::{Front, NONE, SLOTS, each};
use super::geometry::Geometry;
use super::pass::{Access, Found, Pass, Walk};

/// Who keeps account, and knows how large pages are.
pub trait Account {
    /// The size of the page that base page `page` lies in, in this pass (1 and later; pass 0 has base pages),
    /// by its place in the geometry's sizes.
    fn code(&mut self, pass: usize, page: u64) -> u8;
    /// A base page will soon be accounted.
    fn expect(&mut self, _page: u64) {}
    /// A word of the model will soon be needed.
    fn fetch(&self, _word: &u64) {}
    /// So many accesses to a base page; `written`: one was a store.
    fn touched(&mut self, page: u64, accesses: u64, written: bool);
    /// A page walk in a pass.
    fn walked(&mut self, pass: usize, page: u64, walk: &Walk);
    /// A stretch of accesses that were counted is over, with so many walks in the first pass, after so many
    /// accesses in all.
    fn stretched(&mut self, _walks: u64, _accesses: u64) {}
}

/// Which stretches of accesses are looked at: the first `watched` of every `period`.
///
/// A later stretch begins with TLBs as they were long ago. Its first part ([`Window::warm_up`]) only brings
/// them up to date, and is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Accesses that are looked at.
    pub watched: u64,
    /// Accesses from the begin of one stretch to the next.
    pub period: u64,
}

impl Window {
    /// The first accesses of a later stretch, which are modelled and not counted.
    pub fn warm_up(&self) -> u64 {
        self.watched / 8
    }
}

/// What is done with accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// They are modelled and counted.
    Counting,
    /// They are not looked at.
    Resting,
    /// They are modelled and not counted.
    Warming,
}

/// The model.
#[derive(Debug)]
pub struct Tlb {
    now: u64,
    front: Front,
    passes: Vec<Pass>,
    window: Option<Window>,
    stage: Stage,
    /// The last access of this stage.
    edge: u64,
    /// Accesses in stretches that are over and were not counted.
    skipped: u64,
    /// Where the stretch that is not counted began.
    skips_from: u64,
    /// Walks of the first pass since counting began.
    walked: u64,
}

impl Tlb {
    /// Empty TLBs for `passes` passes.
    pub fn new(geometry: &Geometry, passes: usize, window: Option<Window>) -> Tlb {
        let window = window.filter(|window| window.watched < window.period);
        Tlb {
            now: 0,
            front: Front::new(passes, geometry.splits_stores()),
            passes: (0..passes).map(|_| Pass::new(geometry)).collect(),
            window,
            stage: Stage::Counting,
            edge: window.map_or(u64::MAX, |window| window.watched),
            skipped: 0,
            skips_from: 0,
            walked: 0,
        }
    }

    /// All accesses so far.
    pub fn accesses(&self) -> u64 {
        self.now
    }

    /// Those of them that were not counted.
    pub fn skipped(&self) -> u64 {
        self.skipped + if self.stage == Stage::Counting { 0 } else { self.now - self.skips_from }
    }

    /// Whether accesses are not looked at, and may as well not be told.
    pub fn is_resting(&self) -> bool {
        self.stage == Stage::Resting
    }

    /// So many accesses were not told while it rested.
    pub fn rested(&mut self, accesses: u64) {
        self.now += accesses;
    }

    /// Page walks of a pass so far.
    pub fn walks(&self, pass: usize) -> u64 {
        self.passes[pass].walks()
    }

    /// An access to a base page.
    #[inline(always)]
    pub fn access(&mut self, page: u64, store: bool, account: &mut impl Account) {
        self.now += 1;
        if self.stage == Stage::Resting && self.now <= self.edge {
            return;
        }
        let slot = self.front.slot_of(page, store) & (2 * SLOTS - 1);
        let known = &mut self.front.slots[slot];
        if known.page == page {
            known.last = self.now;
            known.count += 1;
            known.written |= store;
            return;
        }
        self.access_slowly(page, store, account);
    }

    #[inline(never)]
    fn access_slowly(&mut self, page: u64, store: bool, account: &mut impl Account) {
        let slot = self.front.slot_of(page, store);
        if self.now > self.edge {
            self.cross_edge(account);
        }
        if self.stage == Stage::Resting {
            return;
        }
        account.expect(page);
        if let Some(word) = self.passes.first().and_then(|first| first.line_of(page)) {
            account.fetch(word);
        }
        self.depart(slot, account);
        for index in 0..self.passes.len() {
            let code = if index == 0 { 0 } else { account.code(index, page) };
            let it = (page, store, code);
            let Access { found, position, evicted } = self.passes[index].access(it, self.now, &self.front);
            self.front.positions[slot * self.passes.len() + index] = position;
            if let Found::Walk(walk) = &found
                && self.stage == Stage::Counting
            {
                self.walked += u64::from(index == 0);
                account.walked(index, page, walk);
            }
            if let Some(base) = evicted {
                self.drop_evicted(index, position, base, account);
            }
            if code != 0 {
                self.passes[index].hold(position, slot);
            }
        }
        let known = &mut self.front.slots[slot];
        (known.page, known.last, known.count, known.written) = (page, self.now, 1, store);
        // Where the first level of some pass does not hold it, nothing may be skipped.
        let passes = self.passes.len();
        if self.front.positions[slot * passes..][..passes].contains(&u32::MAX) {
            self.depart(slot, account);
        }
    }

    /// The page of a slot is accounted, the passes are told of its last use, and the slot is free.
    fn depart(&mut self, slot: usize, account: &mut impl Account) {
        let known = self.front.slots[slot];
        if known.page == NONE {
            return;
        }
        if self.stage == Stage::Counting {
            account.touched(known.page, known.count, known.written);
        }
        let passes = self.passes.len();
        for (index, pass) in self.passes.iter_mut().enumerate() {
            pass.release(self.front.positions[slot * passes + index], slot, known.last);
        }
        self.front.slots[slot].page = NONE;
    }

    /// Slots whose page is no longer in the first level of a pass are free.
    fn drop_evicted(&mut self, index: usize, position: u32, base: Option<u64>, account: &mut impl Account) {
        match base {
            Some(page) => {
                for store in [false, true] {
                    let slot = self.front.slot_of(page, store);
                    if self.front.slots[slot].page == page && self.front.position(slot, index) == position {
                        self.depart(slot, account);
                    }
                }
            }
            None => {
                for slot in each(&self.passes[index].holders(position)) {
                    self.depart(slot, account);
                }
            }
        }
    }

    fn cross_edge(&mut self, account: &mut impl Account) {
        let Some(window) = self.window else { return };
        self.flush(account);
        let before = self.now - 1;
        let (stage, accesses) = match self.stage {
            Stage::Counting => {
                self.skips_from = before;
                (Stage::Resting, window.period - window.watched)
            }
            Stage::Resting => {
                let rested = before - self.skips_from;
                self.passes.iter_mut().for_each(|pass| pass.rested(rested, window.watched));
                (Stage::Warming, window.warm_up())
            }
            Stage::Warming => {
                self.skipped += before - self.skips_from;
                (Stage::Counting, window.watched - window.warm_up())
            }
        };
        self.edge = before + accesses;
        let counted = self.stage == Stage::Counting;
        self.stage = stage;
        if counted {
            account.stretched(std::mem::take(&mut self.walked), before);
        }
    }

    /// All that is pending is accounted. The state of the TLBs stays what it is.
    pub fn flush(&mut self, account: &mut impl Account) {
        for slot in 0..self.front.used() {
            self.depart(slot, account);
        }
    }

    /// The translations of base pages `from..to` are forgotten, as at an unmapping; what is pending is
    /// accounted.
    pub fn forget(&mut self, from: u64, to: u64, account: &mut impl Account) {
        self.flush(account);
        self.passes.iter_mut().for_each(|pass| pass.forget(from, to));
    }
}

#[cfg(test)]
mod tests;
