//! The tree: nodes of 64 words in one slice, named by their index.

/// Words of a node.
const WORDS: usize = 64;
/// Bytes of a node.
pub const NODE_BYTES: u64 = (WORDS * size_of::<u64>()) as u64;
/// Keys of a node at most.
const KEYS: usize = 31;

/// Where the parts of a node begin. The head is the number of keys, in a leaf with [`LEAF`].
const KEY: usize = 1;
/// The values of a leaf, or the children of an inner node, of which there is one more than keys: child i
/// leads to the keys that are below key i and not below key i - 1.
const SLOT: usize = KEY + KEYS;
/// The last word of a leaf: the next leaf, or 0, which is the first of all leaves and follows none.
const NEXT: usize = WORDS - 1;
const LEAF: u64 = 1 << 63;

/// Levels that there can be: with 16 children a node at least, 2^64 keys have not more.
const LEVELS_MAX: usize = 17;

/// The tree.
#[derive(Debug)]
pub struct Tree<'a> {
    words: &'a mut [u64],
    /// Nodes in use; the next one has this index.
    nodes: usize,
    root: usize,
    levels: u32,
}

impl<'a> Tree<'a> {
    /// An empty tree in memory for one node or more.
    pub fn new(words: &'a mut [u64]) -> Tree<'a> {
        words[0] = LEAF;
        words[NEXT] = 0;
        Tree { words, nodes: 1, root: 0, levels: 1 }
    }

    /// Nodes in use.
    pub fn nodes(&self) -> u64 {
        self.nodes as u64
    }

    /// Levels, the leaves included.
    pub fn levels(&self) -> u32 {
        self.levels
    }

    /// The value of a key.
    pub fn get(&self, key: u64) -> Option<u64> {
        let mut node = self.node(self.root);
        while node[0] & LEAF == 0 {
            node = self.node(node[SLOT + below_or_equal(node, key)] as usize);
        }
        let at = below_or_equal(node, key).checked_sub(1)?;
        (node[KEY + at] == key).then(|| node[SLOT + at])
    }

    /// Puts a new key in. Where it may need more nodes than are left, nothing is done and the answer is no.
    pub fn insert(&mut self, key: u64, value: u64) -> bool {
        let left = self.words.len() / WORDS - self.nodes;
        if left <= self.levels as usize {
            return false;
        }
        // The way down: nodes, and which of their children was taken.
        let mut way = [(0, 0); LEVELS_MAX];
        let mut depth = 0;
        let mut at = self.root;
        while self.node(at)[0] & LEAF == 0 {
            let child = below_or_equal(self.node(at), key);
            way[depth] = (at, child);
            depth += 1;
            at = self.node(at)[SLOT + child] as usize;
        }
        let mut split = self.put(at, below_or_equal(self.node(at), key), key, value);
        while let Some((key, right)) = split {
            if depth == 0 {
                self.grow(key, right);
                break;
            }
            depth -= 1;
            let (parent, child) = way[depth];
            split = self.put(parent, child, key, right as u64);
        }
        true
    }

    /// Keys and values in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let next = move |&leaf: &usize| Some(self.node(leaf)[NEXT] as usize).filter(|&next| next != 0);
        // Leaf 0 is never split to the left, so it stays the first.
        std::iter::successors(Some(0), next).flat_map(move |leaf| {
            let node = self.node(leaf);
            (0..count(node)).map(move |at| (node[KEY + at], node[SLOT + at]))
        })
    }

    fn node(&self, index: usize) -> &[u64; WORDS] {
        self.words[index * WORDS..].first_chunk().expect("nodes lie inside")
    }

    fn node_mut(&mut self, index: usize) -> &mut [u64; WORDS] {
        self.words[index * WORDS..].first_chunk_mut().expect("nodes lie inside")
    }

    /// Puts a key at its place in a node: with its value in a leaf, with the child behind it in an inner
    /// node. A node that is full is split first; returns the key that parts the two, and the right one.
    fn put(&mut self, index: usize, place: usize, key: u64, slot: u64) -> Option<(u64, usize)> {
        let node = self.node_mut(index);
        if count(node) < KEYS {
            put_into(node, place, key, slot);
            return None;
        }
        let right = self.nodes;
        self.nodes += 1;
        let is_leaf = self.node(index)[0] & LEAF != 0;
        let parting = self.split(index, right);
        // Of an inner node, the parting key is in neither half.
        let in_left = count(self.node(index));
        let first_of_right = if is_leaf { in_left } else { in_left + 1 };
        if place <= in_left {
            put_into(self.node_mut(index), place, key, slot);
        } else {
            put_into(self.node_mut(right), place - first_of_right, key, slot);
        }
        Some((parting, right))
    }

    /// Moves the upper half of a full node into a new one; returns the key that parts them.
    fn split(&mut self, index: usize, right: usize) -> u64 {
        const HALF: usize = KEYS / 2 + 1;
        let old = *self.node(index);
        let mut upper = [0; WORDS];
        let is_leaf = old[0] & LEAF != 0;
        let from = if is_leaf { HALF } else { HALF + 1 };
        upper[0] = (KEYS - from) as u64 | (old[0] & LEAF);
        upper[KEY..KEY + KEYS - from].copy_from_slice(&old[KEY + from..KEY + KEYS]);
        let slots = if is_leaf { KEYS - from } else { KEYS - from + 1 };
        upper[SLOT..SLOT + slots].copy_from_slice(&old[SLOT + from..SLOT + from + slots]);
        if is_leaf {
            upper[NEXT] = old[NEXT];
        }
        *self.node_mut(right) = upper;
        let node = self.node_mut(index);
        node[0] = HALF as u64 | (old[0] & LEAF);
        if is_leaf {
            node[NEXT] = right as u64;
        }
        old[KEY + HALF]
    }

    /// A new root over the old one and a node that was split from it.
    fn grow(&mut self, key: u64, right: usize) {
        let (old, new) = (self.root, self.nodes);
        self.nodes += 1;
        let node = self.node_mut(new);
        node[0] = 1;
        node[KEY] = key;
        node[SLOT] = old as u64;
        node[SLOT + 1] = right as u64;
        self.root = new;
        self.levels += 1;
    }
}

fn count(node: &[u64; WORDS]) -> usize {
    ((node[0] & !LEAF) as usize).min(KEYS)
}

/// How many keys of a node are not above `key`: in an inner node the child to take.
fn below_or_equal(node: &[u64; WORDS], key: u64) -> usize {
    node[KEY..KEY + count(node)].partition_point(|&other| other <= key)
}

/// Puts a key at its place in a node with room: in a leaf its value at the same place, in an inner node its
/// child behind it.
fn put_into(node: &mut [u64; WORDS], place: usize, key: u64, slot: u64) {
    let keys = count(node);
    let is_leaf = node[0] & LEAF != 0;
    node.copy_within(KEY + place..KEY + keys, KEY + place + 1);
    node[KEY + place] = key;
    let (at, slots) = if is_leaf { (place, keys) } else { (place + 1, keys + 1) };
    node.copy_within(SLOT + at..SLOT + slots, SLOT + at + 1);
    node[SLOT + at] = slot;
    node[0] += 1;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use pagelab_model::seed::SplitMix64;

    /// Every key lies between the keys that lead to it, all leaves are on one level, and inner nodes and
    /// leaves but the root are half full at least. Returns the number of keys.
    fn validate(tree: &Tree<'_>, node: usize, level: u32, low: Option<u64>, high: Option<u64>) -> usize {
        let at = tree.node(node);
        let keys = &at[KEY..KEY + count(at)];
        assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
        assert!(keys.iter().all(|key| low.is_none_or(|low| low <= *key)), "{low:?}: {keys:?}");
        assert!(keys.iter().all(|key| high.is_none_or(|high| *key < high)), "{high:?}: {keys:?}");
        assert!(node == tree.root || keys.len() >= KEYS / 2 - 1, "{} keys", keys.len());
        if at[0] & LEAF != 0 {
            assert_eq!(level, 1, "a leaf above the others");
            return keys.len();
        }
        (0..=keys.len())
            .map(|child| {
                let low = if child == 0 { low } else { Some(keys[child - 1]) };
                let high = keys.get(child).copied().or(high);
                validate(tree, at[SLOT + child] as usize, level - 1, low, high)
            })
            .sum()
    }

    /// Against the standard library's tree, after every insert near the splits and at the end.
    #[test]
    fn the_tree_is_that_of_the_standard_library() {
        for (seed, keys) in [(0u64, 40usize), (1, 1100), (2, 6000), (3, 6000), (4, 6000)] {
            let mut words = vec![u64::MAX; WORDS * 700];
            let mut tree = Tree::new(&mut words);
            let mut known = BTreeMap::new();
            let mut random = SplitMix64::new(seed);
            for index in 0..keys as u64 {
                let key = match seed {
                    3 => index * 3,
                    4 => u64::MAX - index * 3,
                    _ => random.draw(),
                };
                assert!(tree.insert(key, index));
                known.insert(key, index);
                if index % 97 == 0 || index < 64 {
                    assert_eq!(validate(&tree, tree.root, tree.levels, None, None), known.len());
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
        let mut words = vec![0; WORDS * 20];
        let mut tree = Tree::new(&mut words);
        let mut random = SplitMix64::new(1);
        let mut known = BTreeMap::new();
        loop {
            let key = random.draw();
            if !tree.insert(key, !key) {
                break;
            }
            known.insert(key, !key);
        }
        assert!(known.len() > 200 && tree.nodes() >= 16, "{} keys, {} nodes", known.len(), tree.nodes());
        assert!(tree.iter().eq(known.into_iter()));
        assert_eq!(validate(&tree, tree.root, tree.levels, None, None), tree.iter().count());
    }
}
