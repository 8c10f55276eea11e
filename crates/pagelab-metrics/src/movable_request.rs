//! Free blocks that a movable request can take, such as one for a huge page of a program.
//!
//! | migratetype | movable request | mm/page_alloc.c |
//! |---|---|---|
//! | Movable | own | `__rmqueue_smallest` |
//! | Reclaimable, Unmovable | fallback | `fallbacks[MIGRATE_MOVABLE]`, taken by `__rmqueue_claim` and `__rmqueue_steal` |
//! | Reserve | last fallback | before 4.4, where `MIGRATE_RESERVE` ends every row of `fallbacks` |
//! | CMA | `ALLOC_CMA` | `gfp_to_alloc_flags_cma`: movable requests only; pages that are pinned for long have to leave |
//! | HighAtomic | refused | `rmqueue_buddy`: `ALLOC_HIGHATOMIC`, `ALLOC_OOM` and `ALLOC_NON_BLOCK` only |
//! | Isolate | refused | on no path of an allocation |

use pagelab_model::ZoneKey;
use pagelab_model::pagetype::{CappedAreas, Pagetypeinfo};

/// What a movable request gets of the free blocks of a migratetype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MovableAccess {
    /// It can take them.
    Usable,
    /// It can take them while the owner of the CMA area does not claim them.
    Cma,
    /// It never gets them.
    Refused,
    /// The migratetype is not one of the kernel's.
    Unknown,
}

impl MovableAccess {
    /// Access to the blocks of a migratetype by its name in pagetypeinfo.
    pub fn of_migratetype(name: &str) -> MovableAccess {
        match name {
            "Movable" | "Reclaimable" | "Unmovable" | "Reserve" => MovableAccess::Usable,
            "CMA" => MovableAccess::Cma,
            "HighAtomic" | "Isolate" => MovableAccess::Refused,
            _ => MovableAccess::Unknown,
        }
    }

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            MovableAccess::Usable => "usable",
            MovableAccess::Cma => "cma",
            MovableAccess::Refused => "refused",
            MovableAccess::Unknown => "unknown",
        }
    }

    /// Free blocks of one zone with this access; `None` if a sum exceeds 64 bits.
    pub fn free_areas(self, types: &Pagetypeinfo, key: &ZoneKey) -> Option<CappedAreas> {
        types.free_areas(key, |name| MovableAccess::of_migratetype(name) == self)
    }
}
