//! What a file tells about the machine and the recording: its feature sections (tools/perf/util/header.c).

use super::{Attr, Endian};

/// Numbers of features (tools/perf/util/header.h).
pub(super) mod number {
    pub const BUILD_ID: u64 = 2;
    pub const HOSTNAME: u64 = 3;
    pub const OSRELEASE: u64 = 4;
    pub const ARCH: u64 = 6;
    pub const CPUDESC: u64 = 8;
    pub const CPUID: u64 = 9;
    pub const CMDLINE: u64 = 11;
    pub const EVENT_DESC: u64 = 12;
    pub const PMU_MAPPINGS: u64 = 16;
    pub const MEM_TOPOLOGY: u64 = 22;
    /// One more than the largest that a file's bit map has room for.
    pub const END: u64 = 256;
}

/// Strings, nodes and files of one file, at most.
const COUNT_MAX: u32 = 1 << 16;

/// What a file tells beside its records. What it does not tell is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The machine's name.
    pub hostname: String,
    /// Its kernel.
    pub release: String,
    /// Its architecture, as `uname -m` says it.
    pub arch: String,
    /// Its processor, in words.
    pub processor: String,
    /// Its processor: `GenuineIntel,6,85,4`.
    pub cpuid: String,
    /// The command line of perf.
    pub command: Vec<String>,
    /// The events.
    pub events: Vec<EventAbout>,
    /// Names of the machine's PMUs by number.
    pub pmus: Vec<(u32, String)>,
    /// Which memory is on which node.
    pub nodes: Vec<MemoryNode>,
    /// Bytes of a block of [`MemoryNode::blocks`].
    pub block_bytes: u64,
    /// Programs and libraries with samples in them.
    pub build_ids: Vec<BuildId>,
}

/// An event of the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventAbout {
    /// As it was asked for: `cpu/mem-loads,ldlat=30/P`. Empty if it is not told.
    pub name: String,
    /// What it was opened with.
    pub attr: Attr,
}

/// The memory of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryNode {
    /// Its number.
    pub node: u64,
    /// Bit map of the blocks of physical memory that it has.
    pub blocks: Vec<u64>,
}

/// A file and its build id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuildId {
    /// Its path, or `[kernel.kallsyms]`.
    pub path: String,
    /// In hexadecimal.
    pub id: String,
}

impl About {
    /// The name of the PMU that an event belongs to, where it is told.
    pub fn pmu(&self, kind: u32) -> Option<&str> {
        self.pmus.iter().find(|(number, _)| *number == kind).map(|(_, name)| name.as_str())
    }

    /// The node of a physical address, where it is told.
    pub fn node(&self, physical: u64) -> Option<u64> {
        let block = physical.checked_div(self.block_bytes)?;
        let word = usize::try_from(block / 64).ok()?;
        let has = |of: &&MemoryNode| of.blocks.get(word).is_some_and(|bits| bits >> (block % 64) & 1 != 0);
        self.nodes.iter().find(has).map(|of| of.node)
    }

    /// The build id of a file, where it is told.
    pub fn build_id(&self, path: &str) -> Option<&str> {
        self.build_ids.iter().find(|of| of.path == path).map(|of| of.id.as_str())
    }

    /// Takes one feature in; `None`: it is cut off or makes no sense. One that is not known is passed over.
    pub(super) fn take(&mut self, feature: u64, bytes: &[u8], endian: Endian) -> Option<()> {
        let mut words = Words { endian, bytes };
        match feature {
            number::HOSTNAME => self.hostname = words.string()?,
            number::OSRELEASE => self.release = words.string()?,
            number::ARCH => self.arch = words.string()?,
            number::CPUDESC => self.processor = words.string()?,
            number::CPUID => self.cpuid = words.string()?,
            number::CMDLINE => self.command = words.many(Words::string)?,
            number::EVENT_DESC => self.event_names(&mut words)?,
            number::PMU_MAPPINGS => {
                self.pmus = words.many(|words| Some((words.half()?, words.string()?)))?;
            }
            number::MEM_TOPOLOGY => self.memory(&mut words)?,
            number::BUILD_ID => self.build_ids = build_ids(&mut words)?,
            _ => {}
        }
        Some(())
    }

    /// The names of the events, which stand in the order of the attributes.
    fn event_names(&mut self, words: &mut Words<'_>) -> Option<()> {
        let (events, attr_bytes) = (words.half()?, words.half()?);
        for place in 0..events.min(COUNT_MAX) as usize {
            let attr = Attr::parse(words.take(u64::from(attr_bytes))?, words.endian)?;
            let ids = words.half()?;
            let name = words.string()?;
            words.take(u64::from(ids) * 8)?;
            if let Some(event) = self.events.get_mut(place).filter(|event| event.attr == attr) {
                event.name = name;
            }
        }
        Some(())
    }

    fn memory(&mut self, words: &mut Words<'_>) -> Option<()> {
        let (_version, block_bytes, nodes) = (words.word()?, words.word()?, words.word()?);
        let mut found = Vec::new();
        for _ in 0..nodes.min(u64::from(COUNT_MAX)) {
            let (node, _size, bits) = (words.word()?, words.word()?, words.word()?);
            let map = words.take(bits.div_ceil(64).checked_mul(8)?)?;
            let blocks = (0..map.len() / 8).filter_map(|place| words.endian.u64(map, 8 * place)).collect();
            found.push(MemoryNode { node, blocks });
        }
        (self.nodes, self.block_bytes) = (found, block_bytes);
        Some(())
    }
}

/// Records of `struct perf_record_header_build_id`: header, process, 20 bytes of id (its length in the 21st,
/// where bit 15 of `misc` says so), a path.
fn build_ids(words: &mut Words<'_>) -> Option<Vec<BuildId>> {
    const LENGTH_TOLD: u16 = 1 << 15;
    let mut found = Vec::new();
    while !words.bytes.is_empty() && found.len() < COUNT_MAX as usize {
        let size = words.endian.u16(words.bytes, 6)?;
        let record = words.take(u64::from(size))?;
        let misc = words.endian.u16(record, 4)?;
        let length = if misc & LENGTH_TOLD == 0 { 20 } else { usize::from(*record.get(32)?).min(20) };
        let id = record.get(12..)?.get(..length)?.iter().map(|byte| format!("{byte:02x}")).collect();
        found.push(BuildId { path: zero_ended(record.get(36..)?), id });
    }
    Some(found)
}

fn zero_ended(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

struct Words<'a> {
    endian: Endian,
    bytes: &'a [u8],
}

impl<'a> Words<'a> {
    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(usize::try_from(count).ok()?)?;
        self.bytes = rest;
        Some(taken)
    }

    fn half(&mut self) -> Option<u32> {
        self.endian.u32(self.take(4)?, 0)
    }

    fn word(&mut self) -> Option<u64> {
        self.endian.u64(self.take(8)?, 0)
    }

    /// Its length with padding, then as many bytes.
    fn string(&mut self) -> Option<String> {
        let length = self.half()?;
        self.take(u64::from(length)).map(zero_ended)
    }

    /// A count, then as many things. None of them is empty, so that there are never more than bytes.
    fn many<T>(&mut self, mut each: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.half()?.min(COUNT_MAX);
        let mut found = Vec::new();
        for _ in 0..count {
            found.push(each(self)?);
        }
        Some(found)
    }
}
