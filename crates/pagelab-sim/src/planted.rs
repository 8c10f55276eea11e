//! Bugs that tests plant, to show that the comparison with the twin finds them.

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// The halves of a split block go to the list of its pageblock, not to the one that it was on.
    SplitToItsOwner,
    /// All blocks are booked as movable.
    KindForgotten,
    /// A block is freed to the list of its kind, not of its pageblock.
    FreedToItsKind,
    /// No block of the largest order is ever put together.
    TopOrderUnmerged,
    /// A merged buddy still says that it is free.
    BuddyStaysFree,
    /// Whether a block merges soon is not asked.
    NoLookAhead,
    /// Movable requests take the largest block of another list.
    LargestForMovable,
    /// A pageblock of which just half is alike stays where it is.
    HalfIsNotEnough,
    /// Movable frames count as alike for a request that is not movable.
    ThirdKindIsAlike,
    /// What is taken from another list goes to the front.
    MovedToTheFront,
}

#[cfg(test)]
impl Bug {
    /// All of them.
    pub const ALL: [Bug; 10] = [
        Bug::SplitToItsOwner,
        Bug::KindForgotten,
        Bug::FreedToItsKind,
        Bug::TopOrderUnmerged,
        Bug::BuddyStaysFree,
        Bug::NoLookAhead,
        Bug::LargestForMovable,
        Bug::HalfIsNotEnough,
        Bug::ThirdKindIsAlike,
        Bug::MovedToTheFront,
    ];
}
