//! Frame numbers and zone offsets: 32-bit numbers that the compiler keeps apart.
//!
//! A [`Frame`] counts from the first frame of the machine, a [`ZoneOffset`] from the first frame of a zone.
//! Only [`ZoneGeometry`](crate::types::ZoneGeometry) converts one into the other.

use std::fmt;
use std::iter::StepBy;
use std::ops::{Add, AddAssign, Range, Sub};

/// Implements what both kinds of numbers have: alignment by order, distances, and hexadecimal output.
macro_rules! frame_number {
    ($name:ident, $label:literal) => {
        impl $name {
            /// With this number.
            #[inline]
            pub const fn new(number: u32) -> $name {
                $name(number)
            }

            /// The plain number.
            #[inline]
            pub const fn number(self) -> u32 {
                self.0
            }

            /// The number as an index.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            /// Whether a block of this order can begin here.
            #[inline]
            pub const fn is_aligned(self, order: u8) -> bool {
                self.0 & ((1 << order) - 1) == 0
            }

            /// The start of the aligned block of this order that contains it.
            #[inline]
            pub const fn align_down(self, order: u8) -> $name {
                $name(self.0 >> order << order)
            }

            /// The buddy of the block that a block of this order, which begins here, forms with its own
            /// buddy.
            #[inline]
            pub(crate) const fn parent_buddy(self, order: u8) -> $name {
                $name(self.0 & !(1 << order) ^ 2 << order)
            }

            /// The numbers of a range, one by one.
            #[inline]
            pub fn range(
                range: Range<$name>,
            ) -> impl DoubleEndedIterator<Item = $name> + ExactSizeIterator + Clone {
                (range.start.0..range.end.0).map($name)
            }

            /// The starts of consecutive blocks of an order, from the start of a range.
            pub fn blocks(range: Range<$name>, order: u8) -> StepBy<impl Iterator<Item = $name> + Clone> {
                $name::range(range).step_by(1 << order)
            }
        }

        impl Add<u32> for $name {
            type Output = $name;

            #[inline]
            fn add(self, frames: u32) -> $name {
                $name(self.0 + frames)
            }
        }

        impl AddAssign<u32> for $name {
            #[inline]
            fn add_assign(&mut self, frames: u32) {
                self.0 += frames;
            }
        }

        /// The number this many frames below.
        impl Sub<u32> for $name {
            type Output = $name;

            #[inline]
            fn sub(self, frames: u32) -> $name {
                $name(self.0 - frames)
            }
        }

        /// Frames from one number to a later one.
        impl Sub<$name> for $name {
            type Output = u32;

            #[inline]
            fn sub(self, earlier: $name) -> u32 {
                self.0 - earlier.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($label, " {:#x}"), self.0)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

/// Number of a page frame of a simulated machine. At most 2^32 − 65 536 frames are numbered: 16 TiB of base
/// pages of 4 KiB, less the heads of the free lists.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Frame(u32);

/// Frame of a zone, counted from the zone's first frame.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ZoneOffset(u32);

const _: () = assert!(size_of::<Frame>() == 4 && size_of::<ZoneOffset>() == 4);

frame_number!(Frame, "frame");
frame_number!(ZoneOffset, "offset");

impl Frame {
    /// The highest number; no frame of a zone has it.
    pub const MAX: Frame = Frame(u32::MAX);

    /// The buddy of the block of an order that begins here.
    #[inline]
    pub const fn buddy(self, order: u8) -> Frame {
        Frame(self.0 ^ 1 << order)
    }

    /// This frame or the next one at which a block of this order can begin.
    #[inline]
    pub const fn align_up(self, order: u8) -> Frame {
        Frame(self.0.next_multiple_of(1 << order))
    }

    /// Frames since another one; a number beyond all zones if that one is later.
    #[inline]
    pub const fn wrapping_distance(self, first: Frame) -> u32 {
        self.0.wrapping_sub(first.0)
    }

    /// Frames since another one; 0 if that one is later.
    #[inline]
    pub const fn frames_since(self, earlier: Frame) -> u32 {
        self.0.saturating_sub(earlier.0)
    }

    /// Largest order of a block that can begin here.
    #[inline]
    pub const fn alignment_order(self) -> u32 {
        self.0.trailing_zeros()
    }
}

impl ZoneOffset {
    /// The highest number; no frame of a zone has it.
    pub const MAX: ZoneOffset = ZoneOffset(u32::MAX);

    /// The first frame of a pageblock, by its number in the zone.
    #[inline]
    pub const fn of_pageblock(pageblock: u32, pageblock_order: u8) -> ZoneOffset {
        ZoneOffset(pageblock << pageblock_order)
    }

    /// The number of the pageblock that contains it.
    #[inline]
    pub const fn pageblock(self, pageblock_order: u8) -> u32 {
        self.0 >> pageblock_order
    }

    /// The same as an index.
    #[inline]
    pub const fn pageblock_index(self, pageblock_order: u8) -> usize {
        self.pageblock(pageblock_order) as usize
    }

    /// The buddy of a block of an order in a zone whose blocks of this order are aligned as its offsets are.
    #[inline]
    pub(crate) const fn buddy_in_group(self, order: u8) -> ZoneOffset {
        ZoneOffset(self.0 ^ 1 << order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_have_buddies() {
        let frame = Frame::new(0x34);
        assert!(frame.is_aligned(2) && !frame.is_aligned(3));
        assert_eq!((frame.align_down(4), frame.align_up(4)), (Frame::new(0x30), Frame::new(0x40)));
        assert_eq!((frame.buddy(2), frame.buddy(3)), (Frame::new(0x30), Frame::new(0x3c)));
        assert_eq!(Frame::blocks(frame..frame + 9, 2).collect::<Vec<_>>(), [frame, frame + 4, frame + 8]);
        assert_eq!(ZoneOffset::of_pageblock(3, 4).pageblock(4), 3);
    }

    #[test]
    fn a_frame_says_what_it_is() {
        assert_eq!(format!("{:?}, {:?}", Frame::new(16), ZoneOffset::new(16)), "frame 0x10, offset 0x10");
        assert_eq!(format!("{:#x}", Frame::new(16)), "0x10");
    }
}
