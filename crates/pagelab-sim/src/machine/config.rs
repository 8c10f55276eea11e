//! Types of a machine: requests, configuration and counters.

use super::reclaim_policies;
use crate::memory::ZoneConfig;
use crate::pcp::PcpConfig;
use crate::types::AllocationType;

/// Use of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageUse {
    /// The kernel's own data: unmovable, in low zones only.
    Kernel,
    /// Page tables: unmovable; may be in high memory (`CONFIG_HIGHPT`), not in a movable zone.
    PageTable,
    /// The kernel's dentry and inode caches: reclaimable by shrinkers.
    Slab,
    /// Pages of files.
    File,
    /// Anonymous pages.
    Anonymous,
    /// A page of the hugetlb pool: in any zone, never reclaimed.
    Hugetlb,
    /// A page of a block device: directories, inode tables. Reclaimed like file pages, but in low zones
    /// (`bdget` gives such a mapping `GFP_USER`).
    BlockDevice,
}

impl PageUse {
    /// All uses.
    pub const ALL: [PageUse; 7] = [
        PageUse::Kernel,
        PageUse::PageTable,
        PageUse::Slab,
        PageUse::File,
        PageUse::Anonymous,
        PageUse::Hugetlb,
        PageUse::BlockDevice,
    ];

    /// Its allocation type.
    pub fn allocation_type(self) -> AllocationType {
        match self {
            PageUse::Kernel | PageUse::PageTable => AllocationType::Unmovable,
            PageUse::Slab => AllocationType::Reclaimable,
            PageUse::File | PageUse::Anonymous | PageUse::Hugetlb | PageUse::BlockDevice => {
                AllocationType::Movable
            }
        }
    }

    /// Whether it is in the page cache.
    pub fn is_file(self) -> bool {
        matches!(self, PageUse::File | PageUse::BlockDevice)
    }
}

/// Effort of a request before it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// It cannot wait: no direct reclaim (`GFP_ATOMIC`).
    Atomic,
    /// One round of reclaim (`__GFP_NORETRY`).
    NoRetry,
    /// Retried while reclaim makes progress, up to order 3: such requests practically always succeed. Above
    /// order 3 it reclaims once.
    Normal,
    /// Orders above 3 are retried too, while reclaim makes progress (`__GFP_RETRY_MAYFAIL`; `__GFP_REPEAT` of
    /// 2.6).
    RetryMayFail,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocRequest {
    /// Use of the block.
    pub page_use: PageUse,
    /// Order of the block.
    pub order: u8,
    /// Effort before it fails.
    pub effort: Effort,
    /// Requesting node.
    pub node: u16,
    /// Requesting processor.
    pub cpu: u16,
}

impl AllocRequest {
    /// Request of a base page by the first processor of the first node.
    pub fn for_base_page(class: PageUse) -> AllocRequest {
        AllocRequest { page_use: class, order: 0, effort: Effort::Normal, node: 0, cpu: 0 }
    }
}

/// Highest zone index that is permitted for each class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneLimits {
    /// The kernel's data and caches.
    pub kernel: u8,
    /// Page tables.
    pub page_tables: u8,
    /// Pages of programs and files, and of the hugetlb pool.
    pub user: u8,
}

/// Configuration of a machine.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// Its zones.
    pub zones: Vec<ZoneConfig>,
    /// Permitted zones of each class.
    pub zone_limits: ZoneLimits,
    /// Per-CPU lists.
    pub pcp_config: PcpConfig,
    /// Reclaim policy for large blocks.
    pub reclaim_policy: &'static reclaim_policies::ReclaimPolicyEntry,
    /// Whether reclaim activates referenced pages (`PAGEREF_ACTIVATE`); without, they are reclaimed like the
    /// others.
    pub activates_referenced: bool,
    /// Whether memory is compacted for large blocks.
    pub has_compaction: bool,
    /// Frames of swap: anonymous pages beyond are not reclaimed.
    pub swap_frames: u32,
}

/// Statistics of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineStats {
    /// Requests that were served, by order.
    pub allocations_served: [u64; 32],
    /// Requests that failed, by order.
    pub allocations_failed: [u64; 32],
    /// Blocks that fell back to another migratetype (`mm_page_alloc_extfrag`).
    pub fallbacks: u64,
    /// Successful expansions of the unmovable region: the pageblocks above its boundary were evacuated.
    pub region_expansions: u64,
    /// Failed expansions: a page could not be moved, or had no target.
    pub region_expansions_failed: u64,
    /// Pages evacuated for expansions.
    pub region_migrated_pages: u64,
    /// Pageblocks returned to the movable region.
    pub region_pageblocks_returned: u64,
    /// Number of watermark boosts.
    pub watermark_boosts: u64,
    /// Number of wake-ups of `kswapd`.
    pub kswapd_wakeups: u64,
    /// Number of direct reclaims.
    pub direct_reclaims: u64,
    /// Pages scanned by reclaim: anonymous and file pages at the end of an inactive list, pages tried by
    /// linear reclaim, and pages of caches visited by shrinkers.
    pub pages_scanned: u64,
    /// Pages freed by reclaim.
    pub pages_reclaimed: u64,
    /// Regions that linear reclaim tried to reclaim: all pages in them looked reclaimable.
    pub regions_tried: u64,
    /// Objects of the kernel's caches that were freed.
    pub slab_objects: u64,
    /// Pages of the kernel's caches freed because all objects in them were freed.
    pub slab_pages: u64,
    /// Reclaimed anonymous pages: written to swap.
    pub pages_swapped: u64,
    /// Pages under writeback.
    pub pages_written: u64,
    /// Waits of requests for the disk.
    pub congestion_waits: u64,
    /// Refaulted pages.
    pub refaults: u64,
    /// Compactions deferred after earlier failures.
    pub compactions_deferred: u64,
    /// Proactive compactions of a node.
    pub proactive_compactions: u64,
    /// Pages migrated.
    pub pages_migrated: u64,
}

/// Simulated kernel release, where releases differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// The release of the paper: LRU lists for each zone, with file and anonymous pages on the same lists.
    V2_6_16,
    /// LRU lists for each node, separate for file and anonymous pages.
    #[default]
    V6_1,
}

/// Tunables and constants of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelTuning {
    /// The release.
    pub release: Release,
    /// `vm.swappiness`: 0 to 100 in 2.6.16, to 200 in 6.1.
    pub swappiness: u8,
    /// Objects in a page of the kernel's caches; 0 counts as 1.
    pub objects_per_page: u8,
    /// `vm.extfrag_threshold`: memory is compacted for orders above 3 if the fragmentation index, in
    /// thousandths, is above this.
    pub extfrag_threshold: u16,
    /// `vm.watermark_boost_factor`: when a fallback mixes migratetypes in a pageblock, the watermarks are
    /// raised by up to this share of the high watermark, in ten-thousandths; 0: never. Since 5.0.
    pub watermark_boost_factor: u32,
    /// `vm.compaction_proactiveness`: 0 to 100; 0: no proactive compaction.
    pub compaction_proactiveness: u8,
    /// Pages that the disk writes in a time slice; 0: writes complete at once.
    pub disk_pages_per_slice: u32,
    /// Seek time of a read request of eight pages, as a number of pages that could be written in it.
    pub seek_pages: u32,
    /// Pages under writeback from which on the queue of the disk is congested.
    pub queue_pages: u32,
}

/// Pages of the requests that a queue accepts before it is congested: 113 of 128 (`nr_requests`,
/// `blk_queue_congestion_threshold`), of eight pages each (`SWAPFILE_CLUSTER` pages are adjacent; files of a
/// tree have three).
const QUEUE_PAGES: u32 = 113 * 8;

impl KernelTuning {
    /// Defaults of a release, without proactive compaction.
    pub const fn for_release(release: Release) -> KernelTuning {
        // A name entry has 192 bytes and an inode 600 or so: a page has between 21 and 6 of them.
        KernelTuning {
            release,
            swappiness: 60,
            objects_per_page: 12,
            extfrag_threshold: 500,
            watermark_boost_factor: match release {
                Release::V6_1 => 15_000,
                _ => 0,
            },
            compaction_proactiveness: 0,
            disk_pages_per_slice: 0,
            seek_pages: 0,
            queue_pages: QUEUE_PAGES,
        }
    }
}

impl Default for KernelTuning {
    fn default() -> KernelTuning {
        KernelTuning::for_release(Release::default())
    }
}
