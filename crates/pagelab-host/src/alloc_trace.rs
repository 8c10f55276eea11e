//! Header of an allocator trace: the machine's zones, and the meaning of its numbers.

use pagelab_formats::{buddyinfo, pagetypeinfo, zoneinfo};
use pagelab_model::alloc_trace::{TraceBackend, TraceHeader, TraceZone};
use pagelab_model::pagetype::Pagetypeinfo;
use pagelab_model::zoneinfo::ZoneEntry;
use pagelab_model::{PageSize, Pages, Reading, Zoneinfo};

use crate::paths;
use crate::reader::Reader;

/// Pageblock order where the kernel does not report it: the order of a huge page of 2 MiB.
const DEFAULT_PAGEBLOCK_ORDER: u8 = 9;

/// The machine as a trace keeps it, with the zoneinfo that it was read from. `/proc/pagetypeinfo` is read
/// once: the kernel walks its free lists for it, which takes up to 50 ms. The caller states the source of the
/// events.
pub fn read_trace_head(
    reader: &Reader<'_>,
    page_size: PageSize,
    start_ns: u64,
) -> Reading<(TraceHeader, Zoneinfo)> {
    let zoneinfo = reader.parse(paths::ZONEINFO, zoneinfo::parse)?;
    let buddyinfo = reader.parse(paths::BUDDYINFO, buddyinfo::parse)?;
    let types = reader.parse(paths::PAGETYPEINFO, pagetypeinfo::parse).ok();
    let orders = buddyinfo.zones.iter().map(|zone| zone.areas.orders()).max().unwrap_or(0);
    let mut zones: Vec<TraceZone> = zoneinfo.zones.iter().filter_map(to_trace_zone).collect();
    zones.sort_by_key(|zone| zone.first);
    let cpus = zoneinfo.zones.iter().map(|zone| zone.pagesets.len()).max().unwrap_or(0);
    let pageblock_order = types.as_ref().and_then(|types| types.pageblock_order).map(|order| order.0);
    let head = TraceHeader {
        kernel: reader.read_line(paths::OSRELEASE).unwrap_or_default(),
        page_bytes: u32::try_from(page_size.bytes()).unwrap_or(u32::MAX),
        max_order: u8::try_from(orders.saturating_sub(1)).unwrap_or(u8::MAX),
        pageblock_order: pageblock_order.unwrap_or(DEFAULT_PAGEBLOCK_ORDER),
        cpus: u16::try_from(cpus).unwrap_or(u16::MAX),
        zones,
        migratetypes: types.map(|types| migratetype_names(&types)).unwrap_or_default(),
        began: start_ns,
        backend: TraceBackend::default(),
    };
    Ok((head, zoneinfo))
}

/// The migratetypes in the kernel's order: the rows of the first zone.
fn migratetype_names(types: &Pagetypeinfo) -> Vec<String> {
    let Some(first) = types.free.first() else { return Vec::new() };
    let rows = types.free.iter().take_while(|row| row.key == first.key);
    rows.map(|row| row.migratetype.clone()).collect()
}

/// A zone that has memory.
fn to_trace_zone(zone: &ZoneEntry) -> Option<TraceZone> {
    let pages = |pages: Option<Pages>| u32::try_from(pages.map_or(0, |pages| pages.0)).unwrap_or(u32::MAX);
    let spanned = zone.spanned.filter(|pages| pages.0 > 0)?;
    let set = zone.pagesets.first().copied().unwrap_or_default();
    Some(TraceZone {
        key: zone.key.clone(),
        first: u32::try_from(zone.start?.0).ok()?,
        spanned: pages(Some(spanned)),
        managed: pages(zone.managed),
        watermarks: [zone.min, zone.low, zone.high].map(pages),
        pcp_batch_high: [set.batch, set.high].map(pages),
        pcp_counts: zone.pagesets.iter().map(|set| pages(Some(set.count))).collect(),
        lowmem_reserve: zone.protection.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_tree::FakeTree;

    const ZONEINFO: &str = "Node 0, zone    DMA32\n  pages free     3000\n        boost    0\n        min      10\n        \
        low      20\n        high     30\n        spanned  4096\n        present  4000\n        managed  3900\n        \
        protection: (0, 0, 7)\n  pagesets\n    cpu: 0\n              count:    5\n              high:     378\n              \
        batch:    63\n    cpu: 1\n              count:    5\n              high:     378\n              batch:    63\n  \
        start_pfn:           4096\nNode 0, zone  Movable\n  pages free     0\n        spanned  0\n  \
        start_pfn:           0\n";
    const TYPES: &str = "Page block order: 8\nPages per block:  256\n\n\
        Free pages count per migrate type at order       0      1 \n\
        Node    0, zone    DMA32, type    Unmovable      1      0 \n\
        Node    0, zone    DMA32, type      Movable      1      0 \n\n\
        Number of blocks type     Unmovable      Movable \nNode 0, zone    DMA32            1            7 \n";

    #[test]
    fn zones_with_memory_and_the_names_of_migratetypes() {
        let buddy = "Node 0, zone    DMA32      1      2      3 \n";
        let files = [
            ("/proc/zoneinfo", ZONEINFO),
            ("/proc/buddyinfo", buddy),
            ("/proc/pagetypeinfo", TYPES),
            ("/proc/sys/kernel/osrelease", "6.18.44\n"),
        ];
        let (head, all) =
            FakeTree::read_with(&files, |reader, _| read_trace_head(reader, PageSize::DEFAULT, 7)).unwrap();
        assert_eq!(
            (head.kernel.as_str(), head.max_order, head.pageblock_order, head.cpus),
            ("6.18.44", 2, 8, 2)
        );
        assert_eq!(head.migratetypes, ["Unmovable", "Movable"]);
        assert_eq!((head.zones.len(), all.zones.len(), head.began), (1, 2, 7));
        let zone = &head.zones[0];
        assert_eq!((zone.first, zone.spanned, zone.managed), (4096, 4096, 3900));
        assert_eq!(zone.pcp_counts, [5, 5]);
        assert_eq!(
            (zone.watermarks, zone.pcp_batch_high, &zone.lowmem_reserve[..]),
            ([10, 20, 30], [63, 378], &[0, 0, 7][..])
        );
    }

    #[test]
    fn without_pagetypeinfo_the_usual_pageblock_is_taken() {
        let files = [("/proc/zoneinfo", ZONEINFO), ("/proc/buddyinfo", "Node 0, zone DMA32 1 2\n")];
        let (head, _) =
            FakeTree::read_with(&files, |reader, _| read_trace_head(reader, PageSize::DEFAULT, 0)).unwrap();
        assert_eq!((head.pageblock_order, head.migratetypes.len()), (9, 0));
    }
}
