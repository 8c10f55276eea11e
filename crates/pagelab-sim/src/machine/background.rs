//! What happens while requests go on: `kswapd` (mm/vmscan.c: `wakeup_kswapd`, `balance_pgdat`) and
//! `kcompactd` (mm/compaction.c), in slices that the load gives.

use super::journal::{Event, Flaw};
use super::reclaim::{AT_ONCE, PRIORITY, Plan};
use super::{Machine, Release};
use crate::words::Wrong;

/// Failures after which `kswapd` is woken no more, until a page is freed (`MAX_RECLAIM_RETRIES`).
const FAILURES: u8 = 16;

/// What background reclaim of a node was woken for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wake {
    /// The order; `None`: it sleeps.
    order: Option<u8>,
    /// The highest zone that requests wanted.
    height: u8,
    /// Pages that it freed since it was woken.
    freed: u32,
    /// Whether it has begun, and how many pages it is to free since marks were raised.
    has_begun: bool,
    boost: u64,
    /// How often it gave up, and at how many pages reclaimed it did so last.
    failures: u8,
    failed_at: u64,
    /// Slices to wait until memory is compacted ahead of need again.
    pub(super) rest: u32,
    /// The priority that it waits for the disk at; `None`: it does not.
    waits_at: Option<u8>,
}

impl Machine {
    /// Wakes `kswapd` of all nodes that a request may have, where a zone is short.
    pub(super) fn wake(&mut self, node: u16, height: u8, order: u8) {
        for place in 0..self.memory.count() {
            let Some(zone) = self.memory.asked(node, place) else { break };
            let Some((setup, _)) = self.memory.zone(zone) else { break };
            if setup.height <= height {
                // Whole pageblocks are wanted, whatever is asked for (`wake_all_kswapds` of 6.15).
                let least = if self.counts_pageblocks() { setup.shape.block_order } else { 0 };
                self.wake_for(zone, height, order.max(least));
            }
        }
    }

    /// Wakes `kswapd` of a zone's node, if that is short (`wakeup_kswapd`).
    pub(super) fn wake_for(&mut self, zone: usize, height: u8, order: u8) {
        let Some((setup, _)) = self.memory.zone(zone) else { return };
        let (owner, low) = (setup.node, setup.marks.low);
        let is_fine = match self.tuning.release {
            Release::V2_6_16 => self.memory.stands(zone, low, order, 0),
            Release::V6_1 => self.is_balanced(owner, order, height) && !self.is_boosted(owner, height),
        };
        let wake = &mut self.awake[usize::from(owner)];
        if wake.failed_at != self.stats.reclaimed {
            wake.failures = 0;
        }
        if is_fine || wake.failures >= FAILURES {
            return;
        }
        if wake.order.is_none() {
            self.stats.kswapd_wakes += 1;
            (wake.freed, wake.height, wake.has_begun, wake.boost) = (0, 0, false, 0);
        }
        wake.order = Some(wake.order.map_or(order, |before| before.max(order)));
        wake.height = wake.height.max(height);
        self.is_busy = true;
    }

    /// Whether a zone of a node has a block above its high mark (`pgdat_balanced`, 6.1). Where kinds are not
    /// mixed, the mark must stand in whole pageblocks (6.15).
    fn is_balanced(&self, node: u16, order: u8, height: u8) -> bool {
        let counts_pageblocks = order > 0 && self.counts_pageblocks() && !self.journal.has(Flaw::PiecesCount);
        (0..self.memory.count()).any(|at| {
            self.memory.zone(at).is_some_and(|(setup, _)| {
                let stands = |at, mark, order, height| match counts_pageblocks {
                    true => self.memory.stands_in_pageblocks(at, mark, order, height),
                    false => self.memory.stands(at, mark, order, height),
                };
                setup.node == node && setup.height <= height && stands(at, setup.marks.high, order, height)
            })
        })
    }

    /// Lets background work go on: until all zones are above their high marks, or `most` pages were freed or
    /// moved on a node. Does nothing where nothing is short.
    pub fn background(&mut self, most: u32) -> Result<(), Wrong> {
        self.lower_borders();
        self.slice();
        if !self.is_busy {
            return Ok(());
        }
        let mut is_busy = self.tuning.proactiveness > 0 && self.config.compacts;
        for node in 0..self.awake.len() {
            let Some(order) = self.awake[node].order else {
                self.compact_ahead(node as u16, most)?;
                continue;
            };
            match self.tuning.release {
                Release::V2_6_16 => self.balance_zones(node as u16, order, most)?,
                Release::V6_1 => self.balance_node(node as u16, order, most)?,
            }
            is_busy |= self.awake[node].order.is_some();
        }
        self.is_busy = is_busy;
        Ok(())
    }

    /// The highest zone of a node that is short, as 2.6.16 looks for it.
    fn short_zone(&self, node: u16, order: u8, priority: u8) -> Option<u8> {
        let heights = (0..self.memory.count()).filter_map(|at| {
            let (setup, _) = self.memory.zone(at)?;
            let is_hopeless = self.is_hopeless(usize::from(self.area_of[at])) && priority != PRIORITY;
            let is_short = !self.memory.stands(at, setup.marks.high, order, 0);
            (setup.node == node && is_short && !is_hopeless).then_some(setup.height)
        });
        heights.max()
    }

    /// Until each zone has a block above its high mark (2.6.16). Where it has become hard it waits for the
    /// disk between two turns (`blk_congestion_wait`), and where the queue is full (`get_request_wait`).
    fn balance_zones(&mut self, node: u16, order: u8, most: u32) -> Result<(), Wrong> {
        let waited = self.awake[usize::from(node)].waits_at.take();
        let (mut freed, mut priority, mut freed_in_loop) = (0, waited.unwrap_or(PRIORITY), 0);
        while freed < most {
            let Some(height) = self.short_zone(node, order, priority) else {
                return self.sleep(node, order);
            };
            let plan =
                Plan { node, height, order, priority, wanted: AT_ONCE, may_swap: true, is_direct: false };
            let now = self.shrink_zones(&plan)?;
            freed += now;
            freed_in_loop += now;
            if freed_in_loop >= AT_ONCE {
                (priority, freed_in_loop) = (PRIORITY, 0);
            } else if priority > 0 {
                priority -= 1;
            } else if freed_in_loop == 0 {
                return self.give_up(node);
            } else {
                (priority, freed_in_loop) = (PRIORITY, 0);
            }
            if self.is_full() || priority < PRIORITY - 2 && self.is_congested() {
                self.awake[usize::from(node)].waits_at = Some(priority);
                break;
            }
        }
        Ok(())
    }

    /// One turn over the zones of a node.
    fn shrink_zones(&mut self, plan: &Plan) -> Result<u32, Wrong> {
        self.journal.note(Event::Planned { order: plan.order, height: plan.height, is_direct: false });
        let (before, mut freed, mut pages) = (self.stats.scanned, 0, 0);
        for at in 0..self.memory.count() {
            let area = usize::from(self.area_of[at]);
            let is_asked = |(setup, _): (&crate::memory::Setup, _)| {
                setup.node == plan.node && setup.height <= plan.height
            };
            if !self.memory.zone(at).is_some_and(is_asked) {
                continue;
            }
            pages += u64::from(self.lru_pages(area));
            if plan.priority == PRIORITY || !self.is_hopeless(area) {
                freed += self.shrink_area(area, plan)?;
            }
        }
        let scanned = self.stats.scanned - before;
        for area in 0..self.areas.len() {
            freed += self.shrink_slab(area, plan.priority, scanned, pages)?;
        }
        Ok(freed)
    }

    /// Until one zone has a block above its high mark. For large blocks no more is freed than compaction
    /// needs (6.1).
    fn balance_node(&mut self, node: u16, order: u8, most: u32) -> Result<(), Wrong> {
        let (mut freed, mut priority) = (0, PRIORITY);
        let area = usize::from(node);
        if !std::mem::replace(&mut self.awake[area].has_begun, true) {
            self.awake[area].boost = self.begin_boost(node, self.awake[area].height);
        }
        while freed < most {
            let Wake { height, boost, freed: all, .. } = self.awake[area];
            let goal = if order > 0 && all >= 2 << order { 0 } else { order };
            let is_balanced = self.is_balanced(node, goal, height);
            if boost > 0 && !is_balanced {
                // Marks that do not stand come first; what they were raised by is in them.
                (self.awake[area].boost, priority) = (0, PRIORITY);
                continue;
            }
            self.journal.note(Event::Turn { order: goal, height, is_balanced, boost });
            if is_balanced && boost == 0 {
                return self.sleep(node, order);
            }
            let may_swap = boost == 0 || self.journal.has(Flaw::BoostSwaps);
            let plan =
                Plan { node, height, order: goal, priority, wanted: AT_ONCE, may_swap, is_direct: false };
            self.journal.note(Event::Planned { order: goal, height, is_direct: false });
            let looked = self.stats.scanned;
            let now = self.shrink_area(area, &plan)? + self.shrink_slab(area, priority, 0, 0)?;
            freed += now;
            self.awake[area].freed += now;
            let left = boost - boost.min(u64::from(now));
            self.awake[area].boost = left;
            if left > 0 && now == 0 {
                // For raised marks nothing is written; it may have no end.
                if all == 0 {
                    self.awake[area].failures = self.awake[area].failures.saturating_add(1);
                    self.awake[area].failed_at = self.stats.reclaimed;
                }
                return self.sleep(node, order);
            }
            let is_slow = self.stats.scanned - looked < self.looks_wanted(node, height);
            let rises = boost > 0 && is_slow && priority > PRIORITY - 2;
            priority -= u8::from(now == 0 || rises);
            if priority == 0 {
                return self.give_up(node);
            }
        }
        Ok(())
    }

    fn give_up(&mut self, node: u16) -> Result<(), Wrong> {
        let wake = &mut self.awake[usize::from(node)];
        (wake.order, wake.failed_at) = (None, self.stats.reclaimed);
        wake.failures = wake.failures.saturating_add(1);
        if self.end_boost(node) && self.config.compacts {
            self.compact_node(node, 0, true)?;
        }
        Ok(())
    }

    /// `kswapd` sleeps: what compaction had found not worth a look is worth one again, and memory is
    /// compacted for the order that was wanted.
    fn sleep(&mut self, node: u16, order: u8) -> Result<(), Wrong> {
        self.awake[usize::from(node)].order = None;
        let was_raised = self.end_boost(node);
        if !self.config.compacts {
            return Ok(());
        }
        for at in 0..self.memory.count() {
            if self.memory.zone(at).is_some_and(|(setup, _)| setup.node == node) {
                self.compactors[at].flush();
                self.journal.note(Event::Flushed { zone: at });
            }
        }
        self.compact_node(node, order, was_raised)
    }

    /// Compacts the zones of a node for an order, or for whole pageblocks at least (`wakeup_kcompactd`).
    fn compact_node(&mut self, node: u16, order: u8, whole: bool) -> Result<(), Wrong> {
        let height = self.awake[usize::from(node)].height;
        if self.counts_pageblocks() && !self.is_any_short_of_pageblocks(node, order, height) {
            return Ok(());
        }
        for at in 0..self.memory.count() {
            let Some((setup, _)) = self.memory.zone(at) else { break };
            let (owner, own_height) = (setup.node, setup.height);
            let order = if whole { order.max(setup.shape.block_order) } else { order };
            if owner == node && order > 0 && own_height <= height {
                self.compact_in_background(at, order, height)?;
            }
        }
        Ok(())
    }
}
