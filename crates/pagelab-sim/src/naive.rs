//! Naive twin of a zone: one word per frame, searched for every query. It shares with the engine nothing but
//! the types (`types.rs`) and the seeded random numbers.

use std::ops::Range;

use pagelab_model::random::SplitMix64;

use crate::types::{AllocationType, Fallback, Frame, FreeListDiscipline, ZoneFeatures, ZoneGeometry};

pub use pcp::{NaiveBatching, NaivePcpZone};

mod pcp;

#[derive(Clone, Copy, Debug, PartialEq)]
enum NaiveFrameState {
    Inside,
    /// `age` orders a list: the block with the highest is in front.
    Free {
        order: u8,
        list: u8,
        age: i64,
    },
    Allocated {
        order: u8,
        alloc_type: AllocationType,
    },
    /// A processor keeps it.
    OnPcpList,
}

/// How the twin serves a request with an empty list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyRule {
    /// By the stolen parts of its numbers.
    Table,
    /// Pageblocks, or a piece of the largest block: Linux up to 6.14.
    ClaimLargestOrSteal,
    /// Pageblocks, or a piece of the smallest block: Linux up to 6.18.
    ClaimThenSteal,
    /// Two regions.
    ResizeRegion,
}

/// Options of an allocation.
#[derive(Clone, Copy, Debug)]
pub struct NaiveAllocFlags {
    /// Whether kinds may be mixed.
    pub can_fragment: bool,
    /// Whether the highatomic reserve serves it.
    pub is_atomic: bool,
    /// In a batch: what served the last one. 0: its own list, 1: CMA, 2: a piece of another's block.
    pub last_source: u8,
}

struct ChosenBlock {
    offset: u32,
    order: u8,
    /// The list that the rest of it goes to.
    remainder_list: u8,
    fallback: Option<Fallback>,
}

/// The twin.
#[derive(Clone, Debug)]
pub struct NaiveZone {
    geometry: ZoneGeometry,
    policy_table: PolicyTable,
    lists: u8,
    features: ZoneFeatures,
    random: SplitMix64,
    random_bits: Vec<bool>,
    boundary: usize,
    frames: Vec<NaiveFrameState>,
    pageblock_owners: Vec<u8>,
    ages: (i64, i64),
    /// Number of scanned pageblocks of another migratetype that could not be claimed.
    pub fragmentation_events: u32,
}

impl NaiveZone {
    /// All memory free, under a policy of these numbers.
    pub fn new(geometry: ZoneGeometry, policy_table: PolicyTable, features: &ZoneFeatures) -> NaiveZone {
        let lists = policy_table.list_count;
        let mut owners = policy_table.initial_owners.clone();
        let is_region = policy_table.rule == PolicyRule::ResizeRegion;
        let boundary = if is_region { (owners.len() / 8).max(1) } else { 0 };
        for frame in features.cma_areas.iter().cloned().flat_map(Frame::range) {
            owners[geometry.pageblock_of(frame) as usize] = lists;
        }
        let seed = if let FreeListDiscipline::Shuffled(seed) = features.list_discipline { seed } else { 0 };
        let mut zone = NaiveZone {
            geometry,
            policy_table,
            lists,
            features: features.clone(),
            random: SplitMix64::new(seed),
            random_bits: Vec::new(),
            boundary,
            frames: vec![NaiveFrameState::Inside; geometry.frames as usize],
            pageblock_owners: owners,
            ages: (0, 0),
            fragmentation_events: 0,
        };
        zone.fill_free_lists();
        zone
    }

    fn fill_free_lists(&mut self) {
        let (geometry, mut at, mut shuffled_blocks) = (self.geometry, 0u32, Vec::new());
        while at < geometry.frames {
            let fits = |&order: &u8| {
                let end = at + (1 << order);
                (geometry.first_frame + at).is_aligned(order)
                    && end <= geometry.frames
                    && (at..end).all(|frame| self.pageblock_owner(frame) == self.pageblock_owner(at))
            };
            let order = (0..=geometry.max_order).rev().find(fits).unwrap_or(0);
            let is_shuffled =
                order == geometry.max_order && self.features.list_discipline != FreeListDiscipline::Lifo;
            match is_shuffled && self.features.list_discipline != FreeListDiscipline::Fifo {
                true => shuffled_blocks.push(at),
                false => self.add_free_block(
                    at,
                    order,
                    self.pageblock_owner(at),
                    self.policy_table.rule != PolicyRule::ResizeRegion || self.pageblock_owner(at) != 1,
                ),
            }
            at += 1 << order;
        }
        let mut left = shuffled_blocks.len();
        while left > 1 {
            let other = self.random.next_below(left as u64) as usize;
            left -= 1;
            shuffled_blocks.swap(left, other);
        }
        for at in shuffled_blocks {
            self.add_free_block(at, geometry.max_order, self.pageblock_owner(at), true);
        }
    }

    fn pageblock_owner(&self, at: u32) -> u8 {
        self.pageblock_owners[(at >> self.geometry.pageblock_order) as usize]
    }

    fn add_free_block(&mut self, at: u32, order: u8, list: u8, at_tail: bool) {
        let age = if at_tail { &mut self.ages.0 } else { &mut self.ages.1 };
        *age += if at_tail { -1 } else { 1 };
        self.frames[at as usize] = NaiveFrameState::Free { order, list, age: *age };
    }

    fn first_block(&self, target_list: u8, target_order: u8) -> Option<u32> {
        let age = |at: &u32| match self.frames[*at as usize] {
            NaiveFrameState::Free { order, list, age } if order == target_order && list == target_list => {
                Some(age)
            }
            _ => None,
        };
        (0..self.geometry.frames).filter(|at| age(at).is_some()).max_by_key(age)
    }

    fn allocation_list(&self, alloc_type: AllocationType) -> u8 {
        self.policy_table.allocation_lists[alloc_type as usize]
    }

    fn smallest_block(&self, list: u8, order: u8) -> Option<(u32, u8)> {
        (order..=self.geometry.max_order).find_map(|size| Some((self.first_block(list, size)?, size)))
    }

    /// The smallest block of a list, which a fallback may have filled.
    fn chosen_on_list(&self, list: u8, order: u8, fallback: Option<Fallback>) -> Option<ChosenBlock> {
        let (offset, order) = self.smallest_block(list, order)?;
        Some(ChosenBlock { offset, order, remainder_list: list, fallback })
    }

    fn fallback_from(&self, fallback_list: u8, at: u32, order: u8, alloc_list: u8, owns: bool) -> Fallback {
        let frame = self.geometry.first_frame + at;
        Fallback { frame, order, alloc_list, fallback_list, changes_ownership: owns }
    }

    /// The pageblocks of a block get an owner.
    fn set_owner(&mut self, at: u32, order: u8, owner: u8) {
        let pageblock = (at >> self.geometry.pageblock_order) as usize;
        let pageblocks = 1usize << order.saturating_sub(self.geometry.pageblock_order);
        self.pageblock_owners[pageblock..pageblock + pageblocks].fill(owner);
    }

    /// Allocates with flags.
    pub fn allocate_with_flags(
        &mut self,
        order: u8,
        alloc_type: AllocationType,
        flags: &mut NaiveAllocFlags,
    ) -> Option<(Frame, Option<Fallback>)> {
        let chosen = self.choose_block(order, alloc_type, flags)?;
        for half in (order..chosen.order).rev() {
            self.add_free_block(chosen.offset + (1 << half), half, chosen.remainder_list, false);
        }
        self.frames[chosen.offset as usize] = NaiveFrameState::Allocated { order, alloc_type };
        self.reserve_highatomic(chosen.offset, order, flags);
        Some((self.geometry.first_frame + chosen.offset, chosen.fallback))
    }

    fn choose_block(
        &mut self,
        order: u8,
        alloc_type: AllocationType,
        flags: &mut NaiveAllocFlags,
    ) -> Option<ChosenBlock> {
        let (wanted, cma) = (self.allocation_list(alloc_type), self.lists);
        let is_movable = alloc_type == AllocationType::Movable;
        let sources = [
            (cma + 1, flags.is_atomic && order > 0),
            (cma, is_movable && self.free_frames_on(Some(cma)) > self.free_frames_on(None) / 2),
            (wanted, flags.last_source == 0),
            (cma, is_movable && flags.last_source < 2),
        ];
        for (number, (list, is_allowed)) in sources.into_iter().enumerate() {
            if is_allowed && let Some(block) = self.chosen_on_list(list, order, None) {
                if number == 3 {
                    flags.last_source = 1;
                }
                return Some(block);
            }
        }
        self.choose_fallback(order, wanted, flags)
    }

    /// Free frames of one list, or of all.
    fn free_frames_on(&self, of: Option<u8>) -> u32 {
        let frames = |page: &NaiveFrameState| match *page {
            NaiveFrameState::Free { order, list, .. } if of.is_none_or(|of| of == list) => 1 << order,
            _ => 0,
        };
        self.frames.iter().map(frames).sum()
    }

    fn choose_fallback(
        &mut self,
        order: u8,
        alloc_list: u8,
        flags: &mut NaiveAllocFlags,
    ) -> Option<ChosenBlock> {
        let min_order = if flags.can_fragment { order } else { order.max(self.geometry.pageblock_order) };
        match self.policy_table.rule {
            PolicyRule::ResizeRegion => self.resize_region(order, alloc_list),
            PolicyRule::ClaimLargestOrSteal => {
                let size = self.largest_fallback_order(min_order, alloc_list)?;
                let (from, at) = self.fallback_block(alloc_list, size)?;
                if !self.is_pageblock_steal(size, alloc_list) {
                    self.fragmentation_events += 1;
                    return self.steal_smallest(order, alloc_list);
                }
                let part = self.part_of(at, size, alloc_list, from);
                self.claim_pageblock(order, alloc_list, size).or(Some(part))
            }
            PolicyRule::ClaimThenSteal => {
                for size in (min_order..=self.geometry.max_order).rev().filter(|_| flags.last_source != 2) {
                    if self.is_pageblock_steal(size, alloc_list)
                        && let Some(claimed) = self.claim_pageblock(order, alloc_list, size)
                    {
                        flags.last_source = 0;
                        return Some(claimed);
                    }
                }
                let cut = self.steal_smallest(order, alloc_list).filter(|_| flags.can_fragment)?;
                flags.last_source = 2;
                Some(cut)
            }
            PolicyRule::Table => self.choose_by_table(order, min_order, alloc_list),
        }
    }

    fn fallback_block(&self, alloc_list: u8, size: u8) -> Option<(u8, u32)> {
        let fallbacks = &self.policy_table.fallbacks[usize::from(alloc_list)];
        fallbacks.iter().find_map(|&list| Some((list, self.first_block(list, size)?)))
    }

    /// Whether a block of this order makes a request look at its whole pageblock.
    fn is_pageblock_steal(&self, size: u8, alloc_list: u8) -> bool {
        let stolen_parts = &self.policy_table.stolen_parts[usize::from(alloc_list)];
        stolen_parts[usize::from(size)] == StolenPart::WholePageblock
    }

    fn largest_fallback_order(&self, min_order: u8, alloc_list: u8) -> Option<u8> {
        (min_order..=self.geometry.max_order)
            .rev()
            .find(|&size| self.fallback_block(alloc_list, size).is_some())
    }

    /// A piece of the smallest block of others.
    fn steal_smallest(&self, order: u8, alloc_list: u8) -> Option<ChosenBlock> {
        let mut sizes = order..=self.geometry.max_order;
        let (size, (from, at)) =
            sizes.find_map(|size| Some((size, self.fallback_block(alloc_list, size)?)))?;
        Some(self.part_of(at, size, alloc_list, from))
    }

    /// A piece of a block of another list, on which the rest stays.
    fn part_of(&self, offset: u32, order: u8, alloc_list: u8, fallback_list: u8) -> ChosenBlock {
        let fallback = Some(self.fallback_from(fallback_list, offset, order, alloc_list, false));
        ChosenBlock { offset, order, remainder_list: fallback_list, fallback }
    }

    /// The pageblock of the best block of an order, if it is alike.
    fn claim_pageblock(&mut self, order: u8, alloc_list: u8, size: u8) -> Option<ChosenBlock> {
        let (from, at) = self.fallback_block(alloc_list, size)?;
        let fallback = Some(self.fallback_from(from, at, size, alloc_list, true));
        let pageblock = (at >> self.geometry.pageblock_order) as usize;
        if size >= self.geometry.pageblock_order {
            self.set_owner(at, size, alloc_list);
            return Some(ChosenBlock { offset: at, order: size, remainder_list: alloc_list, fallback });
        }
        self.fragmentation_events += 1;
        if !self.can_claim_pageblock(pageblock, alloc_list) {
            return None;
        }
        self.move_pageblock_blocks(pageblock, alloc_list);
        self.pageblock_owners[pageblock] = alloc_list;
        self.chosen_on_list(alloc_list, order, fallback)
    }

    fn pageblock_range(&self, pageblock: usize) -> Range<usize> {
        pageblock << self.geometry.pageblock_order..(pageblock + 1) << self.geometry.pageblock_order
    }

    fn can_claim_pageblock(&self, pageblock: usize, alloc_list: u8) -> bool {
        let (mut free, mut movable) = (0, 0);
        for page in &self.frames[self.pageblock_range(pageblock)] {
            match *page {
                NaiveFrameState::Free { order, .. } => free += 1 << order,
                NaiveFrameState::Allocated { order, alloc_type: AllocationType::Movable } => {
                    movable += 1 << order
                }
                _ => {}
            }
        }
        let pages = 1u32 << self.geometry.pageblock_order;
        let alike = match (alloc_list, self.pageblock_owners[pageblock]) {
            (1, _) => movable,
            (_, 1) => pages - free - movable,
            _ => 0,
        };
        free + alike >= pages / 2
    }

    /// All that is free in a pageblock goes to the end of a list.
    fn move_pageblock_blocks(&mut self, pageblock: usize, list: u8) {
        for at in self.pageblock_range(pageblock) {
            if let NaiveFrameState::Free { order, .. } = self.frames[at] {
                self.add_free_block(at as u32, order, list, true);
            }
        }
    }

    /// Allocates just this block, if all of it is free.
    pub fn allocate_at(&mut self, frame: Frame, order: u8, alloc_type: AllocationType) -> bool {
        let (first, at) = (self.geometry.first_frame, frame - self.geometry.first_frame);
        let larger =
            (order..=self.geometry.max_order).find(|&size| self.is_free_block(frame.align_down(size), size));
        if let Some(size) = larger {
            let enclosing_offset = frame.align_down(size) - first;
            let remainder_list = match self.pageblock_owner(enclosing_offset) {
                owner if owner >= self.lists => owner,
                owner => self.free_list(alloc_type, owner),
            };
            self.frames[enclosing_offset as usize] = NaiveFrameState::Inside;
            for half in (order..size).rev() {
                self.add_free_block(frame.align_down(half).buddy(half) - first, half, remainder_list, false);
            }
        } else {
            let mut next = at;
            while next < at + (1 << order) {
                let NaiveFrameState::Free { order, .. } = self.frames[next as usize] else { return false };
                next += 1 << order;
            }
        }
        self.frames[at as usize..(at + (1 << order)) as usize].fill(NaiveFrameState::Inside);
        self.frames[at as usize] = NaiveFrameState::Allocated { order, alloc_type };
        true
    }

    /// Whether a free block of this order begins at a frame.
    fn is_free_block(&self, frame: Frame, size: u8) -> bool {
        self.geometry.contains(frame)
            && matches!(self.frames[(frame - self.geometry.first_frame) as usize],
                NaiveFrameState::Free { order, .. } if order == size)
    }

    /// Frees; `None` if no block was allocated there.
    pub fn free_block(&mut self, frame: Frame) -> Option<u8> {
        let (order, list) = self.allocated_order_and_list(frame)?;
        let first = frame - self.geometry.first_frame;
        let has_reserved_pageblock =
            (first..first + (1 << order)).any(|at| self.pageblock_owner(at) >= self.lists);
        if order > self.geometry.pageblock_order && (self.is_strict() || has_reserved_pageblock) {
            for part in (0..1 << order).step_by(1 << self.geometry.pageblock_order) {
                self.merge_and_list(
                    frame + part,
                    self.geometry.pageblock_order,
                    self.pageblock_owner(first + part),
                );
            }
        } else {
            self.merge_and_list(frame, order, list);
        }
        Some(order)
    }

    /// Order of the allocated block at a frame, and the list that its pageblock belongs to.
    fn allocated_order_and_list(&self, frame: Frame) -> Option<(u8, u8)> {
        let at = self.geometry.contains(frame).then(|| frame - self.geometry.first_frame)?;
        let NaiveFrameState::Allocated { order, alloc_type: kind } = self.frames[at as usize] else {
            return None;
        };
        Some((order, self.free_list(kind, self.pageblock_owner(at))))
    }

    /// The list that a block of an allocation type goes to, in a pageblock of an owner.
    fn free_list(&self, alloc_type: AllocationType, owner: u8) -> u8 {
        if owner >= self.lists {
            return owner;
        }
        self.policy_table.free_lists[alloc_type as usize][usize::from(owner)]
    }

    /// Whether each free block is on the list that owns its pageblock.
    fn is_strict(&self) -> bool {
        self.policy_table.rule != PolicyRule::Table
    }

    fn merge_and_list(&mut self, frame: Frame, order: u8, list: u8) {
        self.frames[(frame - self.geometry.first_frame) as usize] = NaiveFrameState::Inside;
        let (mut frame, mut size) = (frame, order);
        while size < self.geometry.max_order && self.is_free_block(frame.buddy(size), size) {
            let buddy = frame.buddy(size);
            if size >= self.geometry.pageblock_order && !self.merge_owners(frame, buddy, size) {
                break;
            }
            self.frames[(buddy - self.geometry.first_frame) as usize] = NaiveFrameState::Inside;
            (frame, size) = (frame.min(buddy), size + 1);
        }
        let parent_block = frame.align_down(size + 1);
        let mut at_tail = self.policy_table.has_merge_prediction
            && size + 1 < self.geometry.max_order
            && self.is_free_block(parent_block.buddy(size + 1), size + 1);
        if self.features.list_discipline == FreeListDiscipline::Fifo {
            at_tail = true;
        } else if matches!(self.features.list_discipline, FreeListDiscipline::Shuffled(_))
            && size == self.geometry.max_order
        {
            if self.random_bits.is_empty() {
                let number = self.random.next_u64();
                self.random_bits = (0..64).rev().map(|bit| number >> bit & 1 == 1).collect();
            }
            at_tail = self.random_bits.pop() == Some(true);
        }
        self.add_free_block(frame - self.geometry.first_frame, size, list, at_tail);
    }

    /// Whether two blocks of pageblocks may become one; then the buddy's follow.
    fn merge_owners(&mut self, frame: Frame, buddy: Frame, size: u8) -> bool {
        let (owner, buddy_owner) = (
            self.pageblock_owner(frame - self.geometry.first_frame),
            self.pageblock_owner(buddy - self.geometry.first_frame),
        );
        if owner != buddy_owner
            && (owner.max(buddy_owner) >= self.lists || self.policy_table.rule == PolicyRule::ResizeRegion)
        {
            return false;
        }
        if self.is_strict() {
            self.set_owner(buddy - self.geometry.first_frame, size, owner);
        }
        true
    }

    /// Free blocks of each order.
    pub fn free_blocks(&self) -> Vec<u32> {
        let mut blocks = vec![0; usize::from(self.geometry.max_order) + 1];
        for page in &self.frames {
            if let NaiveFrameState::Free { order, .. } = page {
                blocks[usize::from(*order)] += 1;
            }
        }
        blocks
    }

    /// The list that each pageblock belongs to.
    pub fn pageblock_owners(&self) -> &[u8] {
        &self.pageblock_owners
    }
}

/// Extent of what a request takes from a fallback list, defined independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StolenPart {
    /// All that is free in the pageblock.
    WholePageblock,
    /// The smallest block that will do.
    SmallestBlock,
    /// The largest block, and nothing else changes hands.
    LargestBlock,
    /// The requested order.
    RequestedOrder,
}

/// The numbers of a policy.
#[derive(Clone, Debug)]
pub struct PolicyTable {
    /// Service of a request with an empty list.
    pub rule: PolicyRule,
    /// Lists at each order.
    pub list_count: u8,
    /// The list that each allocation type takes from, by its number.
    pub allocation_lists: [u8; 3],
    /// The list that a block is freed to, by its allocation type and the owner of its pageblock.
    pub free_lists: [Vec<u8>; 3],
    /// The fallback lists in their order, by the empty list.
    pub fallbacks: Vec<Vec<u8>>,
    /// Steal extent, by the empty list and the order of the scanned block.
    pub stolen_parts: Vec<Vec<StolenPart>>,
    /// Whether a block that is likely to be merged soon goes to the end of its list.
    pub has_merge_prediction: bool,
    /// The owner of each pageblock at the start.
    pub initial_owners: Vec<u8>,
}

impl PolicyTable {
    /// The numbers of a policy by its name; `None`: they must be given.
    pub fn for_policy_name(name: &str, geometry: ZoneGeometry) -> Option<PolicyTable> {
        let (rule, list_count) = match name {
            "standard" => (PolicyRule::Table, 1),
            "list2" => (PolicyRule::Table, 2),
            "list3" | "mobility-6.1" => (PolicyRule::Table, 3),
            "mobility-6.10" => (PolicyRule::ClaimLargestOrSteal, 3),
            "mobility-6.18" | "defrag-6.18" => (PolicyRule::ClaimThenSteal, 3),
            "contiguitas" => (PolicyRule::ResizeRegion, 2),
            _ => return None,
        };
        let (is_region, is_papers) = (rule == PolicyRule::ResizeRegion, name.starts_with("list"));
        let (allocation_lists, fallbacks) = match list_count {
            1 => ([0; 3], vec![vec![]]),
            2 if is_region => ([0, 1, 0], vec![vec![]; 2]),
            2 => ([0, 1, 0], vec![vec![1], vec![0]]),
            _ => ([0, 1, 2], vec![vec![2, 1], vec![2, 0], vec![0, 1]]),
        };
        let owners = 0..list_count;
        let free_list = |own: u8, owner: u8| if is_papers { own } else { owner };
        let pageblock_order = geometry.pageblock_order;
        let stolen_part = |alloc_list: u8, size: u8| match (is_papers, alloc_list) {
            (true, _) if size < pageblock_order.div_ceil(2) => StolenPart::RequestedOrder,
            (true, _) => StolenPart::LargestBlock,
            (false, 1) if size < pageblock_order / 2 => StolenPart::SmallestBlock,
            (false, _) => StolenPart::WholePageblock,
        };
        let stolen_parts_of = |list| (0..=geometry.max_order).map(|size| stolen_part(list, size)).collect();
        let pageblocks = (geometry.frames >> pageblock_order) as usize;
        let mut initial_owners = vec![u8::from(list_count > 1); pageblocks];
        if is_region {
            initial_owners[..(pageblocks / 8).max(1)].fill(0);
        }
        Some(PolicyTable {
            rule,
            list_count,
            allocation_lists,
            free_lists: allocation_lists
                .map(|own| owners.clone().map(|owner| free_list(own, owner)).collect()),
            fallbacks,
            stolen_parts: owners.map(stolen_parts_of).collect(),
            // Since Linux 2.6.35.
            has_merge_prediction: !is_papers && name != "standard",
            initial_owners,
        })
    }
}

impl NaiveZone {
    /// Chooses a block of another list by the given numbers.
    fn choose_by_table(&mut self, order: u8, min_order: u8, alloc_list: u8) -> Option<ChosenBlock> {
        let stolen_parts = self.policy_table.stolen_parts[usize::from(alloc_list)].clone();
        let stolen_part = |size: u8| stolen_parts[usize::from(size)];
        let mut size = self.largest_fallback_order(min_order, alloc_list)?;
        let (mut from, mut at) = self.fallback_block(alloc_list, size)?;
        if stolen_part(size) == StolenPart::RequestedOrder {
            return Some(self.part_of(at, size, alloc_list, from));
        }
        if stolen_part(size) == StolenPart::SmallestBlock {
            size = (order..=size).find(|&size| self.fallback_block(alloc_list, size).is_some())?;
            (from, at) = self.fallback_block(alloc_list, size)?;
        }
        let mut fallback = self.fallback_from(from, at, size, alloc_list, false);
        let pageblock = (at >> self.geometry.pageblock_order) as usize;
        match stolen_part(size) {
            StolenPart::LargestBlock => self.add_free_block(at, size, alloc_list, true),
            _ if size >= self.geometry.pageblock_order => {
                fallback.changes_ownership = true;
                self.set_owner(at, size, alloc_list);
                self.add_free_block(at, size, alloc_list, true);
            }
            StolenPart::WholePageblock => {
                self.fragmentation_events += 1;
                fallback.changes_ownership = self.can_claim_pageblock(pageblock, alloc_list);
                self.move_pageblock_blocks(pageblock, alloc_list);
                if fallback.changes_ownership {
                    self.pageblock_owners[pageblock] = alloc_list;
                }
            }
            StolenPart::SmallestBlock | StolenPart::RequestedOrder => {
                self.fragmentation_events += 1;
                self.add_free_block(at, size, alloc_list, true);
            }
        }
        self.chosen_on_list(alloc_list, order, Some(fallback))
    }

    fn resize_region(&mut self, order: u8, alloc_list: u8) -> Option<ChosenBlock> {
        let (pageblock_order, first) = (self.geometry.pageblock_order, self.geometry.first_frame.index());
        let pageblocks_in = |frames: usize| frames >> pageblock_order;
        // Pageblock numbers of the whole machine, in steps of the requested size.
        let step = 1usize << order.saturating_sub(pageblock_order);
        let (base_pageblock, boundary_pageblock) =
            (pageblocks_in(first), pageblocks_in(first) + self.boundary);
        let pageblocks = if alloc_list == 0 {
            let to = boundary_pageblock.div_ceil(step) * step + step;
            self.boundary..to - base_pageblock
        } else {
            let from =
                (boundary_pageblock / step * step).checked_sub(step).filter(|&from| from > base_pageblock)?;
            from - base_pageblock..self.boundary
        };
        if pageblocks.end > self.pageblock_owners.len() {
            return None;
        }
        let is_free = |at: usize| {
            (0..=self.geometry.max_order).any(|order| {
                let frame = Frame::new((first + at) as u32).align_down(order);
                self.is_free_block(frame, order)
            })
        };
        let owner = 1 - alloc_list;
        if pageblocks.clone().any(|pageblock| {
            self.pageblock_owners[pageblock] != owner || !self.pageblock_range(pageblock).all(is_free)
        }) {
            return None;
        }
        for pageblock in pageblocks.clone() {
            self.move_free_pageblock(pageblock, alloc_list);
        }
        self.boundary = if alloc_list == 0 { pageblocks.end } else { pageblocks.start };
        let at = (pageblocks.start as u32) << pageblock_order;
        let fallback = self.fallback_from(owner, at, pageblock_order, alloc_list, true);
        self.chosen_on_list(alloc_list, order, Some(fallback))
    }

    /// The boundary goes down while the two pageblocks below it are free; an eighth stays below.
    pub fn lower_boundary(&mut self) -> u32 {
        let (least, before) = ((self.pageblock_owners.len() / 8).max(1), self.boundary);
        while self.policy_table.rule == PolicyRule::ResizeRegion
            && self.boundary > least
            && (1..=2).all(|below| self.is_free_in_low_region(self.boundary - below))
        {
            self.boundary -= 1;
            self.move_free_pageblock(self.boundary, 1);
        }
        (before - self.boundary) as u32
    }

    fn is_free_in_low_region(&self, pageblock: usize) -> bool {
        let ZoneGeometry { first_frame, max_order, pageblock_order, .. } = self.geometry;
        let frame = first_frame + ((pageblock as u32) << pageblock_order);
        self.pageblock_owners[pageblock] == 0
            && (pageblock_order..=max_order).any(|order| self.is_free_block(frame.align_down(order), order))
    }

    /// A free pageblock changes hands; what else is in its block is cut into its largest parts.
    fn move_free_pageblock(&mut self, pageblock: usize, list: u8) {
        let (pageblock_order, first) = (self.geometry.pageblock_order, self.geometry.first_frame);
        let at = (pageblock as u32) << pageblock_order;
        let mut sizes = pageblock_order..=self.geometry.max_order;
        let Some(size) = sizes.find(|&size| self.is_free_block((first + at).align_down(size), size)) else {
            return;
        };
        let enclosing_offset = (first + at).align_down(size) - first;
        self.frames[enclosing_offset as usize] = NaiveFrameState::Inside;
        for order in (pageblock_order..size).rev() {
            let buddy = (first + at).align_down(order).buddy(order);
            self.add_free_block(buddy - first, order, self.pageblock_owners[pageblock], false);
        }
        self.pageblock_owners[pageblock] = list;
        self.merge_and_list(first + at, pageblock_order, list);
    }

    fn reserve_highatomic(&mut self, at: u32, order: u8, flags: &NaiveAllocFlags) {
        let pageblock_order = self.geometry.pageblock_order;
        let pageblock = (at >> pageblock_order) as usize;
        let pageblocks = pageblock..pageblock + (1usize << order.saturating_sub(pageblock_order));
        let held =
            self.pageblock_owners.iter().filter(|&&owner| owner == self.lists + 1).count() << pageblock_order;
        let can_reserve = flags.is_atomic && order > 0 && self.features.has_highatomic;
        if !can_reserve
            || held as u32 >= self.geometry.frames / 100 + (1 << pageblock_order)
            || self.pageblock_owners[pageblocks.clone()].iter().any(|&owner| owner >= self.lists)
        {
            return;
        }
        for pageblock in pageblocks {
            self.pageblock_owners[pageblock] = self.lists + 1;
            self.move_pageblock_blocks(pageblock, self.lists + 1);
        }
    }

    /// Gives a pageblock of the highatomic reserve back.
    pub fn unreserve_highatomic(&mut self, alloc_type: AllocationType, is_forced: bool) -> bool {
        let (list, pageblock_order) = (self.lists + 1, self.geometry.pageblock_order);
        let held = self.pageblock_owners.iter().filter(|&&owner| owner == list).count();
        let Some((at, size)) = self.smallest_block(list, 0) else { return false };
        if held <= 1 && !is_forced {
            return false;
        }
        let pageblock = (at >> pageblock_order) as usize;
        let wanted = match self.policy_table.rule {
            PolicyRule::ResizeRegion if pageblock < self.boundary => 0,
            PolicyRule::ResizeRegion => 1,
            _ => self.allocation_list(alloc_type),
        };
        if size < pageblock_order {
            self.move_pageblock_blocks(pageblock, wanted);
            self.pageblock_owners[pageblock] = wanted;
            return true;
        }
        for pageblock in pageblock..pageblock + (1 << (size - pageblock_order)) {
            self.move_free_pageblock(pageblock, wanted);
        }
        true
    }
}
