//! Free pages that wait on per-CPU lists, taken off them for the time of a look.
//!
//! A page on such a list has no flag in kpageflags, as a page of a pipe has none, and it keeps its block from
//! being whole although it is free. The kernel drains the lists when it needs to; no interface does. So what
//! the lists hold is taken by touching as many pages on each CPU, and pagemap says which pages these are.
//! Only the lists of movable single pages, of the zone that user space is served from first, go this way.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;

use pagelab_formats::{pagemap, zoneinfo};
use pagelab_host::root::Root;
use pagelab_host::{machine, paths, reader::Reader};
use pagelab_model::{Bytes, Census, PageClass, PageSize, Pfn};
use pagelab_sys::affinity::Pinned;
use pagelab_sys::map::{Advice, Mapping};

/// Pages taken between two looks at a list.
const PIECE: u64 = 128;
/// Of a piece, the pages that must have left the lists; else they come from the free lists.
const LEFT_MIN: u64 = PIECE / 2;
/// Never more than this, in bytes, of one CPU.
const EACH_MAX: u64 = 1 << 30;

/// Pages that were on lists, and are ours until this is dropped.
#[derive(Debug, Default)]
pub struct TakenOff {
    /// The pages.
    held: Vec<Mapping>,
    /// Where they lie, ascending.
    frames: Vec<Pfn>,
}

/// Takes them, as root; nothing where that is not permitted.
pub fn take_off(root: &Root) -> TakenOff {
    let mut taken = TakenOff::default();
    let Some(page_size) = machine::live_page_size().filter(|_| rustix::process::geteuid().is_root()) else {
        return taken;
    };
    // Of every CPU, whichever this thread is pinned to just now.
    for cpu in cpus(root) {
        let Ok(_pinned) = Pinned::on(cpu) else { continue };
        if let Some((mapping, len)) = of_cpu(root, cpu, page_size) {
            taken.frames.extend(frames(root, &mapping, len, page_size).unwrap_or_default());
            taken.held.push(mapping);
        }
    }
    taken.frames.sort_unstable();
    taken
}

/// The pages of the list of the CPU that this thread is pinned to, and how many bytes of the mapping are
/// they.
fn of_cpu(root: &Root, cpu: u32, page_size: PageSize) -> Option<(Mapping, u64)> {
    let page = page_size.bytes();
    let mut waiting = on_list(root, cpu)?;
    let most = waiting.saturating_mul(page).min(EACH_MAX).next_multiple_of(PIECE * page);
    let mut mapping = Mapping::anonymous(Bytes(most), Bytes(page)).ok()?;
    let _ = mapping.advise(0..most, Advice::NoHugePage);
    let mut at = 0;
    while at < most && waiting >= PIECE {
        mapping.touch(at..at + PIECE * page).ok()?;
        at += PIECE * page;
        let now = on_list(root, cpu)?;
        if now + LEFT_MIN > waiting {
            break;
        }
        waiting = now;
    }
    Some((mapping, at))
}

/// The CPUs that have lists.
fn cpus(root: &Root) -> BTreeSet<u32> {
    let zoneinfo = Reader::new(root).parse(paths::ZONEINFO, zoneinfo::parse);
    let zones = zoneinfo.map(|zoneinfo| zoneinfo.zones).unwrap_or_default();
    zones.iter().flat_map(|zone| &zone.pagesets).map(|set| set.cpu).collect()
}

/// Pages on the lists of one CPU.
fn on_list(root: &Root, cpu: u32) -> Option<u64> {
    let zoneinfo = Reader::new(root).parse(paths::ZONEINFO, zoneinfo::parse).ok()?;
    let sets = zoneinfo.zones.iter().flat_map(|zone| &zone.pagesets);
    Some(sets.filter(|set| set.cpu == cpu).map(|set| set.count.0).sum())
}

/// Where the first bytes of a mapping lie.
fn frames(root: &Root, mapping: &Mapping, len: u64, page_size: PageSize) -> Option<Vec<Pfn>> {
    let entry = pagemap::ENTRY_BYTES as u64;
    let mut entries = vec![0; usize::try_from(len / page_size.bytes() * entry).ok()?];
    let first = mapping.addresses().start / page_size.bytes() * entry;
    root.file(paths::SELF_PAGEMAP).ok()?.read_exact_at(&mut entries, first).ok()?;
    Some(pagemap::entries(&entries).ok()?.filter_map(|entry| entry.frame()).collect())
}

impl TakenOff {
    /// How many pages there are.
    pub fn pages(&self) -> u64 {
        self.frames.len() as u64
    }

    /// Counts them as free in the blocks in which they lie.
    pub fn credit(&self, census: &mut Census) {
        let block_pages = census.block_order.pages().0.max(1);
        for zone in &mut census.zones {
            let first = zone.first.0 / block_pages;
            for (index, counts) in &mut zone.blocks {
                let from = (first + *index).saturating_mul(block_pages);
                let lower = self.frames.partition_point(|frame| frame.0 < from);
                let upper = self.frames.partition_point(|frame| frame.0 < from.saturating_add(block_pages));
                let held = u32::try_from(upper - lower).unwrap_or(u32::MAX);
                // What was moved meanwhile is no longer there.
                let ours = held.min(counts.of(PageClass::Anon));
                counts.0[PageClass::Anon.index()] -= ours;
                counts.0[PageClass::Free.index()] += ours;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pagelab_model::{BlockCounts, CensusZone, Coverage, NodeId, Order, ZoneKey};

    use super::*;

    #[test]
    fn what_was_taken_off_counts_as_free_where_it_lies() {
        let block = |anon: u32| {
            let named = [("anon".into(), anon), ("slab".into(), 8 - anon)];
            BlockCounts::try_from(BTreeMap::<Box<str>, u32>::from(named)).unwrap()
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
        let mut census = Census { block_order: Order(3), zones, coverage, free_blocks: None, scan_ns: 0 };
        let frames = [79, 80, 87, 88, 89, 143].map(Pfn).to_vec();
        TakenOff { held: Vec::new(), frames }.credit(&mut census);
        let found: Vec<_> = census.zones[0]
            .blocks
            .iter()
            .map(|(_, counts)| (counts.of(PageClass::Anon), counts.of(PageClass::Free)))
            .collect();
        // Two lie in the first; of the two in the second one has moved; one lies in the last.
        assert_eq!(found, [(3, 2), (0, 1), (2, 1)]);
    }

    #[test]
    fn lists_are_taken_off_and_given_back() {
        // One who is pinned asks every CPU all the same, and stays where it was.
        let pinned = Pinned::here().unwrap();
        let taken = take_off(&Root::live());
        assert_eq!(Pinned::allowed(), [pinned.cpu()]);
        assert!(cpus(&Root::live()).contains(&pinned.cpu()));
        assert!(taken.frames.is_sorted());
        assert!(taken.pages() == 0 || taken.held.iter().any(|held| !held.is_empty()));
    }
}
