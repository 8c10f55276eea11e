//! What the machine decided, for the tests that compare it with its twin, and bugs that they plant. Nothing
//! is kept outside of tests.

use std::ops::Range;

use super::compaction::{Came, Job};
use super::lru::List;
use crate::planted::Planted;
use crate::words::Frame;

/// What becomes of a page that reclaim looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It loses its frame.
    Reclaim,
    /// It goes to the active list.
    Activate,
    /// It stays where it is, as the newest.
    Keep,
    /// It lies in a zone that the request may not have.
    Skip,
    /// It is written first, and stays meanwhile.
    Write,
    /// Others write it; it goes to the active list meanwhile (6.1).
    Await,
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "only tests keep and read them"))]
pub(super) enum Event {
    /// The page at the end of an inactive list.
    Looked { list: List, handle: u32, verdict: Verdict },
    /// Kinds were mixed in a zone so often: its marks are raised by so much.
    Boosted { zone: usize, times: u32, now: u64 },
    /// Background reclaim of a node is done.
    Done { node: u16 },
    /// Then its marks are raised by so much still.
    Lowered { zone: usize, now: u64 },
    /// A turn of background reclaim of 6.1 begins: whether the marks stand for the order, and pages to free
    /// since they were raised.
    Turn { order: u8, height: u8, is_balanced: bool, boost: u64 },
    /// A turn of reclaim begins: the order that is short, and the highest zone that will do.
    Planned { order: u8, height: u8, is_direct: bool },
    /// The page at the end of an active list: whether pages of programs may leave it, and whether it stays.
    Aged { list: List, handle: u32, takes_mapped: bool, stays: bool },
    /// A page that is tried since others beside it are.
    Beside { handle: u32, verdict: Verdict },
    /// A page of the kernel's caches: objects that are left in it.
    Shrunk { handle: u32, objects: u8 },
    /// A region that linear reclaim assesses.
    Region { from: Frame, order: u8, is_tried: bool },
    /// A compaction that is asked for: whether it is put off.
    Asked { zone: usize, order: u8, is_deferred: bool },
    /// All pageblocks are worth a look again, if the zone was gone through.
    Flushed { zone: usize },
    /// A request was served after a compaction.
    Forgiven { zone: usize, order: u8 },
    /// The border should go over frames: whether all that lies there may leave.
    Way { zone: usize, range: Range<Frame>, is_open: bool },
    /// A page leaves.
    Left { handle: u32, from: Frame, to: Frame },
    /// All have left, or there was no room for one.
    WayEnded { zone: usize, fits: bool },
    /// The border went back over pageblocks that are free again.
    GaveBack { zone: usize, pageblocks: u32 },
    /// A compaction begins.
    Began { zone: usize, job: Job },
    /// A slice of the disk's time begins, or a request waits for it; and pages that it finishes in it at
    /// most.
    Disk { pages: u64, is_nap: bool },
    /// Reclaim wants so many pages to be written beside those that it writes itself.
    Wanted { pages: u64 },
    /// A page was written.
    Finished { handle: u32 },
    /// `pdflush` begins.
    Flush,
    /// It gives a page to the disk.
    Sent { handle: u32 },
    /// A page moves.
    Moved { handle: u32, from: Frame, to: Frame },
    /// It ended.
    Ended { zone: usize, came: Came },
}

/// Bugs that tests plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "only tests plant them"))]
pub(super) enum Flaw {
    /// A pinned page is moved.
    PinnedMoved,
    /// Regions begin in the middle of blocks of their order.
    RegionUnaligned,
    /// A compaction that was put off once is put off for ever.
    DeferralNeverEnds,
    /// The active list is taken from before the inactive one.
    ActiveFirst,
    /// The free scanner goes on below the migrate scanner.
    ScannersCross,
    /// The books keep the old frame of a moved page.
    OwnerForgotten,
    /// Pages that were used are reclaimed as the others.
    NoSecondChance,
    /// Swap has no end.
    SwapWithoutEnd,
    /// Linear reclaim tries regions that hold pages which cannot be reclaimed.
    RegionNotAssessed,
    /// Pages that are careful about moving go into pageblocks of other kinds.
    AnyBlockTaken,
    /// Marks that were raised stay so.
    BoostForGood,
    /// Pages of programs are written to swap since marks were raised.
    BoostSwaps,
    /// Background reclaim counts free memory that is not in whole pageblocks.
    PiecesCount,
    /// A pinned page leaves for the border.
    PinnedLeaves,
    /// A dirty page is dropped as a clean one.
    DirtyDropped,
    /// A page is freed while the disk writes it.
    FreedInFlight,
    /// A page that reclaim waited for stays where it is when it was written.
    WrittenNotRotated,
    /// Linear reclaim tries regions in which pages are being written.
    RegionInFlight,
}

/// The journal.
#[derive(Clone, Debug, Default)]
pub(super) struct Journal {
    #[cfg(test)]
    pub events: Vec<Event>,
    pub flaw: Planted<Flaw>,
}

impl Journal {
    #[cfg(test)]
    pub fn note(&mut self, event: Event) {
        self.events.push(event);
    }

    #[cfg(not(test))]
    #[inline]
    pub fn note(&mut self, _event: Event) {}

    #[inline]
    pub fn has(&self, flaw: Flaw) -> bool {
        self.flaw.has(&flaw)
    }
}

#[cfg(test)]
impl Flaw {
    /// All of them.
    pub const ALL: [Flaw; 18] = [
        Flaw::PinnedMoved,
        Flaw::RegionUnaligned,
        Flaw::DeferralNeverEnds,
        Flaw::ActiveFirst,
        Flaw::ScannersCross,
        Flaw::OwnerForgotten,
        Flaw::NoSecondChance,
        Flaw::SwapWithoutEnd,
        Flaw::RegionNotAssessed,
        Flaw::AnyBlockTaken,
        Flaw::BoostForGood,
        Flaw::BoostSwaps,
        Flaw::PiecesCount,
        Flaw::PinnedLeaves,
        Flaw::DirtyDropped,
        Flaw::FreedInFlight,
        Flaw::WrittenNotRotated,
        Flaw::RegionInFlight,
    ];
}
