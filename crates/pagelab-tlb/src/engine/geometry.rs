//! The shape of the TLBs and of the caches of page walks that the model has, as plain words: it is handed
//! from one process to another.

/// Sizes of pages that the model tells apart.
pub const SIZES: usize = 5;
/// Levels of page tables above the entries of base pages whose entries are cached: PDE, PDPTE, PML4E.
pub const UPPER: usize = 3;

/// log2 of the entries of a page table for base pages of 2^`base_shift` bytes and entries of 8 bytes.
pub const fn index_bits(base_shift: u32) -> u32 {
    base_shift - 3
}

/// One TLB: entries in sets that are searched as a whole, the least recently used of a set gives way.
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
    /// together, and the least recently used entry of both sets gives way.
    pub levels: Vec<Vec<ArrayShape>>,
    /// (sets, ways) of the caches of entries that point to page tables: those of PDEs (which end a walk of a
    /// base page one load early), PDPTEs, PML4Es. 0 ways: there is none.
    pub walk_caches: [(u32, u32); UPPER],
}

impl Geometry {
    /// log2 of the base page.
    pub fn base_shift(&self) -> u32 {
        self.shifts.first().copied().unwrap_or(0)
    }

    /// The size of page that the TLBs see where memory lies in pages of 2^`shift` bytes: the largest one that
    /// is no larger and that some TLB holds. A page that no TLB holds is broken up into smaller ones.
    pub fn code_for(&self, shift: u32) -> u8 {
        let held = self.levels.iter().flatten().fold(0u8, |held, array| held | array.holds);
        let fits = |&code: &usize| self.shifts[code] <= shift && held & (1 << code) != 0;
        (0..self.shifts.len().min(SIZES)).rev().find(fits).unwrap_or(0) as u8
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

    /// From words, with how many they were; `None` if they are not what [`Geometry::encode`] writes.
    pub fn decode(words: &[u64]) -> Option<(Geometry, usize)> {
        /// More than any processor has.
        const MOST: u64 = 64;
        /// So that a set fits into memory whatever the words say.
        const ENTRIES_MOST: u64 = 1 << 24;
        let mut at = 0;
        let mut next = || {
            let word = words.get(at).copied();
            at += 1;
            word
        };
        let count = next().filter(|&count| (1..=SIZES as u64).contains(&count))?;
        let shifts = (0..count).map(|_| next().filter(|&shift| shift < MOST).map(|shift| shift as u32));
        let shifts: Vec<u32> = shifts.collect::<Option<_>>()?;
        let mut levels = Vec::new();
        for _ in 0..next().filter(|&count| count <= MOST)? {
            let mut level = Vec::new();
            for _ in 0..next().filter(|&count| count <= MOST)? {
                let (sets, ways, holds, sides) = (next()?, next()?, next()?, next()?);
                if sets == 0 || ways == 0 || sets.saturating_mul(ways) > ENTRIES_MOST {
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
        let mut walk_caches = [(0, 0); UPPER];
        for cache in &mut walk_caches {
            let (sets, ways) = (next()?, next()?);
            if sets.saturating_mul(ways) > ENTRIES_MOST {
                return None;
            }
            *cache = (sets as u32, ways as u32);
        }
        Some((Geometry { shifts, levels, walk_caches }, at))
    }
}
