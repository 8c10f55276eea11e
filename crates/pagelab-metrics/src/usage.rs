//! Use of memory by part.
//!
//! | part | fields of meminfo |
//! |---|---|
//! | used by programs | AnonPages + Shmem (shared memory and tmpfs are in the page cache, and cannot be
//! dropped) |
//! | page cache | Buffers + Cached + SwapCached − Shmem |
//! | slab | Slab; its reclaimable part is SReclaimable |
//! | page tables | PageTables + SecPageTables (6.1 and later) |
//! | kernel stacks | KernelStack |
//! | hugetlb pool | Hugetlb (4.16 and later), else HugePages_Total × Hugepagesize |
//! | free | MemFree |
//! | not accounted | MemTotal less all of these: drivers, vmalloc, balloon, per-CPU lists |

use pagelab_model::{Bytes, Meminfo};

/// The split of one moment. A part that the kernel does not print is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MemoryUse {
    /// MemTotal.
    pub total: Option<Bytes>,
    /// MemFree.
    pub free: Option<Bytes>,
    /// MemAvailable (3.14 and later): what programs could still get without swapping.
    pub available: Option<Bytes>,
    /// Anonymous and shared memory.
    pub anonymous_and_shmem: Option<Bytes>,
    /// Of `programs`: mapped by transparent huge pages of PMD size.
    pub thp_mapped: Option<Bytes>,
    /// Page cache without shared memory.
    pub page_cache: Option<Bytes>,
    /// Of `page_cache`: dirty or under writeback.
    pub dirty: Option<Bytes>,
    /// All slab.
    pub slab: Option<Bytes>,
    /// Of `slab`: reclaimable.
    pub slab_reclaimable: Option<Bytes>,
    /// Page tables.
    pub page_tables: Option<Bytes>,
    /// Kernel stacks.
    pub kernel_stacks: Option<Bytes>,
    /// hugetlb pools of all sizes, in use or not.
    pub hugetlb: Option<Bytes>,
    /// Remainder of the parts above; `None` if they exceed the total.
    pub unaccounted: Option<Bytes>,
    /// Swap in all.
    pub swap_total: Option<Bytes>,
    /// Swap in use.
    pub swap_used: Option<Bytes>,
}

impl MemoryUse {
    /// Splits one meminfo.
    pub fn from_meminfo(meminfo: &Meminfo) -> MemoryUse {
        let bytes_of = |name: &str| meminfo.bytes(name);
        let shmem = bytes_of("Shmem").unwrap_or_default();
        let cache = sum([bytes_of("Buffers"), bytes_of("Cached"), bytes_of("SwapCached")]);
        let mut usage = MemoryUse {
            total: bytes_of("MemTotal"),
            free: bytes_of("MemFree"),
            available: bytes_of("MemAvailable"),
            anonymous_and_shmem: bytes_of("AnonPages").map(|anon| Bytes(anon.0.saturating_add(shmem.0))),
            thp_mapped: bytes_of("AnonHugePages"),
            page_cache: cache.map(|cache| Bytes(cache.0.saturating_sub(shmem.0))),
            dirty: bytes_of("Dirty"),
            slab: bytes_of("Slab"),
            slab_reclaimable: bytes_of("SReclaimable"),
            page_tables: sum([bytes_of("PageTables"), bytes_of("SecPageTables")]),
            kernel_stacks: bytes_of("KernelStack"),
            hugetlb: bytes_of("Hugetlb").or_else(|| hugetlb_bytes(meminfo)),
            unaccounted: None,
            swap_total: bytes_of("SwapTotal"),
            swap_used: bytes_of("SwapTotal")
                .zip(bytes_of("SwapFree"))
                .map(|(t, f)| Bytes(t.0.saturating_sub(f.0))),
        };
        usage.unaccounted = usage.unaccounted_bytes();
        usage
    }

    /// The parts that add up to the total, with their names in the order of print.
    pub fn parts(&self) -> [(&'static str, Option<Bytes>); 7] {
        [
            ("used by programs", self.anonymous_and_shmem),
            ("page cache", self.page_cache),
            ("slab", self.slab),
            ("page tables", self.page_tables),
            ("kernel stacks", self.kernel_stacks),
            ("hugetlb pool", self.hugetlb),
            ("free", self.free),
        ]
    }

    fn unaccounted_bytes(&self) -> Option<Bytes> {
        let known =
            self.parts().iter().filter_map(|(_, part)| *part).map(|b| b.0).try_fold(0, u64::checked_add)?;
        self.free?;
        Some(Bytes(self.total?.0.checked_sub(known)?))
    }

    /// `part` as a share of the total memory.
    pub fn share(&self, part: Option<Bytes>) -> Option<f64> {
        let total = self.total.filter(|total| total.0 > 0)?;
        Some(part?.0 as f64 / total.0 as f64)
    }
}

fn sum<const N: usize>(parts: [Option<Bytes>; N]) -> Option<Bytes> {
    parts.into_iter().flatten().reduce(|a, b| Bytes(a.0.saturating_add(b.0)))
}

fn hugetlb_bytes(meminfo: &Meminfo) -> Option<Bytes> {
    let pages = meminfo.count("HugePages_Total")?;
    Some(Bytes(pages.saturating_mul(meminfo.bytes("Hugepagesize")?.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::healthy::meminfo;

    #[test]
    fn the_parts_add_up_to_the_total() {
        let split = MemoryUse::from_meminfo(&meminfo(&[
            ("MemTotal", 1000),
            ("MemFree", 100),
            ("Buffers", 10),
            ("Cached", 290),
            ("SwapCached", 0),
            ("AnonPages", 200),
            ("Shmem", 50),
            ("Slab", 80),
            ("PageTables", 5),
            ("KernelStack", 5),
            ("HugePages_Total", 2),
            ("Hugepagesize", 50),
        ]));
        assert_eq!(split.anonymous_and_shmem, Some(Bytes::from_kib(250)));
        assert_eq!(split.page_cache, Some(Bytes::from_kib(250)));
        assert_eq!(split.hugetlb, Some(Bytes::from_kib(100)));
        assert_eq!(split.unaccounted, Some(Bytes::from_kib(210)));
        let parts: u64 = split.parts().iter().filter_map(|(_, part)| *part).map(|b| b.0).sum();
        assert_eq!(parts + split.unaccounted.unwrap().0, split.total.unwrap().0);
    }

    #[test]
    fn what_is_missing_stays_missing_and_an_excess_is_not_a_negative_rest() {
        let old = MemoryUse::from_meminfo(&meminfo(&[("MemTotal", 1000), ("MemFree", 2000)]));
        assert_eq!((old.anonymous_and_shmem, old.page_cache, old.unaccounted), (None, None, None));
        assert_eq!(MemoryUse::from_meminfo(&Meminfo::default()).share(None), None);
    }
}
