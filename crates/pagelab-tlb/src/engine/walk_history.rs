//! The last walk of each line of page-table entries: a sparse array of numbers.

/// Lines of one leaf: with 8 base pages of 4 KiB a line, 8 GiB of addresses.
const LEAF_LINES: usize = 1 << 18;
/// Leaves at most: 2^33 lines of 32 KiB are 48 bits of addresses.
const LEAVES_MAX: usize = 1 << 15;

/// The number of the last walk by line; 0 is never.
#[derive(Debug, Default)]
pub struct WalkHistory {
    leaves: Vec<Option<Box<[u64]>>>,
}

impl WalkHistory {
    /// The entry of a line, to prefetch it; `None` if no line of its leaf was walked yet.
    #[inline]
    pub fn slot(&self, line: u64) -> Option<&u64> {
        let leaf = self.leaves.get((line as usize / LEAF_LINES) % LEAVES_MAX)?.as_ref()?;
        leaf.get(line as usize % LEAF_LINES)
    }

    /// Records the number of a walk, and returns that of the walk before; `None` for the first. Lines beyond
    /// 48 bits of addresses share their entries with others.
    pub fn record_walk(&mut self, line: u64, walk: u64) -> Option<u64> {
        let (leaf, index) = ((line as usize / LEAF_LINES) % LEAVES_MAX, line as usize % LEAF_LINES);
        if leaf >= self.leaves.len() {
            self.leaves.resize_with(leaf + 1, || None);
        }
        // Zeroed memory: pages of it are only touched where lines are walked.
        let leaf = self.leaves[leaf].get_or_insert_with(|| vec![0; LEAF_LINES].into_boxed_slice());
        let last = std::mem::replace(&mut leaf[index], walk);
        (last != 0).then_some(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_before_is_returned() {
        let mut history = WalkHistory::default();
        let second_leaf = LEAF_LINES as u64 + 7;
        assert_eq!((history.record_walk(7, 1), history.record_walk(second_leaf, 2)), (None, None));
        assert_eq!((history.record_walk(7, 3), history.record_walk(7, 9)), (Some(1), Some(3)));
        let beyond = (LEAF_LINES * LEAVES_MAX) as u64 + 7;
        assert_eq!(history.record_walk(beyond, 10), Some(9), "48 bits of addresses");
    }
}
