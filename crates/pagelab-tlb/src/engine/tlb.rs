//! The model of one core's TLBs: several passes over the same accesses side by side, each with its own page
//! sizes. The first pass has base pages alone.
//!
//! An access crosses no page: one that does counts for the page that it begins in. Replacement is exact LRU
//! in a set. Instruction fetches are not modelled.

use super::geometry::Geometry;
use super::hit_filter::{HitFilter, NO_PAGE, SLOTS, iter_slots};
use super::tlb_pass::{AccessOutcome, AccessResult, EvictedPage, PageAccess, PageWalk, TlbPass};

/// The receiver of what the model counts. It also chooses the page sizes.
pub trait AccessSink {
    /// The size of the page that contains base page `page` in this pass (1 and later; pass 0 has base pages),
    /// as an index in the geometry's sizes.
    fn page_size_code(&mut self, pass: usize, page: u64) -> u8;
    /// A base page will soon be recorded.
    fn prefetch_page(&mut self, _page: u64) {}
    /// A word of the model will soon be read.
    fn prefetch_word(&self, _word: &u64) {}
    /// So many accesses to a base page; `written`: one was a store.
    fn record_accesses(&mut self, page: u64, accesses: u64, written: bool);
    /// A page walk in a pass.
    fn record_walk(&mut self, pass: usize, page: u64, walk: &PageWalk);
    /// A sampling window has ended, with its walks in the first pass, and all accesses so far.
    fn record_window(&mut self, _walks: u64, _accesses: u64) {}
}

/// Sampling windows: the first `sampled` accesses of every `period`.
///
/// A later window begins with TLBs as they were at the end of the one before. Its first part
/// ([`SamplingWindow::warm_up`]) only brings them up to date, and is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplingWindow {
    /// Accesses of a window.
    pub sampled: u64,
    /// Accesses from the begin of one window to the next.
    pub period: u64,
}

impl SamplingWindow {
    /// The first accesses of a later window, which are modelled and not counted.
    pub fn warm_up(&self) -> u64 {
        self.sampled / 8
    }
}

/// Handling of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SamplingStage {
    /// They are modelled and counted.
    Counting,
    /// They are not modelled.
    Skipping,
    /// They are modelled and not counted.
    WarmingUp,
}

/// The model.
#[derive(Debug)]
pub struct Tlb {
    now: u64,
    filter: HitFilter,
    passes: Vec<TlbPass>,
    window: Option<SamplingWindow>,
    stage: SamplingStage,
    /// The last access of this stage.
    stage_end: u64,
    /// Accesses that were not counted, but for those of the current stage.
    skipped: u64,
    /// The last access before the current ones that are not counted.
    skip_start: u64,
    /// Walks of the first pass in the current window.
    counted_walks: u64,
}

impl Tlb {
    /// Empty TLBs for `passes` passes.
    pub fn new(geometry: &Geometry, passes: usize, window: Option<SamplingWindow>) -> Tlb {
        let window = window.filter(|window| window.sampled < window.period);
        Tlb {
            now: 0,
            filter: HitFilter::new(passes, geometry.splits_stores()),
            passes: (0..passes).map(|_| TlbPass::new(geometry)).collect(),
            window,
            stage: SamplingStage::Counting,
            stage_end: window.map_or(u64::MAX, |window| window.sampled),
            skipped: 0,
            skip_start: 0,
            counted_walks: 0,
        }
    }

    /// All accesses so far.
    pub fn accesses(&self) -> u64 {
        self.now
    }

    /// Those of them that were not counted.
    pub fn skipped(&self) -> u64 {
        self.skipped + if self.stage == SamplingStage::Counting { 0 } else { self.now - self.skip_start }
    }

    /// Whether accesses are not modelled, so that calls of [`Tlb::access`] may be left out.
    pub fn is_skipping(&self) -> bool {
        self.stage == SamplingStage::Skipping
    }

    /// Counts accesses for which [`Tlb::access`] was not called while it skips.
    pub fn skip_accesses(&mut self, accesses: u64) {
        self.now += accesses;
    }

    /// An access to a base page.
    #[inline(always)]
    pub fn access(&mut self, page: u64, store: bool, sink: &mut impl AccessSink) {
        self.now += 1;
        if self.stage == SamplingStage::Skipping && self.now <= self.stage_end {
            return;
        }
        let slot = self.filter.slot_of(page, store) & (2 * SLOTS - 1);
        let known = &mut self.filter.slots[slot];
        if known.page == page {
            known.last = self.now;
            known.count += 1;
            known.written |= store;
            return;
        }
        self.access_slowly(page, store, sink);
    }

    #[inline(never)]
    fn access_slowly(&mut self, page: u64, store: bool, sink: &mut impl AccessSink) {
        let slot = self.filter.slot_of(page, store);
        if self.now > self.stage_end {
            self.advance_stage(sink);
        }
        if self.stage == SamplingStage::Skipping {
            return;
        }
        sink.prefetch_page(page);
        if let Some(word) = self.passes.first().and_then(|first| first.last_walk_of_line(page)) {
            sink.prefetch_word(word);
        }
        self.flush_slot(slot, sink);
        for index in 0..self.passes.len() {
            let code = if index == 0 { 0 } else { sink.page_size_code(index, page) };
            let access = PageAccess { page, store, code };
            let AccessResult { outcome, position, evicted } =
                self.passes[index].access(access, self.now, &self.filter);
            self.filter.positions[slot * self.passes.len() + index] = position;
            if let AccessOutcome::Walk(walk) = &outcome
                && self.stage == SamplingStage::Counting
            {
                self.counted_walks += u64::from(index == 0);
                sink.record_walk(index, page, walk);
            }
            if let Some(evicted) = evicted {
                self.flush_evicted(index, position, evicted, sink);
            }
            if code != 0 {
                self.passes[index].add_holder(position, slot);
            }
        }
        let known = &mut self.filter.slots[slot];
        (known.page, known.last, known.count, known.written) = (page, self.now, 1, store);
        // If the first level of some pass does not hold it, its next access needs a lookup.
        let passes = self.passes.len();
        if self.filter.positions[slot * passes..][..passes].contains(&u32::MAX) {
            self.flush_slot(slot, sink);
        }
    }

    /// Records the accesses of a slot's page and, in the passes, its last use, and empties the slot.
    fn flush_slot(&mut self, slot: usize, sink: &mut impl AccessSink) {
        let known = self.filter.slots[slot];
        if known.page == NO_PAGE {
            return;
        }
        if self.stage == SamplingStage::Counting {
            sink.record_accesses(known.page, known.count, known.written);
        }
        let passes = self.passes.len();
        for (index, pass) in self.passes.iter_mut().enumerate() {
            pass.release(self.filter.positions[slot * passes + index], slot, known.last);
        }
        self.filter.slots[slot].page = NO_PAGE;
    }

    /// Empties the slots whose pages are no longer in the first level of a pass.
    fn flush_evicted(
        &mut self,
        index: usize,
        position: u32,
        evicted: EvictedPage,
        sink: &mut impl AccessSink,
    ) {
        match evicted {
            EvictedPage::Base(page) => {
                for store in [false, true] {
                    let slot = self.filter.slot_of(page, store);
                    if self.filter.slots[slot].page == page && self.filter.position(slot, index) == position {
                        self.flush_slot(slot, sink);
                    }
                }
            }
            EvictedPage::Larger => {
                for slot in iter_slots(&self.passes[index].holders(position)) {
                    self.flush_slot(slot, sink);
                }
            }
        }
    }

    fn advance_stage(&mut self, sink: &mut impl AccessSink) {
        let Some(window) = self.window else { return };
        self.flush(sink);
        let before = self.now - 1;
        let (stage, accesses) = match self.stage {
            SamplingStage::Counting => {
                self.skip_start = before;
                (SamplingStage::Skipping, window.period - window.sampled)
            }
            SamplingStage::Skipping => {
                let skipped = before - self.skip_start;
                self.passes.iter_mut().for_each(|pass| pass.skip_accesses(skipped, window.sampled));
                (SamplingStage::WarmingUp, window.warm_up())
            }
            SamplingStage::WarmingUp => {
                self.skipped += before - self.skip_start;
                (SamplingStage::Counting, window.sampled - window.warm_up())
            }
        };
        self.stage_end = before + accesses;
        let was_counting = self.stage == SamplingStage::Counting;
        self.stage = stage;
        if was_counting {
            sink.record_window(std::mem::take(&mut self.counted_walks), before);
        }
    }

    /// Records all pending accesses. The state of the TLBs does not change.
    pub fn flush(&mut self, sink: &mut impl AccessSink) {
        for slot in 0..self.filter.slot_count() {
            self.flush_slot(slot, sink);
        }
    }

    /// Records all pending accesses, and invalidates the translations of base pages `from..to`, as at an
    /// unmapping.
    pub fn invalidate(&mut self, from: u64, to: u64, sink: &mut impl AccessSink) {
        self.flush(sink);
        self.passes.iter_mut().for_each(|pass| pass.invalidate(from, to));
    }
}

#[cfg(test)]
mod tests;
