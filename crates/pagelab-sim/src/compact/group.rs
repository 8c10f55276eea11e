//! Up to 128 frames in three words: which are free, and where the allocated blocks begin.
//!
//! A pair of frames takes three bits. If the pair lies in an allocated block of order 1 or more, its bit in
//! `paired` is set, and that in `even` says that the block begins here. Else `even` and `odd` say which of
//! its two frames is allocated, as a block of order 0. Free blocks need no more bits: they are the largest
//! aligned runs of free frames, since free buddies are always merged.

/// The order of a group: 128 frames.
pub const GROUP: u8 = 7;

/// By order, the pairs at which a block may begin.
const EVERY: [u64; 9] = [
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

/// The pairs of a block of an order from 1 to 7.
#[inline]
fn pairs(order: u8) -> u32 {
    1 << (order - 1)
}

/// Those of a group's free blocks of an order that have no free buddy in it, each by the pair at which both
/// halves of the larger block begin. `free` is what [`Group::free_at`] says of that order.
#[inline]
fn lone(free: u64, order: u8) -> u64 {
    // In two steps: a shift by 64 is none.
    (free ^ (free >> (pairs(order) - 1) >> 1)) & EVERY[usize::from(order) + 1]
}

/// The orders of a group's free blocks, as bits.
pub type Orders = u8;

/// What lies at a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Covering {
    /// A free block.
    Free,
    /// An allocated one that begins at this frame.
    From(u32),
    /// One that begins before the group.
    Before,
}

/// The words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Of even frames, and of odd ones.
    singles: [u64; 2],
    paired: u64,
}

impl Group {
    /// Free frames, 2^`order` of them; what is above counts as allocated.
    pub fn new(order: u8) -> Group {
        let above = match order {
            0 | GROUP.. => 0,
            _ => !0 << pairs(order),
        };
        Group { singles: [above; 2], paired: 0 }
    }

    /// The pairs at which 2^`order` free frames begin, order 1 to 7.
    #[inline]
    fn free_at(&self, order: u8) -> u64 {
        let [even, odd] = self.singles;
        let mut free = !(even | odd | self.paired);
        for half in 1..order {
            free &= (free >> pairs(half)) & EVERY[usize::from(half) + 1];
        }
        free
    }

    /// The pairs of which one frame is free.
    #[inline]
    fn halves(&self) -> u64 {
        (self.singles[0] ^ self.singles[1]) & !self.paired
    }

    /// Allocates 2^`order` frames of the lowest free block of the order `found`: the frame, and the orders
    /// of what is free then.
    #[inline]
    pub fn take(&mut self, orders: Orders, order: u8, found: u8) -> (u32, Orders) {
        let (at, lone) = if found == 0 {
            let lone = self.halves();
            let pair = lone.trailing_zeros();
            (2 * pair + (self.singles[0] >> pair & 1) as u32, lone)
        } else {
            let free = self.free_at(found);
            let lone = lone(free, found);
            let pair = lone.trailing_zeros();
            let is_lower = free >> pair & 1 == 1;
            (2 * (pair + if is_lower { 0 } else { pairs(found) }), lone)
        };
        self.mark(at, order);
        let is_last = lone & (lone - 1) == 0;
        let left = if is_last { orders & !(1 << found) } else { orders };
        (at, left | ((1 << found) - (1 << order)) as Orders)
    }

    /// By far the most frees: that of one frame whose buddy is one frame's block too. It stays alone. Whether
    /// it was so.
    #[inline(always)]
    pub fn free_alone(&mut self, at: u32) -> bool {
        let [even, odd] = self.singles;
        let pair = at / 2;
        let is_alone = (even & odd & !self.paired) >> pair & 1 == 1;
        if is_alone {
            self.singles[(at & 1) as usize] &= !(1 << pair);
        }
        is_alone
    }

    /// Allocates the lowest free frame whose buddy is allocated: which, and whether there is another. `None`:
    /// there is not one.
    #[inline(always)]
    pub fn take_alone(&mut self) -> Option<(u32, bool)> {
        let lone = self.halves();
        if lone == 0 {
            return None;
        }
        let pair = lone.trailing_zeros();
        let odd = (self.singles[0] >> pair & 1) as u32;
        self.singles[odd as usize & 1] |= 1 << pair;
        Some((2 * pair + odd, lone & (lone - 1) != 0))
    }

    /// Frees the block of an order that begins at a frame: the order it has when it is merged with its
    /// buddies in this group, and the orders of what is free then. `top` is the group's own order.
    #[inline]
    pub fn free(&mut self, orders: Orders, at: u32, order: u8, top: u8) -> (u8, Orders) {
        self.unmark(at, order);
        let pair = at / 2;
        let (mut size, mut orders) = (order, orders);
        if size == 0 {
            let lone = self.halves();
            orders = orders & !1 | Orders::from(lone != 0);
            if lone >> pair & 1 == 1 {
                return (0, orders);
            }
            size = 1;
        }
        let mut free = self.free_at(size);
        while size < top {
            let lone = lone(free, size);
            orders = orders & !(1 << size) | Orders::from(lone != 0) << size;
            if lone >> (pair & !(2 * pairs(size) - 1)) & 1 == 1 {
                return (size, orders);
            }
            free &= (free >> pairs(size)) & EVERY[usize::from(size) + 1];
            size += 1;
        }
        (top, 1 << top)
    }

    /// Allocates the block at a frame. Of an order above 7, the part in this group, which begins it.
    #[inline]
    pub fn mark(&mut self, at: u32, order: u8) {
        match order {
            0 => self.singles[(at & 1) as usize] |= 1 << (at / 2),
            _ => {
                self.paired |= Group::mask(at, order);
                self.singles[0] |= 1 << (at / 2);
            }
        }
    }

    /// Allocates all of it, as the later part of a larger block.
    #[inline]
    pub fn mark_inside(&mut self) {
        *self = Group { singles: [0; 2], paired: !0 };
    }

    /// Forgets the allocated block at a frame.
    #[inline]
    pub fn unmark(&mut self, at: u32, order: u8) {
        match order {
            0 => self.singles[(at & 1) as usize] &= !(1 << (at / 2)),
            _ => {
                self.paired &= !Group::mask(at, order);
                self.singles[0] &= !(1 << (at / 2));
            }
        }
    }

    #[inline]
    fn mask(at: u32, order: u8) -> u64 {
        !0 >> (64 - pairs(order.min(GROUP))) << (at / 2)
    }

    /// The order of the allocated block that begins at a frame; of one of an order above 7, 7.
    #[inline]
    pub fn order_at(&self, at: u32) -> Option<u8> {
        let pair = at / 2;
        let is_set = |word: u64| word >> pair & 1 == 1;
        let is_odd = !at.is_multiple_of(2);
        if !is_set(self.paired) {
            return is_set(self.singles[(at & 1) as usize]).then_some(0);
        }
        if is_odd || !is_set(self.singles[0]) {
            return None;
        }
        let inside = (self.paired & !self.singles[0]) >> pair >> 1;
        Some(1 + (inside.trailing_ones() + 1).trailing_zeros() as u8)
    }

    /// Whether it begins inside of an allocated block.
    #[inline]
    pub fn continues(&self) -> bool {
        self.paired & !self.singles[0] & 1 == 1
    }

    /// Where the allocated block begins that a frame lies in.
    #[inline]
    pub fn covering(&self, at: u32) -> Covering {
        if self.is_free(at) {
            return Covering::Free;
        }
        let pair = at / 2;
        if self.paired >> pair & 1 == 0 {
            return Covering::From(at);
        }
        let heads = self.paired & self.singles[0] & (!0 >> (63 - pair));
        match heads.checked_ilog2() {
            Some(pair) => Covering::From(2 * pair),
            None => Covering::Before,
        }
    }

    /// Whether a frame is free.
    #[inline]
    pub fn is_free(&self, at: u32) -> bool {
        (self.singles[(at & 1) as usize] | self.paired) >> (at / 2) & 1 == 0
    }

    /// How many frames are free.
    pub fn free_frames(&self) -> u32 {
        self.singles.iter().map(|word| (word | self.paired).count_zeros()).sum()
    }
}
