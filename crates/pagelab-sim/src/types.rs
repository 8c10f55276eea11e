//! Types of the allocator: frames, orders, allocation types, events and errors.

use std::fmt;
use std::ops::Range;

pub use crate::frame::{Frame, ZoneOffset};

/// Frames that one memory can have at most.
pub const FRAMES_MAX: u64 = (1 << 32) - (1 << 16);

/// Maximum order of a configuration: blocks of 2^21 frames.
pub const ORDER_MAX: u8 = 21;

/// Allocation type: the migratetypes of allocations (include/linux/mmzone.h, `enum migratetype`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AllocationType {
    /// Kernel memory that stays where it is: KernNoRclm.
    Unmovable = 0,
    /// Pages of programs and files: EasyRclm.
    Movable = 1,
    /// Kernel caches that can be shrunk: KernRclm.
    Reclaimable = 2,
}

impl AllocationType {
    /// All of them, by number.
    pub const ALL: [AllocationType; 3] =
        [AllocationType::Unmovable, AllocationType::Movable, AllocationType::Reclaimable];

    /// The type with this number.
    pub fn from_index(index: u8) -> Option<AllocationType> {
        AllocationType::ALL.get(usize::from(index)).copied()
    }
}

/// Geometry of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneGeometry {
    /// Its first frame.
    pub first_frame: Frame,
    /// Frames in it.
    pub frames: u32,
    /// The order of the largest blocks (`MAX_PAGE_ORDER`): 10 on x86-64.
    pub max_order: u8,
    /// The order of a pageblock: 9 on x86-64 with huge pages of 2 MiB. Not above `max_order`.
    pub pageblock_order: u8,
}

impl ZoneGeometry {
    /// The frame after the last one.
    pub fn end(&self) -> Frame {
        self.first_frame + self.frames
    }

    /// Whether it contains a frame.
    pub fn contains(&self, frame: Frame) -> bool {
        frame >= self.first_frame && frame - self.first_frame < self.frames
    }

    /// The offset of a frame of the zone.
    #[inline]
    pub fn offset_of(&self, frame: Frame) -> ZoneOffset {
        ZoneOffset::new(frame - self.first_frame)
    }

    /// The same for any frame. A frame before the zone has an offset beyond its end.
    #[inline]
    pub fn wrapping_offset_of(&self, frame: Frame) -> ZoneOffset {
        ZoneOffset::new(frame.wrapping_distance(self.first_frame))
    }

    /// The frame at an offset.
    #[inline]
    pub fn frame_at(&self, offset: ZoneOffset) -> Frame {
        self.first_frame + offset.number()
    }

    /// The offset after the last frame.
    #[inline]
    pub fn end_offset(&self) -> ZoneOffset {
        ZoneOffset::new(self.frames)
    }

    /// The number of the pageblock that contains a frame of the zone.
    #[inline]
    pub fn pageblock_of(&self, frame: Frame) -> u32 {
        self.offset_of(frame).pageblock(self.pageblock_order)
    }

    /// The first frame of a pageblock, by its number.
    #[inline]
    pub fn pageblock_start(&self, pageblock: u32) -> Frame {
        self.frame_at(ZoneOffset::of_pageblock(pageblock, self.pageblock_order))
    }

    /// The order of the largest block that can begin at an offset.
    pub fn largest_order_at(&self, offset: ZoneOffset) -> u8 {
        let fits = (self.end_offset() - offset).ilog2();
        self.frame_at(offset).alignment_order().min(fits).min(u32::from(self.max_order)) as u8
    }

    /// Checks it: sizes, orders, and that it ends within what frames can be numbered.
    pub fn validate(&self) -> Result<(), Error> {
        if self.frames == 0 {
            return invalid("a zone of 0 frames");
        }
        if u64::from(self.first_frame.number()) + u64::from(self.frames) > FRAMES_MAX {
            return invalid("a zone that ends above the highest supported frame, 2^32 - 2^16");
        }
        if self.max_order > ORDER_MAX {
            return invalid("blocks of an order above 21");
        }
        if self.pageblock_order > self.max_order || self.pageblock_order == 0 {
            return invalid("pageblocks of order 0, or above the largest order");
        }
        if !self.first_frame.is_aligned(self.pageblock_order)
            || !self.end_offset().is_aligned(self.pageblock_order)
        {
            return invalid("a zone that is not aligned to pageblocks");
        }
        Ok(())
    }
}

/// End of the free list to which a freed block is added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FreeListDiscipline {
    /// To the front, unless it is likely to be merged soon: Linux.
    #[default]
    Lifo,
    /// Always to the end: the most recently freed block is taken last.
    Fifo,
    /// Blocks of the largest order are added to either end by a random bit, and are in random order at the
    /// start (`page_alloc.shuffle=1`, mm/shuffle.c). Simplified: the start is one Fisher-Yates shuffle, where
    /// the kernel swaps each block with one of at most ten that it tries.
    Shuffled(u64),
}

/// Features of a zone beside its lists. The default is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneFeatures {
    /// End of the free list to which a freed block is added.
    pub list_discipline: FreeListDiscipline,
    /// Whether pageblocks are set aside for requests that cannot wait, up to 1 % of the zone and one
    /// pageblock (`reserve_highatomic_pageblock` of Linux 6.1).
    pub has_highatomic: bool,
    /// CMA areas: whole pageblocks for movable blocks only.
    pub cma_areas: Vec<Range<Frame>>,
}

/// A block of one allocation type that was taken from the list of another (the tracepoint
/// `mm_page_alloc_extfrag`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// Its first frame.
    pub frame: Frame,
    /// Its order.
    pub order: u8,
    /// Requesting list.
    pub alloc_list: u8,
    /// The list that it was on.
    pub fallback_list: u8,
    /// Whether its whole pageblock changed hands.
    pub changes_ownership: bool,
}

/// A policy that can be chosen by name.
#[derive(Debug)]
pub struct NamedPolicy<P: ?Sized + 'static> {
    /// Name on the command line and in files.
    pub name: &'static str,
    /// Summary in one line.
    pub summary: &'static str,
    /// Source: kernel file and release, or the paper.
    pub source: &'static str,
    /// The policy.
    pub policy: &'static P,
}

/// There is one of a name.
impl<P: ?Sized + 'static> PartialEq for NamedPolicy<P> {
    fn eq(&self, other: &NamedPolicy<P>) -> bool {
        self.name == other.name
    }
}

impl<P: ?Sized + 'static> Eq for NamedPolicy<P> {}

/// Entry that can be selected by name.
#[derive(Clone, Copy, Debug)]
pub struct CatalogueEntry {
    /// Name.
    pub name: &'static str,
    /// Summary in one line.
    pub summary: &'static str,
    /// Source; may be empty.
    pub source: &'static str,
}

/// Error of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A configuration that contradicts itself.
    InvalidConfig(String),
    /// An order above the largest.
    OrderTooLarge {
        /// Requested order.
        order: u8,
        /// The largest there is.
        max: u8,
    },
    /// A frame is freed that no allocation begins at.
    NotAllocated(Frame),
    /// A frame that is not in the zone.
    OutsideZone(Frame),
    /// The allocator's metadata is inconsistent: a bug in it.
    Corrupted(String),
}

/// An error of a configuration.
pub(crate) fn invalid<T>(what: impl Into<String>) -> Result<T, Error> {
    Err(Error::InvalidConfig(what.into()))
}

/// An error of metadata.
pub(crate) fn corrupted<T>(what: impl Into<String>) -> Result<T, Error> {
    Err(Error::Corrupted(what.into()))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::InvalidConfig(what) => write!(f, "{what}"),
            Error::OrderTooLarge { order, max } => write!(f, "order {order} is above the largest, {max}"),
            Error::NotAllocated(frame) => {
                write!(f, "freed frame {frame:#x} is not the start of an allocated block")
            }
            Error::OutsideZone(frame) => write!(f, "frame {frame:#x} is in no zone"),
            Error::Corrupted(what) => write!(f, "the allocator's metadata is inconsistent: {what}"),
        }
    }
}

impl std::error::Error for Error {}
