//! An allocator without free lists: bit fields, and trees of pageblocks that processors reserve, after LLFree
//! (Wrenger et al., USENIX ATC 2023; core/src/llfree.rs and core/src/trees.rs of its Rust code).
//!
//! No [`crate::policies::Policy`]: there is no list that a block could lie on. Where a block is taken from is
//! said by the tree that its processor has reserved for its class. A full one is exchanged for one nearby
//! that is almost used up, else for one that is half free, else for any.
//!
//! Simplified: no concurrency, so no retries and no counters that are split between a processor and its tree;
//! a search in a tree begins at the pageblock of the last allocation, not at its row of bits; frees reserve
//! no tree (an option of LLFree).

#[cfg(test)]
mod twin;

use std::ops::Range;

use crate::bench::{AllocateOutcome, Engine};
use crate::injected_bugs::{Bug, InjectedBug};
use crate::types::{AllocationType, Error, Frame, ZoneGeometry, corrupted, invalid};

/// Pageblocks in a tree, as in the paper.
pub const PAGEBLOCKS_PER_TREE: u32 = 32;

/// What trees are kept apart for (`Tiering::movable`): a tree serves the classes above its own without
/// changing, and becomes of a lower one when that takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TreeClass {
    /// Small blocks that stay.
    Unmovable = 0,
    /// Small blocks that can be moved.
    Movable = 1,
    /// Whole pageblocks; trees that are wholly free.
    Huge = 2,
}

impl TreeClass {
    const ALL: [TreeClass; 3] = [TreeClass::Unmovable, TreeClass::Movable, TreeClass::Huge];
}

#[derive(Clone, Copy, Debug)]
struct TreeState {
    free_frames: u32,
    class: TreeClass,
    is_reserved: bool,
}

/// The state of a frame: free, inside of an allocated block, or its first, with the order plus one.
const FREE_FRAME: u8 = 0;
const INSIDE_BLOCK: u8 = u8::MAX;

/// The allocator. Its largest blocks are pageblocks.
#[derive(Clone, Debug)]
pub struct Llfree {
    geometry: ZoneGeometry,
    pageblocks_per_tree: u32,
    frame_states: Vec<u8>,
    /// A bit for each frame: used.
    allocation_bits: Vec<u64>,
    pageblock_free_frames: Vec<u32>,
    trees: Vec<TreeState>,
    /// By processor and class: the pageblock of the last allocation, in the tree that is reserved.
    reserved_pageblocks: Vec<Option<u32>>,
    free_frame_count: u32,
    bug: InjectedBug<Bug>,
}

impl Llfree {
    /// Free memory. The largest order must be that of pageblocks, and at least 6: a row of bits.
    pub fn new(geometry: ZoneGeometry, pageblocks_per_tree: u32, cpus: u16) -> Result<Llfree, Error> {
        geometry.validate()?;
        if geometry.max_order != geometry.pageblock_order || geometry.pageblock_order < 6 {
            return invalid("trees need pageblocks of order 6 or more as largest blocks");
        }
        if pageblocks_per_tree == 0 || cpus == 0 {
            return invalid("trees of 0 pageblocks, or for 0 CPUs");
        }
        let blocks = geometry.frames >> geometry.pageblock_order;
        let new_tree = |tree_index: u32| TreeState {
            free_frames: (blocks - tree_index * pageblocks_per_tree).min(pageblocks_per_tree)
                << geometry.pageblock_order,
            class: TreeClass::Huge,
            is_reserved: false,
        };
        Ok(Llfree {
            pageblocks_per_tree,
            frame_states: vec![FREE_FRAME; geometry.frames as usize],
            allocation_bits: vec![0; (geometry.frames / u64::BITS) as usize],
            pageblock_free_frames: vec![1 << geometry.pageblock_order; blocks as usize],
            trees: (0..blocks.div_ceil(pageblocks_per_tree)).map(new_tree).collect(),
            reserved_pageblocks: vec![None; usize::from(cpus) * TreeClass::ALL.len()],
            free_frame_count: geometry.frames,
            geometry,
            bug: InjectedBug::NONE,
        })
    }

    #[inline]
    fn has_bug(&self, bug: Bug) -> bool {
        self.bug.is_injected(&bug)
    }

    /// Free frames.
    pub fn free_frames(&self) -> u32 {
        self.free_frame_count
    }

    /// Allocates on a processor.
    pub fn allocate_block(
        &mut self,
        cpu: u16,
        order: u8,
        alloc_type: AllocationType,
    ) -> Result<Option<Frame>, Error> {
        if order > self.geometry.max_order {
            return Err(Error::OrderTooLarge { order, max: self.geometry.max_order });
        }
        let class = match alloc_type {
            _ if order == self.geometry.pageblock_order => TreeClass::Huge,
            AllocationType::Movable => TreeClass::Movable,
            AllocationType::Unmovable | AllocationType::Reclaimable => TreeClass::Unmovable,
        };
        let slot =
            (usize::from(cpu) * TreeClass::ALL.len() + class as usize) % self.reserved_pageblocks.len();
        let Some(offset) = self.find_block(slot, class, order) else { return Ok(None) };
        self.set_allocated(offset, order, true);
        self.frame_states[offset as usize..(offset + (1 << order)) as usize].fill(INSIDE_BLOCK);
        self.frame_states[offset as usize] = order + 1;
        Ok(Some(self.geometry.first_frame + offset))
    }

    /// Frees the block that begins at a frame. Returns its order.
    pub fn free_block(&mut self, frame: Frame) -> Result<u8, Error> {
        if !self.geometry.contains(frame) {
            return Err(Error::OutsideZone(frame));
        }
        let offset = frame - self.geometry.first_frame;
        let state = self.frame_states[offset as usize];
        if state == FREE_FRAME || state == INSIDE_BLOCK {
            return Err(Error::NotAllocated(frame));
        }
        let order = state - 1;
        self.frame_states[offset as usize..(offset + (1 << order)) as usize].fill(FREE_FRAME);
        self.set_allocated(offset, order, false);
        let tree = self.tree_of_pageblock(offset >> self.geometry.pageblock_order);
        let tree_frames = self.frames_of_tree(tree);
        let tree = &mut self.trees[tree];
        if tree.free_frames == tree_frames && !tree.is_reserved {
            tree.class = TreeClass::Huge;
        }
        Ok(order)
    }

    fn tree_of_pageblock(&self, pageblock: u32) -> usize {
        (pageblock / self.pageblocks_per_tree) as usize
    }

    fn pageblocks_of_tree(&self, tree: usize) -> Range<u32> {
        let from = tree as u32 * self.pageblocks_per_tree;
        from..(from + self.pageblocks_per_tree).min(self.pageblock_free_frames.len() as u32)
    }

    fn frames_of_tree(&self, tree: usize) -> u32 {
        (self.pageblocks_of_tree(tree).len() as u32) << self.geometry.pageblock_order
    }

    /// Records a block as used or free.
    fn set_allocated(&mut self, offset: u32, order: u8, is_allocated: bool) {
        let (size, first_row) = (1u32 << order, offset / u64::BITS);
        let pageblock = offset >> self.geometry.pageblock_order;
        let tree = self.tree_of_pageblock(pageblock);
        if order < 6 {
            let mask = ((1u64 << size) - 1) << (offset % u64::BITS);
            self.allocation_bits[first_row as usize] ^= mask;
        } else {
            let rows = first_row as usize..(first_row + size / u64::BITS) as usize;
            self.allocation_bits[rows].fill(if is_allocated { u64::MAX } else { 0 });
        }
        let update_count = |count: &mut u32| if is_allocated { *count -= size } else { *count += size };
        update_count(&mut self.pageblock_free_frames[pageblock as usize]);
        update_count(&mut self.trees[tree].free_frames);
        update_count(&mut self.free_frame_count);
    }

    fn is_block_free(&self, offset: u32, order: u8) -> bool {
        let row = (offset / u64::BITS) as usize;
        match order {
            0..6 => self.allocation_bits[row] >> (offset % u64::BITS) & ((1u64 << (1u32 << order)) - 1) == 0,
            _ => self.allocation_bits[row..row + (1 << (order - 6))].iter().all(|&bits| bits == 0),
        }
    }

    /// Finds a place: in the reserved tree, in one that is reserved instead, in any that has one.
    fn find_block(&mut self, slot: usize, class: TreeClass, order: u8) -> Option<u32> {
        if let Some(block) = self.reserved_pageblocks[slot]
            && let Some(at) = self.find_in_tree(self.tree_of_pageblock(block), Some(block), order)
        {
            self.reserved_pageblocks[slot] = Some(at >> self.geometry.pageblock_order);
            return Some(at);
        }
        let start = match self.reserved_pageblocks[slot] {
            Some(block) => self.tree_of_pageblock(block),
            None => {
                self.trees.len() * (slot / TreeClass::ALL.len()) * TreeClass::ALL.len()
                    / self.reserved_pageblocks.len()
            }
        };
        self.reserve_and_find(slot, class, order, start)
            .or_else(|| self.find_in_any_tree(class, order, start))
    }

    /// Reserves another tree for a processor's class: one that has a place.
    fn reserve_and_find(&mut self, slot: usize, class: TreeClass, order: u8, start: usize) -> Option<u32> {
        let nearby_trees = (self.trees.len() / 16).max(4);
        let step = (2 * nearby_trees).next_power_of_two();
        let start = start / step * step;
        if order < self.geometry.pageblock_order {
            let mut candidates: Vec<(u8, usize)> = Vec::new();
            for step in 1..nearby_trees.min(self.trees.len()) {
                let tree = self.tree_near(start, step);
                match self.rate_tree(tree, class, order) {
                    Some(u8::MAX) => {
                        if let Some(at) = self.reserve_tree(slot, class, order, tree) {
                            return Some(at);
                        }
                    }
                    Some(rate) => candidates.push((rate, tree)),
                    None => {}
                }
            }
            // The best three, the first of them that are alike.
            candidates.sort_by_key(|&(rate, _)| std::cmp::Reverse(rate));
            let mut candidates = candidates.into_iter().take(3);
            if let Some(at) = candidates.find_map(|(_, tree)| self.reserve_tree(slot, class, order, tree)) {
                return Some(at);
            }
        }
        (0..self.trees.len()).find_map(|step| {
            let tree = self.tree_near(start, step);
            let is_whole = self.trees[tree].free_frames == self.frames_of_tree(tree);
            let is_suitable = self.trees[tree].class == class || (is_whole && class < TreeClass::Huge);
            if is_suitable { self.reserve_tree(slot, class, order, tree) } else { None }
        })
    }

    /// The trees around one, by turns above and below.
    fn tree_near(&self, start: usize, step: usize) -> usize {
        let trees = self.trees.len();
        let distance = step.div_ceil(2) % trees;
        if step.is_multiple_of(2) { (start + distance) % trees } else { (start + trees - distance) % trees }
    }

    /// Fitness of a tree of the same class that is neither reserved nor completely free: best if almost used
    /// up, but not so far that it would soon have to be exchanged.
    fn rate_tree(&self, tree: usize, class: TreeClass, order: u8) -> Option<u8> {
        let tree_frames = self.frames_of_tree(tree);
        let TreeState { free_frames: free, class: tree_class, is_reserved } = self.trees[tree];
        if is_reserved || tree_class != class || free < 1 << order || free == tree_frames {
            return None;
        }
        let half_threshold =
            if self.has_bug(Bug::HalfFreeTreeFirst) { tree_frames + 1 } else { tree_frames / 2 };
        Some(if free >= half_threshold {
            1
        } else if free >= tree_frames / 64 {
            u8::MAX
        } else {
            0
        })
    }

    fn reserve_tree(&mut self, slot: usize, class: TreeClass, order: u8, tree: usize) -> Option<u32> {
        if self.trees[tree].is_reserved {
            return None;
        }
        let offset = self.find_in_tree(tree, None, order)?;
        (self.trees[tree].is_reserved, self.trees[tree].class) = (true, class);
        let pageblock = offset >> self.geometry.pageblock_order;
        if let Some(previous) = self.reserved_pageblocks[slot].replace(pageblock) {
            let old = self.tree_of_pageblock(previous);
            let is_whole = self.trees[old].free_frames == self.frames_of_tree(old);
            self.trees[old].is_reserved = self.has_bug(Bug::ReplacedTreeStaysReserved);
            if is_whole {
                self.trees[old].class = TreeClass::Huge;
            }
        }
        Some(offset)
    }

    /// Searches the remaining trees when none can be reserved: a tree of a higher class, which changes to
    /// this class; one of a lower class, which keeps its class; one that another processor or class has
    /// reserved.
    fn find_in_any_tree(&mut self, class: TreeClass, order: u8, start: usize) -> Option<u32> {
        let rank = |tree: &TreeState| match tree {
            TreeState { is_reserved: true, .. } => 2,
            TreeState { class: of, .. } if *of > class => 0,
            _ => 1,
        };
        for pass in 0..3 {
            for step in 0..self.trees.len() {
                let tree = self.tree_near(start, step);
                if rank(&self.trees[tree]) != pass {
                    continue;
                }
                if let Some(at) = self.find_in_tree(tree, None, order) {
                    if pass == 0 && !self.has_bug(Bug::TreeClassUnchanged) {
                        self.trees[tree].class = class;
                    }
                    return Some(at);
                }
            }
        }
        None
    }

    /// The lowest place in a pageblock of a tree: of those from `start` on, and then of those before it.
    fn find_in_tree(&self, tree: usize, start: Option<u32>, order: u8) -> Option<u32> {
        let pageblocks = self.pageblocks_of_tree(tree);
        let start = start.unwrap_or(pageblocks.start);
        let size = 1u32 << order;
        if self.trees[tree].free_frames < size {
            return None;
        }
        let mut scan_order = (start..pageblocks.end).chain(pageblocks.start..start);
        scan_order.find_map(|block| {
            if self.pageblock_free_frames[block as usize] < size {
                return None;
            }
            self.find_free_block(block, order)
        })
    }

    /// The lowest free block of an order in a pageblock. For blocks smaller than a row of bits, the row is
    /// folded onto itself: the first bit of each aligned place then says whether any frame of it is used.
    fn find_free_block(&self, pageblock: u32, order: u8) -> Option<u32> {
        let row_count = 1 << (self.geometry.pageblock_order - 6);
        let first_row = pageblock as usize * row_count;
        let rows = &self.allocation_bits[first_row..first_row + row_count];
        let index = if order < 6 {
            let first_frames = u64::MAX / ((1 << (1u32 << order)) - 1);
            rows.iter().zip(0u32..).find_map(|(&bits, row)| {
                let used = (0..order).fold(bits, |used, step| used | used >> (1u32 << step));
                let free = !used & first_frames;
                (free != 0).then(|| row * u64::BITS + free.trailing_zeros())
            })?
        } else {
            let size = 1 << (order - 6);
            let place = rows.chunks_exact(size).position(|rows| rows.iter().all(|&bits| bits == 0))?;
            (place * size) as u32 * u64::BITS
        };
        Some((pageblock << self.geometry.pageblock_order) + index)
    }

    /// Checks all metadata: bits, states and counters agree, and exactly the trees of processors are
    /// reserved.
    pub fn validate(&self) -> Result<(), Error> {
        let mut at = 0u32;
        while at < self.geometry.frames {
            let size = match self.frame_states[at as usize] {
                FREE_FRAME => 1,
                INSIDE_BLOCK => return corrupted(format!("{at:#x} belongs to no block")),
                order => 1u32 << (order - 1),
            };
            let is_free = self.frame_states[at as usize] == FREE_FRAME;
            for frame in at..at + size {
                let is_inside = frame == at || self.frame_states[frame as usize] == INSIDE_BLOCK;
                if self.is_block_free(frame, 0) != is_free || !is_inside {
                    return corrupted(format!("{frame:#x}: bitmap and block state disagree"));
                }
            }
            at += size;
        }
        let count_free =
            |of: Range<u32>| of.filter(|&at| self.frame_states[at as usize] == FREE_FRAME).count() as u32;
        let shift = self.geometry.pageblock_order;
        for block in 0..self.pageblock_free_frames.len() as u32 {
            let free = count_free(block << shift..(block + 1) << shift);
            if free != self.pageblock_free_frames[block as usize] {
                return corrupted(format!("pageblock {block} has {free} free frames, unlike its counter"));
            }
        }
        for (number, tree) in self.trees.iter().enumerate() {
            let free: u32 =
                self.pageblocks_of_tree(number).map(|block| self.pageblock_free_frames[block as usize]).sum();
            let reservations = self
                .reserved_pageblocks
                .iter()
                .flatten()
                .filter(|&&block| self.tree_of_pageblock(block) == number)
                .count();
            if free != tree.free_frames || reservations != usize::from(tree.is_reserved) {
                return corrupted(format!(
                    "tree {number} has {free} free frames and {reservations} reservations, unlike its state"
                ));
            }
        }
        let free: u32 = self.trees.iter().map(|tree| tree.free_frames).sum();
        if free == self.free_frame_count {
            Ok(())
        } else {
            corrupted(format!("the trees have {free} free frames, unlike the counter"))
        }
    }
}

/// All calls come from the first processor.
impl Engine for Llfree {
    fn frame_count(&self) -> u32 {
        self.geometry.frames
    }

    fn memory_ranges(&self) -> Vec<Range<usize>> {
        fn range<T>(of: &[T]) -> Range<usize> {
            let start = of.as_ptr() as usize;
            start..start + size_of_val(of)
        }
        vec![
            range(&self.frame_states),
            range(&self.allocation_bits),
            range(&self.pageblock_free_frames),
            range(&self.trees),
        ]
    }

    fn allocate_block(&mut self, order: u8, alloc_type: AllocationType) -> AllocateOutcome {
        Ok(Llfree::allocate_block(self, 0, order, alloc_type)?.map(|frame| (frame, false)))
    }

    fn free_block(&mut self, frame: Frame) -> Result<(), Error> {
        Llfree::free_block(self, frame).map(drop)
    }
}
