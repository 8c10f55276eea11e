//! Paging-structure caches: they hold upper-level entries, so that a walk begins below them.

use super::geometry::UPPER_LEVELS;

const NO_ENTRY: u64 = u64::MAX;

/// One cache: sets of entries, the least recently used is evicted.
#[derive(Clone, Debug)]
struct WalkCache {
    sets: u64,
    /// `sets - 1` where that is a mask.
    mask: Option<u64>,
    ways: usize,
    /// (entry's number, last use).
    entries: Vec<(u64, u64)>,
}

impl WalkCache {
    fn new(sets: u32, ways: u32) -> WalkCache {
        let (sets, ways) = (u64::from(sets.max(1)), ways as usize);
        let mask = sets.is_power_of_two().then(|| sets - 1);
        WalkCache { sets, mask, ways, entries: vec![(NO_ENTRY, 0); sets as usize * ways] }
    }

    /// Looks up an entry, and inserts it if it is missing. Whether it was there.
    fn access(&mut self, number: u64, now: u64) -> bool {
        let set = self.mask.map_or_else(|| number % self.sets, |mask| number & mask);
        let start = set as usize * self.ways;
        let set = &mut self.entries[start..start + self.ways];
        if let Some(entry) = set.iter_mut().find(|entry| entry.0 == number) {
            entry.1 = now;
            return true;
        }
        if let Some(oldest) = set.iter_mut().min_by_key(|entry| entry.1) {
            *oldest = (number, now);
        }
        false
    }
}

/// The caches of PDEs, PDPTEs and PML4Es.
#[derive(Clone, Debug)]
pub struct WalkCaches {
    caches: [WalkCache; UPPER_LEVELS],
    index_bits: u32,
    now: u64,
}

impl WalkCaches {
    /// Empty caches of (sets, ways); 0 ways: no cache.
    pub fn new(shapes: [(u32, u32); UPPER_LEVELS], index_bits: u32) -> WalkCaches {
        WalkCaches { caches: shapes.map(|(sets, ways)| WalkCache::new(sets, ways)), index_bits, now: 0 }
    }

    /// A walk for base page `page` whose last entry is `level` levels above those of base pages: which of the
    /// upper levels are read, besides that last entry. The first level that hits ends the search upwards.
    pub fn walk(&mut self, page: u64, level: u32) -> [bool; UPPER_LEVELS] {
        self.now += 1;
        let mut read = [false; UPPER_LEVELS];
        let uppers = (1..).zip(self.caches.iter_mut().zip(&mut read)).skip(level as usize);
        for (tables, (cache, read)) in uppers {
            if cache.access(page >> (self.index_bits * tables), self.now) {
                break;
            }
            *read = true;
        }
        read
    }

    /// Invalidates all (a change of page tables above the last level).
    pub fn clear(&mut self) {
        self.caches.iter_mut().for_each(|cache| cache.entries.fill((NO_ENTRY, 0)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_begins_at_a_cached_level() {
        let mut caches = WalkCaches::new([(1, 2), (1, 1), (0, 0)], 9);
        assert_eq!(caches.walk(0, 0), [true; 3], "nothing is cached");
        assert_eq!(caches.walk(511, 0), [false; 3], "the same PDE");
        assert_eq!(caches.walk(512, 0), [true, false, false], "the next PDE below the same PDPTE");
        assert_eq!(caches.walk(1024, 1), [false, false, false], "a huge page reads the PDE itself");
        assert_eq!(
            caches.walk(1024, 0),
            [true, false, false],
            "and the PDE of a huge page points to no table"
        );
        assert_eq!(caches.walk(511, 0), [true, false, false], "two PDEs fit");
        assert_eq!(caches.walk(1 << 18, 1), [false, true, true], "another PDPTE, and PML4Es are not kept");
    }
}
