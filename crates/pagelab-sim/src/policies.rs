//! Placement policies and their table. A policy decides on the list of each free block, and on what is
//! taken from other lists.
//!
//! Zones are no policy: what the paper calls zone-based is a [`crate::layout::Layout`], under any of these.

use std::fmt::Debug;

use crate::types::{AllocationType, NamedPolicy};

/// A placement policy that can be chosen by name.
pub type PolicyEntry = NamedPolicy<dyn Policy + Sync>;

/// All of them, the oldest idea first.
pub const TABLE: &[PolicyEntry] = &[
    PolicyEntry {
        name: "standard",
        summary: "one free list per order, without grouping by mobility",
        source: "mm/page_alloc.c of Linux up to 2.6.23",
        policy: &SingleList,
    },
    PolicyEntry {
        name: "list2",
        summary: "two free lists per order (user, kernel); a fallback takes the largest block",
        source: "Gorman and Whitcroft, OLS 2006, section 5, with two types",
        policy: &AllocationTypeLists::TwoTypes,
    },
    PolicyEntry {
        name: "list3",
        summary: "list2 with a third list for kernel caches",
        source: "Gorman and Whitcroft, OLS 2006, section 5",
        policy: &AllocationTypeLists::ThreeTypes,
    },
    PolicyEntry {
        name: "mobility-6.1",
        summary: "pageblock migratetypes; a fallback moves free blocks to the requested list",
        source: "mm/page_alloc.c of Linux 6.1 to 6.9",
        policy: &GroupByMobility,
    },
    PolicyEntry {
        name: "mobility-6.10",
        summary: "pageblock migratetypes; claims an entire pageblock, or splits the largest block",
        source: "mm/page_alloc.c of Linux 6.10 to 6.14, as first released",
        policy: &StrictMobility::ClaimLargestOrSteal,
    },
    PolicyEntry {
        name: "mobility-6.18",
        summary: "pageblock migratetypes; claims a pageblock, or splits the smallest block",
        source: "mm/page_alloc.c of Linux 6.15 to 6.18",
        policy: &StrictMobility::ClaimThenSteal,
    },
    PolicyEntry {
        name: "defrag-6.18",
        summary: "mobility-6.18, but mixes migratetypes only after reclaim and compaction",
        source: "vm.defrag_mode of Linux 6.15 to 6.18",
        policy: &StrictMobility::DefragMode,
    },
    PolicyEntry {
        name: "contiguitas",
        summary: "unmovable pages stay below a boundary that moves by pageblocks",
        source: "Zhao et al., Contiguitas, ISCA 2023",
        policy: &Contiguitas,
    },
];

/// Aliases and their policies.
pub const ALIASES: [(&str, &str); 2] = [("list", "list2"), ("mobility", "mobility-6.18")];

/// The one of a name, or of a short one.
pub fn find_policy(name: &str) -> Option<&'static PolicyEntry> {
    let full_name = ALIASES.iter().find(|(short, _)| *short == name).map_or(name, |(_, long)| long);
    TABLE.iter().find(|entry| entry.name == full_name)
}

/// The policy of a kernel, by its release (`uname -r`); one that cannot be read counts as new.
pub fn name_for_release(release: &str) -> &'static str {
    match parse_release(release) {
        release if release <= (2, 6, 23) => "standard",
        release if release < (6, 10, 0) => "mobility-6.1",
        release if release < (6, 15, 0) => "mobility-6.10",
        _ => "mobility-6.18",
    }
}

/// The numbers of a release; those that it does not have are large.
pub(crate) fn parse_release(release: &str) -> (u32, u32, u32) {
    let mut components = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    let mut next = || components.next().unwrap_or(u32::MAX);
    (next(), next(), next())
}

/// The guide's example is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/policies.md")]
pub struct PoliciesDoc;

/// The list-based strategy of Gorman and Whitcroft (Ottawa Linux Symposium 2006, section 5): a list for each
/// type at each order, no pageblocks. A freed block returns to the list of its own type; an empty list takes
/// from the largest block of another type. The remainder changes its type if the block was large
/// (`__rmqueue_fallback` of their patches of January 2006 against 2.6.16-rc1: `current_order >= MAX_ORDER /
/// 2`), and else keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationTypeLists {
    /// EasyRclm, and all that is the kernel's.
    TwoTypes,
    /// EasyRclm, KernRclm and KernNoRclm.
    ThreeTypes,
}

impl Policy for AllocationTypeLists {
    fn list_count(&self) -> u8 {
        match self {
            AllocationTypeLists::TwoTypes => 2,
            AllocationTypeLists::ThreeTypes => 3,
        }
    }

    fn allocation_list(&self, alloc_type: AllocationType) -> u8 {
        match (self, alloc_type) {
            (AllocationTypeLists::TwoTypes, AllocationType::Reclaimable) => AllocationType::Unmovable as u8,
            (_, kind) => kind as u8,
        }
    }

    fn free_list(&self, alloc_type: AllocationType, _block: u8) -> u8 {
        self.allocation_list(alloc_type)
    }

    fn fallbacks(&self, alloc_list: u8) -> &'static [u8] {
        match self {
            AllocationTypeLists::TwoTypes => [&[1], &[0]][usize::from(alloc_list == 1)],
            AllocationTypeLists::ThreeTypes => GroupByMobility.fallbacks(alloc_list),
        }
    }

    fn steal_extent(&self, _alloc_list: u8, order: u8, pageblock_order: u8) -> StealExtent {
        if order >= pageblock_order.div_ceil(2) {
            StealExtent::LargestBlock
        } else {
            StealExtent::RequestedOrder
        }
    }

    fn has_merge_prediction(&self) -> bool {
        false
    }
}

/// Binary buddies with one list at each order: Linux up to 2.6.23.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleList;

impl Policy for SingleList {
    fn list_count(&self) -> u8 {
        1
    }

    fn allocation_list(&self, _alloc_type: AllocationType) -> u8 {
        0
    }

    fn free_list(&self, _alloc_type: AllocationType, _block: u8) -> u8 {
        0
    }

    fn fallbacks(&self, _alloc_list: u8) -> &'static [u8] {
        &[]
    }

    fn steal_extent(&self, _alloc_list: u8, _order: u8, _block_order: u8) -> StealExtent {
        StealExtent::SmallestBlock
    }

    fn has_merge_prediction(&self) -> bool {
        false
    }
}

/// Initial size of the region: the zone divided by this. Our choice: the paper sets it by the needs of its
/// machines.
const INITIAL_REGION_DIVISOR: u32 = 8;

/// Confinement of unmovable pages to one region, whose boundary moves by pageblocks: the software part of
/// Contiguitas (Zhao et al., ISCA 2023).
///
/// The region is at the low end of the zone. It also has reclaimable kernel memory, which cannot be moved. If
/// a request finds the region full, the boundary moves up: a machine evacuates the pages beside it, all or
/// none of a pageblock (`machine/region_resize.rs`; an allocator without a machine has only the free memory
/// there). It moves down over pageblocks that are free again: in the background while another one remains
/// free, and at once if programs find nothing else. Simplified: the paper moves the boundary ahead of need,
/// by the pressure on either side (PSI); here need itself moves it. To keep room beside the boundary, movable
/// memory is allocated from the far end first. The hardware that moves pages in use is not modelled.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contiguitas;

impl Policy for Contiguitas {
    fn list_count(&self) -> u8 {
        2
    }

    fn allocation_list(&self, alloc_type: AllocationType) -> u8 {
        u8::from(alloc_type == AllocationType::Movable)
    }

    fn fallbacks(&self, _alloc_list: u8) -> &'static [u8] {
        &[]
    }

    fn steal_extent(&self, _alloc_list: u8, _order: u8, _block_order: u8) -> StealExtent {
        StealExtent::Pageblock
    }

    fn fallback_mode(&self) -> FallbackMode {
        FallbackMode::ResizeRegion
    }

    fn initial_owner(&self, pageblock: u32, pageblocks: u32) -> u8 {
        u8::from(pageblock >= (pageblocks / INITIAL_REGION_DIVISOR).max(1))
    }
}

/// Grouping by mobility of Linux 6.1 to 6.9: one list per migratetype, and each pageblock belongs to one
/// migratetype.
///
/// In mm/page_alloc.c of all releases since 6.1 the order of `fallbacks` is the same, and so is the test
/// whether a pageblock is claimed (`can_steal_fallback`, since 6.15 `should_try_claim_block`). The service of
/// a request with an empty list changed twice: see [`FallbackMode`].
#[derive(Clone, Copy, Debug, Default)]
pub struct GroupByMobility;

impl Policy for GroupByMobility {
    fn fallbacks(&self, alloc_list: u8) -> &'static [u8] {
        const UNMOVABLE: u8 = AllocationType::Unmovable as u8;
        const MOVABLE: u8 = AllocationType::Movable as u8;
        const RECLAIMABLE: u8 = AllocationType::Reclaimable as u8;
        match alloc_list {
            UNMOVABLE => &[RECLAIMABLE, MOVABLE],
            MOVABLE => &[RECLAIMABLE, UNMOVABLE],
            _ => &[UNMOVABLE, MOVABLE],
        }
    }

    fn steal_extent(&self, alloc_list: u8, order: u8, pageblock_order: u8) -> StealExtent {
        if order >= pageblock_order / 2 || alloc_list != AllocationType::Movable as u8 {
            StealExtent::Pageblock
        } else {
            StealExtent::SmallestBlock
        }
    }
}

/// Linux since 6.10: the free blocks of a pageblock are all on its owner's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrictMobility {
    /// 6.10 to 6.14 as first released (commit c0cd6f557b90); 6.12.y and 6.14.y took over what follows in May
    /// 2025.
    ClaimLargestOrSteal,
    /// 6.15 to 6.18 (commits c2f6ea38fc1b and 90abee6d7895).
    ClaimThenSteal,
    /// The same with `vm.defrag_mode=1` (commit e3aa7df331bc).
    DefragMode,
}

impl Policy for StrictMobility {
    fn fallbacks(&self, alloc_list: u8) -> &'static [u8] {
        GroupByMobility.fallbacks(alloc_list)
    }

    fn steal_extent(&self, alloc_list: u8, order: u8, pageblock_order: u8) -> StealExtent {
        GroupByMobility.steal_extent(alloc_list, order, pageblock_order)
    }

    fn fallback_mode(&self) -> FallbackMode {
        match self {
            StrictMobility::ClaimLargestOrSteal => FallbackMode::ClaimLargestOrSteal,
            StrictMobility::ClaimThenSteal | StrictMobility::DefragMode => FallbackMode::ClaimThenSteal,
        }
    }

    fn is_defrag_mode(&self) -> bool {
        *self == StrictMobility::DefragMode
    }
}

/// Extent of what a request takes from a fallback list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StealExtent {
    /// All free blocks of the pageblock, and the pageblock itself if enough of it is free or compatible.
    Pageblock,
    /// One block, the smallest that will do.
    SmallestBlock,
    /// One block, the largest.
    LargestBlock,
    /// The requested order, from the largest block; the rest stays on its list.
    RequestedOrder,
}

/// Fallback mode: how a request with an empty list is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallbackMode {
    /// Free blocks move to the empty list, whichever list owns their pageblock, and the request is served
    /// from there: Linux up to 6.9.
    MoveFreeBlocks,
    /// The pageblock of the largest block is claimed; if too few of its pages are compatible, the requested
    /// order is split off that block, and the rest stays with its owner: `steal_suitable_fallback` of Linux
    /// 6.10 to 6.14.
    ClaimLargestOrSteal,
    /// Pageblocks are tried from the largest block down until one can be claimed; then the requested order is
    /// split off the smallest block: `__rmqueue_claim` and `__rmqueue_steal` of Linux 6.15 to 6.18.
    ClaimThenSteal,
    /// List 0 owns the pageblocks below a boundary, list 1 those above, and the boundary moves over
    /// pageblocks that are wholly free.
    ResizeRegion,
}

impl FallbackMode {
    /// Whether each free block is on the list that owns its pageblock.
    pub fn is_strict(self) -> bool {
        self != FallbackMode::MoveFreeBlocks
    }
}

/// A policy. All decisions are by numbers: lists are numbered from 0.
pub trait Policy: Debug {
    /// Number of lists of each order, 1 to 8: by default one for each allocation type.
    fn list_count(&self) -> u8 {
        AllocationType::ALL.len() as u8
    }

    /// The list that an allocation of this type takes from.
    fn allocation_list(&self, alloc_type: AllocationType) -> u8 {
        alloc_type as u8
    }

    /// The list that a block of this type goes to when it is freed, in a pageblock that belongs to
    /// a list: by default to that list.
    fn free_list(&self, _alloc_type: AllocationType, owner: u8) -> u8 {
        owner
    }

    /// Lists to search when the own list is empty, best first.
    fn fallbacks(&self, alloc_list: u8) -> &'static [u8];

    /// Steal extent if the largest block of the other lists has this order.
    fn steal_extent(&self, alloc_list: u8, order: u8, pageblock_order: u8) -> StealExtent;

    /// Service of a request with an empty list. Lists that are not [`FallbackMode::MoveFreeBlocks`] are
    /// strict: [`Policy::free_list`] must return the owner of the pageblock.
    fn fallback_mode(&self) -> FallbackMode {
        FallbackMode::MoveFreeBlocks
    }

    /// Whether a request searches for completely free pageblocks before it mixes migratetypes in one, and
    /// reclaims and compacts in between (`vm.defrag_mode` of Linux 6.15). The caller of the allocator acts on
    /// it.
    fn is_defrag_mode(&self) -> bool {
        false
    }

    /// Whether a freed block that is likely to be merged soon is added at the tail of its list
    /// (`buddy_merge_likely`, Linux 2.6.35 and later).
    fn has_merge_prediction(&self) -> bool {
        true
    }

    /// Initial owner of a pageblock of a zone with `_pageblocks` pageblocks.
    fn initial_owner(&self, _pageblock: u32, _pageblocks: u32) -> u8 {
        self.allocation_list(AllocationType::Movable)
    }
}

/// Allows a policy chosen at run time in place of a type.
impl<P: Policy + ?Sized> Policy for &P {
    fn list_count(&self) -> u8 {
        (**self).list_count()
    }

    fn allocation_list(&self, alloc_type: AllocationType) -> u8 {
        (**self).allocation_list(alloc_type)
    }

    fn free_list(&self, alloc_type: AllocationType, owner: u8) -> u8 {
        (**self).free_list(alloc_type, owner)
    }

    fn fallbacks(&self, alloc_list: u8) -> &'static [u8] {
        (**self).fallbacks(alloc_list)
    }

    fn steal_extent(&self, alloc_list: u8, order: u8, pageblock_order: u8) -> StealExtent {
        (**self).steal_extent(alloc_list, order, pageblock_order)
    }

    fn fallback_mode(&self) -> FallbackMode {
        (**self).fallback_mode()
    }

    fn is_defrag_mode(&self) -> bool {
        (**self).is_defrag_mode()
    }

    fn has_merge_prediction(&self) -> bool {
        (**self).has_merge_prediction()
    }

    fn initial_owner(&self, pageblock: u32, pageblocks: u32) -> u8 {
        (**self).initial_owner(pageblock, pageblocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::AllocationType;

    #[test]
    fn the_table_can_be_chosen_from() {
        for entry in TABLE {
            let found = find_policy(entry.name).unwrap();
            assert_eq!(found.summary, entry.summary, "two of one name");
            assert!(entry.summary.len() <= 80 && !entry.source.is_empty(), "{}", entry.name);
        }
        assert!(find_policy("").is_none() && find_policy("Standard").is_none());
    }

    #[test]
    fn a_kernel_has_the_policy_of_its_release() {
        for (release, policy) in [
            ("2.6.16-rc6", "standard"),
            ("2.6.23", "standard"),
            ("2.6.24", "mobility-6.1"),
            ("3.10.0-1160.el7.x86_64", "mobility-6.1"),
            ("6.1.0-56-cloud-amd64", "mobility-6.1"),
            ("6.9.12", "mobility-6.1"),
            ("6.12.117+deb12-cloud-amd64", "mobility-6.10"),
            ("6.15-rc1", "mobility-6.18"),
            ("6.18.44", "mobility-6.18"),
            ("7.0", "mobility-6.18"),
            ("", "mobility-6.18"),
        ] {
            assert_eq!(name_for_release(release), policy, "{release}");
            assert!(find_policy(policy).is_some(), "{policy}");
        }
    }

    #[test]
    fn lists_are_numbered_from_zero_and_a_strict_free_list_is_the_pageblocks() {
        for entry in TABLE {
            let policy = entry.policy;
            let lists = policy.list_count();
            assert!((1..=8).contains(&lists), "{}", entry.name);
            for kind in AllocationType::ALL {
                assert!(policy.allocation_list(kind) < lists, "{}", entry.name);
                for owner in 0..lists {
                    let free_list = policy.free_list(kind, owner);
                    assert!(
                        free_list < lists && (free_list == owner || !policy.fallback_mode().is_strict()),
                        "{}",
                        entry.name
                    );
                    assert!(policy.fallbacks(owner).iter().all(|&other| other < lists && other != owner));
                }
            }
            assert!((0..64).all(|block| policy.initial_owner(block, 64) < lists));
        }
    }
}
