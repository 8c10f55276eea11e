//! The census of physical memory: for each pageblock, how many pages of each class it holds.

use std::collections::BTreeMap;

use crate::free_areas::{FreeAreas, ZoneKey};
use crate::pageflags::PageClass;
use crate::{Order, Pages, Pfn};

use serde::{Deserialize, Serialize};

/// Pages of each class in one pageblock, by [`PageClass::index`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<Box<str>, u32>", into = "BTreeMap<Box<str>, u32>")]
pub struct BlockCounts(pub [u32; PageClass::COUNT]);

/// Stored by the names of the classes, so that a class that comes later does not shift the others.
impl TryFrom<BTreeMap<Box<str>, u32>> for BlockCounts {
    type Error = String;

    fn try_from(named: BTreeMap<Box<str>, u32>) -> Result<BlockCounts, Self::Error> {
        let mut counts = BlockCounts::default();
        for (name, count) in named {
            let class = PageClass::ALL.into_iter().find(|class| class.name() == &*name);
            let class = class.ok_or_else(|| format!("there is no class of pages called {name:?}"))?;
            counts.0[class.index()] = count;
        }
        Ok(counts)
    }
}

impl From<BlockCounts> for BTreeMap<Box<str>, u32> {
    fn from(counts: BlockCounts) -> BTreeMap<Box<str>, u32> {
        let held = PageClass::ALL.into_iter().filter(|&class| counts.of(class) > 0);
        held.map(|class| (class.name().into(), counts.of(class))).collect()
    }
}

impl BlockCounts {
    /// Pages of one class.
    pub fn of(&self, class: PageClass) -> u32 {
        self.0[class.index()]
    }

    /// All pages counted.
    pub fn total(&self) -> u32 {
        self.0.iter().sum()
    }
}

/// The census of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Census {
    /// Order of the counted blocks: that of a pageblock, or of a huge page where that is smaller.
    pub block_order: Order,
    /// The zones, in the order of their frames. Zones of one node do not overlap; nodes may interleave.
    pub zones: Vec<CensusZone>,
    /// All blocks, or a sample of them.
    pub coverage: Coverage,
    /// The zones' free blocks in sum; only from a whole scan.
    pub free_blocks: Option<FreeAreas>,
    /// How long the scan took in wall time.
    pub scan_ns: u64,
}

/// One zone's pageblocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CensusZone {
    /// The zone.
    pub key: ZoneKey,
    /// First frame of the zone, rounded down to a pageblock.
    pub first: Pfn,
    /// Pageblocks of the zone that hold memory, counted or not: those in holes are not among them.
    pub blocks_total: u64,
    /// The counted blocks: index in the zone (from `first`, holes included) and counts, ascending by index.
    /// Each adds up to a whole block: frames of a block that are not the zone's are [`PageClass::Hole`].
    pub blocks: Vec<(u64, BlockCounts)>,
    /// Indices of the counted blocks whose pages all belong to one compound page (which may be larger),
    /// ascending.
    pub one_folio: Vec<u64>,
    /// Free blocks by order, rebuilt from runs of free pages; only from a whole scan.
    pub free_blocks: Option<FreeAreas>,
    /// The larger count of pages on this zone's per-CPU lists before and after the scan: the bound on free
    /// pages among the unknown.
    pub per_cpu: Option<Pages>,
}

/// Whether a census saw everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Coverage {
    /// Every pageblock was read.
    Whole,
    /// A random sample without replacement.
    Sample(SamplePlan),
}

/// How a sample was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplePlan {
    /// Seed of the generator.
    pub seed: u64,
    /// Pageblocks read.
    pub blocks: u64,
    /// Pageblocks there are.
    pub blocks_total: u64,
}

/// Memory that counts as free and stands on no free list: what a census needs to know to tell deferred memory
/// from reserved memory, since neither has a page flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffLists {
    /// So many pages: this kernel counts memory as free that it has not handed to the allocator yet.
    Pages(u64),
    /// None: nothing is deferred, or this kernel does not count it.
    None,
    /// The two counts could not be compared, or nothing explains their difference.
    CannotTell,
}
