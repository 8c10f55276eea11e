//! Group of up to 128 frames in three words: the free frames, and the starts of allocated blocks.
//!
//! A pair of frames takes three bits. If the pair is in an allocated block of order 1 or more, its bit in
//! `paired` is set, and that in `even` says that the block begins here. Else `even` and `odd` say which of
//! its two frames is allocated, as a block of order 0. Free blocks need no more bits: they are the largest
//! aligned runs of free frames, since free buddies are always merged.

/// The order of a group: 128 frames.
pub const GROUP_ORDER: u8 = 7;

/// By order, the pairs at which a block may begin.
const PAIRS_BY_ORDER: [u64; 9] = [
    !0,
    !0,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
    1,
];

const _: () = assert!(1 << GROUP_ORDER == 2 * u64::BITS && GROUP_ORDER as u32 + 1 == OrderSet::BITS);
const _: () = assert!(PAIRS_BY_ORDER.len() > GROUP_ORDER as usize + 1);

/// The pairs of a block of an order from 1 to 7.
#[inline]
fn pairs_of_order(order: u8) -> u32 {
    1 << (order - 1)
}

/// Those of a group's free blocks of an order that have no free buddy in it, each by the pair at which both
/// halves of the larger block begin. `free` is the result of [`FrameBits::free_pairs_of_order`] for that
/// order.
#[inline]
fn unpaired_blocks(free: u64, order: u8) -> u64 {
    // In two steps, since a shift by 64 would have no effect.
    (free ^ (free >> (pairs_of_order(order) - 1) >> 1)) & PAIRS_BY_ORDER[usize::from(order) + 1]
}

/// The orders of a group's free blocks, as bits.
pub type OrderSet = u8;

/// State of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameCover {
    /// A free block.
    Free,
    /// An allocated one that begins at this frame.
    BlockStart(u32),
    /// One that begins before the group.
    BeforeGroup,
}

/// State of a group in three words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameBits {
    /// Of even frames, and of odd ones.
    single_bits: [u64; 2],
    paired_bits: u64,
}

impl FrameBits {
    /// 2^`order` free frames; frames above them count as allocated.
    pub fn new(order: u8) -> FrameBits {
        let unusable_bits = match order {
            0 | GROUP_ORDER.. => 0,
            _ => !0 << pairs_of_order(order),
        };
        FrameBits { single_bits: [unusable_bits; 2], paired_bits: 0 }
    }

    /// The pairs at which 2^`order` free frames begin, order 1 to 7.
    #[inline]
    fn free_pairs_of_order(&self, order: u8) -> u64 {
        let [even, odd] = self.single_bits;
        let mut free = !(even | odd | self.paired_bits);
        for half in 1..order {
            free &= (free >> pairs_of_order(half)) & PAIRS_BY_ORDER[usize::from(half) + 1];
        }
        free
    }

    /// The pairs of which one frame is free.
    #[inline]
    fn half_free_pairs(&self) -> u64 {
        (self.single_bits[0] ^ self.single_bits[1]) & !self.paired_bits
    }

    /// Allocates 2^`order` frames of the lowest free block of the order `found_order`. Returns the frame, and
    /// the orders of the remaining free blocks.
    #[inline]
    pub fn allocate_block(&mut self, orders: OrderSet, order: u8, found_order: u8) -> (u32, OrderSet) {
        let (offset, unpaired) = if found_order == 0 {
            let unpaired_pairs = self.half_free_pairs();
            let pair = unpaired_pairs.trailing_zeros();
            (2 * pair + (self.single_bits[0] >> pair & 1) as u32, unpaired_pairs)
        } else {
            let free = self.free_pairs_of_order(found_order);
            let unpaired_pairs = unpaired_blocks(free, found_order);
            let pair = unpaired_pairs.trailing_zeros();
            let is_lower = free >> pair & 1 == 1;
            (2 * (pair + if is_lower { 0 } else { pairs_of_order(found_order) }), unpaired_pairs)
        };
        self.mark_allocated(offset, order);
        let is_last_of_order = unpaired & (unpaired - 1) == 0;
        let remaining_orders = if is_last_of_order { orders & !(1 << found_order) } else { orders };
        (offset, remaining_orders | ((1 << found_order) - (1 << order)) as OrderSet)
    }

    /// Fast path of a free: a single frame whose buddy is an allocated block of order 0, so nothing merges.
    /// Returns whether it was so.
    #[inline(always)]
    pub fn free_single(&mut self, offset: u32) -> bool {
        let [even, odd] = self.single_bits;
        let pair = offset / 2;
        let is_alone = (even & odd & !self.paired_bits) >> pair & 1 == 1;
        if is_alone {
            self.single_bits[(offset & 1) as usize] &= !(1 << pair);
        }
        is_alone
    }

    /// Allocates the lowest free frame whose buddy is allocated: which, and whether there is another. `None`:
    /// there is not one.
    #[inline(always)]
    pub fn allocate_single(&mut self) -> Option<(u32, bool)> {
        let half_free = self.half_free_pairs();
        if half_free == 0 {
            return None;
        }
        let pair = half_free.trailing_zeros();
        let odd = (self.single_bits[0] >> pair & 1) as u32;
        self.single_bits[odd as usize & 1] |= 1 << pair;
        Some((2 * pair + odd, half_free & (half_free - 1) != 0))
    }

    /// Frees the block of an order at a frame. Returns its order after merging with its buddies in this
    /// group, and the orders of the free blocks then. `group_order` is the group's own order.
    #[inline]
    pub fn free_block(
        &mut self,
        orders: OrderSet,
        offset: u32,
        order: u8,
        group_order: u8,
    ) -> (u8, OrderSet) {
        self.clear_allocated(offset, order);
        let pair = offset / 2;
        let (mut size, mut orders) = (order, orders);
        if size == 0 {
            let unpaired = self.half_free_pairs();
            orders = orders & !1 | OrderSet::from(unpaired != 0);
            if unpaired >> pair & 1 == 1 {
                return (0, orders);
            }
            size = 1;
        }
        let mut free = self.free_pairs_of_order(size);
        while size < group_order {
            let unpaired = unpaired_blocks(free, size);
            orders = orders & !(1 << size) | OrderSet::from(unpaired != 0) << size;
            if unpaired >> (pair & !(2 * pairs_of_order(size) - 1)) & 1 == 1 {
                return (size, orders);
            }
            free &= (free >> pairs_of_order(size)) & PAIRS_BY_ORDER[usize::from(size) + 1];
            size += 1;
        }
        (group_order, 1 << group_order)
    }

    /// Allocates the block at a frame. Of an order above 7, the part in this group, which begins it.
    #[inline]
    pub fn mark_allocated(&mut self, offset: u32, order: u8) {
        match order {
            0 => self.single_bits[(offset & 1) as usize] |= 1 << (offset / 2),
            _ => {
                self.paired_bits |= FrameBits::pair_mask(offset, order);
                self.single_bits[0] |= 1 << (offset / 2);
            }
        }
    }

    /// Allocates all of it, as the later part of a larger block.
    #[inline]
    pub fn mark_inside_block(&mut self) {
        *self = FrameBits { single_bits: [0; 2], paired_bits: !0 };
    }

    /// Removes the record of the allocated block at a frame.
    #[inline]
    pub fn clear_allocated(&mut self, offset: u32, order: u8) {
        match order {
            0 => self.single_bits[(offset & 1) as usize] &= !(1 << (offset / 2)),
            _ => {
                self.paired_bits &= !FrameBits::pair_mask(offset, order);
                self.single_bits[0] &= !(1 << (offset / 2));
            }
        }
    }

    #[inline]
    fn pair_mask(offset: u32, order: u8) -> u64 {
        !0 >> (64 - pairs_of_order(order.min(GROUP_ORDER))) << (offset / 2)
    }

    /// The order of the allocated block that begins at a frame; of one of an order above 7, 7.
    #[inline]
    pub fn allocated_order_at(&self, offset: u32) -> Option<u8> {
        let pair = offset / 2;
        let is_set = |word: u64| word >> pair & 1 == 1;
        let is_odd = !offset.is_multiple_of(2);
        if !is_set(self.paired_bits) {
            return is_set(self.single_bits[(offset & 1) as usize]).then_some(0);
        }
        if is_odd || !is_set(self.single_bits[0]) {
            return None;
        }
        let inside = (self.paired_bits & !self.single_bits[0]) >> pair >> 1;
        Some(1 + (inside.trailing_ones() + 1).trailing_zeros() as u8)
    }

    /// Whether it begins inside of an allocated block.
    #[inline]
    pub fn is_continuation(&self) -> bool {
        self.paired_bits & !self.single_bits[0] & 1 == 1
    }

    /// Start of the allocated block that contains a frame.
    #[inline]
    pub fn frame_cover(&self, offset: u32) -> FrameCover {
        if self.is_free(offset) {
            return FrameCover::Free;
        }
        let pair = offset / 2;
        if self.paired_bits >> pair & 1 == 0 {
            return FrameCover::BlockStart(offset);
        }
        let block_starts = self.paired_bits & self.single_bits[0] & (!0 >> (63 - pair));
        match block_starts.checked_ilog2() {
            Some(pair) => FrameCover::BlockStart(2 * pair),
            None => FrameCover::BeforeGroup,
        }
    }

    /// Whether a frame is free.
    #[inline]
    pub fn is_free(&self, offset: u32) -> bool {
        (self.single_bits[(offset & 1) as usize] | self.paired_bits) >> (offset / 2) & 1 == 0
    }

    pub fn free_frames(&self) -> u32 {
        self.single_bits.iter().map(|word| (word | self.paired_bits).count_zeros()).sum()
    }
}
