//! The tree: nodes of 64 words in one slice, identified by their index.

const NODE_WORDS: usize = 64;
/// Bytes of a node.
pub const NODE_BYTES: u64 = (NODE_WORDS * size_of::<u64>()) as u64;
/// Keys of a node at most.
const KEYS_MAX: usize = 31;

/// Where the parts of a node begin. The head is the number of keys, in a leaf with [`LEAF_FLAG`].
const KEY_OFFSET: usize = 1;
/// The values of a leaf, or the children of an inner node, of which there is one more than keys: child i
/// leads to the keys that are below key i and not below key i - 1.
const SLOT_OFFSET: usize = KEY_OFFSET + KEYS_MAX;
/// The last word of a leaf: the next leaf, or 0, which is the first of all leaves and follows none.
const NEXT_LEAF_OFFSET: usize = NODE_WORDS - 1;
const LEAF_FLAG: u64 = 1 << 63;

/// Levels that there can be: with 16 children a node at least, 2^64 keys have not more.
const LEVELS_MAX: usize = 17;

/// The tree.
#[derive(Debug)]
pub struct BPlusTree<'a> {
    words: &'a mut [u64],
    /// Nodes in use; the next one has this index.
    node_count: usize,
    root_index: usize,
    levels: u32,
}

impl<'a> BPlusTree<'a> {
    /// An empty tree in memory for one node or more.
    pub fn new(words: &'a mut [u64]) -> BPlusTree<'a> {
        words[0] = LEAF_FLAG;
        words[NEXT_LEAF_OFFSET] = 0;
        BPlusTree { words, node_count: 1, root_index: 0, levels: 1 }
    }

    /// Nodes in use.
    pub fn node_count(&self) -> u64 {
        self.node_count as u64
    }

    /// Levels, the leaves included.
    pub fn levels(&self) -> u32 {
        self.levels
    }

    /// The value of a key.
    pub fn get(&self, key: u64) -> Option<u64> {
        let mut node = self.node(self.root_index);
        while node[0] & LEAF_FLAG == 0 {
            node = self.node(node[SLOT_OFFSET + child_index(node, key)] as usize);
        }
        let at = child_index(node, key).checked_sub(1)?;
        (node[KEY_OFFSET + at] == key).then(|| node[SLOT_OFFSET + at])
    }

    /// Puts a new key in. Where it may need more nodes than are left, nothing is done and the answer is no.
    pub fn insert(&mut self, key: u64, value: u64) -> bool {
        let left = self.words.len() / NODE_WORDS - self.node_count;
        if left <= self.levels as usize {
            return false;
        }
        // The way down: nodes, and which of their children was taken.
        let mut path = [(0, 0); LEVELS_MAX];
        let mut depth = 0;
        let mut at = self.root_index;
        while self.node(at)[0] & LEAF_FLAG == 0 {
            let child = child_index(self.node(at), key);
            path[depth] = (at, child);
            depth += 1;
            at = self.node(at)[SLOT_OFFSET + child] as usize;
        }
        let mut split = self.insert_at(at, child_index(self.node(at), key), key, value);
        while let Some((key, right)) = split {
            if depth == 0 {
                self.grow_root(key, right);
                break;
            }
            depth -= 1;
            let (parent, child) = path[depth];
            split = self.insert_at(parent, child, key, right as u64);
        }
        true
    }

    /// Keys and values in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let next =
            move |&leaf: &usize| Some(self.node(leaf)[NEXT_LEAF_OFFSET] as usize).filter(|&next| next != 0);
        // Leaf 0 is never split to the left, so it stays the first.
        std::iter::successors(Some(0), next).flat_map(move |leaf| {
            let node = self.node(leaf);
            (0..key_count(node)).map(move |at| (node[KEY_OFFSET + at], node[SLOT_OFFSET + at]))
        })
    }

    fn node(&self, index: usize) -> &[u64; NODE_WORDS] {
        self.words[index * NODE_WORDS..].first_chunk().expect("nodes lie inside")
    }

    fn node_mut(&mut self, index: usize) -> &mut [u64; NODE_WORDS] {
        self.words[index * NODE_WORDS..].first_chunk_mut().expect("nodes lie inside")
    }

    /// Puts a key at its place in a node: with its value in a leaf, with the child behind it in an inner
    /// node. A node that is full is split first; returns the key that parts the two, and the right one.
    fn insert_at(&mut self, index: usize, position: usize, key: u64, slot: u64) -> Option<(u64, usize)> {
        let node = self.node_mut(index);
        if key_count(node) < KEYS_MAX {
            insert_into_node(node, position, key, slot);
            return None;
        }
        let right = self.node_count;
        self.node_count += 1;
        let is_leaf = self.node(index)[0] & LEAF_FLAG != 0;
        let parting = self.split_node(index, right);
        // Of an inner node, the parting key is in neither half.
        let in_left = key_count(self.node(index));
        let first_of_right = if is_leaf { in_left } else { in_left + 1 };
        if position <= in_left {
            insert_into_node(self.node_mut(index), position, key, slot);
        } else {
            insert_into_node(self.node_mut(right), position - first_of_right, key, slot);
        }
        Some((parting, right))
    }

    /// Moves the upper half of a full node into a new one; returns the key that parts them.
    fn split_node(&mut self, index: usize, right: usize) -> u64 {
        const HALF_KEYS: usize = KEYS_MAX / 2 + 1;
        let old_node = *self.node(index);
        let mut upper = [0; NODE_WORDS];
        let is_leaf = old_node[0] & LEAF_FLAG != 0;
        let from = if is_leaf { HALF_KEYS } else { HALF_KEYS + 1 };
        upper[0] = (KEYS_MAX - from) as u64 | (old_node[0] & LEAF_FLAG);
        upper[KEY_OFFSET..KEY_OFFSET + KEYS_MAX - from]
            .copy_from_slice(&old_node[KEY_OFFSET + from..KEY_OFFSET + KEYS_MAX]);
        let slots = if is_leaf { KEYS_MAX - from } else { KEYS_MAX - from + 1 };
        upper[SLOT_OFFSET..SLOT_OFFSET + slots]
            .copy_from_slice(&old_node[SLOT_OFFSET + from..SLOT_OFFSET + from + slots]);
        if is_leaf {
            upper[NEXT_LEAF_OFFSET] = old_node[NEXT_LEAF_OFFSET];
        }
        *self.node_mut(right) = upper;
        let node = self.node_mut(index);
        node[0] = HALF_KEYS as u64 | (old_node[0] & LEAF_FLAG);
        if is_leaf {
            node[NEXT_LEAF_OFFSET] = right as u64;
        }
        old_node[KEY_OFFSET + HALF_KEYS]
    }

    /// A new root over the old one and a node that was split from it.
    fn grow_root(&mut self, key: u64, right: usize) {
        let (old_node, new) = (self.root_index, self.node_count);
        self.node_count += 1;
        let node = self.node_mut(new);
        node[0] = 1;
        node[KEY_OFFSET] = key;
        node[SLOT_OFFSET] = old_node as u64;
        node[SLOT_OFFSET + 1] = right as u64;
        self.root_index = new;
        self.levels += 1;
    }
}

fn key_count(node: &[u64; NODE_WORDS]) -> usize {
    ((node[0] & !LEAF_FLAG) as usize).min(KEYS_MAX)
}

/// How many keys of a node are not above `key`: in an inner node the child to take.
fn child_index(node: &[u64; NODE_WORDS], key: u64) -> usize {
    node[KEY_OFFSET..KEY_OFFSET + key_count(node)].partition_point(|&other| other <= key)
}

/// Puts a key at its place in a node with room: in a leaf its value at the same place, in an inner node its
/// child behind it.
fn insert_into_node(node: &mut [u64; NODE_WORDS], position: usize, key: u64, slot: u64) {
    let keys = key_count(node);
    let is_leaf = node[0] & LEAF_FLAG != 0;
    node.copy_within(KEY_OFFSET + position..KEY_OFFSET + keys, KEY_OFFSET + position + 1);
    node[KEY_OFFSET + position] = key;
    let (at, slots) = if is_leaf { (position, keys) } else { (position + 1, keys + 1) };
    node.copy_within(SLOT_OFFSET + at..SLOT_OFFSET + slots, SLOT_OFFSET + at + 1);
    node[SLOT_OFFSET + at] = slot;
    node[0] += 1;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use pagelab_model::random::SplitMix64;

    /// Every key is between the keys that lead to it, all leaves are on one level, and all nodes except the
    /// root are at least half full. Returns the number of keys.
    fn validate(tree: &BPlusTree<'_>, node: usize, level: u32, low: Option<u64>, high: Option<u64>) -> usize {
        let at = tree.node(node);
        let keys = &at[KEY_OFFSET..KEY_OFFSET + key_count(at)];
        assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
        assert!(keys.iter().all(|key| low.is_none_or(|low| low <= *key)), "{low:?}: {keys:?}");
        assert!(keys.iter().all(|key| high.is_none_or(|high| *key < high)), "{high:?}: {keys:?}");
        assert!(node == tree.root_index || keys.len() >= KEYS_MAX / 2 - 1, "{} keys", keys.len());
        if at[0] & LEAF_FLAG != 0 {
            assert_eq!(level, 1, "a leaf above the others");
            return keys.len();
        }
        (0..=keys.len())
            .map(|child| {
                let low = if child == 0 { low } else { Some(keys[child - 1]) };
                let high = keys.get(child).copied().or(high);
                validate(tree, at[SLOT_OFFSET + child] as usize, level - 1, low, high)
            })
            .sum()
    }

    /// Against the standard library's tree, after every insert near the splits and at the end.
    #[test]
    fn the_tree_is_that_of_the_standard_library() {
        for (seed, keys) in [(0u64, 40usize), (1, 1100), (2, 6000), (3, 6000), (4, 6000)] {
            let mut words = vec![u64::MAX; NODE_WORDS * 700];
            let mut tree = BPlusTree::new(&mut words);
            let mut known = BTreeMap::new();
            let mut random = SplitMix64::new(seed);
            for index in 0..keys as u64 {
                let key = match seed {
                    3 => index * 3,
                    4 => u64::MAX - index * 3,
                    _ => random.next_u64(),
                };
                assert!(tree.insert(key, index));
                known.insert(key, index);
                if index % 97 == 0 || index < 64 {
                    assert_eq!(validate(&tree, tree.root_index, tree.levels, None, None), known.len());
                }
            }
            assert!(tree.iter().eq(known.iter().map(|(key, value)| (*key, *value))), "seed {seed}");
            for (key, value) in &known {
                assert_eq!(tree.get(*key), Some(*value));
                assert_eq!(tree.get(key.wrapping_add(1)), known.get(&key.wrapping_add(1)).copied());
            }
            assert_eq!(tree.get(0), known.get(&0).copied());
        }
    }

    #[test]
    fn a_full_arena_takes_no_more_and_keeps_what_it_has() {
        let mut words = vec![0; NODE_WORDS * 20];
        let mut tree = BPlusTree::new(&mut words);
        let mut random = SplitMix64::new(1);
        let mut known = BTreeMap::new();
        loop {
            let key = random.next_u64();
            if !tree.insert(key, !key) {
                break;
            }
            known.insert(key, !key);
        }
        assert!(
            known.len() > 200 && tree.node_count() >= 16,
            "{} keys, {} nodes",
            known.len(),
            tree.node_count()
        );
        assert!(tree.iter().eq(known.into_iter()));
        assert_eq!(validate(&tree, tree.root_index, tree.levels, None, None), tree.iter().count());
    }
}
