//! The geometry of the modelled TLBs and paging-structure caches, encoded as 64-bit words to pass it from one
//! process to another.

/// Page sizes that the model distinguishes.
pub const PAGE_SIZES: usize = 5;
/// Levels of page tables above the entries of base pages whose entries are cached: PDE, PDPTE, PML4E.
pub const UPPER_LEVELS: usize = 3;

/// log2 of the entries of a page table for base pages of 2^`base_shift` bytes and entries of 8 bytes.
pub const fn index_bits(base_shift: u32) -> u32 {
    base_shift - 3
}

/// One TLB: set-associative, the least recently used entry of a set is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayShape {
    /// Sets, 1 or more; the low bits of the page number choose one, or the remainder if it is no power of 2.
    pub sets: u32,
    /// Ways of a set, 1 or more.
    pub ways: u32,
    /// A bit for each size of page that it holds: bit 0 for `shifts[0]`, and so on.
    pub holds: u8,
    /// It translates loads.
    pub loads: bool,
    /// It translates stores.
    pub stores: bool,
}

/// All TLBs and walk caches of one processor core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// log2 of the page sizes in bytes, rising; the first is the base page.
    pub shifts: Vec<u32>,
    /// TLBs by level, the first level first. TLBs of one level that hold the same size are searched
    /// together, and the least recently used entry of both sets is evicted.
    pub levels: Vec<Vec<ArrayShape>>,
    /// (sets, ways) of the paging-structure caches: of PDEs (which save a walk of a base page all loads but
    /// one), PDPTEs, PML4Es. 0 ways: no such cache.
    pub walk_caches: [(u32, u32); UPPER_LEVELS],
}

impl Geometry {
    /// log2 of the base page.
    pub fn base_shift(&self) -> u32 {
        debug_assert!(!self.shifts.is_empty(), "geometry without a base page");
        self.shifts.first().copied().unwrap_or(0)
    }

    /// The page size that the TLBs hold for memory in pages of 2^`shift` bytes: the largest one that is no
    /// larger and that some TLB holds. A page that no TLB holds is split into smaller ones.
    pub fn code_for(&self, shift: u32) -> u8 {
        let held = self.levels.iter().flatten().fold(0u8, |held, array| held | array.holds);
        let fits = |&code: &usize| self.shifts[code] <= shift && held & (1 << code) != 0;
        (0..self.shifts.len().min(PAGE_SIZES)).rev().find(fits).unwrap_or(0) as u8
    }

    /// Whether loads and stores have TLBs of their own at the first level.
    pub fn splits_stores(&self) -> bool {
        self.levels.first().is_some_and(|level| level.iter().any(|array| array.loads != array.stores))
    }

    /// As words.
    pub fn encode(&self) -> Vec<u64> {
        let mut words = vec![self.shifts.len() as u64];
        words.extend(self.shifts.iter().map(|&shift| u64::from(shift)));
        words.push(self.levels.len() as u64);
        for level in &self.levels {
            words.push(level.len() as u64);
            for array in level {
                let sides = u64::from(array.loads) | u64::from(array.stores) << 1;
                words.extend([array.sets.into(), array.ways.into(), array.holds.into(), sides]);
            }
        }
        words.extend(self.walk_caches.iter().flat_map(|&(sets, ways)| [u64::from(sets), u64::from(ways)]));
        words
    }

    /// From words, and their number; `None` if [`Geometry::encode`] does not write such words.
    pub fn decode(words: &[u64]) -> Option<(Geometry, usize)> {
        /// More than any processor has.
        const COUNT_MAX: u64 = 64;
        /// So that a TLB of any description fits into memory.
        const ENTRIES_MAX: u64 = 1 << 24;
        let mut at = 0;
        let mut next = || {
            let word = words.get(at).copied();
            at += 1;
            word
        };
        let count = next().filter(|&count| (1..=PAGE_SIZES as u64).contains(&count))?;
        let shifts = (0..count).map(|_| next().filter(|&shift| shift < COUNT_MAX).map(|shift| shift as u32));
        let shifts: Vec<u32> = shifts.collect::<Option<_>>()?;
        let mut levels = Vec::new();
        for _ in 0..next().filter(|&count| count <= COUNT_MAX)? {
            let mut level = Vec::new();
            for _ in 0..next().filter(|&count| count <= COUNT_MAX)? {
                let (sets, ways, holds, sides) = (next()?, next()?, next()?, next()?);
                if sets == 0 || ways == 0 || sets.saturating_mul(ways) > ENTRIES_MAX {
                    return None;
                }
                level.push(ArrayShape {
                    sets: sets as u32,
                    ways: ways as u32,
                    holds: holds as u8,
                    loads: sides & 1 != 0,
                    stores: sides & 2 != 0,
                });
            }
            levels.push(level);
        }
        let mut walk_caches = [(0, 0); UPPER_LEVELS];
        for cache in &mut walk_caches {
            let (sets, ways) = (next()?, next()?);
            if sets.saturating_mul(ways) > ENTRIES_MAX {
                return None;
            }
            *cache = (sets as u32, ways as u32);
        }
        Some((Geometry { shifts, levels, walk_caches }, at))
    }
}
