//! The entries of all TLBs of a pass in flat columns: they are found by page, and given up by age.
//!
//! What counts as the age of an entry is its stamp, the access that used it last, unless something outside
//! knows of a later use. So a stamp may be too small and never too large: an entry whose stamp is right and
//! the smallest is the oldest, and the others need not be looked at.

/// No page.
pub(super) const EMPTY: u64 = u64::MAX;
/// Bits of a key below the page number.
pub(super) const CODE_BITS: u32 = 3;
/// The end of a chain.
const NOWHERE: u32 = u32::MAX;
/// Ways of a set that are searched one by one, at most. Above, keys are found by hash and the oldest entry by
/// clans: exact as well, and the cost does not grow with the ways.
const NARROW: usize = 16;
/// Entries of a wide set for which one lower bound of their stamps is kept.
const CLAN: usize = 8;

/// One TLB.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Array {
    at: usize,
    sets: u64,
    /// `sets - 1` where that is a mask.
    mask: Option<u64>,
    ways: usize,
    /// Of a wide one: where its chains begin, and bits of the hash that chooses one; 0 bits: it is narrow.
    heads_at: usize,
    heads_bits: u32,
    /// Of a wide one: where the bounds of its clans begin.
    bounds_at: usize,
}

impl Array {
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

/// The entries.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// Translations: (page number of its size) << [`CODE_BITS`] | code.
    keys: Vec<u64>,
    /// Last use of each, in accesses; 0 where there is none.
    stamps: Vec<u64>,
    /// Of entries of wide sets: the next one of the chain.
    next: Vec<u32>,
    heads: Vec<u32>,
    /// No stamp of the clan is smaller.
    bounds: Vec<u64>,
    arrays: Vec<Array>,
}

impl Entries {
    /// One more TLB, which is empty.
    pub fn add(&mut self, sets: u32, ways: u32) -> Array {
        let (at, count) = (self.keys.len(), sets as usize * ways as usize);
        let (sets, ways) = (u64::from(sets), ways as usize);
        let mask = sets.is_power_of_two().then(|| sets - 1);
        let mut array = Array { at, sets, mask, ways, ..Array::default() };
        self.keys.resize(at + count, EMPTY);
        self.stamps.resize(at + count, 0);
        self.next.resize(at + count, NOWHERE);
        if ways > NARROW {
            // Twice as many chains as entries.
            array.heads_bits = (2 * count).next_power_of_two().trailing_zeros();
            (array.heads_at, array.bounds_at) = (self.heads.len(), self.bounds.len());
            self.heads.resize(array.heads_at + (1 << array.heads_bits), NOWHERE);
            self.bounds.resize(array.bounds_at + sets as usize * ways.div_ceil(CLAN), 0);
        }
        self.arrays.push(array);
        array
    }

    /// All places so far.
    pub fn places(&self) -> usize {
        self.keys.len()
    }

    /// Where a page is.
    #[inline]
    pub fn find(&self, array: &Array, number: u64, key: u64) -> Option<usize> {
        if array.is_wide() {
            let mut at = self.heads[array.head(key)];
            while at != NOWHERE {
                if self.keys[at as usize] == key {
                    return Some(at as usize);
                }
                at = self.next[at as usize];
            }
            return None;
        }
        let start = array.at + array.set(number) * array.ways;
        let mut found = None;
        // Without a way out in the middle: a branch that is foretold wrongly costs more than the rest.
        for (way, &held) in self.keys[start..start + array.ways].iter().enumerate() {
            if held == key {
                found = Some(start + way);
            }
        }
        found
    }

    /// The oldest entry of the set of a page: (place, stamp). `used` tells of a later use of the page in a
    /// place, 0 if it knows of none.
    #[inline]
    pub fn oldest(&mut self, array: &Array, number: u64, used: impl Fn(usize, u64) -> u64) -> (usize, u64) {
        let set = array.set(number);
        let start = array.at + set * array.ways;
        if !array.is_wide() {
            return self.oldest_of(start, array.ways, &used);
        }
        let clans = array.ways.div_ceil(CLAN);
        let bounds_at = array.bounds_at + set * clans;
        loop {
            let (clan, next) = least(&self.bounds[bounds_at..bounds_at + clans]);
            let first = clan * CLAN;
            let found = self.oldest_of(start + first, CLAN.min(array.ways - first), &used);
            self.bounds[bounds_at + clan] = found.1;
            if found.1 <= next {
                return found;
            }
        }
    }

    #[inline]
    fn oldest_of(&mut self, start: usize, ways: usize, used: &impl Fn(usize, u64) -> u64) -> (usize, u64) {
        loop {
            let (way, stamp) = {
                let stamps = &self.stamps[start..start + ways];
                // By arithmetic: where the least one stands cannot be foretold.
                let (mut way, mut least) = (0, u64::MAX);
                for (other, &stamp) in stamps.iter().enumerate() {
                    way = if stamp < least { other } else { way };
                    least = least.min(stamp);
                }
                (way, least)
            };
            let at = start + way;
            let later = used(at, self.keys[at]);
            if later <= stamp {
                return (at, stamp);
            }
            self.stamps[at] = later;
        }
    }

    /// Puts a page into a place, and gives what was there.
    #[inline]
    pub fn put(&mut self, array: &Array, at: usize, key: u64, now: u64) -> u64 {
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

    /// The entry was used; never earlier than what is known.
    #[inline]
    pub fn used(&mut self, at: usize, when: u64) {
        if let Some(stamp) = self.stamps.get_mut(at) {
            *stamp = (*stamp).max(when);
        }
    }

    #[inline]
    fn unchain(&mut self, array: &Array, at: usize, key: u64) {
        let head = array.head(key);
        let after = self.next[at];
        if self.heads[head] as usize == at {
            self.heads[head] = after;
            return;
        }
        let mut before = self.heads[head];
        while before != NOWHERE {
            let next = self.next[before as usize];
            if next as usize == at {
                self.next[before as usize] = after;
                return;
            }
            before = next;
        }
    }

    /// Forgets the entries that `is_gone` says.
    pub fn forget(&mut self, is_gone: impl Fn(u64) -> bool) {
        for index in 0..self.arrays.len() {
            let array = self.arrays[index];
            for at in array.at..array.at + array.sets as usize * array.ways {
                let key = self.keys[at];
                if key == EMPTY || !is_gone(key) {
                    continue;
                }
                (self.keys[at], self.stamps[at]) = (EMPTY, 0);
                if array.is_wide() {
                    self.unchain(&array, at, key);
                    let (set, way) = ((at - array.at) / array.ways, (at - array.at) % array.ways);
                    self.bounds[array.bounds_at + set * array.ways.div_ceil(CLAN) + way / CLAN] = 0;
                }
            }
        }
    }
}

/// Which number is the least, and the least of the others.
#[inline]
fn least(numbers: &[u64]) -> (usize, u64) {
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
    /// its clan.
    pub fn validate(&self) {
        for array in self.arrays.iter().filter(|array| array.is_wide()) {
            let places = array.at..array.at + array.sets as usize * array.ways;
            let mut chained = 0;
            for &head in &self.heads[array.heads_at..array.heads_at + (1 << array.heads_bits)] {
                let mut at = head;
                while at != NOWHERE {
                    assert!(places.contains(&(at as usize)));
                    chained += 1;
                    assert!(chained <= places.len(), "a chain goes in a circle");
                    at = self.next[at as usize];
                }
            }
            let held: Vec<usize> = places.filter(|&at| self.keys[at] != EMPTY).collect();
            assert_eq!(chained, held.len());
            for at in held {
                let key = self.keys[at];
                assert_eq!(self.find(array, key >> CODE_BITS, key), Some(at));
                let (set, way) = ((at - array.at) / array.ways, (at - array.at) % array.ways);
                let bound = self.bounds[array.bounds_at + set * array.ways.div_ceil(CLAN) + way / CLAN];
                assert!(bound <= self.stamps[at]);
            }
        }
    }
}
