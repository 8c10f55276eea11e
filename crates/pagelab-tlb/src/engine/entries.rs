//! The entries of all TLBs of a pass in flat columns: they are found by page and evicted by age.
//!
//! The age of an entry is its stamp, the access that used it last, unless the hit filter has a later use. So
//! a stamp may be too small and never too large: an entry whose stamp is right and the smallest is the least
//! recently used one, and the others need not be checked.

/// No page.
pub(super) const EMPTY: u64 = u64::MAX;
/// Bits of a key below the page number.
pub(super) const CODE_BITS: u32 = 3;
/// The end of a chain.
const CHAIN_END: u32 = u32::MAX;
/// Ways of a set that are searched one by one, at most. In wider sets keys are found by hash and the oldest
/// entry by groups of ways: as exact, and the cost does not grow with the ways.
const LINEAR_SEARCH_WAYS: usize = 16;
/// Entries of a wide set for which one lower bound of their stamps is kept.
const BOUND_GROUP: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TlbArray {
    /// Its first entry.
    start: usize,
    sets: u64,
    /// `sets - 1` where that is a mask.
    mask: Option<u64>,
    ways: usize,
    /// Of a wide one: its first chain, and bits of the hash that chooses one; 0 bits: it is narrow.
    heads_at: usize,
    heads_bits: u32,
    /// Of a wide one: its first bound.
    bounds_at: usize,
}

impl TlbArray {
    #[inline]
    fn set(&self, number: u64) -> usize {
        self.mask.map_or_else(|| number % self.sets, |mask| number & mask) as usize
    }

    #[inline]
    fn is_wide(&self) -> bool {
        self.heads_bits > 0
    }

    /// The chain of a key.
    #[inline]
    fn head(&self, key: u64) -> usize {
        // Fibonacci hashing: the upper bits of the product depend on all bits of the key.
        self.heads_at + (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - self.heads_bits)) as usize
    }
}

#[derive(Debug, Default)]
pub(super) struct Entries {
    /// Translations: (page number of its size) << [`CODE_BITS`] | code.
    keys: Vec<u64>,
    /// Last use of each, in accesses; 0 if there is none.
    stamps: Vec<u64>,
    /// Of entries of wide sets: the next one of the chain.
    next: Vec<u32>,
    heads: Vec<u32>,
    /// By group of ways: no stamp of the group is smaller.
    bounds: Vec<u64>,
    arrays: Vec<TlbArray>,
}

impl Entries {
    /// Adds an empty TLB.
    pub fn add(&mut self, sets: u32, ways: u32) -> TlbArray {
        let (at, count) = (self.keys.len(), sets as usize * ways as usize);
        let (sets, ways) = (u64::from(sets), ways as usize);
        let mask = sets.is_power_of_two().then(|| sets - 1);
        let mut array = TlbArray { start: at, sets, mask, ways, ..TlbArray::default() };
        self.keys.resize(at + count, EMPTY);
        self.stamps.resize(at + count, 0);
        self.next.resize(at + count, CHAIN_END);
        if ways > LINEAR_SEARCH_WAYS {
            // Twice as many chains as entries.
            array.heads_bits = (2 * count).next_power_of_two().trailing_zeros();
            (array.heads_at, array.bounds_at) = (self.heads.len(), self.bounds.len());
            self.heads.resize(array.heads_at + (1 << array.heads_bits), CHAIN_END);
            self.bounds.resize(array.bounds_at + sets as usize * ways.div_ceil(BOUND_GROUP), 0);
        }
        self.arrays.push(array);
        array
    }

    /// Entries of all TLBs so far.
    pub fn entry_count(&self) -> usize {
        self.keys.len()
    }

    /// The position of a page.
    #[inline]
    pub fn find(&self, array: &TlbArray, number: u64, key: u64) -> Option<usize> {
        if array.is_wide() {
            let mut at = self.heads[array.head(key)];
            while at != CHAIN_END {
                if self.keys[at as usize] == key {
                    return Some(at as usize);
                }
                at = self.next[at as usize];
            }
            return None;
        }
        let start = array.start + array.set(number) * array.ways;
        let mut found = None;
        // No early return: a mispredicted branch costs more than the remaining ways.
        for (way, &stored) in self.keys[start..start + array.ways].iter().enumerate() {
            if stored == key {
                found = Some(start + way);
            }
        }
        found
    }

    /// The least recently used entry of the set of a page: (position, stamp). `last_use` is a later use of
    /// the page at a position, 0 if there is none.
    #[inline]
    pub fn oldest(
        &mut self,
        array: &TlbArray,
        number: u64,
        last_use: impl Fn(usize, u64) -> u64,
    ) -> (usize, u64) {
        let set = array.set(number);
        let start = array.start + set * array.ways;
        if !array.is_wide() {
            return self.oldest_way(start, array.ways, &last_use);
        }
        let groups = array.ways.div_ceil(BOUND_GROUP);
        let bounds_at = array.bounds_at + set * groups;
        loop {
            let (group, next) = two_smallest(&self.bounds[bounds_at..bounds_at + groups]);
            let first = group * BOUND_GROUP;
            let found = self.oldest_way(start + first, BOUND_GROUP.min(array.ways - first), &last_use);
            self.bounds[bounds_at + group] = found.1;
            if found.1 <= next {
                return found;
            }
        }
    }

    #[inline]
    fn oldest_way(
        &mut self,
        start: usize,
        ways: usize,
        last_use: &impl Fn(usize, u64) -> u64,
    ) -> (usize, u64) {
        loop {
            let (way, stamp) = {
                let stamps = &self.stamps[start..start + ways];
                // By arithmetic: a branch on the position of the smallest one cannot be predicted.
                let (mut way, mut least) = (0, u64::MAX);
                for (other, &stamp) in stamps.iter().enumerate() {
                    way = if stamp < least { other } else { way };
                    least = least.min(stamp);
                }
                (way, least)
            };
            let at = start + way;
            let later = last_use(at, self.keys[at]);
            if later <= stamp {
                return (at, stamp);
            }
            self.stamps[at] = later;
        }
    }

    /// Replaces the page at a position, and returns the old one.
    #[inline]
    pub fn replace(&mut self, array: &TlbArray, at: usize, key: u64, now: u64) -> u64 {
        let old = std::mem::replace(&mut self.keys[at], key);
        self.stamps[at] = now;
        if array.is_wide() {
            if old != EMPTY {
                self.unchain(array, at, old);
            }
            let head = &mut self.heads[array.head(key)];
            self.next[at] = std::mem::replace(head, at as u32);
        }
        old
    }

    /// Records a use of an entry; an earlier one than the last changes nothing.
    #[inline]
    pub fn set_last_use(&mut self, at: usize, when: u64) {
        if let Some(stamp) = self.stamps.get_mut(at) {
            *stamp = (*stamp).max(when);
        }
    }

    #[inline]
    fn unchain(&mut self, array: &TlbArray, at: usize, key: u64) {
        let head = array.head(key);
        let after = self.next[at];
        if self.heads[head] as usize == at {
            self.heads[head] = after;
            return;
        }
        let mut before = self.heads[head];
        while before != CHAIN_END {
            let next = self.next[before as usize];
            if next as usize == at {
                self.next[before as usize] = after;
                return;
            }
            before = next;
        }
        debug_assert!(false, "key {key:x} is on no chain");
    }

    /// Invalidates the entries that `is_stale` selects.
    pub fn invalidate(&mut self, is_stale: impl Fn(u64) -> bool) {
        for index in 0..self.arrays.len() {
            let array = self.arrays[index];
            for at in array.start..array.start + array.sets as usize * array.ways {
                let key = self.keys[at];
                if key == EMPTY || !is_stale(key) {
                    continue;
                }
                (self.keys[at], self.stamps[at]) = (EMPTY, 0);
                if array.is_wide() {
                    self.unchain(&array, at, key);
                    let (set, way) = ((at - array.start) / array.ways, (at - array.start) % array.ways);
                    self.bounds
                        [array.bounds_at + set * array.ways.div_ceil(BOUND_GROUP) + way / BOUND_GROUP] = 0;
                }
            }
        }
    }
}

/// The index of the smallest number, and the smallest of the others.
#[inline]
fn two_smallest(numbers: &[u64]) -> (usize, u64) {
    let (mut which, mut first, mut second) = (0, u64::MAX, u64::MAX);
    for (other, &number) in numbers.iter().enumerate() {
        let is_less = number < first;
        second = second.min(if is_less { first } else { number });
        which = if is_less { other } else { which };
        first = first.min(number);
    }
    (which, second)
}

#[cfg(test)]
impl Entries {
    /// Each page of a wide TLB is found by its chain, no chain has another, and no bound is above a stamp of
    /// its group.
    pub fn validate(&self) {
        for array in self.arrays.iter().filter(|array| array.is_wide()) {
            let positions = array.start..array.start + array.sets as usize * array.ways;
            let mut chained = 0;
            for &head in &self.heads[array.heads_at..array.heads_at + (1 << array.heads_bits)] {
                let mut at = head;
                while at != CHAIN_END {
                    assert!(positions.contains(&(at as usize)));
                    chained += 1;
                    assert!(chained <= positions.len(), "a chain goes in a circle");
                    at = self.next[at as usize];
                }
            }
            let occupied: Vec<usize> = positions.filter(|&at| self.keys[at] != EMPTY).collect();
            assert_eq!(chained, occupied.len());
            for at in occupied {
                let key = self.keys[at];
                assert_eq!(self.find(array, key >> CODE_BITS, key), Some(at));
                let (set, way) = ((at - array.start) / array.ways, (at - array.start) % array.ways);
                let bound =
                    self.bounds[array.bounds_at + set * array.ways.div_ceil(BOUND_GROUP) + way / BOUND_GROUP];
                assert!(bound <= self.stamps[at]);
            }
        }
    }
}
