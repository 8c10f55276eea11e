//! Page frames of each zone, and those with memory.
//!
//! A zone's span may have holes, and the spans of two nodes may interleave. Memory is listed by the memory
//! blocks (present and online) and by iomem's `System RAM`; a memory block of 2 GiB, usual on large machines,
//! may itself have a hole, so both are read.

use std::collections::BTreeMap;

use pagelab_model::page_map::{FrameSpan as Run, MemoryBlock};
use pagelab_model::{Absence, AbsenceReason, NodeId, PageClass, PageSize, Pages, Pfn, Reading, Zoneinfo};

pub(super) use crate::memory_blocks::merge_ranges;
use crate::memory_blocks::{block_range, parse_block_number, read_ram_ranges};
use crate::paths;
use crate::reader::Reader;

/// Maximum number of zones: 1024 nodes, the largest CONFIG_NODES_SHIFT, with 6 zones each.
const ZONES_MAX: usize = 6 << 10;

/// Maximum number of comparisons of zones' spans with edges, if spans overlap: enough for 2048 zones with
/// memory in as many parts. A hostile tree could require any number.
const COMPARISONS_MAX: usize = 1 << 24;

/// A half-open range of frames.
pub(super) type FrameRange = (u64, u64);

/// Frames of one zone to scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameSegment {
    pub first: u64,
    pub end: u64,
    /// Index into [`Zoneinfo::zones`].
    pub zone: usize,
    /// Class of a page without flags: unknown in memory, a hole outside.
    pub unflagged_class: PageClass,
}

pub(super) fn count_frames(segments: &[FrameSegment]) -> u64 {
    segments.iter().map(|segment| segment.end - segment.first).sum()
}

/// Segments to scan.
#[derive(Debug)]
pub(super) struct FrameMap {
    /// Ascending, without overlap.
    pub segments: Vec<FrameSegment>,
    /// Whether holes are known by their addresses: then a page without flags in memory is not a hole.
    pub holes_known: bool,
    /// The memory blocks, ascending; empty if the kernel has none.
    pub memory_blocks: Vec<MemoryBlock>,
}

/// The machine's memory in frames; each list ascending without overlap.
#[derive(Debug, Default)]
struct MemoryMap {
    /// Memory blocks that are present, ascending.
    memory_blocks: Vec<MemoryBlock>,
    /// Memory blocks that are present and not offline.
    online_ranges: Option<Vec<FrameRange>>,
    /// `System RAM` of iomem.
    ram_ranges: Option<Vec<FrameRange>>,
    /// The nodes of memory blocks; read only if zones of two nodes overlap.
    node_ranges: Vec<(NodeId, FrameRange)>,
}

/// The frames to scan, ascending.
pub(super) fn read_frame_map(reader: &Reader, zoneinfo: &Zoneinfo, page_size: PageSize) -> Reading<FrameMap> {
    let spans = zone_spans(reader, zoneinfo)?;
    let mut map = read_memory_map(reader, page_size);
    if has_overlap(&spans) {
        map.node_ranges = read_memory_block_nodes(reader, page_size);
        let edges = 2 * (spans.len() + map.node_ranges.len());
        if spans.len().saturating_mul(edges) > COMPARISONS_MAX {
            let detail = "too many overlapping zones and nodes";
            return reader.note_malformed(Err(reader.root().malformed_absence(paths::ZONEINFO, detail)));
        }
    }
    let segments = build_segments(&spans, zoneinfo, &map);
    Ok(FrameMap { segments, holes_known: map.ram_ranges.is_some(), memory_blocks: map.memory_blocks })
}

/// The zones' spans. `Device` zones are left out: their pages are not the allocator's, and kpageflags does
/// not show them.
fn zone_spans(reader: &Reader, zoneinfo: &Zoneinfo) -> Reading<Vec<(usize, FrameRange)>> {
    if zoneinfo.zones.len() > ZONES_MAX {
        let detail = format!("more than {ZONES_MAX} zones");
        return reader.note_malformed(Err(reader.root().malformed_absence(paths::ZONEINFO, &detail)));
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
        let detail = "the start and span of all zones are unknown";
        let source = reader.root().display_path(paths::ZONEINFO);
        return Err(Absence::new(source, AbsenceReason::NotThere, detail));
    }
    Ok(spans)
}

fn has_overlap(spans: &[(usize, FrameRange)]) -> bool {
    let mut sorted: Vec<FrameRange> = spans.iter().map(|&(_, range)| range).collect();
    sorted.sort_unstable();
    sorted.windows(2).any(|pair| pair[1].0 < pair[0].1)
}

fn read_memory_map(reader: &Reader, page_size: PageSize) -> MemoryMap {
    let blocks = read_memory_blocks(reader, page_size);
    let online = blocks.iter().filter(|block| block.is_online);
    let online: Vec<FrameRange> = online.map(|block| (block.frames.first.0, block.frames.end().0)).collect();
    MemoryMap {
        online_ranges: (!online.is_empty()).then(|| merge_ranges(online)),
        ram_ranges: read_ram_ranges(reader, page_size).ok(),
        node_ranges: Vec::new(),
        memory_blocks: blocks,
    }
}

/// Frames of a memory block.
fn read_memory_block_frames(reader: &Reader, page_size: PageSize) -> Option<u64> {
    let size = reader.root().read(&format!("{}/block_size_bytes", paths::MEMORY_BLOCKS)).ok()?;
    // A size that was cut off would place every block elsewhere.
    let size = std::str::from_utf8(size.strip_suffix(b"\n")?).ok()?;
    let frames = u64::from_str_radix(size, 16).ok()? / page_size.bytes();
    (frames > 0).then_some(frames)
}

fn read_memory_blocks(reader: &Reader, page_size: PageSize) -> Vec<MemoryBlock> {
    let Some(frames) = read_memory_block_frames(reader, page_size) else { return Vec::new() };
    let block = |name: &String| {
        let number = parse_block_number(name)?;
        let (first, end) = block_range(number, frames)?;
        let state = reader.read_line(&format!("{}/{name}/state", paths::MEMORY_BLOCKS));
        let frames = Run { first: Pfn(first), count: Pages(end - first) };
        Some(MemoryBlock { number, frames, is_online: !state.is_ok_and(|state| state == "offline") })
    };
    let names = reader.root().list_dir(paths::MEMORY_BLOCKS).unwrap_or_default();
    let mut blocks: Vec<MemoryBlock> = names.iter().filter_map(block).collect();
    blocks.sort_by_key(|block| block.number);
    blocks.dedup_by_key(|block| block.number);
    blocks
}

fn read_memory_block_nodes(reader: &Reader, page_size: PageSize) -> Vec<(NodeId, FrameRange)> {
    let Some(frames) = read_memory_block_frames(reader, page_size) else { return Vec::new() };
    let mut found = Vec::new();
    for name in reader.root().list_dir(paths::NODES).unwrap_or_default() {
        let Some(node) = name.strip_prefix("node").and_then(|number| number.parse().ok()) else { continue };
        let blocks = reader.root().list_dir(&format!("{}/{name}", paths::NODES)).unwrap_or_default();
        let ranges =
            blocks.iter().filter_map(|name| block_range(parse_block_number(name)?, frames)).collect();
        found.extend(merge_ranges(ranges).into_iter().map(|range| (NodeId(node), range)));
    }
    found
}

/// The parts of `range` inside `ranges`, which are ascending and do not overlap.
fn intersect_ranges(range: FrameRange, ranges: &[FrameRange]) -> impl Iterator<Item = FrameRange> + '_ {
    let from = ranges.partition_point(|&(_, end)| end <= range.0);
    let touching = ranges[from..].iter().take_while(move |&&(first, _)| first < range.1);
    touching.map(move |&(first, end)| (first.max(range.0), end.min(range.1)))
}

fn build_segments(
    spans: &[(usize, FrameRange)],
    zoneinfo: &Zoneinfo,
    memory_map: &MemoryMap,
) -> Vec<FrameSegment> {
    let mut segments: Vec<FrameSegment> = Vec::new();
    let mut push = |(first, end): FrameRange, zone, zero| {
        match segments.last_mut() {
            Some(last) if last.end == first && last.zone == zone && last.unflagged_class == zero => {
                last.end = end
            }
            _ if first < end => segments.push(FrameSegment { first, end, zone, unflagged_class: zero }),
            _ => {}
        };
    };
    for (range, zone) in assign_zones(spans, zoneinfo, &memory_map.node_ranges) {
        let online = memory_map.online_ranges.as_deref().unwrap_or(&[(0, u64::MAX)]);
        for part in intersect_ranges(range, online) {
            let mut at = part.0;
            for (first, end) in
                intersect_ranges(part, memory_map.ram_ranges.as_deref().unwrap_or(&[(0, u64::MAX)]))
            {
                push((at, first), zone, PageClass::Hole);
                push((first, end), zone, PageClass::Unknown);
                at = end;
            }
            push((at, part.1), zone, PageClass::Hole);
        }
    }
    segments
}

/// Each range of frames with its zone. Where spans overlap, the node of the memory block decides, else the
/// smaller span: the span of an interleaved node is inside that of the other.
fn assign_zones(
    spans: &[(usize, FrameRange)],
    zoneinfo: &Zoneinfo,
    nodes: &[(NodeId, FrameRange)],
) -> Vec<(FrameRange, usize)> {
    let edges = spans.iter().map(|&(_, range)| range).chain(nodes.iter().map(|&(_, range)| range));
    let mut cuts: Vec<u64> = edges.flat_map(|(first, end)| [first, end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut by_node: BTreeMap<NodeId, Vec<FrameRange>> = BTreeMap::new();
    for &(node, range) in nodes {
        by_node.entry(node).or_default().push(range);
    }
    by_node.values_mut().for_each(|ranges| *ranges = merge_ranges(std::mem::take(ranges)));
    let mut out = Vec::new();
    for pair in cuts.windows(2) {
        let covers = |range: FrameRange| range.0 <= pair[0] && pair[1] <= range.1;
        let candidates: Vec<&(usize, FrameRange)> =
            spans.iter().filter(|(_, range)| covers(*range)).collect();
        let of_node = |zone: usize| {
            let ranges = by_node.get(&zoneinfo.zones[zone].key.node);
            ranges.is_some_and(|ranges| intersect_ranges((pair[0], pair[1]), ranges).next().is_some())
        };
        let by_node = candidates.iter().filter(|(zone, _)| candidates.len() > 1 && of_node(*zone));
        let by_size = |&&&(_, (first, end)): &&&(usize, FrameRange)| end - first;
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
    use crate::fake_tree::FakeTree;
    use pagelab_model::{Pages, Pfn, ZoneEntry, ZoneKey};

    fn zone(node: u32, start: u64, spanned: u64) -> ZoneEntry {
        let key = ZoneKey { node: NodeId(node), zone: "Normal".to_owned() };
        let mut zone = ZoneEntry::empty(key);
        (zone.start, zone.spanned) = (Some(Pfn(start)), Some(Pages(spanned)));
        zone
    }

    fn check(zones: &[ZoneEntry], map: &MemoryMap, expected: &[(u64, u64, usize, PageClass)]) {
        let zoneinfo = Zoneinfo { nodes: Vec::new(), zones: zones.to_vec() };
        let spans: Vec<(usize, FrameRange)> =
            zones.iter().enumerate().map(|(at, z)| (at, (z.start.unwrap().0, z.end().unwrap().0))).collect();
        let found: Vec<_> = build_segments(&spans, &zoneinfo, map)
            .iter()
            .map(|s| (s.first, s.end, s.zone, s.unflagged_class))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn holes_offline_blocks_and_interleaved_nodes() {
        const U: PageClass = PageClass::Unknown;
        const H: PageClass = PageClass::Hole;
        let map = |online: Option<&[FrameRange]>, ram: Option<&[FrameRange]>, nodes: &[(u32, FrameRange)]| {
            MemoryMap {
                memory_blocks: Vec::new(),
                online_ranges: online.map(<[FrameRange]>::to_vec),
                ram_ranges: ram.map(<[FrameRange]>::to_vec),
                node_ranges: nodes.iter().map(|&(node, range)| (NodeId(node), range)).collect(),
            }
        };
        let one = [zone(0, 1, 99)];
        check(&one, &map(None, None, &[]), &[(1, 100, 0, U)]);
        check(&one, &map(Some(&[(0, 50), (80, 200)]), None, &[]), &[(1, 50, 0, U), (80, 100, 0, U)]);
        let both = map(Some(&[(0, 50), (80, 200)]), Some(&[(4, 30), (90, 150)]), &[]);
        check(&one, &both, &[(1, 4, 0, H), (4, 30, 0, U), (30, 50, 0, H), (80, 90, 0, H), (90, 100, 0, U)]);
        // Node 1 is inside node 0's span.
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
        let tree = FakeTree::new(&[("/sys/devices/system/memory/block_size_bytes", "1000\n")]);
        for at in 0..3000 {
            tree.add_file(&format!("/sys/devices/system/node/node{}/memory{}", at % 50, 7 * at), b"");
        }
        let root = tree.root();
        let look = |zones: u64| {
            let zones = (0..zones).map(|at| zone(at as u32, at, 1 << 20)).collect();
            let reader = Reader::new(&root);
            let zoneinfo = Zoneinfo { nodes: Vec::new(), zones };
            let found = read_frame_map(&reader, &zoneinfo, PageSize::DEFAULT);
            (
                found.map(|frames| frames.segments.len()).map_err(|absence| absence.why),
                reader.problems().len(),
            )
        };
        let (few, problems) = look(100);
        assert!(few.unwrap() > 1000 && problems == 0);
        assert_eq!(look(6000), (Err(AbsenceReason::Malformed), 1));
    }

    #[test]
    fn ranges_are_joined() {
        assert_eq!(merge_ranges(vec![(5, 9), (1, 3), (3, 4), (6, 12), (20, 20)]), [(1, 4), (5, 12)]);
    }
}
