//! An allocator without free lists: bit fields, and trees of pageblocks that processors reserve, after LLFree
//! (Wrenger et al., USENIX ATC 2023; core/src/llfree.rs and core/src/trees.rs of its Rust code).
//!
//! No [`crate::policy::Policy`]: there is no list that a block could lie on. Where a block is taken from is
//! said by the tree that its processor has reserved for its class. A full one is exchanged for one nearby
//! that is almost used up, else for one that is half free, else for any.
//!
//! Simplified: no concurrency, so no retries and no counters that are split between a processor and its tree;
//! a search in a tree begins at the pageblock of the last allocation, not at its row of bits; frees reserve
//! no tree (an option of LLFree).

#[cfg(test)]
mod twin;

use std::ops::Range;

use crate::bench::Engine;
use crate::planted::{Bug, Planted};
use crate::words::{Frame, Kind, Shape, Wrong};

/// Pageblocks in a tree, as in the paper.
pub const PER_TREE: u32 = 32;

/// What trees are kept apart for (`Tiering::movable`): a tree serves the classes above its own without
/// changing, and becomes of a lower one when that takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TreeClass {
    /// Small blocks that stay.
    Fixed = 0,
    /// Small blocks that can be moved.
    Movable = 1,
    /// Whole pageblocks; trees that are wholly free.
    Huge = 2,
}

impl TreeClass {
    const ALL: [TreeClass; 3] = [TreeClass::Fixed, TreeClass::Movable, TreeClass::Huge];
}

#[derive(Clone, Copy, Debug)]
struct Tree {
    free: u32,
    class: TreeClass,
    is_reserved: bool,
}

/// The state of a frame: free, inside of an allocated block, or its first, with the order plus one.
const FREE: u8 = 0;
const INSIDE: u8 = u8::MAX;

/// The allocator. Its largest blocks are pageblocks.
#[derive(Clone, Debug)]
pub struct Trees {
    shape: Shape,
    /// Pageblocks in a tree.
    per_tree: u32,
    states: Vec<u8>,
    /// A bit for each frame: used.
    bits: Vec<u64>,
    /// Free frames of each pageblock.
    blocks: Vec<u32>,
    trees: Vec<Tree>,
    /// By processor and class: the pageblock of the last allocation, in the tree that is reserved.
    local: Vec<Option<u32>>,
    free: u32,
    bug: Planted<Bug>,
}

impl Trees {
    /// Free memory. The largest order must be that of pageblocks, and at least 6: a row of bits.
    pub fn new(shape: Shape, per_tree: u32, cpus: u16) -> Result<Trees, Wrong> {
        shape.check()?;
        let wrong = |what: &str| Err(Wrong::Shape(what.to_owned()));
        if shape.max_order != shape.block_order || shape.block_order < 6 {
            return wrong("trees whose largest blocks are not pageblocks of order 6 or more");
        }
        if per_tree == 0 || cpus == 0 {
            return wrong("trees of 0 pageblocks, or for 0 processors");
        }
        let blocks = shape.frames >> shape.block_order;
        let tree = |tree: u32| Tree {
            free: (blocks - tree * per_tree).min(per_tree) << shape.block_order,
            class: TreeClass::Huge,
            is_reserved: false,
        };
        Ok(Trees {
            per_tree,
            states: vec![FREE; shape.frames as usize],
            bits: vec![0; (shape.frames / u64::BITS) as usize],
            blocks: vec![1 << shape.block_order; blocks as usize],
            trees: (0..blocks.div_ceil(per_tree)).map(tree).collect(),
            local: vec![None; usize::from(cpus) * TreeClass::ALL.len()],
            free: shape.frames,
            shape,
            bug: Planted::NONE,
        })
    }

    #[inline]
    fn has(&self, bug: Bug) -> bool {
        self.bug.has(&bug)
    }

    /// How it is cut.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Free frames.
    pub fn free_frames(&self) -> u32 {
        self.free
    }

    /// Free blocks of each order: free frames in their largest aligned blocks, by looking at all of them.
    pub fn free_blocks(&self) -> Vec<u32> {
        let mut counts = vec![0; usize::from(self.shape.max_order) + 1];
        for block in 0..self.blocks.len() as u32 {
            let (mut at, to) = (block << self.shape.block_order, (block + 1) << self.shape.block_order);
            while at < to {
                let fits = |&order: &u8| at.is_multiple_of(1 << order) && self.is_free(at, order);
                match (0..=self.shape.max_order).rev().find(fits) {
                    Some(order) => {
                        counts[usize::from(order)] += 1;
                        at += 1 << order;
                    }
                    None => at += 1,
                }
            }
        }
        counts
    }

    /// The class of each tree, and its free frames.
    pub fn trees(&self) -> impl Iterator<Item = (TreeClass, u32)> {
        self.trees.iter().map(|tree| (tree.class, tree.free))
    }

    /// Allocates on a processor.
    pub fn take(&mut self, cpu: u16, order: u8, kind: Kind) -> Result<Option<Frame>, Wrong> {
        if order > self.shape.max_order {
            return Err(Wrong::Order { order, max: self.shape.max_order });
        }
        let class = match kind {
            _ if order == self.shape.block_order => TreeClass::Huge,
            Kind::Movable => TreeClass::Movable,
            Kind::Unmovable | Kind::Reclaimable => TreeClass::Fixed,
        };
        let place = (usize::from(cpu) * TreeClass::ALL.len() + class as usize) % self.local.len();
        let Some(at) = self.find(place, class, order) else { return Ok(None) };
        self.mark(at, order, true);
        self.states[at as usize..(at + (1 << order)) as usize].fill(INSIDE);
        self.states[at as usize] = order + 1;
        Ok(Some(self.shape.first + at))
    }

    /// Frees the block that begins at a frame. Returns its order.
    pub fn free(&mut self, frame: Frame) -> Result<u8, Wrong> {
        if !self.shape.has(frame) {
            return Err(Wrong::Outside(frame));
        }
        let at = frame - self.shape.first;
        let state = self.states[at as usize];
        if state == FREE || state == INSIDE {
            return Err(Wrong::NotAllocated(frame));
        }
        let order = state - 1;
        self.states[at as usize..(at + (1 << order)) as usize].fill(FREE);
        self.mark(at, order, false);
        let tree = self.tree_of(at >> self.shape.block_order);
        let whole = self.frames_of(tree);
        let tree = &mut self.trees[tree];
        if tree.free == whole && !tree.is_reserved {
            tree.class = TreeClass::Huge;
        }
        Ok(order)
    }

    fn tree_of(&self, block: u32) -> usize {
        (block / self.per_tree) as usize
    }

    fn blocks_of(&self, tree: usize) -> Range<u32> {
        let from = tree as u32 * self.per_tree;
        from..(from + self.per_tree).min(self.blocks.len() as u32)
    }

    fn frames_of(&self, tree: usize) -> u32 {
        (self.blocks_of(tree).len() as u32) << self.shape.block_order
    }

    /// Books a block as used or free.
    fn mark(&mut self, at: u32, order: u8, is_used: bool) {
        let (size, row) = (1u32 << order, at / u64::BITS);
        let block = at >> self.shape.block_order;
        let tree = self.tree_of(block);
        if order < 6 {
            let mask = ((1u64 << size) - 1) << (at % u64::BITS);
            self.bits[row as usize] ^= mask;
        } else {
            let rows = row as usize..(row + size / u64::BITS) as usize;
            self.bits[rows].fill(if is_used { u64::MAX } else { 0 });
        }
        let apply = |count: &mut u32| if is_used { *count -= size } else { *count += size };
        apply(&mut self.blocks[block as usize]);
        apply(&mut self.trees[tree].free);
        apply(&mut self.free);
    }

    fn is_free(&self, at: u32, order: u8) -> bool {
        let row = (at / u64::BITS) as usize;
        match order {
            0..6 => self.bits[row] >> (at % u64::BITS) & ((1u64 << (1u32 << order)) - 1) == 0,
            _ => self.bits[row..row + (1 << (order - 6))].iter().all(|&bits| bits == 0),
        }
    }

    /// Finds a place: in the reserved tree, in one that is reserved instead, in any that has one.
    fn find(&mut self, place: usize, class: TreeClass, order: u8) -> Option<u32> {
        if let Some(block) = self.local[place]
            && let Some(at) = self.find_in(self.tree_of(block), Some(block), order)
        {
            self.local[place] = Some(at >> self.shape.block_order);
            return Some(at);
        }
        let start = match self.local[place] {
            Some(block) => self.tree_of(block),
            None => {
                self.trees.len() * (place / TreeClass::ALL.len()) * TreeClass::ALL.len() / self.local.len()
            }
        };
        self.find_and_reserve(place, class, order, start).or_else(|| self.find_anywhere(class, order, start))
    }

    /// Reserves another tree for a processor's class: one that has a place.
    fn find_and_reserve(&mut self, place: usize, class: TreeClass, order: u8, start: usize) -> Option<u32> {
        let near = (self.trees.len() / 16).max(4);
        let step = (2 * near).next_power_of_two();
        let start = start / step * step;
        if order < self.shape.block_order {
            let mut best: Vec<(u8, usize)> = Vec::new();
            for step in 1..near.min(self.trees.len()) {
                let tree = self.beside(start, step);
                match self.rate(tree, class, order) {
                    Some(u8::MAX) => {
                        if let Some(at) = self.reserve(place, class, order, tree) {
                            return Some(at);
                        }
                    }
                    Some(rate) => best.push((rate, tree)),
                    None => {}
                }
            }
            // The best three, the first of them that are alike.
            best.sort_by_key(|&(rate, _)| std::cmp::Reverse(rate));
            let mut best = best.into_iter().take(3);
            if let Some(at) = best.find_map(|(_, tree)| self.reserve(place, class, order, tree)) {
                return Some(at);
            }
        }
        (0..self.trees.len()).find_map(|step| {
            let tree = self.beside(start, step);
            let is_whole = self.trees[tree].free == self.frames_of(tree);
            let is_fit = self.trees[tree].class == class || (is_whole && class < TreeClass::Huge);
            if is_fit { self.reserve(place, class, order, tree) } else { None }
        })
    }

    /// The trees around one, by turns above and below.
    fn beside(&self, start: usize, step: usize) -> usize {
        let trees = self.trees.len();
        let away = step.div_ceil(2) % trees;
        if step.is_multiple_of(2) { (start + away) % trees } else { (start + trees - away) % trees }
    }

    /// How well a tree of the same class fits that is neither reserved nor wholly free: best if almost used
    /// up, but not so far that it would soon have to be exchanged.
    fn rate(&self, tree: usize, class: TreeClass, order: u8) -> Option<u8> {
        let whole = self.frames_of(tree);
        let Tree { free, class: of, is_reserved } = self.trees[tree];
        if is_reserved || of != class || free < 1 << order || free == whole {
            return None;
        }
        let half = if self.has(Bug::HalfFreeFirst) { whole + 1 } else { whole / 2 };
        Some(if free >= half {
            1
        } else if free >= whole / 64 {
            u8::MAX
        } else {
            0
        })
    }

    fn reserve(&mut self, place: usize, class: TreeClass, order: u8, tree: usize) -> Option<u32> {
        if self.trees[tree].is_reserved {
            return None;
        }
        let at = self.find_in(tree, None, order)?;
        (self.trees[tree].is_reserved, self.trees[tree].class) = (true, class);
        let block = at >> self.shape.block_order;
        if let Some(old) = self.local[place].replace(block) {
            let old = self.tree_of(old);
            let is_whole = self.trees[old].free == self.frames_of(old);
            self.trees[old].is_reserved = self.has(Bug::TreeStaysReserved);
            if is_whole {
                self.trees[old].class = TreeClass::Huge;
            }
        }
        Some(at)
    }

    /// What is left when no tree can be reserved: a tree of a higher class, which becomes of this one; one of
    /// a lower class, which stays so; one that another processor or class has reserved.
    fn find_anywhere(&mut self, class: TreeClass, order: u8, start: usize) -> Option<u32> {
        let order_of = |tree: &Tree| match tree {
            Tree { is_reserved: true, .. } => 2,
            Tree { class: of, .. } if *of > class => 0,
            _ => 1,
        };
        for turn in 0..3 {
            for step in 0..self.trees.len() {
                let tree = self.beside(start, step);
                if order_of(&self.trees[tree]) != turn {
                    continue;
                }
                if let Some(at) = self.find_in(tree, None, order) {
                    if turn == 0 && !self.has(Bug::ClassStays) {
                        self.trees[tree].class = class;
                    }
                    return Some(at);
                }
            }
        }
        None
    }

    /// The lowest place in a pageblock of a tree: of those from `start` on, and then of those before it.
    fn find_in(&self, tree: usize, start: Option<u32>, order: u8) -> Option<u32> {
        let blocks = self.blocks_of(tree);
        let start = start.unwrap_or(blocks.start);
        let (size, block_order) = (1u32 << order, self.shape.block_order);
        if self.trees[tree].free < size {
            return None;
        }
        let mut turn = (start..blocks.end).chain(blocks.start..start);
        turn.find_map(|block| {
            if self.blocks[block as usize] < size {
                return None;
            }
            let from = block << block_order;
            (from..from + (1 << block_order)).step_by(size as usize).find(|&at| self.is_free(at, order))
        })
    }

    /// Checks all books: bits, states and counters say the same, and just the trees that a processor has are
    /// reserved.
    pub fn validate(&self) -> Result<(), Wrong> {
        let wrong = |what: String| Err(Wrong::Books(what));
        let mut at = 0u32;
        while at < self.shape.frames {
            let size = match self.states[at as usize] {
                FREE => 1,
                INSIDE => return wrong(format!("{at:#x} belongs to no block")),
                order => 1u32 << (order - 1),
            };
            let is_free = self.states[at as usize] == FREE;
            for frame in at..at + size {
                let is_inside = frame == at || self.states[frame as usize] == INSIDE;
                if self.is_free(frame, 0) != is_free || !is_inside {
                    return wrong(format!("{frame:#x}: its bit and its block do not agree"));
                }
            }
            at += size;
        }
        let count = |of: Range<u32>| of.filter(|&at| self.states[at as usize] == FREE).count() as u32;
        let shift = self.shape.block_order;
        for block in 0..self.blocks.len() as u32 {
            let free = count(block << shift..(block + 1) << shift);
            if free != self.blocks[block as usize] {
                return wrong(format!("pageblock {block} has {free} free frames"));
            }
        }
        for (number, tree) in self.trees.iter().enumerate() {
            let free: u32 = self.blocks_of(number).map(|block| self.blocks[block as usize]).sum();
            let holders = self.local.iter().flatten().filter(|&&block| self.tree_of(block) == number).count();
            if free != tree.free || holders != usize::from(tree.is_reserved) {
                return wrong(format!(
                    "tree {number} has {free} free frames and is reserved {holders} times"
                ));
            }
        }
        let free: u32 = self.trees.iter().map(|tree| tree.free).sum();
        if free == self.free { Ok(()) } else { wrong(format!("{free} frames are free in trees")) }
    }
}

/// All calls come from the first processor.
impl Engine for Trees {
    fn frames(&self) -> u32 {
        self.shape.frames
    }

    fn places(&self) -> Vec<Range<usize>> {
        fn range<T>(of: &[T]) -> Range<usize> {
            let start = of.as_ptr() as usize;
            start..start + size_of_val(of)
        }
        vec![range(&self.states), range(&self.bits), range(&self.blocks), range(&self.trees)]
    }

    fn take(&mut self, order: u8, kind: Kind) -> Result<Option<(Frame, bool)>, Wrong> {
        Ok(Trees::take(self, 0, order, kind)?.map(|frame| (frame, false)))
    }

    fn free(&mut self, frame: Frame) -> Result<(), Wrong> {
        Trees::free(self, frame).map(drop)
    }
}
