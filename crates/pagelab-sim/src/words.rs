//! The words of the allocator: frames, orders, kinds, what happened, what is wrong.

use std::fmt;
use std::ops::Range;

/// The number of a page frame. 2^32 − 65 536 of them: 16 TiB of base pages of 4 KiB, less what the heads of
/// the free lists take.
pub type Frame = u32;

/// Frames that one memory can have at most.
pub const FRAMES_MAX: u64 = (1 << 32) - (1 << 16);

/// The largest order that can be asked for in a configuration: blocks of 2^21 frames.
pub const ORDER_MAX: u8 = 21;

/// What an allocation is for: the migratetypes of allocations (include/linux/mmzone.h, `enum migratetype`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Kernel memory that stays where it is: KernNoRclm.
    Unmovable = 0,
    /// Pages of programs and files: EasyRclm.
    Movable = 1,
    /// Kernel caches that can be shrunk: KernRclm.
    Reclaimable = 2,
}

impl Kind {
    /// All of them, by number.
    pub const ALL: [Kind; 3] = [Kind::Unmovable, Kind::Movable, Kind::Reclaimable];

    /// The kind of this number.
    pub fn of(number: u8) -> Option<Kind> {
        Kind::ALL.get(usize::from(number)).copied()
    }
}

/// How a zone is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its first frame.
    pub first: Frame,
    /// Frames in it.
    pub frames: u32,
    /// The order of the largest blocks (`MAX_PAGE_ORDER`): 10 on x86-64.
    pub max_order: u8,
    /// The order of a pageblock: 9 on x86-64 with huge pages of 2 MiB. Not above `max_order`.
    pub block_order: u8,
}

impl Shape {
    /// The frame behind the last one.
    pub fn end(&self) -> Frame {
        self.first + self.frames
    }

    /// Whether a frame lies in it.
    pub fn has(&self, frame: Frame) -> bool {
        frame >= self.first && frame - self.first < self.frames
    }

    /// The order of the largest block that can begin at a frame, counted from the first one.
    pub fn largest_order(&self, at: u32) -> u8 {
        let fits = (self.frames - at).ilog2();
        (self.first + at).trailing_zeros().min(fits).min(u32::from(self.max_order)) as u8
    }

    /// Checks it: sizes, orders, and that it ends within what frames can be numbered.
    pub fn check(&self) -> Result<(), Wrong> {
        let wrong = |what: &str| Err(Wrong::Shape(what.to_owned()));
        if self.frames == 0 {
            return wrong("a zone of 0 frames");
        }
        if u64::from(self.first) + u64::from(self.frames) > FRAMES_MAX {
            return wrong("a zone that ends above the last frame that can be numbered, 2^32 - 2^16");
        }
        if self.max_order > ORDER_MAX {
            return wrong("blocks of an order above 21");
        }
        if self.block_order > self.max_order || self.block_order == 0 {
            return wrong("pageblocks of order 0, or above that of the largest blocks");
        }
        let block = 1u32 << self.block_order;
        if !self.first.is_multiple_of(block) || !self.frames.is_multiple_of(block) {
            return wrong("a zone that does not begin and end at a pageblock");
        }
        Ok(())
    }
}

/// Which end of its list a block goes to when it is freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ends {
    /// To the front, unless it is likely to be merged soon: Linux.
    #[default]
    Lifo,
    /// Always to the end: what was freed last is taken last.
    Fifo,
    /// Blocks of the largest order go to either end by a random bit, and lie in a random order at the start
    /// (`page_alloc.shuffle=1`, mm/shuffle.c). Simplified: the start is one Fisher-Yates shuffle, where the
    /// kernel swaps each block with one of at most ten that it tries.
    Shuffled(u64),
}

/// What a zone has beside its lists. The default is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Which end of its list a freed block goes to.
    pub ends: Ends,
    /// Whether pageblocks are set aside for requests that cannot wait, up to 1 % of the zone and one
    /// pageblock (`reserve_highatomic_pageblock` of Linux 6.1).
    pub has_highatomic: bool,
    /// CMA areas: whole pageblocks that only movable blocks may lie in.
    pub cma: Vec<Range<Frame>>,
}

/// A block of one kind that was taken from the list of another (the tracepoint `mm_page_alloc_extfrag`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stolen {
    /// Its first frame.
    pub frame: Frame,
    /// Its order.
    pub order: u8,
    /// The list that wanted it.
    pub wanted: u8,
    /// The list that it was on.
    pub from: u8,
    /// Whether its whole pageblock changed hands.
    pub owns: bool,
}

/// What cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A configuration that contradicts itself.
    Shape(String),
    /// An order above the largest.
    Order {
        /// The order asked for.
        order: u8,
        /// The largest there is.
        max: u8,
    },
    /// A frame is freed that no allocation begins at.
    NotAllocated(Frame),
    /// A frame that is not in the zone.
    Outside(Frame),
    /// The allocator's own books do not agree: a bug in it.
    Books(String),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Shape(what) => write!(f, "{what}"),
            Wrong::Order { order, max } => write!(f, "order {order} is above the largest, {max}"),
            Wrong::NotAllocated(frame) => {
                write!(f, "frame {frame:#x} is freed, and no block was allocated there")
            }
            Wrong::Outside(frame) => write!(f, "frame {frame:#x} lies in no zone"),
            Wrong::Books(what) => write!(f, "the allocator's books do not agree: {what}"),
        }
    }
}

impl std::error::Error for Wrong {}
