//! When each line of page-table entries was walked last: a sparse array of numbers.

/// Lines of one leaf: with 8 base pages of 4 KiB a line, 8 GiB of addresses.
const LEAF: usize = 1 << 18;
/// Leaves at most: 2^33 lines of 32 KiB are 48 bits of addresses.
const LEAVES: usize = 1 << 15;

/// The number of the last walk by line; 0 is never.
#[derive(Debug, Default)]
pub struct Lines {
    leaves: Vec<Option<Box<[u64]>>>,
}

impl Lines {
    /// Where the last walk of a line stands, to have it fetched; `None` if none of its leaf was walked yet.
    #[inline]
    pub fn place(&self, line: u64) -> Option<&u64> {
        let leaf = self.leaves.get((line as usize / LEAF) % LEAVES)?.as_ref()?;
        leaf.get(line as usize % LEAF)
    }

    /// Puts in the number of a walk, and gives the one before; `None` for the first. Lines beyond 48 bits of
    /// addresses share their places with others.
    pub fn walk(&mut self, line: u64, walk: u64) -> Option<u64> {
        let (leaf, at) = ((line as usize / LEAF) % LEAVES, line as usize % LEAF);
        if leaf >= self.leaves.len() {
            self.leaves.resize_with(leaf + 1, || None);
        }
        // Zeroed memory that is only touched where lines are walked.
        let leaf = self.leaves[leaf].get_or_insert_with(|| vec![0; LEAF].into_boxed_slice());
        let last = std::mem::replace(&mut leaf[at], walk);
        (last != 0).then_some(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_walk_is_given_back() {
        let mut lines = Lines::default();
        assert_eq!((lines.walk(7, 1), lines.walk(LEAF as u64 + 7, 2)), (None, None));
        assert_eq!((lines.walk(7, 3), lines.walk(7, 9)), (Some(1), Some(3)));
        assert_eq!(lines.walk((LEAF * LEAVES) as u64 + 7, 10), Some(9), "48 bits of addresses");
    }
}
