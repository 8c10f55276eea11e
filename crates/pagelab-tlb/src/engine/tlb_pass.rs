//! One pass of the model: the TLBs of a core, with memory on pages of the sizes that the pass chooses.

use super::entries::{CODE_BITS, EMPTY, Entries, TlbArray};
use super::geometry::{Geometry, PAGE_SIZES, UPPER_LEVELS, index_bits};
use super::hit_filter::{HitFilter, SlotMask};
use super::walk_caches::WalkCaches;
use super::walk_history::WalkHistory;

/// Base pages whose entries of 8 bytes lie in one line of 64 bytes, as log2.
const LINE_BITS: u32 = 3;
const CODE_MASK: u64 = (1 << CODE_BITS) - 1;
/// TLBs of one level that one access can look up, at most; further ones are ignored.
const GROUP_MAX: usize = 4;

/// The bucket of walks of lines that were never walked before.
pub const FIRST_WALK: u32 = 63;

/// The TLBs that one kind of access with one page size looks up, in place: one pointer less to follow.
#[derive(Clone, Copy, Debug, Default)]
struct TlbGroup {
    arrays: [TlbArray; GROUP_MAX],
    count: usize,
}

impl TlbGroup {
    fn arrays(&self) -> &[TlbArray] {
        &self.arrays[..self.count.min(GROUP_MAX)]
    }
}

/// An access to a base page in one pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageAccess {
    /// Base page number.
    pub page: u64,
    pub store: bool,
    /// The size of the page that contains the base page, as an index in the geometry's sizes.
    pub code: u8,
}

/// Outcome of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessOutcome {
    /// The translation was in a TLB of this level; 0 is the first.
    Hit(usize),
    /// A page walk.
    Walk(PageWalk),
}

/// A page walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageWalk {
    /// The size of the page, by its index in the geometry's sizes.
    pub code: u8,
    /// log2 of the reuse distance of the line of its last entry, or [`FIRST_WALK`].
    pub bucket: u32,
    /// Which of the upper levels were read.
    pub upper: [bool; UPPER_LEVELS],
}

/// A page whose translation was evicted.
#[derive(Clone, Copy, Debug)]
pub(super) enum EvictedPage {
    /// A base page, by its number.
    Base(u64),
    /// A larger page.
    Larger,
}

/// The effect of an access on the first level.
#[derive(Clone, Copy, Debug)]
pub(super) struct AccessResult {
    pub outcome: AccessOutcome,
    /// The position of the page in the first level; `u32::MAX` without a first level.
    pub position: u32,
    /// The page that was evicted from this position.
    pub evicted: Option<EvictedPage>,
}

/// The state of one pass.
#[derive(Debug)]
pub struct TlbPass {
    entries: Entries,
    /// By position in the first level: slots of the hit filter whose pages lie in the larger page there.
    holders: Vec<SlotMask>,
    /// By level, kind of access (0 load, 1 store) and code.
    groups: Vec<[[TlbGroup; PAGE_SIZES]; 2]>,
    /// Page sizes over the base page, as log2.
    deltas: [u32; PAGE_SIZES],
    /// Levels of page tables between an entry of each size and those of base pages.
    depths: [u32; PAGE_SIZES],
    index_bits: u32,
    /// The clock of reuse distances: walks, and estimated walks of skipped accesses.
    clock: u64,
    /// The clock at the begin of the current window.
    window_start: u64,
    histories: [WalkHistory; UPPER_LEVELS],
    caches: WalkCaches,
}

impl TlbPass {
    /// Empty TLBs.
    pub fn new(geometry: &Geometry) -> TlbPass {
        let base = geometry.base_shift();
        let index_bits = index_bits(base);
        let (mut deltas, mut depths) = ([0; PAGE_SIZES], [0; PAGE_SIZES]);
        for (code, &shift) in geometry.shifts.iter().take(PAGE_SIZES).enumerate() {
            deltas[code] = shift - base;
            depths[code] = (deltas[code] / index_bits).min(UPPER_LEVELS as u32 - 1);
        }
        let (mut entries, mut groups, mut first) = (Entries::default(), Vec::new(), None);
        for level in &geometry.levels {
            let mut level_groups: [[TlbGroup; PAGE_SIZES]; 2] = Default::default();
            for shape in level {
                let array = entries.add(shape.sets, shape.ways);
                for (side, is_served) in [shape.loads, shape.stores].into_iter().enumerate() {
                    for (code, group) in level_groups[side].iter_mut().enumerate() {
                        if is_served && shape.holds & (1 << code) != 0 && group.count < GROUP_MAX {
                            group.arrays[group.count] = array;
                            group.count += 1;
                        }
                    }
                }
            }
            groups.push(level_groups);
            first = first.or(Some(entries.entry_count()));
        }
        TlbPass {
            entries,
            holders: vec![SlotMask::default(); first.unwrap_or(0)],
            groups,
            deltas,
            depths,
            index_bits,
            clock: 0,
            window_start: 0,
            histories: Default::default(),
            caches: WalkCaches::new(geometry.walk_caches, index_bits),
        }
    }

    #[cfg(test)]
    pub(super) fn validate(&self) {
        self.entries.validate();
    }

    /// Models an access. `filter` has uses of which the first level has no record.
    pub(super) fn access(&mut self, access: PageAccess, now: u64, filter: &HitFilter) -> AccessResult {
        let PageAccess { page, store, code } = access;
        let number = page >> self.deltas[code as usize];
        let key = number << CODE_BITS | u64::from(code);
        let (side, size) = (usize::from(store), code as usize);
        let levels = self.groups.len();
        let mut level = 0;
        let outcome = loop {
            if level == levels {
                break AccessOutcome::Walk(self.walk(page, code));
            }
            if let Some(at) = find(&self.entries, &self.groups[level][side][size], number, key) {
                self.entries.set_last_use(at, now);
                if level == 0 {
                    let outcome = AccessOutcome::Hit(0);
                    return AccessResult { outcome, position: at as u32, evicted: None };
                }
                break AccessOutcome::Hit(level);
            }
            level += 1;
        };
        for level in (1..level).rev() {
            insert_translation(
                &mut self.entries,
                &self.groups[level][side][size],
                number,
                key,
                now,
                |_, _| 0,
            );
        }
        let holders = &self.holders;
        let inserted = self.groups.first().and_then(|first| {
            insert_translation(&mut self.entries, &first[side][size], number, key, now, |at, key| {
                last_use_in_filter(key, store, holders.get(at), filter)
            })
        });
        match inserted {
            None => AccessResult { outcome, position: u32::MAX, evicted: None },
            Some((at, old)) => {
                let evicted = match old & CODE_MASK {
                    0 => EvictedPage::Base(old >> CODE_BITS),
                    _ => EvictedPage::Larger,
                };
                AccessResult { outcome, position: at as u32, evicted: (old != EMPTY).then_some(evicted) }
            }
        }
    }

    /// A slot of the hit filter has a page within the larger page at this position of the first level.
    #[inline]
    pub(super) fn add_holder(&mut self, position: u32, slot: usize) {
        debug_assert!(self.is_position(position), "invalid entry position: {position}");
        if let Some(holders) = self.holders.get_mut(position as usize) {
            holders[slot / 64] |= 1 << (slot % 64);
        }
    }

    /// Whether this is the position of an entry; false if there is no first level.
    fn is_position(&self, position: u32) -> bool {
        position == u32::MAX || (position as usize) < self.entries.entry_count()
    }

    /// The slots whose pages lie in the larger page at this position.
    pub(super) fn holders(&self, position: u32) -> SlotMask {
        self.holders.get(position as usize).copied().unwrap_or_default()
    }

    /// A slot is emptied: the first level records the last use of its page.
    #[inline]
    pub(super) fn release(&mut self, position: u32, slot: usize, last: u64) {
        debug_assert!(self.is_position(position), "invalid entry position: {position}");
        self.entries.set_last_use(position as usize, last);
        if let Some(holders) = self.holders.get_mut(position as usize) {
            holders[slot / 64] &= !(1 << (slot % 64));
        }
    }

    /// The number of the last walk of the line of a base page's entry, if its part of the history exists.
    #[inline]
    pub(super) fn last_walk_of_line(&self, page: u64) -> Option<&u64> {
        self.histories[0].slot(page >> LINE_BITS)
    }

    #[inline]
    fn walk(&mut self, page: u64, code: u8) -> PageWalk {
        self.clock += 1;
        let depth = self.depths[code as usize];
        let line = page >> (self.index_bits * depth) >> LINE_BITS;
        let last = self.histories[depth as usize].record_walk(line, self.clock);
        let bucket = last.map_or(FIRST_WALK, |last| (self.clock - last).max(1).ilog2());
        PageWalk { code, bucket, upper: self.caches.walk(page, depth) }
    }

    /// Advances the clock over skipped accesses: they walked as often as the `sampled` ones before them.
    pub(super) fn skip_accesses(&mut self, accesses: u64, sampled: u64) {
        let walks =
            u128::from(self.clock - self.window_start) * u128::from(accesses) / u128::from(sampled.max(1));
        self.clock = self.clock.saturating_add(u64::try_from(walks).unwrap_or(u64::MAX));
        self.window_start = self.clock;
    }

    /// Invalidates the translations of base pages `from..to`, as the kernel does when it unmaps them.
    pub(super) fn invalidate(&mut self, from: u64, to: u64) {
        let deltas = self.deltas;
        self.entries.invalidate(|key| {
            let delta = deltas[(key & CODE_MASK) as usize];
            let first = key >> CODE_BITS << delta;
            first < to && from < first + (1 << delta)
        });
        self.caches.clear();
    }
}

#[inline]
fn find(entries: &Entries, group: &TlbGroup, number: u64, key: u64) -> Option<usize> {
    group.arrays().iter().find_map(|array| entries.find(array, number, key))
}

/// Replaces the least recently used entry of a group by a translation. Returns its position and its old key.
#[inline]
fn insert_translation(
    entries: &mut Entries,
    group: &TlbGroup,
    number: u64,
    key: u64,
    now: u64,
    last_use: impl Fn(usize, u64) -> u64,
) -> Option<(usize, u64)> {
    let mut best: Option<(&TlbArray, usize, u64)> = None;
    for array in group.arrays() {
        let (at, stamp) = entries.oldest(array, number, &last_use);
        if best.is_none_or(|(_, _, oldest)| stamp < oldest) {
            best = Some((array, at, stamp));
        }
    }
    let (array, at, _) = best?;
    Some((at, entries.replace(array, at, key, now)))
}

/// The last use of an entry of the first level that the hit filter has; 0 if it has none.
#[inline]
fn last_use_in_filter(key: u64, store: bool, holders: Option<&SlotMask>, filter: &HitFilter) -> u64 {
    if key == EMPTY {
        return 0;
    }
    if key & CODE_MASK != 0 {
        return holders.map_or(0, |holders| filter.last_use(holders));
    }
    let slot = filter.slot(key >> CODE_BITS, store);
    // By arithmetic: a branch would be mispredicted half of the time.
    slot.last * u64::from(slot.page == key >> CODE_BITS)
}
