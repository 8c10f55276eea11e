//! A heap of two halves with Cheney's copying collector.

use pagelab_sys::clock;

/// A node: where it was copied to (0 before), the next node (0: none), its value.
const WORDS: usize = 3;
/// Bytes of a node.
pub const BYTES_PER_NODE: u64 = (WORDS * size_of::<u64>()) as u64;

const FORWARD: usize = 0;
const NEXT: usize = 1;
const VALUE: usize = 2;

/// No node: the first words of the heap are never given out.
pub const NONE: u64 = 0;

/// The heap. A reference is the number of a node's first word.
pub struct Heap<'a> {
    words: &'a mut [u64],
    /// Words of a half.
    half: usize,
    /// First word of the half in use.
    start: usize,
    /// First word that is free.
    free: usize,
    /// Nodes that can be reached, by counting what is made and forgotten.
    live: u64,
    collections: u64,
    collecting_ns: u64,
    collecting_max_ns: u64,
}

impl<'a> Heap<'a> {
    /// An empty heap.
    pub fn new(words: &'a mut [u64]) -> Heap<'a> {
        let half = words.len() / 2;
        let (collections, collecting_ns, collecting_max_ns) = (0, 0, 0);
        Heap { words, half, start: 0, free: WORDS, live: 0, collections, collecting_ns, collecting_max_ns }
    }

    /// How often it was full.
    pub fn collections(&self) -> u64 {
        self.collections
    }

    /// How long it was collecting.
    pub fn collecting_ns(&self) -> u64 {
        self.collecting_ns
    }

    /// The longest collection.
    pub fn collecting_max_ns(&self) -> u64 {
        self.collecting_max_ns
    }

    /// So many nodes have become unreachable.
    pub fn forget(&mut self, nodes: u64) {
        self.live -= nodes;
    }

    /// Puts a new node in front of a list. The roots are all that is kept at a collection.
    pub fn push(&mut self, roots: &mut [u64], list: usize, value: u64) -> Result<(), String> {
        if self.free + WORDS > self.start + self.half {
            self.collect(roots)?;
        }
        let node = self.free;
        self.words[node..node + WORDS].copy_from_slice(&[NONE, roots[list], value]);
        roots[list] = node as u64;
        self.free += WORDS;
        self.live += 1;
        Ok(())
    }

    /// The values of a list.
    pub fn walk(&self, root: u64) -> impl Iterator<Item = u64> {
        let node = |node: u64| (node != NONE).then_some(node as usize);
        std::iter::successors(node(root), move |&at| node(self.words[at + NEXT]))
            .map(|at| self.words[at + VALUE])
    }

    /// Copies what the roots reach to the other half. Its nodes must be as many as were counted.
    fn collect(&mut self, roots: &mut [u64]) -> Result<(), String> {
        let before = clock::monotonic_ns();
        self.start = self.half - self.start;
        let first = self.start + WORDS;
        self.free = first;
        for root in roots.iter_mut() {
            *root = self.copied(*root);
        }
        let mut scan = first;
        while scan < self.free {
            self.words[scan + NEXT] = self.copied(self.words[scan + NEXT]);
            scan += WORDS;
        }
        self.collections += 1;
        let took_ns = clock::monotonic_ns().saturating_sub(before);
        self.collecting_ns += took_ns;
        self.collecting_max_ns = self.collecting_max_ns.max(took_ns);
        let copied = ((self.free - first) / WORDS) as u64;
        if copied != self.live {
            return Err(format!("{copied} nodes were copied and {} are reachable", self.live));
        }
        match self.free + WORDS <= self.start + self.half {
            true => Ok(()),
            false => Err(format!("{copied} nodes fill half of the heap")),
        }
    }

    /// Where a node is in the new half, copied there if it was not yet.
    fn copied(&mut self, node: u64) -> u64 {
        let at = node as usize;
        if node == NONE {
            return NONE;
        }
        if self.words[at + FORWARD] != NONE {
            return self.words[at + FORWARD];
        }
        let to = self.free;
        self.words.copy_within(at..at + WORDS, to);
        self.words[at + FORWARD] = to as u64;
        self.free += WORDS;
        to as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reachable_is_kept_and_nothing_else() {
        let mut words = vec![0; 2 * 10 * WORDS];
        let mut heap = Heap::new(&mut words);
        let mut roots = [NONE; 2];
        // Nine nodes fit. Two lists share nothing; the second is dropped again and again.
        for value in 1..=3 {
            heap.push(&mut roots, 0, value).unwrap();
        }
        for round in 0..20u64 {
            roots[1] = NONE;
            heap.forget(if round > 0 { 4 } else { 0 });
            for value in 0..4 {
                heap.push(&mut roots, 1, round * 10 + value).unwrap();
            }
            assert!(heap.walk(roots[0]).eq([3, 2, 1]), "round {round}");
            assert!(heap.walk(roots[1]).eq((0..4).rev().map(|value| round * 10 + value)));
        }
        assert!(heap.collections() >= 12, "{}", heap.collections());
        assert!(heap.push(&mut roots, 0, 4).is_ok() && heap.push(&mut roots, 0, 5).is_ok());
        assert!(heap.push(&mut roots, 0, 6).is_err(), "ten nodes do not fit");
    }

    #[test]
    fn a_wrong_count_is_found() {
        let mut words = vec![0; 2 * 4 * WORDS];
        let mut heap = Heap::new(&mut words);
        let mut roots = [NONE];
        for value in 0..3 {
            heap.push(&mut roots, 0, value).unwrap();
        }
        roots[0] = NONE;
        let said = heap.push(&mut roots, 0, 3).unwrap_err();
        assert_eq!(said, "0 nodes were copied and 3 are reachable");
    }
}
