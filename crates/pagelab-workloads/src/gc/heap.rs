//! Heap of two halves with Cheney's copying collector.

use pagelab_sys::clock;

/// A node: where it was copied to (0 before), the next node (0: none), its value.
const NODE_WORDS: usize = 3;
/// Bytes of a node.
pub const BYTES_PER_NODE: u64 = (NODE_WORDS * size_of::<u64>()) as u64;

const FORWARD_OFFSET: usize = 0;
const NEXT_OFFSET: usize = 1;
const VALUE_OFFSET: usize = 2;

/// No node: the first words of the heap are never given out.
pub const NULL_NODE: u64 = 0;

/// The heap. A reference is the number of a node's first word.
pub struct CopyingHeap<'a> {
    words: &'a mut [u64],
    /// Words of a half.
    half_words: usize,
    /// First word of the half in use.
    space_start: usize,
    /// First word that is free.
    free_index: usize,
    /// Reachable nodes, from the numbers of created and dropped ones.
    live_nodes: u64,
    collection_count: u64,
    collection_ns: u64,
    collection_max_ns: u64,
}

impl<'a> CopyingHeap<'a> {
    /// An empty heap.
    pub fn new(words: &'a mut [u64]) -> CopyingHeap<'a> {
        let half_words = words.len() / 2;
        CopyingHeap {
            words,
            half_words,
            space_start: 0,
            free_index: NODE_WORDS,
            live_nodes: 0,
            collection_count: 0,
            collection_ns: 0,
            collection_max_ns: 0,
        }
    }

    /// How often it was full.
    pub fn collection_count(&self) -> u64 {
        self.collection_count
    }

    /// How long it was collecting.
    pub fn collection_ns(&self) -> u64 {
        self.collection_ns
    }

    /// The longest collection.
    pub fn collection_max_ns(&self) -> u64 {
        self.collection_max_ns
    }

    /// So many nodes have become unreachable.
    pub fn mark_unreachable(&mut self, nodes: u64) {
        self.live_nodes -= nodes;
    }

    /// Puts a new node in front of a list. The roots are all that is kept at a collection.
    pub fn push_node(&mut self, roots: &mut [u64], list: usize, value: u64) -> Result<(), String> {
        if self.free_index + NODE_WORDS > self.space_start + self.half_words {
            self.collect(roots)?;
        }
        let node = self.free_index;
        self.words[node..node + NODE_WORDS].copy_from_slice(&[NULL_NODE, roots[list], value]);
        roots[list] = node as u64;
        self.free_index += NODE_WORDS;
        self.live_nodes += 1;
        Ok(())
    }

    /// The values of a list.
    pub fn list_values(&self, root: u64) -> impl Iterator<Item = u64> {
        let node = |node: u64| (node != NULL_NODE).then_some(node as usize);
        std::iter::successors(node(root), move |&at| node(self.words[at + NEXT_OFFSET]))
            .map(|at| self.words[at + VALUE_OFFSET])
    }

    /// Copies what the roots reach to the other half. Its nodes must be as many as were counted.
    fn collect(&mut self, roots: &mut [u64]) -> Result<(), String> {
        let started = clock::monotonic_ns();
        self.space_start = self.half_words - self.space_start;
        let to_space_start = self.space_start + NODE_WORDS;
        self.free_index = to_space_start;
        for root in roots.iter_mut() {
            *root = self.copy_node(*root);
        }
        let mut scan = to_space_start;
        while scan < self.free_index {
            self.words[scan + NEXT_OFFSET] = self.copy_node(self.words[scan + NEXT_OFFSET]);
            scan += NODE_WORDS;
        }
        self.collection_count += 1;
        let took_ns = clock::monotonic_ns().saturating_sub(started);
        self.collection_ns += took_ns;
        self.collection_max_ns = self.collection_max_ns.max(took_ns);
        let copied = ((self.free_index - to_space_start) / NODE_WORDS) as u64;
        if copied != self.live_nodes {
            return Err(format!("{copied} nodes were copied, but {} are reachable", self.live_nodes));
        }
        match self.free_index + NODE_WORDS <= self.space_start + self.half_words {
            true => Ok(()),
            false => Err(format!("{copied} nodes fill half of the heap")),
        }
    }

    /// Where a node is in the new half, copied there if it was not yet.
    fn copy_node(&mut self, node: u64) -> u64 {
        let node_index = node as usize;
        if node == NULL_NODE {
            return NULL_NODE;
        }
        if self.words[node_index + FORWARD_OFFSET] != NULL_NODE {
            return self.words[node_index + FORWARD_OFFSET];
        }
        let to = self.free_index;
        self.words.copy_within(node_index..node_index + NODE_WORDS, to);
        self.words[node_index + FORWARD_OFFSET] = to as u64;
        self.free_index += NODE_WORDS;
        to as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reachable_is_kept_and_nothing_else() {
        let mut words = vec![0; 2 * 10 * NODE_WORDS];
        let mut heap = CopyingHeap::new(&mut words);
        let mut roots = [NULL_NODE; 2];
        // Nine nodes fit. Two lists share nothing; the second is dropped again and again.
        for value in 1..=3 {
            heap.push_node(&mut roots, 0, value).unwrap();
        }
        for round in 0..20u64 {
            roots[1] = NULL_NODE;
            heap.mark_unreachable(if round > 0 { 4 } else { 0 });
            for value in 0..4 {
                heap.push_node(&mut roots, 1, round * 10 + value).unwrap();
            }
            assert!(heap.list_values(roots[0]).eq([3, 2, 1]), "round {round}");
            assert!(heap.list_values(roots[1]).eq((0..4).rev().map(|value| round * 10 + value)));
        }
        assert!(heap.collection_count() >= 12, "{}", heap.collection_count());
        assert!(heap.push_node(&mut roots, 0, 4).is_ok() && heap.push_node(&mut roots, 0, 5).is_ok());
        assert!(heap.push_node(&mut roots, 0, 6).is_err(), "ten nodes do not fit");
    }

    #[test]
    fn a_wrong_count_is_found() {
        let mut words = vec![0; 2 * 4 * NODE_WORDS];
        let mut heap = CopyingHeap::new(&mut words);
        let mut roots = [NULL_NODE];
        for value in 0..3 {
            heap.push_node(&mut roots, 0, value).unwrap();
        }
        roots[0] = NULL_NODE;
        let said = heap.push_node(&mut roots, 0, 3).unwrap_err();
        assert_eq!(said, "0 nodes were copied, but 3 are reachable");
    }
}
