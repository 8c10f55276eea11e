//! Which frames belong to which zone, and which have memory behind them.
//!
//! A zone's span may have holes, and the spans of two nodes may interleave. What is memory is said by the
//! memory blocks (present and online) and by iomem's `System RAM`; a memory block of 2 GiB, usual on large
//! machines, may itself have a hole, so both are asked.

use std::collections::BTreeMap;

use pagelab_formats::iomem;
use pagelab_model::page_map::{Frames as Run, MapBlock};
use pagelab_model::{Absence, AbsentWhy, NodeId, PageClass, PageSize, Pages, Pfn, Reading, Zoneinfo};

use crate::paths;
use crate::reader::Reader;

/// No machine has more zones: 1024 nodes, which is the largest CONFIG_NODES_SHIFT, of 6 zones.
const ZONES_MAX: usize = 6 << 10;

/// Comparisons of zones' spans with edges at most, where spans overlap: enough for 2048 zones whose memory
/// is in as many parts. A tree that was made to could ask for any number.
const COMPARISONS_MAX: usize = 1 << 24;

/// A half-open range of frames.
pub(super) type Range = (u64, u64);

/// Frames of one zone that are to be scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub first: u64,
    pub end: u64,
    /// Index into [`Zoneinfo::zones`].
    pub zone: usize,
    /// What a page without flags is: unknown in memory, a hole outside of it.
    pub zero: PageClass,
}

/// What there is to scan.
#[derive(Debug)]
pub(super) struct Frames {
    /// Ascending, without overlap.
    pub segments: Vec<Segment>,
    /// Whether holes are known by their addresses: then a page without flags in memory is no hole.
    pub holes_known: bool,
    /// The memory blocks, ascending; empty where the kernel has none.
    pub blocks: Vec<MapBlock>,
}

/// What the machine says about its memory, in frames; each list ascending without overlap.
#[derive(Debug, Default)]
struct MemoryMap {
    /// Memory blocks that are present, ascending.
    blocks: Vec<MapBlock>,
    /// Memory blocks that are present and not offline.
    online: Option<Vec<Range>>,
    /// `System RAM` of iomem.
    ram: Option<Vec<Range>>,
    /// The nodes of memory blocks; read only if zones of two nodes overlap.
    nodes: Vec<(NodeId, Range)>,
}

/// The frames to scan, ascending.
pub(super) fn frames(reader: &Reader, zoneinfo: &Zoneinfo, page_size: PageSize) -> Reading<Frames> {
    let spans = spans(reader, zoneinfo)?;
    let mut map = memory_map(reader, page_size);
    if overlap(&spans) {
        map.nodes = nodes_of_blocks(reader, page_size);
        let edges = 2 * (spans.len() + map.nodes.len());
        if spans.len().saturating_mul(edges) > COMPARISONS_MAX {
            let detail = "more zones and nodes overlap than any machine has";
            let source = reader.root().show(paths::ZONEINFO);
            return reader.noted(Err(Absence::new(source, AbsentWhy::Malformed, detail)));
        }
    }
    let segments = segments(&spans, zoneinfo, &map);
    Ok(Frames { segments, holes_known: map.ram.is_some(), blocks: map.blocks })
}

/// The zones' spans. `Device` zones are left out: their pages are not the allocator's, and kpageflags does
/// not show them.
fn spans(reader: &Reader, zoneinfo: &Zoneinfo) -> Reading<Vec<(usize, Range)>> {
    let source = || reader.root().show(paths::ZONEINFO);
    if zoneinfo.zones.len() > ZONES_MAX {
        let detail = format!("more than {ZONES_MAX} zones");
        return reader.noted(Err(Absence::new(source(), AbsentWhy::Malformed, detail)));
    }
    let mut spans = Vec::new();
    for (index, zone) in zoneinfo.zones.iter().enumerate() {
        let spanned = zone.spanned.map_or(0, |pages| pages.0);
        if spanned == 0 || zone.key.zone == "Device" {
            continue;
        }
        if let (Some(start), Some(end)) = (zone.start, zone.end()) {
            spans.push((index, (start.0, end.0)));
        }
    }
    if spans.is_empty() {
        return Err(Absence::new(source(), AbsentWhy::NotThere, "no zone's start and span are known"));
    }
    Ok(spans)
}

fn overlap(spans: &[(usize, Range)]) -> bool {
    let mut sorted: Vec<Range> = spans.iter().map(|&(_, range)| range).collect();
    sorted.sort_unstable();
    sorted.windows(2).any(|pair| pair[1].0 < pair[0].1)
}

fn memory_map(reader: &Reader, page_size: PageSize) -> MemoryMap {
    let ram = reader.parse(paths::IOMEM, iomem::parse).ok().filter(|iomem| !iomem.is_hidden());
    let ram = ram.map(|iomem| {
        let whole = |(start, last): (u64, u64)| {
            (start.div_ceil(page_size.bytes()), last.saturating_add(1) / page_size.bytes())
        };
        joined(iomem.system_ram().map(whole).collect())
    });
    let ram = ram.filter(|ranges: &Vec<Range>| !ranges.is_empty());
    let blocks = blocks(reader, page_size);
    let online = blocks.iter().filter(|block| block.is_online);
    let online: Vec<Range> = online.map(|block| (block.frames.first.0, block.frames.end().0)).collect();
    MemoryMap { online: (!online.is_empty()).then(|| joined(online)), ram, nodes: Vec::new(), blocks }
}

/// Frames of a memory block.
fn block_frames(reader: &Reader, page_size: PageSize) -> Option<u64> {
    let size = reader.line(&format!("{}/block_size_bytes", paths::MEMORY_BLOCKS)).ok()?;
    let frames = u64::from_str_radix(&size, 16).ok()? / page_size.bytes();
    (frames > 0).then_some(frames)
}

/// The number in `memory123`.
fn block_number(name: &str) -> Option<u64> {
    name.strip_prefix("memory")?.parse().ok()
}

fn range_of_block(number: u64, frames: u64) -> Option<Range> {
    let first = number.checked_mul(frames)?;
    Some((first, first.checked_add(frames)?))
}

fn blocks(reader: &Reader, page_size: PageSize) -> Vec<MapBlock> {
    let Some(frames) = block_frames(reader, page_size) else { return Vec::new() };
    let block = |name: &String| {
        let number = block_number(name)?;
        let (first, end) = range_of_block(number, frames)?;
        let state = reader.line(&format!("{}/{name}/state", paths::MEMORY_BLOCKS));
        let frames = Run { first: Pfn(first), count: Pages(end - first) };
        Some(MapBlock { number, frames, is_online: !state.is_ok_and(|state| state == "offline") })
    };
    let names = reader.root().list(paths::MEMORY_BLOCKS).unwrap_or_default();
    let mut blocks: Vec<MapBlock> = names.iter().filter_map(block).collect();
    blocks.sort_by_key(|block| block.number);
    blocks.dedup_by_key(|block| block.number);
    blocks
}

fn nodes_of_blocks(reader: &Reader, page_size: PageSize) -> Vec<(NodeId, Range)> {
    let Some(frames) = block_frames(reader, page_size) else { return Vec::new() };
    let mut found = Vec::new();
    for name in reader.root().list(paths::NODES).unwrap_or_default() {
        let Some(node) = name.strip_prefix("node").and_then(|number| number.parse().ok()) else { continue };
        let blocks = reader.root().list(&format!("{}/{name}", paths::NODES)).unwrap_or_default();
        let ranges = blocks.iter().filter_map(|name| range_of_block(block_number(name)?, frames)).collect();
        found.extend(joined(ranges).into_iter().map(|range| (NodeId(node), range)));
    }
    found
}

/// The same frames in ascending ranges without overlap.
pub(super) fn joined(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.retain(|&(first, end)| first < end);
    ranges.sort_unstable();
    let mut out: Vec<Range> = Vec::with_capacity(ranges.len());
    for (first, end) in ranges {
        match out.last_mut() {
            Some(last) if first <= last.1 => last.1 = last.1.max(end),
            _ => out.push((first, end)),
        }
    }
    out
}

/// The parts of `range` that lie in `ranges`, which are ascending and do not overlap.
fn inside(range: Range, ranges: &[Range]) -> impl Iterator<Item = Range> + '_ {
    let from = ranges.partition_point(|&(_, end)| end <= range.0);
    let touching = ranges[from..].iter().take_while(move |&&(first, _)| first < range.1);
    touching.map(move |&(first, end)| (first.max(range.0), end.min(range.1)))
}

fn segments(spans: &[(usize, Range)], zoneinfo: &Zoneinfo, map: &MemoryMap) -> Vec<Segment> {
    let mut out: Vec<Segment> = Vec::new();
    let mut push = |(first, end): Range, zone, zero| {
        match out.last_mut() {
            Some(last) if last.end == first && last.zone == zone && last.zero == zero => last.end = end,
            _ if first < end => out.push(Segment { first, end, zone, zero }),
            _ => {}
        };
    };
    for (range, zone) in owned(spans, zoneinfo, &map.nodes) {
        let online = map.online.as_deref().unwrap_or(&[(0, u64::MAX)]);
        for part in inside(range, online) {
            let mut at = part.0;
            for (first, end) in inside(part, map.ram.as_deref().unwrap_or(&[(0, u64::MAX)])) {
                push((at, first), zone, PageClass::Hole);
                push((first, end), zone, PageClass::Unknown);
                at = end;
            }
            push((at, part.1), zone, PageClass::Hole);
        }
    }
    out
}

/// Each range of frames with the one zone that it belongs to. Where spans overlap, the node of the memory
/// block decides, else the smaller span: a node that interleaves with another lies inside of its span.
fn owned(spans: &[(usize, Range)], zoneinfo: &Zoneinfo, nodes: &[(NodeId, Range)]) -> Vec<(Range, usize)> {
    let edges = spans.iter().map(|&(_, range)| range).chain(nodes.iter().map(|&(_, range)| range));
    let mut cuts: Vec<u64> = edges.flat_map(|(first, end)| [first, end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut by_node: BTreeMap<NodeId, Vec<Range>> = BTreeMap::new();
    for &(node, range) in nodes {
        by_node.entry(node).or_default().push(range);
    }
    by_node.values_mut().for_each(|ranges| *ranges = joined(std::mem::take(ranges)));
    let mut out = Vec::new();
    for pair in cuts.windows(2) {
        let covers = |range: Range| range.0 <= pair[0] && pair[1] <= range.1;
        let candidates: Vec<&(usize, Range)> = spans.iter().filter(|(_, range)| covers(*range)).collect();
        let of_node = |zone: usize| {
            let ranges = by_node.get(&zoneinfo.zones[zone].key.node);
            ranges.is_some_and(|ranges| inside((pair[0], pair[1]), ranges).next().is_some())
        };
        let by_node = candidates.iter().filter(|(zone, _)| candidates.len() > 1 && of_node(*zone));
        let by_size = |&&&(_, (first, end)): &&&(usize, Range)| end - first;
        let owner = by_node.min_by_key(by_size).or_else(|| candidates.iter().min_by_key(by_size));
        if let Some((zone, _)) = owner {
            out.push(((pair[0], pair[1]), *zone));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Tree;
    use pagelab_model::{Pages, Pfn, ZoneInfo, ZoneKey};

    fn zone(node: u32, start: u64, spanned: u64) -> ZoneInfo {
        let key = ZoneKey { node: NodeId(node), zone: "Normal".to_owned() };
        let mut zone = ZoneInfo::empty(key);
        (zone.start, zone.spanned) = (Some(Pfn(start)), Some(Pages(spanned)));
        zone
    }

    fn check(zones: &[ZoneInfo], map: &MemoryMap, expected: &[(u64, u64, usize, PageClass)]) {
        let zoneinfo = Zoneinfo { nodes: Vec::new(), zones: zones.to_vec() };
        let spans: Vec<(usize, Range)> =
            zones.iter().enumerate().map(|(at, z)| (at, (z.start.unwrap().0, z.end().unwrap().0))).collect();
        let found: Vec<_> =
            segments(&spans, &zoneinfo, map).iter().map(|s| (s.first, s.end, s.zone, s.zero)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn holes_offline_blocks_and_interleaved_nodes() {
        const U: PageClass = PageClass::Unknown;
        const H: PageClass = PageClass::Hole;
        let map = |online: Option<&[Range]>, ram: Option<&[Range]>, nodes: &[(u32, Range)]| MemoryMap {
            blocks: Vec::new(),
            online: online.map(<[Range]>::to_vec),
            ram: ram.map(<[Range]>::to_vec),
            nodes: nodes.iter().map(|&(node, range)| (NodeId(node), range)).collect(),
        };
        let one = [zone(0, 1, 99)];
        check(&one, &map(None, None, &[]), &[(1, 100, 0, U)]);
        check(&one, &map(Some(&[(0, 50), (80, 200)]), None, &[]), &[(1, 50, 0, U), (80, 100, 0, U)]);
        let both = map(Some(&[(0, 50), (80, 200)]), Some(&[(4, 30), (90, 150)]), &[]);
        check(&one, &both, &[(1, 4, 0, H), (4, 30, 0, U), (30, 50, 0, H), (80, 90, 0, H), (90, 100, 0, U)]);
        // Node 1 lies inside of node 0's span.
        let two = [zone(0, 0, 100), zone(1, 40, 20)];
        check(&two, &map(None, None, &[]), &[(0, 40, 0, U), (40, 60, 1, U), (60, 100, 0, U)]);
        // Both nodes' spans cover all, the memory blocks say which is whose.
        let same = [zone(0, 0, 90), zone(1, 10, 90)];
        let nodes = [(0, (0, 30)), (1, (30, 60)), (0, (60, 90)), (1, (90, 120))];
        let expected = [(0, 30, 0, U), (30, 60, 1, U), (60, 90, 0, U), (90, 100, 1, U)];
        check(&same, &map(None, None, &nodes), &expected);
    }

    #[test]
    fn a_tree_of_many_overlapping_zones_and_nodes_costs_no_more_than_it_may() {
        let tree = Tree::new(&[("/sys/devices/system/memory/block_size_bytes", "1000\n")]);
        for at in 0..3000 {
            tree.add(&format!("/sys/devices/system/node/node{}/memory{}", at % 50, 7 * at), b"");
        }
        let root = tree.root();
        let look = |zones: u64| {
            let zones = (0..zones).map(|at| zone(at as u32, at, 1 << 20)).collect();
            let reader = Reader::new(&root);
            let zoneinfo = Zoneinfo { nodes: Vec::new(), zones };
            let found = frames(&reader, &zoneinfo, PageSize::USUAL);
            (
                found.map(|frames| frames.segments.len()).map_err(|absence| absence.why),
                reader.problems().len(),
            )
        };
        let (few, problems) = look(100);
        assert!(few.unwrap() > 1000 && problems == 0);
        assert_eq!(look(6000), (Err(AbsentWhy::Malformed), 1));
    }

    #[test]
    fn ranges_are_joined() {
        assert_eq!(joined(vec![(5, 9), (1, 3), (3, 4), (6, 12), (20, 20)]), [(1, 4), (5, 12)]);
    }
}
