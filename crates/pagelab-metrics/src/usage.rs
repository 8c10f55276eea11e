//! Where the memory went, split as people think of it.
//!
//! | part | fields of meminfo |
//! |---|---|
//! | used by programs | AnonPages + Shmem (shared memory and tmpfs live in the page cache, and cannot be dropped) |
//! | page cache | Buffers + Cached + SwapCached − Shmem |
//! | slab | Slab; the part that can be reclaimed is SReclaimable |
//! | page tables | PageTables + SecPageTables (6.1 and later) |
//! | kernel stacks | KernelStack |
//! | hugetlb pool | Hugetlb (4.16 and later), else HugePages_Total × Hugepagesize |
//! | free | MemFree |
//! | not accounted | MemTotal less all of these: drivers, vmalloc, balloon, per-CPU caches |

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
    pub programs: Option<Bytes>,
    /// Of `programs`: mapped by transparent huge pages of PMD size.
    pub programs_huge: Option<Bytes>,
    /// Page cache without shared memory.
    pub page_cache: Option<Bytes>,
    /// Of `page_cache`: waiting to be written.
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
    /// What the parts above do not explain; `None` where they explain more than there is.
    pub not_accounted: Option<Bytes>,
    /// Swap in all.
    pub swap_total: Option<Bytes>,
    /// Swap in use.
    pub swap_used: Option<Bytes>,
}

impl MemoryUse {
    /// Splits one meminfo.
    pub fn of(meminfo: &Meminfo) -> MemoryUse {
        let at = |name: &str| meminfo.bytes(name);
        let shmem = at("Shmem").unwrap_or_default();
        let cache = sum([at("Buffers"), at("Cached"), at("SwapCached")]);
        let mut split = MemoryUse {
            total: at("MemTotal"),
            free: at("MemFree"),
            available: at("MemAvailable"),
            programs: at("AnonPages").map(|anon| Bytes(anon.0.saturating_add(shmem.0))),
            programs_huge: at("AnonHugePages"),
            page_cache: cache.map(|cache| Bytes(cache.0.saturating_sub(shmem.0))),
            dirty: at("Dirty"),
            slab: at("Slab"),
            slab_reclaimable: at("SReclaimable"),
            page_tables: sum([at("PageTables"), at("SecPageTables")]),
            kernel_stacks: at("KernelStack"),
            hugetlb: at("Hugetlb").or_else(|| pool(meminfo)),
            not_accounted: None,
            swap_total: at("SwapTotal"),
            swap_used: at("SwapTotal").zip(at("SwapFree")).map(|(t, f)| Bytes(t.0.saturating_sub(f.0))),
        };
        split.not_accounted = split.rest();
        split
    }

    /// The parts that add up to the total, with their names in the order of print.
    pub fn parts(&self) -> [(&'static str, Option<Bytes>); 7] {
        [
            ("used by programs", self.programs),
            ("page cache", self.page_cache),
            ("slab", self.slab),
            ("page tables", self.page_tables),
            ("kernel stacks", self.kernel_stacks),
            ("hugetlb pool", self.hugetlb),
            ("free", self.free),
        ]
    }

    fn rest(&self) -> Option<Bytes> {
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

fn pool(meminfo: &Meminfo) -> Option<Bytes> {
    let pages = meminfo.count("HugePages_Total")?;
    Some(Bytes(pages.saturating_mul(meminfo.bytes("Hugepagesize")?.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::healthy::meminfo;

    #[test]
    fn the_parts_add_up_to_the_total() {
        let split = MemoryUse::of(&meminfo(&[
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
        assert_eq!(split.programs, Some(Bytes::from_kib(250)));
        assert_eq!(split.page_cache, Some(Bytes::from_kib(250)));
        assert_eq!(split.hugetlb, Some(Bytes::from_kib(100)));
        assert_eq!(split.not_accounted, Some(Bytes::from_kib(210)));
        let parts: u64 = split.parts().iter().filter_map(|(_, part)| *part).map(|b| b.0).sum();
        assert_eq!(parts + split.not_accounted.unwrap().0, split.total.unwrap().0);
    }

    #[test]
    fn what_is_missing_stays_missing_and_an_excess_is_not_a_negative_rest() {
        let old = MemoryUse::of(&meminfo(&[("MemTotal", 1000), ("MemFree", 2000)]));
        assert_eq!((old.programs, old.page_cache, old.not_accounted), (None, None, None));
        assert_eq!(MemoryUse::of(&Meminfo::default()).share(None), None);
    }
}
