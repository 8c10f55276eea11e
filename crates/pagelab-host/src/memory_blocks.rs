//! Memory blocks: the units in which memory is taken offline and put online again.
//!
//! Some blocks can never be taken offline, whatever their pages are; their reasons are read before anything
//! is tried (mm/memory_hotplug.c, `offline_pages`; drivers/base/memory.c, `memory_block_offline`). That
//! another block can go does not mean that it will: one unmovable page keeps it.

mod offline;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::{fmt, io};

use pagelab_formats::kpageflags::ENTRY_BYTES;
use pagelab_formats::{iomem, setting, size, zoneinfo};
use pagelab_model::page_map::FrameSpan;
use pagelab_model::{Absence, AbsenceReason, Bytes, NodeId, PageFlags, PageSize, Pages, Pfn};
use pagelab_model::{Reading, Zoneinfo};

use crate::paths;
use crate::reader::Reader;

pub use offline::{BlockError, BlockSite, OfflineEnd, OnlineEnd};

/// A half-open range of frames.
type FrameRange = (u64, u64);

/// All memory blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBlockTable {
    /// Size of each block.
    pub block_size: Bytes,
    /// The blocks, by number.
    pub blocks: Vec<MemoryBlockEntry>,
    /// Why holes are not known: the kernel hides physical addresses from all but root.
    pub holes_absence: Option<Absence>,
}

/// One memory block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBlockEntry {
    /// The number in its name, `memory12`.
    pub number: u64,
    /// Its frames.
    pub frames: FrameSpan,
    /// Whether it is online.
    pub state: BlockState,
    /// The zone that it is in, or several of them. Of a block that is offline: the zones that it may be put
    /// online in, the kernel's choice first.
    pub zones: Vec<String>,
    /// Its nodes: hardly ever more than one.
    pub nodes: Vec<NodeId>,
    /// Why it can never be taken offline; empty if it can.
    pub fixed_reasons: Vec<FixedReason>,
}

impl MemoryBlockEntry {
    /// Whether it can be taken offline if all of its pages can be moved.
    pub fn can_go_offline(&self) -> bool {
        self.fixed_reasons.is_empty()
    }

    /// Whether it belongs to ZONE_MOVABLE, which has no unmovable pages, and to no other zone.
    pub fn is_movable(&self) -> bool {
        self.zones == [MOVABLE_ZONE]
    }
}

/// The name of ZONE_MOVABLE.
const MOVABLE_ZONE: &str = "Movable";
/// What `valid_zones` says of an online block in several zones or nodes (5.18: drivers/base/memory.c,
/// `valid_zones_show`; `test_pages_in_a_zone` before).
const NO_VALID_ZONE: &str = "none";

/// State of a block (drivers/base/memory.c, `state_show`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Its pages are the allocator's.
    Online,
    /// Its pages are not used.
    Offline,
    /// Its pages are being moved away.
    GoingOffline,
}

impl fmt::Display for BlockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BlockState::Online => "online",
            BlockState::Offline => "offline",
            BlockState::GoingOffline => "going-offline",
        })
    }
}

/// Why a block can never be taken offline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FixedReason {
    /// Some of its frames are no memory: `System RAM` of iomem does not have them.
    Holes {
        /// Frames without memory.
        frames: Pages,
    },
    /// It is in these zones; empty if they are unknown.
    SeveralZones(Vec<String>),
    /// It is on these nodes.
    SeveralNodes(Vec<NodeId>),
    /// The kernel reserved some of its frames at boot, and never releases them: its own image, which KASLR
    /// puts anywhere, ZONE_MOVABLE included (`nokaslr` does not), page structs, and tables as large as the
    /// memory needs.
    ReservedFrames {
        /// Frames that are reserved.
        frames: Pages,
    },
    /// `removable` is 0: this kernel cannot take memory offline (before 5.8: the block has unmovable pages).
    NotRemovable,
}

impl FixedReason {
    /// A short name of its kind.
    pub fn kind_name(&self) -> &'static str {
        match self {
            FixedReason::Holes { .. } => "holes",
            FixedReason::SeveralZones(_) => "several zones",
            FixedReason::SeveralNodes(_) => "several nodes",
            FixedReason::ReservedFrames { .. } => "reserved frames",
            FixedReason::NotRemovable => "not removable",
        }
    }
}

impl fmt::Display for FixedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FixedReason::Holes { frames } => write!(f, "holes of {} frames", frames.0),
            FixedReason::SeveralZones(zones) if zones.is_empty() => f.write_str("several zones"),
            FixedReason::SeveralZones(zones) => write!(f, "several zones: {}", zones.join(", ")),
            FixedReason::SeveralNodes(nodes) => {
                let nodes: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
                write!(f, "several nodes: {}", nodes.join(", "))
            }
            FixedReason::ReservedFrames { frames } => write!(f, "{} reserved frames", frames.0),
            FixedReason::NotRemovable => f.write_str("removable is 0"),
        }
    }
}

impl MemoryBlockTable {
    /// Adds the reason of blocks that have reserved frames and no other reason. Every page of the memory is
    /// read, which takes some milliseconds for a block.
    ///
    /// With `memmap_on_memory` a block that was hot-plugged has its own page structs in reserved frames,
    /// which do not keep it (mm/memory_hotplug.c, 5.14; off by default): it has this reason wrongly.
    pub fn find_reserved_frames(&mut self, reader: &Reader<'_>) -> Reading<()> {
        let flags = reader.root().open_regular_file(paths::KPAGEFLAGS)?;
        for block in &mut self.blocks {
            if block.state == BlockState::Online && block.can_go_offline() {
                let frames = count_reserved_frames(&flags, block.frames);
                let frames = frames.map_err(|error| reader.root().absence(paths::KPAGEFLAGS, &error))?;
                block.fixed_reasons.extend((frames.0 > 0).then_some(FixedReason::ReservedFrames { frames }));
            }
        }
        Ok(())
    }
}

/// Frames of a span that kpageflags shows as reserved; the file may end inside the span.
fn count_reserved_frames(flags: &File, span: FrameSpan) -> io::Result<Pages> {
    let mut buffer = vec![0; FLAGS_READ_BYTES];
    let (mut at, end) = (span.first.0, span.end().0);
    let mut count = 0;
    while at < end {
        let wanted = usize::try_from(end - at)
            .map_or(buffer.len(), |frames| frames.saturating_mul(ENTRY_BYTES).min(buffer.len()));
        let read = match flags.read_at(&mut buffer[..wanted], at.saturating_mul(ENTRY_BYTES as u64)) {
            Ok(read) => read / ENTRY_BYTES,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if read == 0 {
            break;
        }
        let words = buffer.as_chunks::<ENTRY_BYTES>().0.iter().take(read);
        let reserved =
            words.filter(|word| PageFlags(u64::from_ne_bytes(**word)).has_any(PageFlags::RESERVED));
        count += reserved.count() as u64;
        at += read as u64;
    }
    Ok(Pages(count))
}

/// Bytes of kpageflags that are read at a time.
const FLAGS_READ_BYTES: usize = 1 << 16;

/// Reads all memory blocks. A block that disappears meanwhile, as a DIMM may, is left out.
pub fn read_memory_blocks(reader: &Reader<'_>, page_size: PageSize) -> Reading<MemoryBlockTable> {
    let context = BlockContext::read(reader, page_size)?;
    let mut numbers: Vec<u64> = reader
        .root()
        .list_dir(paths::MEMORY_BLOCKS)?
        .iter()
        .filter_map(|name| parse_block_number(name))
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    let mut blocks = Vec::new();
    for number in numbers {
        match context.read_block(number) {
            Err(absence) if is_absent(&absence) => {}
            block => blocks.push(block?),
        }
    }
    if blocks.is_empty() {
        let source = reader.root().display_path(paths::MEMORY_BLOCKS);
        let detail = "this kernel has no memory blocks (CONFIG_MEMORY_HOTPLUG is not set)";
        return Err(Absence::new(source, AbsenceReason::NotThere, detail));
    }
    let block_size = Bytes(context.block_frames.saturating_mul(page_size.bytes()));
    Ok(MemoryBlockTable { block_size, blocks, holes_absence: context.ram_ranges.err() })
}

/// Reads one memory block.
pub fn read_memory_block(reader: &Reader<'_>, page_size: PageSize, number: u64) -> Reading<MemoryBlockEntry> {
    BlockContext::read(reader, page_size)?.read_block(number)
}

fn is_absent(absence: &Absence) -> bool {
    matches!(absence.why, AbsenceReason::NotThere | AbsenceReason::NotSaved)
}

/// Files that describe all blocks.
struct BlockContext<'r, 'root> {
    reader: &'r Reader<'root>,
    block_frames: u64,
    /// Memory by iomem, ascending without overlap.
    ram_ranges: Reading<Vec<FrameRange>>,
    zoneinfo: Reading<Zoneinfo>,
}

impl<'r, 'root> BlockContext<'r, 'root> {
    fn read(reader: &'r Reader<'root>, page_size: PageSize) -> Reading<BlockContext<'r, 'root>> {
        let path = format!("{}/block_size_bytes", paths::MEMORY_BLOCKS);
        let size = reader.parse(&path, size::parse_hexadecimal)?;
        let block_frames = size.0 / page_size.bytes();
        if block_frames == 0 {
            let problem = format!("a block of {} bytes has no page", size.0);
            return reader.note_malformed(Err(reader.root().malformed_absence(&path, &problem)));
        }
        Ok(BlockContext {
            reader,
            block_frames,
            ram_ranges: read_ram_ranges(reader, page_size),
            zoneinfo: reader.parse(paths::ZONEINFO, zoneinfo::parse),
        })
    }

    fn read_block(&self, number: u64) -> Reading<MemoryBlockEntry> {
        let (reader, dir) = (self.reader, format!("{}/memory{number}", paths::MEMORY_BLOCKS));
        let malformed = |path: &str, problem: &str| {
            reader.note_malformed(Err(reader.root().malformed_absence(path, problem)))
        };
        let Some((first, end)) = block_range(number, self.block_frames) else {
            return malformed(&dir, "its frames have no number of 64 bits");
        };
        let path = format!("{dir}/state");
        let state = match reader.read_line(&path)?.as_str() {
            "online" => BlockState::Online,
            "offline" => BlockState::Offline,
            "going-offline" => BlockState::GoingOffline,
            other => return malformed(&path, &format!("unknown state `{}`", other.escape_debug())),
        };
        let mut nodes: Vec<NodeId> =
            reader.root().list_dir(&dir)?.iter().filter_map(|name| parse_node_number(name)).collect();
        nodes.sort_unstable();
        let valid_zones = self.read_valid_zones(&dir)?;
        let is_removable = optional(reader.parse(&format!("{dir}/removable"), setting::parse_u64))?;
        let zones = match (state, &valid_zones[..]) {
            (BlockState::Offline, _) => valid_zones.clone(),
            (_, [zone]) if zone != NO_VALID_ZONE => valid_zones.clone(),
            _ => self.zones_by_span((first, end), &nodes),
        };
        let has_no_zone = valid_zones.iter().any(|zone| zone == NO_VALID_ZONE);
        let mut fixed_reasons = Vec::new();
        fixed_reasons.extend(self.find_holes((first, end)));
        if nodes.len() > 1 {
            fixed_reasons.push(FixedReason::SeveralNodes(nodes.clone()));
        } else if state != BlockState::Offline && (has_no_zone || zones.len() > 1) {
            fixed_reasons.push(FixedReason::SeveralZones(zones.clone()));
        }
        if is_removable == Some(0) {
            fixed_reasons.push(FixedReason::NotRemovable);
        }
        let frames = FrameSpan { first: Pfn(first), count: Pages(end - first) };
        Ok(MemoryBlockEntry { number, frames, state, zones, nodes, fixed_reasons })
    }

    /// The words of `valid_zones`; none where the kernel has no such file.
    fn read_valid_zones(&self, dir: &str) -> Reading<Vec<String>> {
        let line = optional(self.reader.read_line(&format!("{dir}/valid_zones")))?;
        let words = line.iter().flat_map(|line| line.split_ascii_whitespace());
        Ok(words.take(ZONE_KINDS_MAX).map(|zone| zone.escape_debug().to_string()).collect())
    }

    /// Zones whose span has frames of the block, on one of its nodes.
    fn zones_by_span(&self, (first, end): FrameRange, nodes: &[NodeId]) -> Vec<String> {
        let zones = self.zoneinfo.iter().flat_map(|info| &info.zones);
        let is_here = |node: &NodeId| nodes.is_empty() || nodes.contains(node);
        let mut names: Vec<String> = zones
            .filter(|zone| is_here(&zone.key.node))
            .filter(|zone| match (zone.start, zone.end()) {
                (Some(start), Some(zone_end)) => start.0 < end && first < zone_end.0,
                _ => false,
            })
            .map(|zone| zone.key.zone.clone())
            .collect();
        names.dedup();
        names
    }

    /// Frames of the block without memory.
    fn find_holes(&self, (first, end): FrameRange) -> Option<FixedReason> {
        let Ok(ranges) = &self.ram_ranges else { return None };
        let in_block = ranges.iter().map(|&(start, last)| last.min(end).saturating_sub(start.max(first)));
        let frames = (end - first).saturating_sub(in_block.sum());
        (frames > 0).then_some(FixedReason::Holes { frames: Pages(frames) })
    }
}

/// Maximum number of zones that a block may be put online in: there are fewer kinds of zones.
const ZONE_KINDS_MAX: usize = 8;

/// A file that some kernels do not have.
fn optional<T>(reading: Reading<T>) -> Reading<Option<T>> {
    match reading {
        Err(absence) if is_absent(&absence) => Ok(None),
        reading => reading.map(Some),
    }
}

/// Whole frames of `System RAM`, ascending without overlap, as `walk_system_ram_range` counts them.
pub(crate) fn read_ram_ranges(reader: &Reader<'_>, page_size: PageSize) -> Reading<Vec<FrameRange>> {
    let iomem = reader.parse(paths::IOMEM, iomem::parse)?;
    let source = || reader.root().display_path(paths::IOMEM);
    if iomem.is_hidden() {
        let detail = "the kernel hides physical addresses from unprivileged users";
        let absence = Absence::new(source(), AbsenceReason::NotPermitted, detail);
        return Err(absence.with_hint("run as root"));
    }
    let whole = |(start, last): (u64, u64)| {
        (start.div_ceil(page_size.bytes()), last.saturating_add(1) / page_size.bytes())
    };
    let ranges = merge_ranges(iomem.system_ram().map(whole).collect());
    match ranges.is_empty() {
        true => Err(Absence::new(source(), AbsenceReason::NotThere, "it lists no `System RAM`")),
        false => Ok(ranges),
    }
}

/// The same frames in ascending ranges without overlap.
pub(crate) fn merge_ranges(mut ranges: Vec<FrameRange>) -> Vec<FrameRange> {
    ranges.retain(|&(first, end)| first < end);
    ranges.sort_unstable();
    let mut out: Vec<FrameRange> = Vec::with_capacity(ranges.len());
    for (first, end) in ranges {
        match out.last_mut() {
            Some(last) if first <= last.1 => last.1 = last.1.max(end),
            _ => out.push((first, end)),
        }
    }
    out
}

/// The number in `memory123`.
pub(crate) fn parse_block_number(name: &str) -> Option<u64> {
    name.strip_prefix("memory")?.parse().ok()
}

/// The number in `node1`, of a link in a block's folder.
fn parse_node_number(name: &str) -> Option<NodeId> {
    match name.strip_prefix("node")?.parse() {
        Ok(number) => Some(NodeId(number)),
        Err(_) => None,
    }
}

/// The frames of a block of `frames`.
pub(crate) fn block_range(number: u64, frames: u64) -> Option<FrameRange> {
    let first = number.checked_mul(frames)?;
    Some((first, first.checked_add(frames)?))
}

#[cfg(test)]
mod tests;
