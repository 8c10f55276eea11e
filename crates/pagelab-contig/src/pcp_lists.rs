//! Pages of the pcp lists: drained before memory is scanned, or isolated for the duration of a scan.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use pagelab_formats::{pagemap, zoneinfo};
use pagelab_host::reader::Reader;
use pagelab_host::root::Root;
use pagelab_host::{machine, paths};
use pagelab_model::{Bytes, Census, PageClass, PageSize, Pfn};
use pagelab_sys::mapping::{Advice, Mapping};
use pagelab_sys::scheduling::PinnedThread;

/// Reads of `stat_refresh` in one round; each takes at most a few thousand pages from each processor's list.
const REFRESHES_PER_ROUND: u32 = 16;
/// Pages that leave the lists in a round below which no more is to leave.
const DRAINED_PAGES_MIN: u64 = 64;
/// The longest that lists are waited for.
pub(crate) const DRAIN_TIME_MAX: Duration = Duration::from_millis(1500);

/// Reads `stat_refresh` until the lists do not shrink any more. Since 6.7 a list grows to an eighth of its
/// zone shared by the processors and shrinks within minutes by itself; each read is one step of it
/// (mm/vmstat.c, `vmstat_refresh`; mm/page_alloc.c, `decay_pcp_high`). Earlier kernels do not shrink their
/// pcp lists. Returns how many pages left the lists; `None` if it cannot be read, such as without root.
pub fn drain_pcp_lists(root: &Root) -> Option<u64> {
    let refresh = root.open_regular_file(paths::STAT_REFRESH).ok()?;
    let first = count_pcp_pages(root)?;
    let (mut pages_before, deadline) = (first, Instant::now() + DRAIN_TIME_MAX);
    loop {
        refresh_vmstat(&refresh)?;
        let now = count_pcp_pages(root)?;
        if pages_before.saturating_sub(now) < DRAINED_PAGES_MIN || Instant::now() > deadline {
            return Some(first.saturating_sub(now));
        }
        pages_before = now;
    }
}

/// One round. `None` if it cannot be read.
pub(crate) fn refresh_vmstat(refresh: &File) -> Option<()> {
    (0..REFRESHES_PER_ROUND).try_for_each(|_| refresh.read_at(&mut [0], 0).map(drop)).ok()
}

fn count_pcp_pages(root: &Root) -> Option<u64> {
    let zoneinfo = Reader::new(root).parse(paths::ZONEINFO, zoneinfo::parse).ok()?;
    Some(zoneinfo.zones.iter().map(|zone| zone.count_pcp_pages().0).sum())
}

// Isolation of free pages from the pcp lists for the duration of a scan.
//
// A page on a pcp list has no flag in kpageflags, as a page of a pipe has none, and keeps its block from
// being whole although it is free. The kernel drains the lists only when it needs to. So as many pages as the
// lists hold are touched on each CPU, and pagemap shows which pages these are. This reaches the lists of
// movable single pages of the zone that serves user space first.

/// Pages taken between two looks at a list.
const BATCH_PAGES: u64 = 128;
/// Of a piece, the pages that must have left the lists; else they come from the free lists.
const DRAINED_MIN: u64 = BATCH_PAGES / 2;
/// Never more than this, in bytes, of one CPU.
const BYTES_PER_CPU_MAX: u64 = 1 << 30;

/// Pages that were on lists, and are held until this is dropped.
#[derive(Debug, Default)]
pub struct IsolatedPcpPages {
    mappings: Vec<Mapping>,
    /// Page frames, ascending.
    pfns: Vec<Pfn>,
}

/// Isolates them, as root; does nothing without permission.
pub fn isolate_pcp_pages(root: &Root) -> IsolatedPcpPages {
    let mut isolated = IsolatedPcpPages::default();
    let Some(page_size) = machine::live_page_size().filter(|_| rustix::process::geteuid().is_root()) else {
        return isolated;
    };
    // Of every CPU, whichever this thread is pinned to just now.
    for cpu in list_cpus(root) {
        let Ok(_pinned) = PinnedThread::to_cpu(cpu) else { continue };
        if let Some((mapping, len)) = isolate_cpu_list(root, cpu, page_size) {
            isolated.pfns.extend(read_pfns(root, &mapping, len, page_size).unwrap_or_default());
            isolated.mappings.push(mapping);
        }
    }
    isolated.pfns.sort_unstable();
    isolated
}

/// The pages of the list of the CPU that this thread is pinned to, and how many bytes of the mapping are
/// they.
fn isolate_cpu_list(root: &Root, cpu: u32, page_size: PageSize) -> Option<(Mapping, u64)> {
    let page = page_size.bytes();
    let mut waiting = count_list_pages(root, cpu)?;
    let bytes_max = waiting.saturating_mul(page).min(BYTES_PER_CPU_MAX).next_multiple_of(BATCH_PAGES * page);
    let mut mapping = Mapping::anonymous(Bytes(bytes_max), Bytes(page)).ok()?;
    let _ = mapping.advise(0..bytes_max, Advice::NoHugePage);
    let mut offset = 0;
    while offset < bytes_max && waiting >= BATCH_PAGES {
        mapping.touch_for_writing(offset..offset + BATCH_PAGES * page).ok()?;
        offset += BATCH_PAGES * page;
        let now = count_list_pages(root, cpu)?;
        if now + DRAINED_MIN > waiting {
            break;
        }
        waiting = now;
    }
    Some((mapping, offset))
}

fn list_cpus(root: &Root) -> BTreeSet<u32> {
    let zoneinfo = Reader::new(root).parse(paths::ZONEINFO, zoneinfo::parse);
    let zones = zoneinfo.map(|zoneinfo| zoneinfo.zones).unwrap_or_default();
    zones.iter().flat_map(|zone| &zone.pagesets).map(|set| set.cpu).collect()
}

fn count_list_pages(root: &Root, cpu: u32) -> Option<u64> {
    let zoneinfo = Reader::new(root).parse(paths::ZONEINFO, zoneinfo::parse).ok()?;
    let sets = zoneinfo.zones.iter().flat_map(|zone| &zone.pagesets);
    Some(sets.filter(|set| set.cpu == cpu).map(|set| set.count.0).sum())
}

/// Frames of the first bytes of each mapping.
fn read_pfns(root: &Root, mapping: &Mapping, len: u64, page_size: PageSize) -> Option<Vec<Pfn>> {
    let entry = pagemap::ENTRY_BYTES as u64;
    let mut entries = vec![0; usize::try_from(len / page_size.bytes() * entry).ok()?];
    let first = mapping.addresses().start / page_size.bytes() * entry;
    root.open_regular_file(paths::SELF_PAGEMAP).ok()?.read_exact_at(&mut entries, first).ok()?;
    Some(pagemap::entries(&entries).ok()?.filter_map(|entry| entry.pfn()).collect())
}

impl IsolatedPcpPages {
    /// How many pages there are.
    pub fn count_pages(&self) -> u64 {
        self.pfns.len() as u64
    }

    /// Counts them as free in their blocks.
    pub fn count_as_free(&self, census: &mut Census) {
        let block_pages = census.pageblock_order.to_pages().0.max(1);
        for zone in &mut census.zones {
            let first = zone.first.0 / block_pages;
            for (index, counts) in &mut zone.blocks {
                let from = (first + *index).saturating_mul(block_pages);
                let lower = self.pfns.partition_point(|frame| frame.0 < from);
                let upper = self.pfns.partition_point(|frame| frame.0 < from.saturating_add(block_pages));
                let isolated_pages = u32::try_from(upper - lower).unwrap_or(u32::MAX);
                // Frames whose pages have moved are skipped.
                let still_here = isolated_pages.min(counts.pages_of_class(PageClass::Anon));
                counts.0[PageClass::Anon.index()] -= still_here;
                counts.0[PageClass::Free.index()] += still_here;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pagelab_model::{CensusZone, Coverage, NodeId, Order, PageblockCounts, ZoneKey};

    use super::*;

    #[test]
    fn what_was_taken_off_counts_as_free_where_it_lies() {
        let block = |anon: u32| {
            let named = [("anon".into(), anon), ("slab".into(), 8 - anon)];
            PageblockCounts::try_from(BTreeMap::<Box<str>, u32>::from(named)).unwrap()
        };
        let zone = CensusZone {
            key: ZoneKey { node: NodeId(0), zone: "Normal".to_owned() },
            first: Pfn(80),
            blocks_total: 3,
            blocks: vec![(0, block(5)), (1, block(1)), (7, block(3))],
            one_folio: Vec::new(),
            free_blocks: None,
            per_cpu: None,
        };
        let (coverage, zones) = (Coverage::Whole, vec![zone]);
        let mut census = Census { pageblock_order: Order(3), zones, coverage, free_blocks: None, scan_ns: 0 };
        let frames = [79, 80, 87, 88, 89, 143].map(Pfn).to_vec();
        IsolatedPcpPages { mappings: Vec::new(), pfns: frames }.count_as_free(&mut census);
        let found: Vec<_> = census.zones[0]
            .blocks
            .iter()
            .map(|(_, counts)| {
                (counts.pages_of_class(PageClass::Anon), counts.pages_of_class(PageClass::Free))
            })
            .collect();
        // Two are in the first block; of the two in the second one has moved; one is in the last.
        assert_eq!(found, [(3, 2), (0, 1), (2, 1)]);
    }

    #[test]
    fn lists_are_taken_off_and_given_back() {
        // A pinned thread still reaches every CPU and stays on its own.
        let pinned = PinnedThread::to_current_cpu().unwrap();
        let taken = isolate_pcp_pages(&Root::live());
        assert_eq!(PinnedThread::allowed_cpus(), [pinned.cpu()]);
        assert!(list_cpus(&Root::live()).contains(&pinned.cpu()));
        assert!(taken.pfns.is_sorted());
        assert!(taken.count_pages() == 0 || taken.mappings.iter().any(|held| !held.is_empty()));
    }
}
