//! Bugs that tests plant in the compact engine.

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// What is left of a split block is not free at its own order.
    HalvesForgotten,
    /// Groups of 128 frames that are wholly free are never merged.
    GroupsUnmerged,
    /// Pageblocks that are wholly free are never merged.
    PageblocksUnmerged,
    /// A pageblock stays on its list when its largest free block is another one.
    StaysListed,
    /// A pageblock goes to the end of its list.
    ListedAtTheEnd,
    /// A merged block keeps the owners that its parts had.
    OwnersKept,
    /// A pageblock of which just half is free is not claimed.
    HalfIsNotEnough,
    /// A pageblock is claimed, however little of it is free.
    AlwaysClaims,
    /// The largest block of a pageblock is split, not the smallest that will do.
    LargestFirst,
    /// A frame inside of a large block can be freed.
    InsideIsFreed,
}

#[cfg(test)]
impl Bug {
    /// All of them.
    pub const ALL: [Bug; 10] = [
        Bug::HalvesForgotten,
        Bug::GroupsUnmerged,
        Bug::PageblocksUnmerged,
        Bug::StaysListed,
        Bug::ListedAtTheEnd,
        Bug::OwnersKept,
        Bug::HalfIsNotEnough,
        Bug::AlwaysClaims,
        Bug::LargestFirst,
        Bug::InsideIsFreed,
    ];
}
