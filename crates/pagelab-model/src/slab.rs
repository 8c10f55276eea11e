//! Slab caches (`/proc/slabinfo`) and allocation sites (`/proc/allocinfo`): owners of kernel memory.

use crate::{Bytes, PageSize, Pages};

use serde::{Deserialize, Serialize};

/// One line of `/proc/slabinfo`, version 2.1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlabCache {
    /// Name of the cache.
    pub name: String,
    /// Objects in use.
    pub objects_active: u64,
    /// Objects that the slabs hold.
    pub objects: u64,
    /// Size of an object.
    pub object_size: Bytes,
    /// Objects in one slab.
    pub objects_per_slab: u64,
    /// Base pages in one slab.
    pub pages_per_slab: u64,
    /// Slabs of the cache.
    pub slabs: u64,
}

impl SlabCache {
    /// Base pages that the cache holds.
    pub fn pages(&self) -> Pages {
        Pages(self.slabs.saturating_mul(self.pages_per_slab))
    }

    /// Bytes that the cache holds.
    pub fn bytes(&self, page_size: PageSize) -> Bytes {
        self.pages().to_bytes(page_size)
    }
}

/// One line of `/proc/allocinfo` (6.10 and later, CONFIG_MEM_ALLOC_PROFILING).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocSite {
    /// Bytes allocated from this place and not freed.
    pub bytes: Bytes,
    /// Calls that are outstanding.
    pub calls: u64,
    /// Source file, line, module and function, as printed.
    #[serde(alias = "place")]
    pub call_site: String,
}
