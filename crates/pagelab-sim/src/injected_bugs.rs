//! Bugs that tests inject, to show that the comparison with the twin finds them.

use std::marker::PhantomData;

/// The bug injected into an engine; only tests inject bugs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InjectedBug<B> {
    #[cfg(test)]
    bug: Option<B>,
    bug_type: PhantomData<B>,
}

impl<B> InjectedBug<B> {
    /// None.
    pub const NONE: InjectedBug<B> = InjectedBug {
        #[cfg(test)]
        bug: None,
        bug_type: PhantomData,
    };
}

impl<B> Default for InjectedBug<B> {
    fn default() -> InjectedBug<B> {
        InjectedBug::NONE
    }
}

impl<B: PartialEq> InjectedBug<B> {
    /// This one, or none.
    #[cfg(test)]
    pub fn new(bug: Option<B>) -> InjectedBug<B> {
        InjectedBug { bug, bug_type: PhantomData }
    }

    /// Whether it is this one; outside of tests never.
    #[inline]
    pub fn is_injected(&self, _bug: &B) -> bool {
        #[cfg(test)]
        {
            self.bug.as_ref() == Some(_bug)
        }
        #[cfg(not(test))]
        {
            false
        }
    }
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The halves of a split block go to the list of its pageblock, not to the one that it was on.
    RemainderToPageblockOwner,
    /// All blocks are recorded as movable.
    AllocationTypeForgotten,
    /// A block is freed to the list of its allocation type, not of its pageblock.
    FreedToAllocationType,
    /// No block of the largest order is ever put together.
    MaxOrderNeverMerged,
    /// A merged buddy is still marked as free.
    BuddyStaysFree,
    /// The merge prediction is skipped.
    NoMergePrediction,
    /// Movable requests take the largest block of another list.
    MovableStealsLargest,
    /// A pageblock of which just half is alike stays where it is.
    HalfNotClaimed,
    /// Movable frames count as alike for a request that is not movable.
    MovableCountsAsAlike,
    /// A stolen block goes to the front of its list.
    StolenToHead,
    /// The rest of a split block goes to the list that was empty.
    RemainderNotReturned,
    /// Only one pageblock is tried to be claimed.
    SingleClaimAttempt,
    /// A buddy that is merged keeps the owner of its pageblock.
    MergedBuddyKeepsOwner,
    /// A batch does not remember that nothing can be claimed.
    BatchForgetsStealMode,
    /// Pages on a pcp list return to their old list, even if the pageblock has another owner now.
    PcpListIgnoresOwnerChange,
    /// Migratetypes are mixed even for requests that forbid it.
    NoFragmentIgnored,
    /// Pageblocks change hands, and the boundary stays where it was.
    RegionBoundaryFixed,
    /// No watermark is boosted when a fallback mixes migratetypes in a pageblock.
    FragmentationUncounted,
    /// The last free pageblock below the boundary is returned too.
    RegionReturnsLastPageblock,
    /// Blocks of reserves and regions merge with others.
    ReservesMerged,
    /// The highatomic reserve grows without end.
    HighatomicUnbounded,
    /// CMA areas are used last, however much of them is free.
    CmaUsedLast,
    /// Batches stay doubled, regardless of allocations between.
    FreeFactorNeverHalved,
    /// Old blocks on pcp lists are never returned.
    PcpNeverDecays,
    /// A tree that is half free is as good as one that is almost used up.
    HalfFreeTreeFirst,
    /// A tree that was exchanged stays reserved.
    ReplacedTreeStaysReserved,
    /// A tree that a lower class took from keeps its class.
    TreeClassUnchanged,
}

#[cfg(test)]
impl Bug {
    /// All that are in lists; the trees have their own.
    pub const ALL: [Bug; 24] = [
        Bug::RemainderToPageblockOwner,
        Bug::AllocationTypeForgotten,
        Bug::FreedToAllocationType,
        Bug::MaxOrderNeverMerged,
        Bug::BuddyStaysFree,
        Bug::NoMergePrediction,
        Bug::MovableStealsLargest,
        Bug::HalfNotClaimed,
        Bug::MovableCountsAsAlike,
        Bug::StolenToHead,
        Bug::RemainderNotReturned,
        Bug::SingleClaimAttempt,
        Bug::MergedBuddyKeepsOwner,
        Bug::BatchForgetsStealMode,
        Bug::PcpListIgnoresOwnerChange,
        Bug::NoFragmentIgnored,
        Bug::RegionBoundaryFixed,
        Bug::FragmentationUncounted,
        Bug::RegionReturnsLastPageblock,
        Bug::ReservesMerged,
        Bug::HighatomicUnbounded,
        Bug::CmaUsedLast,
        Bug::FreeFactorNeverHalved,
        Bug::PcpNeverDecays,
    ];
}
