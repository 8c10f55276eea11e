//! Bugs that tests plant, to show that the comparison with the twin finds them.

use std::marker::PhantomData;

/// The bug that a test planted in an engine; nowhere else is there one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planted<B> {
    #[cfg(test)]
    bug: Option<B>,
    kind: PhantomData<B>,
}

impl<B> Planted<B> {
    /// None.
    pub const NONE: Planted<B> = Planted {
        #[cfg(test)]
        bug: None,
        kind: PhantomData,
    };
}

impl<B> Default for Planted<B> {
    fn default() -> Planted<B> {
        Planted::NONE
    }
}

#[cfg(test)]
impl<B: PartialEq> Planted<B> {
    /// This one, or none.
    pub fn of(bug: Option<B>) -> Planted<B> {
        Planted { bug, kind: PhantomData }
    }

    /// Whether it is this one.
    pub fn has(&self, bug: &B) -> bool {
        self.bug.as_ref() == Some(bug)
    }
}

#[cfg(not(test))]
impl<B> Planted<B> {
    /// Whether it is this one: never.
    #[inline]
    pub fn has(&self, _bug: &B) -> bool {
        false
    }
}

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
    /// What is left of a cut block goes to the list that was short.
    RestIsKept,
    /// Only one pageblock is tried to be claimed.
    ClaimsOnce,
    /// A buddy that is merged keeps the owner of its pageblock.
    BuddyKeepsItsOwner,
    /// A batch does not remember that nothing can be claimed.
    BatchForgets,
    /// What a processor kept goes back to the list that it was on, whoever owns the pageblock now.
    ShelfIsForGood,
    /// Kinds are mixed even for those who said that they may not be.
    MixesAnyway,
    /// Pageblocks change hands, and the border stays where it was.
    BorderStandsStill,
    /// Nobody hears that kinds are mixed in a pageblock.
    MixingUncounted,
    /// The last free pageblock below the border is given back too.
    BorderGivesAll,
    /// Blocks of reserves and regions merge with others.
    ReservesMerge,
    /// The highatomic reserve grows without end.
    ReserveUnbounded,
    /// CMA areas are used last, however much of them is free.
    CmaLast,
    /// Batches stay doubled, whatever is allocated between.
    DoublingStays,
    /// What processors have kept for long is kept for ever.
    NothingDecays,
    /// A tree that is half free is as good as one that is almost used up.
    HalfFreeFirst,
    /// A tree that was exchanged stays reserved.
    TreeStaysReserved,
    /// A tree that a lower class took from keeps its class.
    ClassStays,
}

#[cfg(test)]
impl Bug {
    /// All that are in lists; the trees have their own.
    pub const ALL: [Bug; 24] = [
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
        Bug::RestIsKept,
        Bug::ClaimsOnce,
        Bug::BuddyKeepsItsOwner,
        Bug::BatchForgets,
        Bug::ShelfIsForGood,
        Bug::MixesAnyway,
        Bug::BorderStandsStill,
        Bug::MixingUncounted,
        Bug::BorderGivesAll,
        Bug::ReservesMerge,
        Bug::ReserveUnbounded,
        Bug::CmaLast,
        Bug::DoublingStays,
        Bug::NothingDecays,
    ];
}
