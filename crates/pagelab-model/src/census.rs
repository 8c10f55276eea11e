//! Census of physical memory: the number of pages of each class in each pageblock.

use std::collections::BTreeMap;

use crate::free_areas::{FreeAreas, ZoneKey};
use crate::pageflags::PageClass;
use crate::{Order, Pages, Pfn};

use serde::{Deserialize, Serialize};

/// Pages of each class in one pageblock, by [`PageClass::index`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<Box<str>, u32>", into = "BTreeMap<Box<str>, u32>")]
pub struct PageblockCounts(pub [u32; PageClass::COUNT]);

/// Stored by the names of the classes, so that new classes do not shift the others.
impl TryFrom<BTreeMap<Box<str>, u32>> for PageblockCounts {
    type Error = String;

    fn try_from(named: BTreeMap<Box<str>, u32>) -> Result<PageblockCounts, Self::Error> {
        let mut counts = PageblockCounts::default();
        for (name, count) in named {
            let class = PageClass::ALL.into_iter().find(|class| class.name() == &*name);
            let class = class.ok_or_else(|| format!("unknown page class {name:?}"))?;
            counts.0[class.index()] = count;
        }
        Ok(counts)
    }
}

impl From<PageblockCounts> for BTreeMap<Box<str>, u32> {
    fn from(counts: PageblockCounts) -> BTreeMap<Box<str>, u32> {
        let nonzero_counts = PageClass::ALL.into_iter().filter(|&class| counts.pages_of_class(class) > 0);
        nonzero_counts.map(|class| (class.name().into(), counts.pages_of_class(class))).collect()
    }
}

impl PageblockCounts {
    /// Pages of one class.
    pub fn pages_of_class(&self, class: PageClass) -> u32 {
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
    /// Order of the counted blocks: that of a pageblock, or of a huge page if that is smaller.
    #[serde(alias = "block_order")]
    pub pageblock_order: Order,
    /// The zones, in the order of their frames. Zones of one node do not overlap; nodes may interleave.
    pub zones: Vec<CensusZone>,
    /// All blocks, or a sample of them.
    pub coverage: Coverage,
    /// The sum of the zones' free blocks; only from a complete scan.
    pub free_blocks: Option<FreeAreas>,
    /// Wall time of the scan.
    pub scan_ns: u64,
}

/// One zone's pageblocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CensusZone {
    /// The zone.
    pub key: ZoneKey,
    /// First frame of the zone, rounded down to a pageblock.
    pub first: Pfn,
    /// Pageblocks of the zone that have memory, counted or not, without those in holes.
    pub blocks_total: u64,
    /// The counted blocks: index in the zone (from `first`, including holes) and counts, ascending by index.
    /// Each adds up to a complete block: frames of a block outside of the zone are [`PageClass::Hole`].
    pub blocks: Vec<(u64, PageblockCounts)>,
    /// Indices of the counted blocks whose pages all belong to one compound page (which may be larger),
    /// ascending.
    pub one_folio: Vec<u64>,
    /// Free blocks by order, rebuilt from runs of free pages; only from a complete scan.
    pub free_blocks: Option<FreeAreas>,
    /// The larger count of pages on this zone's per-CPU lists before and after the scan: the bound on free
    /// pages among the unknown.
    pub per_cpu: Option<Pages>,
}

/// Coverage of a census.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Coverage {
    /// Every pageblock was read.
    Whole,
    /// A random sample without replacement.
    Sample(SamplePlan),
}

impl Coverage {
    /// The sample, if it is one.
    pub fn sample(self) -> Option<SamplePlan> {
        match self {
            Coverage::Whole => None,
            Coverage::Sample(plan) => Some(plan),
        }
    }
}

/// Parameters of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplePlan {
    /// Seed of the generator.
    pub seed: u64,
    /// Number of pageblocks read.
    pub blocks: u64,
    /// Total number of pageblocks.
    pub blocks_total: u64,
}

/// Memory that counts as free but is on no free list: a census needs it to distinguish deferred from reserved
/// memory, since neither has a page flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnlistedFree {
    /// This many pages: this kernel counts memory as free that it has not given to the allocator yet.
    Pages(u64),
    /// None: no memory is deferred, or this kernel does not count it.
    None,
    /// The two counts could not be compared, or their difference is unexplained.
    Unknown,
}
