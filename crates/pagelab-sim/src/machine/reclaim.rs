//! Reclaim: how much is looked at, on which lists, at which priority (mm/vmscan.c: `try_to_free_pages`,
//! `shrink_zone` and `shrink_slab` of 2.6.16; `do_try_to_free_pages`, `shrink_node`, `get_scan_count` and
//! `do_shrink_slab` of 6.1).

mod aging;
mod slab;

use super::journal::Event;
use super::lru::{List, Sort};
use super::reclaims::Ground;
use super::{Entry, Machine, Release};
use crate::words::Wrong;

/// The priority that reclaim begins with (`DEF_PRIORITY`): of a list of n pages, n >> priority are looked at.
pub(super) const PRIORITY: u8 = 12;

/// Pages that reclaim frees or looks at, at a time (`SWAP_CLUSTER_MAX`).
pub(super) const AT_ONCE: u32 = 32;

/// Orders above this one are costly (`PAGE_ALLOC_COSTLY_ORDER`).
pub(super) const COSTLY: u8 = 3;

/// What is reclaimed for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// The node that asks.
    pub node: u16,
    /// The highest zone that will do.
    pub height: u8,
    /// The order that is short.
    pub order: u8,
    /// How much of the lists is looked at.
    pub priority: u8,
    /// Pages to free.
    pub wanted: u32,
    /// Whether pages of programs may go to swap.
    pub may_swap: bool,
    /// Whether a request reclaims, and not `kswapd`.
    pub is_direct: bool,
}

impl Machine {
    /// Reclaims for a request until enough pages are freed, or all has been looked at: pages freed.
    pub(super) fn reclaim(&mut self, node: u16, height: u8, order: u8) -> Result<u32, Wrong> {
        // With compaction, room for both copies of a block is made (`compact_gap`).
        let gap = if self.config.compacts && order > 0 { 2 << order } else { 0 };
        let wanted = AT_ONCE.max(gap);
        let mut plan =
            Plan { node, height, order, priority: PRIORITY, wanted, may_swap: true, is_direct: true };
        let (mut freed, before) = (0, self.stats.scanned);
        for priority in (0..=PRIORITY).rev() {
            plan.priority = priority;
            freed += self.shrink(&plan)?;
            // What empties regions ends when there is one: pages of several that are not whole are of no use.
            let is_by_place = self.config.reclaim.way.empties(order);
            let is_enough = if is_by_place { self.has_block(&plan) } else { freed >= plan.wanted };
            if is_enough {
                break;
            }
            self.wait_for_writes(priority, before);
        }
        Ok(freed)
    }

    /// Between two turns of direct reclaim: what is dirty is written beside it, and where it has become hard
    /// it waits for the disk (`try_to_free_pages`).
    fn wait_for_writes(&mut self, priority: u8, before: u64) {
        if !self.has_disk() {
            return;
        }
        let scanned = self.stats.scanned - before;
        if scanned > u64::from(AT_ONCE + AT_ONCE / 2) {
            self.disk.wanted = self.disk.wanted.max(scanned);
            self.journal.note(Event::Wanted { pages: scanned });
        }
        if scanned > 0 && priority < PRIORITY - 2 {
            self.nap();
        }
    }

    /// Whether a zone has a block for a plan above its minimum.
    fn has_block(&self, plan: &Plan) -> bool {
        (0..self.memory.count()).filter_map(|place| self.memory.asked(plan.node, place)).any(|zone| {
            self.memory.zone(zone).is_some_and(|(setup, _)| {
                setup.height <= plan.height
                    && self.memory.stands(zone, setup.marks.min, plan.order, plan.height)
            })
        })
    }

    /// One turn over all zones that a request may have.
    fn shrink(&mut self, plan: &Plan) -> Result<u32, Wrong> {
        self.journal.note(Event::Planned { order: plan.order, height: plan.height, is_direct: true });
        let (before, way) = (self.stats.scanned, self.config.reclaim.way);
        let (mut freed, mut pages, mut last) = (0, 0u64, None);
        for place in 0..self.memory.count() {
            let Some(zone) = self.memory.asked(plan.node, place) else { break };
            if self.memory.zone(zone).is_none_or(|(setup, _)| setup.height > plan.height) {
                continue;
            }
            let area = usize::from(self.area_of[zone]);
            if last != Some(area) {
                pages += u64::from(self.lru_pages(area));
            }
            if way.empties(plan.order) {
                freed += Ground::new(self, zone, plan).map_or(Ok(0), |mut ground| way.empty(&mut ground))?;
            } else if last != Some(area) && (plan.priority == PRIORITY || !self.is_hopeless(area)) {
                freed += self.shrink_area(area, plan)?;
            }
            if last != Some(area) && self.tuning.release == Release::V6_1 {
                freed += self.shrink_slab(area, plan.priority, 0, 0)?;
            }
            last = Some(area);
        }
        if self.tuning.release == Release::V2_6_16 {
            let scanned = self.stats.scanned - before;
            for area in 0..self.areas.len() {
                freed += self.shrink_slab(area, plan.priority, scanned, pages)?;
            }
        }
        Ok(freed)
    }

    /// Pages of programs and files in an area.
    pub(super) fn lru_pages(&self, area: usize) -> u32 {
        let pages = |sort, is_active| self.lru.pages(List { area, sort, is_active });
        pages(Sort::Anonymous, false)
            + pages(Sort::Anonymous, true)
            + pages(Sort::File, false)
            + pages(Sort::File, true)
    }

    /// Of them, those of files (6.1).
    pub(super) fn file_pages(&self, area: usize) -> u32 {
        [false, true].map(|is_active| self.lru.pages(List { area, sort: Sort::File, is_active })).iter().sum()
    }

    /// Whether an area was looked through four times without one page freed (`all_unreclaimable`, 2.6.16).
    pub(super) fn is_hopeless(&self, area: usize) -> bool {
        self.tuning.release == Release::V2_6_16
            && self.areas[area].scanned >= 4 * u64::from(self.lru_pages(area))
    }

    /// Whether there is room in swap for a block.
    pub(super) fn has_swap(&self, entry: &Entry) -> bool {
        self.config.swap_frames - self.swapped.min(self.config.swap_frames) >= entry.pages()
    }

    /// Reclaims the oldest pages of an area.
    pub(super) fn shrink_area(&mut self, area: usize, plan: &Plan) -> Result<u32, Wrong> {
        match self.tuning.release {
            Release::V2_6_16 => self.shrink_together(area, plan),
            Release::V6_1 => self.shrink_apart(area, plan),
        }
    }

    /// Pages of files and programs on the same lists (`shrink_zone`, 2.6.16).
    fn shrink_together(&mut self, area: usize, plan: &Plan) -> Result<u32, Wrong> {
        let inactive = List { area, sort: Sort::Anonymous, is_active: false };
        let mut looks = [0; 2];
        for (is_active, look) in looks.iter_mut().enumerate() {
            let list = List { is_active: is_active == 1, ..inactive };
            let left = &mut self.areas[area].left[is_active];
            *left += (self.lru.pages(list) >> plan.priority) + 1;
            if *left >= AT_ONCE {
                *look = std::mem::take(left);
            }
        }
        let mut freed = 0;
        while looks != [0, 0] {
            let now = looks.map(|left| left.min(AT_ONCE));
            looks = [looks[0] - now[0], looks[1] - now[1]];
            self.refill(inactive.turned(), now[1], plan);
            freed += self.shrink_list(inactive, now[0], plan)?;
        }
        self.areas[area].distress = plan.priority;
        Ok(freed)
    }

    /// Pages of files and of programs on lists of their own (`shrink_lruvec`, 6.1).
    fn shrink_apart(&mut self, area: usize, plan: &Plan) -> Result<u32, Wrong> {
        let sorts = [Sort::Anonymous, Sort::File];
        let shares = self.shares(area, plan);
        // Inactive and active ones of programs, then of files.
        let mut looks = [[0; 2]; 2];
        for ((sort, (part, whole)), looks) in sorts.into_iter().zip(shares).zip(&mut looks) {
            for (is_active, look) in looks.iter_mut().enumerate() {
                let pages = self.lru.pages(List { area, sort, is_active: is_active == 1 });
                *look = (u64::from(pages >> plan.priority) * part / whole.max(1)) as u32;
            }
        }
        let mut freed = 0;
        while looks[0][0] > 0 || looks[1] != [0, 0] {
            for (sort, looks) in sorts.into_iter().zip(&mut looks) {
                let inactive = List { area, sort, is_active: false };
                let now = looks.map(|left| left.min(AT_ONCE));
                *looks = [looks[0] - now[0], looks[1] - now[1]];
                freed += self.shrink_list(inactive, now[0], plan)?;
                if self.is_low(inactive) {
                    self.refill(inactive.turned(), now[1], plan);
                }
            }
            if freed >= plan.wanted && plan.priority < PRIORITY {
                break;
            }
        }
        let anonymous = List { area, sort: Sort::Anonymous, is_active: false };
        if self.swapped < self.config.swap_frames && self.is_low(anonymous) {
            self.refill(anonymous.turned(), AT_ONCE, plan);
        }
        Ok(freed)
    }

    /// Parts of the lists of programs and of files that are looked at (`get_scan_count`, 6.1).
    fn shares(&self, area: usize, plan: &Plan) -> [(u64, u64); 2] {
        let file = List { area, sort: Sort::File, is_active: false };
        let swappiness = u64::from(self.tuning.swappiness.min(200));
        let has_swap = plan.may_swap && self.swapped < self.config.swap_frames;
        if !has_swap || swappiness == 0 && plan.priority > 0 {
            return [(0, 1), (1, 1)];
        }
        if plan.priority == 0 && swappiness > 0 {
            return [(1, 1), (1, 1)];
        }
        if self.lru.pages(file) >> plan.priority > 0 && !self.is_low(file) {
            return [(0, 1), (1, 1)];
        }
        let [anonymous, files] = self.areas[area].costs;
        let total = anonymous + files;
        let (anonymous, files) = (total + anonymous, total + files);
        let total = anonymous + files;
        let parts =
            [swappiness * (total + 1) / (anonymous + 1), (200 - swappiness) * (total + 1) / (files + 1)];
        let whole = parts[0] + parts[1] + 1;
        parts.map(|part| (part, whole))
    }

    /// Whether an inactive list is short beside its active one (`inactive_is_low`, 6.1): 1 to 1 up to 1 GiB
    /// of pages, 1 to √(10 · GiB) above.
    fn is_low(&self, inactive: List) -> bool {
        let (old, new) = (self.lru.pages(inactive), self.lru.pages(inactive.turned()));
        // Of base pages of 4 KiB.
        let gib = (u64::from(old) + u64::from(new)) >> 18;
        let ratio = if gib > 0 { (10 * gib).isqrt() } else { 1 };
        u64::from(old) * ratio < u64::from(new)
    }

    /// Whether a page that is brought back was reclaimed so shortly ago that it would still be there, had
    /// active pages been reclaimed instead (`workingset_refault`, 6.1). What that cost is kept.
    pub(super) fn was_missed_soon(&mut self, entry: &Entry) -> bool {
        let (sort, other) = match entry.class {
            super::Class::Anonymous => (Sort::Anonymous, Sort::File),
            super::Class::File | super::Class::Buffer => (Sort::File, Sort::Anonymous),
            _ => return false,
        };
        if self.tuning.release == Release::V2_6_16 {
            return false;
        }
        let area = usize::from(self.area_of[usize::from(entry.zone)]);
        let pages = |sort, is_active| self.lru.pages(List { area, sort, is_active });
        let has_swap = self.swapped < self.config.swap_frames;
        let usable = |sort| sort == Sort::File || has_swap;
        let mut room = if usable(sort) { pages(sort, true) } else { 0 };
        room += if usable(other) { pages(other, true) + pages(other, false) } else { 0 };
        let away = (self.stats.reclaimed as u32).wrapping_sub(entry.stamp);
        if away > room {
            return false;
        }
        let size = u64::from(self.lru_pages(area));
        let costs = &mut self.areas[area].costs;
        costs[sort as usize] += u64::from(entry.pages());
        if costs[0] + costs[1] > size / 4 {
            *costs = costs.map(|cost| cost / 2);
        }
        true
    }
}
