//! How many huge pages can be had: now, after compaction, after dropping the page cache, and what is in the
//! way of the rest.
//!
//! For huge pages of PMD size, in each zone z that the request may use:
//!
//! | number | definition |
//! |---|---|
//! | now | min(free blocks of the order, less highatomic and isolated ones, plus deferred ones; ⌊(free − W) · B / (B + 1) / B⌋) |
//! | after compaction | the same with the blocks that are whole once the two scanners of each zone have met |
//! | after dropping cache | the same with the page cache that is clean and not mapped counted as free before |
//!
//! W is the zone's min watermark (boost included) and what `lowmem_reserve` keeps from requests that may
//! use higher zones (mm/page_alloc.c, `__zone_watermark_ok`; `gfp_to_alloc_flags`: a request that may not
//! reclaim goes down to the min watermark). B is the base pages of a huge page; one more is its page table,
//! which the kernel puts aside for the day when it is split (`pgtable_trans_huge_deposit`). Highatomic blocks
//! are for others, and isolated ones for nobody.
//!
//! The scanners are played through block by block (`linear`), since they do not pack perfectly: they empty
//! blocks that a slab page keeps from ever becoming whole, and fill good ones for it.
//!
//! Bounds: the low end takes every page without a flag for kernel memory in use, and keeps the watermark in
//! full; the high end takes as many of them for free as are on per-CPU lists, and lets kswapd keep the zone
//! above its watermark where there is cache to drop. What is expected comes of taking as many of them for
//! free, where they lie together (`linear`).

mod inputs;
mod linear;
#[cfg(test)]
mod tests;

use pagelab_model::free_areas::ZoneKey;
use pagelab_model::{Absence, AbsentWhy, NodeId, Order, PageClass, Reading, Snapshot};

use crate::supply::GiganticSupply;
use inputs::{Machine, ZoneInputs};
use linear::Unknown;

/// By which way of the kernel huge pages are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Transparent huge pages: page faults and MADV_COLLAPSE.
    Thp,
    /// A hugetlb pool.
    Hugetlb,
    /// Physically contiguous memory for the kernel, such as a driver without scatter and gather needs.
    Contig,
}

/// What may be done before huge pages are asked for; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Nothing,
    /// Compaction.
    Compaction,
    /// Dropping the page cache.
    Cache,
}

impl Step {
    /// All of them, in order.
    pub const ALL: [Step; 3] = [Step::Nothing, Step::Compaction, Step::Cache];
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// How many.
    pub count: u64,
    /// Of which order.
    pub order: Order,
    /// In which way.
    pub how: How,
    /// From one node, or from all.
    pub node: Option<NodeId>,
    /// The CPU that will ask, where that is known: huge pages on its own list come first.
    pub cpu: Option<u32>,
}

/// A number with the bounds that what is not known leaves to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Not less than this.
    pub low: u64,
    /// What is predicted.
    pub expected: u64,
    /// Not more than this.
    pub high: u64,
}

/// How many can be had at each step, in sum or of one zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// As memory lies.
    pub now: Bounds,
    /// After compaction.
    pub after_compaction: Bounds,
    /// After dropping the page cache, and compaction.
    pub after_dropping_cache: Bounds,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// What was asked for.
    pub ask: Ask,
    /// In sum.
    pub total: Steps,
    /// By zone, in the census's order; only zones that the request may use.
    pub zones: Vec<ZoneForecast>,
    /// Why the pageblocks were not seen: then only `now` says something.
    pub unseen: Option<Absence>,
    /// What was assumed for want of something to read, in words.
    pub notes: Vec<String>,
}

/// Blocks by what becomes of them; the others add up to `all`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockShares {
    /// All blocks of the zones that the request may use.
    pub all: u64,
    /// To be had at the end, as it is expected.
    pub had: u64,
    /// Huge pages in use or in a pool.
    pub in_use: u64,
    /// Never whole.
    pub spoiled: u64,
    /// Memory in use fills them, or the kernel's watermarks keep them.
    pub rest: u64,
}

/// One zone's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneForecast {
    /// The zone.
    pub key: ZoneKey,
    /// What it can give.
    pub steps: Steps,
    /// Blocks of the zone.
    pub blocks: u64,
    /// Blocks that are huge pages in use or in a pool.
    pub in_use: u64,
    /// Blocks that can never be whole, each counted once, by the first class that spoils it.
    pub spoiled: Vec<(PageClass, u64)>,
    /// Huge pages that stay with the kernel's watermark and lowmem reserve although they are whole: now.
    pub kept_by_watermark: u64,
}

impl Bounds {
    /// A number that is known.
    pub fn exact(value: u64) -> Bounds {
        Bounds { low: value, expected: value, high: value }
    }

    fn plus(self, other: Bounds) -> Bounds {
        Bounds {
            low: self.low.saturating_add(other.low),
            expected: self.expected.saturating_add(other.expected),
            high: self.high.saturating_add(other.high),
        }
    }

    /// Puts the three in order.
    fn sorted(self) -> Bounds {
        let (low, high) = (self.low.min(self.expected), self.high.max(self.expected));
        Bounds { low, expected: self.expected, high }
    }

    /// Not less than another: what could be had before a step can be had after it.
    fn at_least(self, other: Bounds) -> Bounds {
        Bounds {
            low: self.low.max(other.low),
            expected: self.expected.max(other.expected),
            high: self.high.max(other.high),
        }
    }
}

impl Steps {
    fn plus(self, other: Steps) -> Steps {
        Steps {
            now: self.now.plus(other.now),
            after_compaction: self.after_compaction.plus(other.after_compaction),
            after_dropping_cache: self.after_dropping_cache.plus(other.after_dropping_cache),
        }
    }
}

/// Of the blocks, what moves between the look and the last request: programs go on, lists fill and drain.
const MOVES_SHARE: u64 = 100;
/// Of what compaction gains, what its scanners may make differently than they are played through: folios move
/// whole and need room of their size, and pages that are held for a moment stay.
const GAIN_SHARE: u64 = 10;

impl Steps {
    /// Makes room in the intervals for what the census cannot know. `shift`: how many requests a block has,
    /// as a power of two.
    fn widen(&mut self, blocks: u64, shift: u32) {
        let of_blocks = |blocks: u64| blocks.saturating_mul(1 << shift.min(63));
        let moves = of_blocks(blocks / MOVES_SHARE);
        let gain = |from: Bounds, to: Bounds| to.expected.saturating_sub(from.expected) / GAIN_SHARE;
        let compacted = moves.saturating_add(gain(self.now, self.after_compaction));
        let dropped = compacted.saturating_add(gain(self.after_compaction, self.after_dropping_cache));
        let steps = [
            (&mut self.now, moves),
            (&mut self.after_compaction, compacted),
            (&mut self.after_dropping_cache, dropped),
        ];
        for (bounds, room) in steps {
            bounds.low = bounds.low.saturating_sub(room);
            bounds.high = bounds.high.saturating_add(room).min(of_blocks(blocks).max(bounds.high));
        }
    }
}

impl Forecast {
    /// Blocks by what becomes of them once everything was done: to be had, in use as huge pages, spoiled, and
    /// the rest, in which memory in use stays or which the kernel keeps. The four add up to all blocks.
    pub fn shares(&self) -> BlockShares {
        let all: u64 = self.zones.iter().map(|zone| zone.blocks).sum();
        let had = self.total.after_dropping_cache.expected.min(all);
        let in_use: u64 = self.zones.iter().map(|zone| zone.in_use).sum();
        let in_use = in_use.min(all - had);
        // Blocks whose pages say nothing may be counted as to be had: they are not spoiled then.
        let spoiled: u64 = self.spoiled().iter().map(|(_, blocks)| blocks).sum();
        let spoiled = spoiled.min(all - had - in_use);
        BlockShares { all, had, in_use, spoiled, rest: all - had - in_use - spoiled }
    }

    /// What can be had at the end of a step, as it is expected.
    pub fn after(&self, step: Step) -> Bounds {
        match step {
            Step::Nothing => self.total.now,
            Step::Compaction => self.total.after_compaction,
            Step::Cache => self.total.after_dropping_cache,
        }
    }

    /// Whether the request can be met after a step; `None` where that was not seen.
    pub fn is_yes(&self, step: Step) -> Option<bool> {
        let is_enough = self.after(step).expected >= self.ask.count;
        (is_enough || self.unseen.is_none() || step == Step::Nothing).then_some(is_enough)
    }

    /// Blocks that can never be whole, by class, the largest first.
    pub fn spoiled(&self) -> Vec<(PageClass, u64)> {
        let mut sums: Vec<(PageClass, u64)> = Vec::new();
        for (class, blocks) in self.zones.iter().flat_map(|zone| &zone.spoiled) {
            match sums.iter_mut().find(|(known, _)| known == class) {
                Some((_, sum)) => *sum += blocks,
                None => sums.push((*class, *blocks)),
            }
        }
        sums.sort_by_key(|&(_, blocks)| std::cmp::Reverse(blocks));
        sums
    }

    /// What an error is measured against: the larger of 5 % of what came and 1 % of the pageblocks.
    pub fn allowed_error(&self, got: u64) -> f64 {
        let blocks: u64 = self.zones.iter().map(|zone| zone.blocks).sum();
        (got as f64 * 0.05).max(blocks as f64 * 0.01)
    }
}

/// Predicts. Absent where buddyinfo or zoneinfo are; without a census of every page, only what can be had now
/// is said.
pub fn forecast(snapshot: &Snapshot, ask: Ask) -> Reading<Forecast> {
    let machine = Machine::of(snapshot, ask)?;
    if ask.order > machine.unit_order {
        return beyond_a_block(&machine, ask);
    }
    let zones: Vec<ZoneForecast> = machine.zones.iter().map(|zone| of_zone(&machine, zone, ask)).collect();
    let mut total = zones.iter().fold(Steps::default(), |sum, zone| sum.plus(zone.steps));
    let blocks: u64 = zones.iter().map(|zone| zone.blocks).sum();
    let free = machine.zones.iter().map(|zone| zone.free.saturating_add(zone.per_cpu)).sum::<u64>();
    match machine.unseen {
        // What the free lists hold is there; what else could be made of memory is bounded by the free pages.
        Some(_) => {
            let most = free / ask.order.pages().0.max(1);
            let after = Bounds { high: total.now.high.max(most), ..total.now };
            (total.after_compaction, total.after_dropping_cache) = (after, after);
        }
        None => total.widen(blocks, u32::from(machine.unit_order.0.saturating_sub(ask.order.0))),
    }
    Ok(Forecast { ask, total, zones, unseen: machine.unseen, notes: machine.notes })
}

/// One zone, for orders up to that of a block.
fn of_zone(machine: &Machine, zone: &ZoneInputs, ask: Ask) -> ZoneForecast {
    let order = ask.order;
    let shift = u32::from(machine.unit_order.0 - order.0);
    let of_blocks = |blocks: u64| blocks.saturating_mul(1 << shift.min(63));
    let capped = |runs: u64, free: u64, kept: u64| {
        let spare = free.saturating_sub(kept);
        let page_tables = spare / (machine.unit_order.pages().0 + 1);
        runs.min((spare - page_tables) / order.pages().0)
    };
    let now_runs = zone.runs_of(order).saturating_add(of_blocks(zone.deferred_blocks));
    let kswapd_helps = zone.droppable >= zone.watermark;
    let at = |runs: [u64; 3], freed: u64, drained: u64| {
        let free = zone.free.saturating_add(freed);
        // kswapd wakes below the low watermark and drops cache up to the high one meanwhile.
        let kept_least = if kswapd_helps { zone.protection } else { zone.kept() };
        Bounds {
            low: capped(runs[0], free, zone.kept()),
            expected: capped(runs[1], free.saturating_add(drained), zone.kept()),
            high: capped(runs[2], free.saturating_add(zone.per_cpu), kept_least),
        }
        .sorted()
    };
    // Huge pages on the lists of CPUs are on no free list: one's own come at once, all of them once the
    // kernel drains the lists, which it does before it gives up.
    let is_huge = order == machine.unit_order;
    let (least, most) = if is_huge { zone.huge_on_own_list(ask.cpu) } else { (0, 0) };
    // What was freed last is mostly base pages: of what may be either, a quarter.
    let own = least + most.saturating_sub(least) / 4;
    let listed = if is_huge { zone.huge_on_per_cpu_lists() } else { 0 };
    let now = at([now_runs, now_runs + own, now_runs + listed], 0, 0);
    let after = |drop: bool| {
        let whole = [Unknown::InUse, Unknown::Likely, Unknown::AsPerCpu];
        let [in_use, likely, as_per_cpu] = whole.map(|unknown| linear::whole_blocks(zone, unknown, drop));
        let runs = [in_use, likely, as_per_cpu].map(of_blocks);
        let runs = [runs[0], runs[1] + listed, runs[2] + listed];
        // Smaller runs are left over in blocks that do not become whole; what is there now is the least.
        let runs = if order < machine.unit_order { runs.map(|runs| runs.max(now_runs)) } else { runs };
        // Compaction for a request drains the lists when it finds nothing, a fault does not, and lists fill
        // up again meanwhile (mm/page_alloc.c, `__alloc_pages_direct_reclaim`).
        at(runs, if drop { zone.droppable } else { 0 }, zone.per_cpu / 2)
    };
    let after_compaction = after(false).at_least(Bounds { high: 0, ..now });
    let after_dropping_cache = after(true).at_least(after_compaction);
    ZoneForecast {
        key: zone.key.clone(),
        steps: Steps { now, after_compaction, after_dropping_cache },
        blocks: zone.blocks.len() as u64,
        in_use: zone.blocks.iter().filter(|block| block.is_huge).count() as u64,
        spoiled: zone.spoiled.clone(),
        kept_by_watermark: now_runs.saturating_sub(now.expected),
    }
}

/// Larger than a block: aligned ranges of blocks, as `alloc_contig_pages` looks for them.
fn beyond_a_block(machine: &Machine, ask: Ask) -> Reading<Forecast> {
    if let Some(unseen) = &machine.unseen {
        return Err(unseen.clone());
    }
    let mut zones = Vec::new();
    let mut total = Steps::default();
    for (zone, census) in machine.zones.iter().zip(&machine.census_zones) {
        let counts = GiganticSupply::of_zone(machine.coverage, machine.block_order, census, ask.order)?;
        let base = ask.order.pages().0;
        // The movable pages of a range move to free pages outside of it: there must be as many.
        let fits = |ranges: u64, free: u64| ranges.min(free.saturating_sub(zone.kept()) / base);
        let cache = zone.free.saturating_add(zone.droppable);
        let (low, high) = (counts.contiguous_low, counts.contiguous_high);
        let likely = GiganticSupply::explained(machine.block_order, census, ask.order, zone.per_cpu).max(low);
        let bounds = |free: u64| Bounds {
            low: fits(low, free),
            expected: fits(likely, free),
            high: fits(high, free.saturating_add(zone.per_cpu)),
        };
        // Slab that describes page cache goes with it, wherever it lies.
        let slab = machine.cache_slab;
        let freed = GiganticSupply::without_slab(machine.block_order, census, ask.order, slab);
        let dropped = bounds(cache);
        let high = dropped.high.max(fits(freed, cache.saturating_add(zone.per_cpu).saturating_add(slab)));
        let steps = Steps {
            now: Bounds::exact(fits(counts.free_now, zone.free)),
            after_compaction: bounds(zone.free),
            after_dropping_cache: Bounds { high, ..dropped },
        };
        total = total.plus(steps);
        zones.push(ZoneForecast {
            key: zone.key.clone(),
            steps,
            blocks: zone.blocks.len() as u64,
            in_use: zone.blocks.iter().filter(|block| block.is_huge).count() as u64,
            spoiled: zone.spoiled.clone(),
            kept_by_watermark: 0,
        });
    }
    Ok(Forecast { ask, total, zones, unseen: None, notes: machine.notes.clone() })
}

/// The absence of a forecast for which something is missing.
fn missing(what: &Absence) -> Absence {
    Absence::new(what.source.clone(), what.why, what.reason())
        .or(what.way_out.clone().unwrap_or_else(|| "ask where this can be read".to_owned()))
}

/// The absence of a forecast that has no meaning.
fn undefined(detail: &str) -> Absence {
    Absence::new("forecast", AbsentWhy::Undefined, detail)
}
