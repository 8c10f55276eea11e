//! The words of a machine: what is asked for, how the machine is set up, and what it counts.

use super::reclaims;
use crate::memory::Setup;
use crate::percpu::Keep;
use crate::words::Kind;

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// The kernel's own data, which stay where they are: low zones alone.
    Kernel,
    /// Page tables: they stay, and may lie in high memory (`CONFIG_HIGHPT`), not in a movable zone.
    PageTable,
    /// The kernel's caches of names and inodes, which can be shrunk.
    Cache,
    /// Pages of files.
    File,
    /// Pages of programs.
    Anonymous,
    /// A page of the hugetlb pool: anywhere, never reclaimed.
    Huge,
    /// A page of a block device: directories, inode tables. Reclaimed as those of files, and where the
    /// kernel's own data may lie (`bdget` gives such a mapping `GFP_USER`).
    Buffer,
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 7] = [
        Class::Kernel,
        Class::PageTable,
        Class::Cache,
        Class::File,
        Class::Anonymous,
        Class::Huge,
        Class::Buffer,
    ];

    /// The kind of its allocations.
    pub fn kind(self) -> Kind {
        match self {
            Class::Kernel | Class::PageTable => Kind::Unmovable,
            Class::Cache => Kind::Reclaimable,
            Class::File | Class::Anonymous | Class::Huge | Class::Buffer => Kind::Movable,
        }
    }

    /// Whether reclaim may take it.
    pub fn is_reclaimable(self) -> bool {
        matches!(self, Class::Cache | Class::File | Class::Anonymous | Class::Buffer)
    }

    /// Whether it is a page of the page cache.
    pub fn is_file(self) -> bool {
        matches!(self, Class::File | Class::Buffer)
    }
}

/// How far a request goes before it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// It cannot wait: no reclaim by itself (`GFP_ATOMIC`).
    Atomic,
    /// It reclaims once, and gives up (`__GFP_NORETRY`).
    Once,
    /// It reclaims and tries again while that helps, up to order 3: such orders practically always succeed.
    /// Above it reclaims once, and gives up.
    Usual,
    /// Orders above 3 are tried again too, while that helps (`__GFP_RETRY_MAYFAIL`; `__GFP_REPEAT` of 2.6).
    Hard,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What for.
    pub class: Class,
    /// The block's order.
    pub order: u8,
    /// How hard it tries.
    pub effort: Effort,
    /// The node that it comes from.
    pub node: u16,
    /// The processor.
    pub cpu: u16,
}

impl Ask {
    /// A base page of a class, on the first processor of the first node.
    pub fn page(class: Class) -> Ask {
        Ask { class, order: 0, effort: Effort::Usual, node: 0, cpu: 0 }
    }
}

/// The highest zone, by height, that each class may lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heights {
    /// The kernel's data and caches.
    pub kernel: u8,
    /// Page tables.
    pub page_tables: u8,
    /// Pages of programs and files, and of the hugetlb pool.
    pub user: u8,
}

/// A machine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its zones.
    pub zones: Vec<Setup>,
    /// Who may lie where.
    pub heights: Heights,
    /// Per-CPU lists.
    pub keep: Keep,
    /// What reclaim takes for a large block.
    pub reclaim: &'static reclaims::Entry,
    /// Whether pages that were referenced go to the active list when reclaim meets them
    /// (`PAGEREF_ACTIVATE`); without, they are reclaimed as the others.
    pub keeps_referenced: bool,
    /// Whether memory is compacted for large blocks.
    pub compacts: bool,
    /// Frames of swap: anonymous pages beyond are not reclaimed.
    pub swap_frames: u32,
}

/// What happened so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that were served, by order.
    pub served: [u64; 32],
    /// Requests that failed, by order.
    pub failed: [u64; 32],
    /// Blocks that were taken from another list (`mm_page_alloc_extfrag`).
    pub stolen: u64,
    /// Pageblocks that changed hands at that.
    pub owns: u64,
    /// How often the pageblocks above the border of what cannot be moved were emptied for it.
    pub ways: u64,
    /// How often they were not: a page could not leave, or had nowhere to go.
    pub ways_failed: u64,
    /// Pages that left for it.
    pub left: u64,
    /// Pageblocks that the border went back over.
    pub given_back: u64,
    /// How often marks were raised since kinds were mixed in a pageblock.
    pub boosts: u64,
    /// How often background reclaim was woken.
    pub kswapd_wakes: u64,
    /// How often a request reclaimed by itself.
    pub direct: u64,
    /// Pages that reclaim looked at: those of programs and files at the end of an inactive list, those that
    /// linear reclaim tries, and pages of caches that the shrinkers visit.
    pub scanned: u64,
    /// Pages that it freed.
    pub reclaimed: u64,
    /// Pages that reclaim moved from an inactive list to an active one.
    pub activated: u64,
    /// Regions that linear reclaim assessed.
    pub regions: u64,
    /// Of them, those that it tried to reclaim: all they held looked reclaimable.
    pub regions_tried: u64,
    /// Objects of the kernel's caches that were freed.
    pub slab_objects: u64,
    /// Pages of the kernel's caches that went because all objects in them were gone.
    pub slab_pages: u64,
    /// How often per-CPU lists were drained for a request that would have failed.
    pub drained: u64,
    /// Of them, anonymous ones: written to swap.
    pub swapped: u64,
    /// Pages that were given to the disk to be written.
    pub written: u64,
    /// How often a request waited for the disk.
    pub naps: u64,
    /// Pages that were brought back.
    pub refaults: u64,
    /// Compactions of a zone that were begun.
    pub compactions: u64,
    /// Of them, those after which there was a block that is large enough.
    pub compacted: u64,
    /// Compactions that were put off, since those before had failed.
    pub deferred: u64,
    /// Compactions by `kcompactd`, in the background.
    pub kcompactd: u64,
    /// Of them, those ahead of need.
    pub proactive: u64,
    /// Pages that the migrate scanner looked at.
    pub migrate_scanned: u64,
    /// Pages that the free scanner looked at.
    pub free_scanned: u64,
    /// Pages that were moved.
    pub migrated: u64,
}

/// The release whose reclaim is simulated where releases differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// That of the paper: LRU lists for each zone, pages of files and of programs together.
    V2_6_16,
    /// LRU lists for each node, pages of files and of programs apart.
    #[default]
    V6_1,
}

/// What can be tuned, and what a release has otherwise than another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// The release.
    pub release: Release,
    /// `vm.swappiness`: 0 to 100 in 2.6.16, to 200 in 6.1.
    pub swappiness: u8,
    /// Objects in a page of the kernel's caches; 0 counts as 1.
    pub objects_a_page: u8,
    /// `vm.extfrag_threshold`: memory is compacted for orders above 3 if the fragmentation index, in
    /// thousandths, is above this.
    pub extfrag_threshold: u16,
    /// `vm.watermark_boost_factor`: when kinds are mixed in a pageblock, the marks are raised by up to so
    /// many ten-thousandths of the high mark; 0: never. There since 5.0.
    pub boost_factor: u32,
    /// `vm.compaction_proactiveness`: 0 to 100; 0: memory is never compacted ahead of need.
    pub proactiveness: u8,
    /// Pages that the disk writes in a slice; 0: there is no disk to wait for, and what is written is written
    /// at once.
    pub disk: u32,
    /// Pages that it would write in the time that it takes to begin a request to read: eight pages each.
    pub seek: u32,
    /// Pages on their way to the disk at which its queue is congested.
    pub queue: u32,
}

/// Pages of the requests that a queue takes before it is congested: 113 of 128 (`nr_requests`,
/// `blk_queue_congestion_threshold`), of eight pages each (`SWAPFILE_CLUSTER` pages lie beside each other;
/// files of a tree have three).
const QUEUE: u32 = 113 * 8;

impl Tuning {
    /// What a release has where nobody has changed it, but that it does not compact ahead of need.
    pub const fn of(release: Release) -> Tuning {
        // A name entry has 192 bytes and an inode 600 or so: between 21 and 6 of them lie in a page.
        Tuning {
            release,
            swappiness: 60,
            objects_a_page: 12,
            extfrag_threshold: 500,
            boost_factor: match release {
                Release::V6_1 => 15_000,
                _ => 0,
            },
            proactiveness: 0,
            disk: 0,
            seek: 0,
            queue: QUEUE,
        }
    }

    /// With compaction ahead of need, as it is where nobody has changed it (`compaction_proactiveness` 20).
    pub fn proactive(self) -> Tuning {
        Tuning { proactiveness: 20, ..self }
    }
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning::of(Release::default())
    }
}
