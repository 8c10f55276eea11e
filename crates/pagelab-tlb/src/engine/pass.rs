//! One pass: the TLBs of a core, with the memory on pages of the sizes that the pass says.

use super::entries::{Array, CODE_BITS, EMPTY, Entries};
use super::front::{Front, Slots};
use super::geometry::{Geometry, SIZES, UPPER, index_bits};
use super::lines::Lines;
use super::walk::WalkCaches;

/// Base pages whose entries of 8 bytes stand in one line of 64 bytes, as log2.
const LINE_BITS: u32 = 3;
const CODE_MASK: u64 = (1 << CODE_BITS) - 1;
/// TLBs of one level that one access can look into, at most; further ones are left out.
const GROUP: usize = 4;

/// Walks of lines that were never walked before.
pub const FIRST: u32 = 63;

/// The TLBs that one kind of access with one size of page looks into, in place: a pointer less to follow.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    arrays: [Array; GROUP],
    count: usize,
}

impl Group {
    fn arrays(&self) -> &[Array] {
        &self.arrays[..self.count.min(GROUP)]
    }
}

/// What one access came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The translation was in a TLB of this level; 0 is the first.
    Level(usize),
    /// A page walk.
    Walk(Walk),
}

/// A page walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// The size of the page, by its place in the geometry's sizes.
    pub code: u8,
    /// log2 of the reuse distance of the line that its last entry stands in, or [`FIRST`].
    pub bucket: u32,
    /// Which of the upper levels were read.
    pub upper: [bool; UPPER],
}

/// What an access did to the first level.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub found: Found,
    /// Where the page stands in the first level now; `None` without a first level.
    pub position: u32,
    /// What gave way there: its place, and its base page if it was one.
    pub evicted: Option<Option<u64>>,
}

/// The state of one pass.
#[derive(Debug)]
pub struct Pass {
    entries: Entries,
    /// By place in the first level: slots of the front whose pages lie in the larger page there.
    holders: Vec<Slots>,
    /// By level, kind of access (0 load, 1 store) and code.
    groups: Vec<[[Group; SIZES]; 2]>,
    /// Page sizes over the base page, as log2.
    deltas: [u32; SIZES],
    /// Levels of page tables between an entry of each size and those of base pages.
    depths: [u32; SIZES],
    index_bits: u32,
    walks: u64,
    /// The clock of reuse distances: walks, and those that would have been while nothing was looked at.
    clock: u64,
    /// What the clock was when a stretch of accesses began.
    began: u64,
    lines: [Lines; UPPER],
    caches: WalkCaches,
}

impl Pass {
    /// Empty TLBs.
    pub fn new(geometry: &Geometry) -> Pass {
        let base = geometry.base_shift();
        let index_bits = index_bits(base);
        let (mut deltas, mut depths) = ([0; SIZES], [0; SIZES]);
        for (code, &shift) in geometry.shifts.iter().take(SIZES).enumerate() {
            deltas[code] = shift - base;
            depths[code] = (deltas[code] / index_bits).min(UPPER as u32 - 1);
        }
        let (mut entries, mut groups, mut first) = (Entries::default(), Vec::new(), None);
        for level in &geometry.levels {
            let mut of_level: [[Group; SIZES]; 2] = Default::default();
            for shape in level {
                let array = entries.add(shape.sets, shape.ways);
                for (side, takes) in [shape.loads, shape.stores].into_iter().enumerate() {
                    for (code, group) in of_level[side].iter_mut().enumerate() {
                        if takes && shape.holds & (1 << code) != 0 && group.count < GROUP {
                            group.arrays[group.count] = array;
                            group.count += 1;
                        }
                    }
                }
            }
            groups.push(of_level);
            first = first.or(Some(entries.places()));
        }
        Pass {
            entries,
            holders: vec![Slots::default(); first.unwrap_or(0)],
            groups,
            deltas,
            depths,
            index_bits,
            walks: 0,
            clock: 0,
            began: 0,
            lines: Default::default(),
            caches: WalkCaches::new(geometry.walk_caches, index_bits),
        }
    }

    #[cfg(test)]
    pub(super) fn validate(&self) {
        self.entries.validate();
    }

    /// Page walks so far.
    pub fn walks(&self) -> u64 {
        self.walks
    }

    /// An access to a base page that lies in a page of size `code`. `front` knows of uses that the first
    /// level was not told of.
    pub(super) fn access(&mut self, (page, store, code): (u64, bool, u8), now: u64, front: &Front) -> Access {
        let number = page >> self.deltas[code as usize];
        let key = number << CODE_BITS | u64::from(code);
        let (side, size) = (usize::from(store), code as usize);
        let levels = self.groups.len();
        let mut level = 0;
        let found = loop {
            if level == levels {
                break Found::Walk(self.walk(page, code));
            }
            if let Some(at) = self.find((level, side, size), number, key) {
                self.entries.used(at, now);
                if level == 0 {
                    return Access { found: Found::Level(0), position: at as u32, evicted: None };
                }
                break Found::Level(level);
            }
            level += 1;
        };
        for level in (1..level).rev() {
            fill(&mut self.entries, &self.groups[level][side][size], number, (key, now), |_, _| 0);
        }
        let holders = &self.holders;
        let filled = self.groups.first().and_then(|first| {
            fill(&mut self.entries, &first[side][size], number, (key, now), |at, key| {
                used((key, store), holders.get(at), front)
            })
        });
        match filled {
            None => Access { found, position: u32::MAX, evicted: None },
            Some((at, old)) => {
                let of_base = |old: u64| (old & CODE_MASK == 0).then_some(old >> CODE_BITS);
                Access { found, position: at as u32, evicted: (old != EMPTY).then(|| of_base(old)) }
            }
        }
    }

    #[inline]
    fn find(&self, (level, side, size): (usize, usize, usize), number: u64, key: u64) -> Option<usize> {
        let arrays = self.groups[level][side][size].arrays();
        arrays.iter().find_map(|array| self.entries.find(array, number, key))
    }

    /// A slot of the front has a page that lies in the larger page at this place of the first level.
    #[inline]
    pub(super) fn hold(&mut self, position: u32, slot: usize) {
        if let Some(holders) = self.holders.get_mut(position as usize) {
            holders[slot / 64] |= 1 << (slot % 64);
        }
    }

    /// The slots whose pages lie in the larger page at this place.
    pub(super) fn holders(&self, position: u32) -> Slots {
        self.holders.get(position as usize).copied().unwrap_or_default()
    }

    /// A slot is given up: a use that the first level was not told of.
    #[inline]
    pub(super) fn release(&mut self, position: u32, slot: usize, last: u64) {
        self.entries.used(position as usize, last);
        if let Some(holders) = self.holders.get_mut(position as usize) {
            holders[slot / 64] &= !(1 << (slot % 64));
        }
    }

    /// Where the last walk of the line of a base page's entry stands, if it was walked.
    #[inline]
    pub(super) fn line_of(&self, page: u64) -> Option<&u64> {
        self.lines[0].place(page >> LINE_BITS)
    }

    #[inline]
    fn walk(&mut self, page: u64, code: u8) -> Walk {
        self.walks += 1;
        self.clock += 1;
        let depth = self.depths[code as usize];
        let line = page >> (self.index_bits * depth) >> LINE_BITS;
        let last = self.lines[depth as usize].walk(line, self.clock);
        let bucket = last.map_or(FIRST, |last| (self.clock - last).max(1).ilog2());
        Walk { code, bucket, upper: self.caches.walk(page, depth) }
    }

    /// So many accesses went by that were not looked at, after a stretch of `watched`: they walked as often.
    pub(super) fn rested(&mut self, accesses: u64, watched: u64) {
        let walks = u128::from(self.clock - self.began) * u128::from(accesses) / u128::from(watched.max(1));
        self.clock = self.clock.saturating_add(u64::try_from(walks).unwrap_or(u64::MAX));
        self.began = self.clock;
    }

    /// Forgets the translations of base pages `from..to`, as the kernel does when it unmaps them.
    pub(super) fn forget(&mut self, from: u64, to: u64) {
        let deltas = self.deltas;
        self.entries.forget(|key| {
            let delta = deltas[(key & CODE_MASK) as usize];
            let first = key >> CODE_BITS << delta;
            first < to && from < first + (1 << delta)
        });
        self.caches.clear();
    }
}

/// Puts a translation in the place of the least recently used of a group; gives the place, and what was
/// there.
#[inline]
fn fill(
    entries: &mut Entries,
    group: &Group,
    number: u64,
    (key, now): (u64, u64),
    used: impl Fn(usize, u64) -> u64,
) -> Option<(usize, u64)> {
    let mut best: Option<(&Array, usize, u64)> = None;
    for array in group.arrays() {
        let (at, stamp) = entries.oldest(array, number, &used);
        if best.is_none_or(|(_, _, least)| stamp < least) {
            best = Some((array, at, stamp));
        }
    }
    let (array, at, _) = best?;
    Some((at, entries.put(array, at, key, now)))
}

/// What the front knows of the last use of an entry of the first level; 0 is nothing.
#[inline]
fn used((key, store): (u64, bool), holders: Option<&Slots>, front: &Front) -> u64 {
    if key == EMPTY {
        return 0;
    }
    if key & CODE_MASK != 0 {
        return holders.map_or(0, |holders| front.last_of(holders));
    }
    let known = front.slot(key >> CODE_BITS, store);
    // By arithmetic: the branch would be foretold wrongly half of the time.
    known.last * u64::from(known.page == key >> CODE_BITS)
}
