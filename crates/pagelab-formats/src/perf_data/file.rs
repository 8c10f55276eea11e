//! Header of a perf file: its form, the position of its parts, its events and its features.

use super::record::{bit, count_bits};
use super::stream::{ReadSession, truncated_feature};
use super::{Decompress, Event, Input, ReadSummary, error_at};
use crate::ParseError;
use crate::perf_record::SAMPLE_ID_ALL;
use crate::text::{format_hex_bytes, text_to_nul};

/// `PERFILE2` in the byte order of the machine that wrote it.
const MAGIC: [u8; 8] = *b"PERFILE2";
/// Bytes of `struct perf_file_header` and of `struct perf_pipe_file_header`.
const FILE_HEADER: u64 = 104;
const PIPE_HEADER: u64 = 16;
/// Maximum size of a section of the head. The list of build ids of a large system has some MB.
const SECTION_MAX: u64 = 256 << 20;
/// Events, at most.
const EVENTS_MAX: u64 = 1 << 13;
/// Bytes by which a section grows, so that a false size costs nothing.
const CHUNK_BYTES: u64 = 1 << 20;

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileForm {
    /// Written by `perf record -o FILE`: parts by offset.
    File(Endian),
    /// Written by `perf record -o -`: records alone.
    Pipe(Endian),
    /// Written by perf before 2.6.32 or so.
    Obsolete,
    /// No file of perf: perhaps text.
    Unknown,
}

/// Kind by the first bytes; 16 of them are enough.
pub fn detect_form(bytes: &[u8]) -> FileForm {
    let reversed: Vec<u8> = MAGIC.iter().rev().copied().collect();
    let endian = match bytes.get(..8) {
        Some(magic) if magic == MAGIC => Endian::Little,
        Some(magic) if magic == reversed => Endian::Big,
        Some(b"PERFFILE") | Some(b"ELIFFREP") => return FileForm::Obsolete,
        _ => return FileForm::Unknown,
    };
    match endian.u64(bytes, 8) {
        Some(PIPE_HEADER) => FileForm::Pipe(endian),
        _ => FileForm::File(endian),
    }
}

/// Reads a file or a pipe to its end. Calls `visit` with each event in time order, with the file's properties
/// known so far: all of them in the file form, the earlier ones in the pipe form.
pub fn read_perf_data(
    input: &mut dyn Input,
    decompress: &mut Decompress<'_>,
    visit: &mut dyn FnMut(&FileInfo, Event),
) -> Result<(FileInfo, ReadSummary), ParseError> {
    let head = read_section(input, 0, PIPE_HEADER, "the header")?;
    match detect_form(&head) {
        FileForm::File(endian) => read_file(input, endian, decompress, visit),
        FileForm::Pipe(endian) => {
            let mut session = ReadSession::new(endian, decompress, visit);
            session.read_records(input, PIPE_HEADER, None)?;
            Ok((session.info, session.summary))
        }
        FileForm::Obsolete => Err(error_at(0, "the perf.data format of 2009 and 2010 is not supported")),
        FileForm::Unknown => Err(error_at(0, "not a perf.data file: it does not start with PERFILE2")),
    }
}

/// A part of the file: `struct perf_file_section`.
#[derive(Clone, Copy, Debug)]
struct Section {
    offset: u64,
    bytes: u64,
}

impl Section {
    fn parse(bytes: &[u8], place: usize, endian: Endian) -> Option<Section> {
        Some(Section { offset: endian.u64(bytes, place)?, bytes: endian.u64(bytes, place + 8)? })
    }

    fn end(self) -> Option<u64> {
        self.offset.checked_add(self.bytes)
    }
}

/// Reads a part whole.
fn read_section(
    input: &mut dyn Input,
    offset: u64,
    bytes: u64,
    section_name: &str,
) -> Result<Vec<u8>, ParseError> {
    if bytes > SECTION_MAX {
        let problem = format!("{section_name} has {bytes} bytes, more than the limit of {SECTION_MAX}");
        return Err(error_at(offset, problem));
    }
    let mut read = Vec::new();
    while (read.len() as u64) < bytes {
        let old = read.len();
        let from = offset
            .checked_add(old as u64)
            .ok_or_else(|| error_at(offset, format!("{section_name}: offset out of range")))?;
        read.resize(old + CHUNK_BYTES.min(bytes - old as u64) as usize, 0);
        let count = input.read_at(from, &mut read[old..]).map_err(|problem| error_at(from, problem))?;
        read.truncate(old + count);
        if count == 0 {
            return Err(error_at(from, format!("the file ends in the middle of {section_name}")));
        }
    }
    Ok(read)
}

fn read_file(
    input: &mut dyn Input,
    endian: Endian,
    decompress: &mut Decompress<'_>,
    visit: &mut dyn FnMut(&FileInfo, Event),
) -> Result<(FileInfo, ReadSummary), ParseError> {
    let head = read_section(input, 0, FILE_HEADER, "the header")?;
    let header_error = |what: &str| error_at(8, format!("invalid {what} in the header"));
    let attr_bytes = endian.u64(&head, 16).filter(|bytes| (80..=CHUNK_BYTES).contains(bytes));
    let attr_bytes = attr_bytes.ok_or_else(|| header_error("event attribute size"))?;
    let attrs = Section::parse(&head, 24, endian).ok_or_else(|| header_error("event list offset"))?;
    let data = Section::parse(&head, 40, endian).ok_or_else(|| header_error("data section"))?;
    let data_end = data.end().ok_or_else(|| header_error("data section"))?;
    let mut session = ReadSession::new(endian, decompress, visit);
    if attrs.bytes / attr_bytes > EVENTS_MAX {
        return Err(error_at(attrs.offset, format!("more than {EVENTS_MAX} events")));
    }
    let list = read_section(input, attrs.offset, attrs.bytes, "the list of events")?;
    for entry in list.chunks_exact(attr_bytes as usize) {
        let read =
            || Some((PerfEventAttr::parse(entry, endian)?, Section::parse(entry, entry.len() - 16, endian)?));
        let (attr, ids) = read().ok_or_else(|| error_at(attrs.offset, "truncated event"))?;
        let ids = read_section(input, ids.offset, ids.bytes, "the IDs of an event")?;
        session.add_event(attr, &ids);
    }
    // A killed perf leaves 0: then the records extend to the end, and nothing follows them.
    let is_unfinished = data.bytes == 0;
    if !is_unfinished {
        read_features(input, &head, data_end, endian, &mut session.info)?;
    }
    session.summary.is_unfinished = is_unfinished;
    session.read_records(input, data.offset, (!is_unfinished).then_some(data_end))?;
    Ok((session.info, session.summary))
}

/// The features follow the data: a list of their positions in numeric order, then the features.
fn read_features(
    input: &mut dyn Input,
    head: &[u8],
    list_offset: u64,
    endian: Endian,
    info: &mut FileInfo,
) -> Result<(), ParseError> {
    let has_feature = |feature: &u64| {
        // Words of 8 bytes in the file's order.
        let word = endian.u64(head, 72 + 8 * (feature / 64) as usize).unwrap_or(0);
        word >> (feature % 64) & 1 != 0
    };
    let there: Vec<u64> = (0..feature_id::END).filter(has_feature).collect();
    let list = read_section(input, list_offset, 16 * there.len() as u64, "the list of features")?;
    for (place, feature) in there.into_iter().enumerate() {
        let Some(part) = Section::parse(&list, 16 * place, endian) else { continue };
        if feature_id::KNOWN.contains(&feature) {
            let bytes = read_section(input, part.offset, part.bytes, "a feature")?;
            info.add_feature(feature, &bytes, endian)
                .ok_or_else(|| error_at(part.offset, truncated_feature(feature)))?;
        }
    }
    Ok(())
}

/// The byte order of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Endian {
    /// Lowest byte first.
    #[default]
    Little,
    /// Highest byte first.
    Big,
}

impl Endian {
    /// That of this machine.
    pub const NATIVE: Endian = if cfg!(target_endian = "big") { Endian::Big } else { Endian::Little };

    /// The word of 8 bytes at this place.
    #[inline]
    pub fn u64(self, bytes: &[u8], at: usize) -> Option<u64> {
        let word = *bytes.get(at..)?.first_chunk()?;
        Some(if self == Endian::Little { u64::from_le_bytes(word) } else { u64::from_be_bytes(word) })
    }

    /// The word of 4 bytes at this place.
    #[inline]
    pub fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let word = *bytes.get(at..)?.first_chunk()?;
        Some(if self == Endian::Little { u32::from_le_bytes(word) } else { u32::from_be_bytes(word) })
    }

    /// The word of 2 bytes at this place.
    #[inline]
    pub fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let word = *bytes.get(at..)?.first_chunk()?;
        Some(if self == Endian::Little { u16::from_le_bytes(word) } else { u16::from_be_bytes(word) })
    }
}

/// Attributes of an event that are needed to read its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerfEventAttr {
    /// Kind of event: a number of a PMU.
    pub kind: u32,
    /// Which event of that PMU.
    pub config: u64,
    /// Sampling period, or frequency in 1/s if [`PerfEventAttr::is_frequency`].
    pub period_or_frequency: u64,
    /// Contents of a sample: bits of PERF_SAMPLE_*.
    pub sample_type: u64,
    /// Contents of a read value: bits of PERF_FORMAT_*.
    pub read_format: u64,
    /// The bit field after `read_format`, lowest bit first.
    pub flags: u64,
    /// Contents of a branch stack.
    pub branch_sample_type: u64,
    /// Which user registers are in a sample.
    pub regs_user: u64,
    /// Which registers of the interrupt are in a sample.
    pub regs_intr: u64,
}

/// Bytes of the first published form (PERF_ATTR_SIZE_VER0, 2.6.31).
pub(super) const ATTR_BYTES_MIN: usize = 64;

impl PerfEventAttr {
    /// Reads as much as its own size states, up to the end of the bytes; `None` if it is too short.
    pub fn parse(bytes: &[u8], endian: Endian) -> Option<PerfEventAttr> {
        let size = match endian.u32(bytes, 4)? {
            0 => ATTR_BYTES_MIN,
            size => size as usize,
        };
        let bytes = bytes.get(..size).filter(|bytes| bytes.len() >= ATTR_BYTES_MIN)?;
        let word = |at| endian.u64(bytes, at);
        // Bit fields begin at the other end where the highest byte comes first.
        let flags = word(40).map(|flags| if endian == Endian::Big { flags.reverse_bits() } else { flags });
        Some(PerfEventAttr {
            kind: endian.u32(bytes, 0)?,
            config: word(8)?,
            period_or_frequency: word(16)?,
            sample_type: word(24)?,
            read_format: word(32)?,
            flags: flags?,
            branch_sample_type: word(72).unwrap_or(0),
            regs_user: word(80).unwrap_or(0),
            regs_intr: word(96).unwrap_or(0),
        })
    }

    /// Whether the period was steered to reach a frequency.
    pub fn is_frequency(&self) -> bool {
        self.flags >> 10 & 1 != 0
    }

    /// Whether records other than samples end in their time and process.
    pub fn has_sample_id_all(&self) -> bool {
        self.flags & SAMPLE_ID_ALL != 0
    }

    /// Whether samples have this part.
    pub fn has_sample_bit(&self, sample_bit: u64) -> bool {
        self.sample_type & sample_bit != 0
    }

    /// Position of the event's id in a sample, after the header.
    pub(super) fn id_offset(&self) -> Option<usize> {
        let before = bit::IP | bit::TID | bit::TIME | bit::ADDR;
        match () {
            () if self.has_sample_bit(bit::IDENTIFIER) => Some(0),
            () if self.has_sample_bit(bit::ID) => Some(8 * count_bits(self.sample_type & before)),
            () => None,
        }
    }

    /// Offset of a word of the trailer from the end of other records.
    pub(super) fn trailer_offset(&self, word: u64) -> Option<usize> {
        if !self.has_sample_id_all() || !self.has_sample_bit(word) {
            return None;
        }
        let order = [bit::TID, bit::TIME, bit::ID, bit::STREAM_ID, bit::CPU, bit::IDENTIFIER];
        let behind =
            order.iter().skip_while(|&&other| other != word).filter(|&&other| self.has_sample_bit(other));
        Some(8 * behind.count())
    }
}

/// Numbers of features (tools/perf/util/header.h).
pub(super) mod feature_id {
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
    /// Features that are read.
    pub const KNOWN: [u64; 10] = [
        BUILD_ID,
        HOSTNAME,
        OSRELEASE,
        ARCH,
        CPUDESC,
        CPUID,
        CMDLINE,
        EVENT_DESC,
        PMU_MAPPINGS,
        MEM_TOPOLOGY,
    ];
    /// One more than the largest number in a file's bit map.
    pub const END: u64 = 256;
}

/// Strings, nodes and files of one file, at most.
const ITEMS_MAX: u32 = 1 << 16;

/// Metadata of a file besides its records. Missing values are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileInfo {
    /// The machine's name.
    pub hostname: String,
    /// Its kernel.
    pub release: String,
    /// Its architecture, as printed by `uname -m`.
    pub arch: String,
    /// Its processor, in words.
    pub processor: String,
    /// Its processor: `GenuineIntel,6,85,4`.
    pub cpuid: String,
    /// The command line of perf.
    pub command: Vec<String>,
    /// The events.
    pub events: Vec<EventInfo>,
    /// Names of the machine's PMUs by number.
    pub pmus: Vec<(u32, String)>,
    /// Memory of the nodes.
    pub nodes: Vec<MemoryNode>,
    /// Bytes of a block of [`MemoryNode::blocks`].
    pub block_bytes: u64,
    /// Programs and libraries with samples in them.
    pub build_ids: Vec<BuildId>,
}

/// An event of the recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventInfo {
    /// As requested: `cpu/mem-loads,ldlat=30/P`. Empty if it is unknown.
    pub name: String,
    /// Attributes with which it was opened.
    pub attr: PerfEventAttr,
}

/// The memory of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryNode {
    /// Its number.
    pub node: u64,
    /// Bit map of its blocks of physical memory.
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

impl FileInfo {
    /// Name of the PMU of an event, if known.
    pub fn pmu(&self, kind: u32) -> Option<&str> {
        self.pmus.iter().find(|(number, _)| *number == kind).map(|(_, name)| name.as_str())
    }

    /// Node of a physical address, if known.
    pub fn node(&self, physical_address: u64) -> Option<u64> {
        let block = physical_address.checked_div(self.block_bytes)?;
        let word = usize::try_from(block / 64).ok()?;
        let has = |of: &&MemoryNode| of.blocks.get(word).is_some_and(|bits| bits >> (block % 64) & 1 != 0);
        self.nodes.iter().find(has).map(|of| of.node)
    }

    /// Build id of a file, if known.
    pub fn build_id(&self, path: &str) -> Option<&str> {
        self.build_ids.iter().find(|of| of.path == path).map(|of| of.id.as_str())
    }

    /// Reads one feature; `None`: it is truncated or invalid. An unknown one is skipped.
    pub(super) fn add_feature(&mut self, feature: u64, bytes: &[u8], endian: Endian) -> Option<()> {
        let mut words = FeatureReader { endian, bytes };
        match feature {
            feature_id::HOSTNAME => self.hostname = words.read_string()?,
            feature_id::OSRELEASE => self.release = words.read_string()?,
            feature_id::ARCH => self.arch = words.read_string()?,
            feature_id::CPUDESC => self.processor = words.read_string()?,
            feature_id::CPUID => self.cpuid = words.read_string()?,
            feature_id::CMDLINE => self.command = words.read_list(FeatureReader::read_string)?,
            feature_id::EVENT_DESC => self.read_event_names(&mut words)?,
            feature_id::PMU_MAPPINGS => {
                self.pmus = words.read_list(|words| Some((words.read_u32()?, words.read_string()?)))?;
            }
            feature_id::MEM_TOPOLOGY => self.read_memory_topology(&mut words)?,
            feature_id::BUILD_ID => self.build_ids = read_build_ids(&mut words)?,
            _ => {}
        }
        Some(())
    }

    /// Names of the events, in the order of the attributes.
    fn read_event_names(&mut self, words: &mut FeatureReader<'_>) -> Option<()> {
        let (events, attr_bytes) = (words.read_u32()?, words.read_u32()?);
        for place in 0..events.min(ITEMS_MAX) as usize {
            let attr = PerfEventAttr::parse(words.read_bytes(u64::from(attr_bytes))?, words.endian)?;
            let ids = words.read_u32()?;
            let name = words.read_string()?;
            words.read_bytes(u64::from(ids) * 8)?;
            if let Some(event) = self.events.get_mut(place).filter(|event| event.attr == attr) {
                event.name = name;
            }
        }
        Some(())
    }

    fn read_memory_topology(&mut self, words: &mut FeatureReader<'_>) -> Option<()> {
        let (_version, block_bytes, nodes) = (words.read_u64()?, words.read_u64()?, words.read_u64()?);
        let mut found = Vec::new();
        for _ in 0..nodes.min(u64::from(ITEMS_MAX)) {
            let (node, _size, bits) = (words.read_u64()?, words.read_u64()?, words.read_u64()?);
            let map = words.read_bytes(bits.div_ceil(64).checked_mul(8)?)?;
            let blocks = (0..map.len() / 8).filter_map(|place| words.endian.u64(map, 8 * place)).collect();
            found.push(MemoryNode { node, blocks });
        }
        (self.nodes, self.block_bytes) = (found, block_bytes);
        Some(())
    }
}

/// Records of `struct perf_record_header_build_id`: header, process, 20 bytes of id (its length in the 21st,
/// if bit 15 of `misc` is set), a path.
fn read_build_ids(words: &mut FeatureReader<'_>) -> Option<Vec<BuildId>> {
    const LENGTH_TOLD: u16 = 1 << 15;
    let mut found = Vec::new();
    while !words.bytes.is_empty() && found.len() < ITEMS_MAX as usize {
        let size = words.endian.u16(words.bytes, 6)?;
        let record = words.read_bytes(u64::from(size))?;
        let misc = words.endian.u16(record, 4)?;
        let length = if misc & LENGTH_TOLD == 0 { 20 } else { usize::from(*record.get(32)?).min(20) };
        let id = format_hex_bytes(record.get(12..)?.get(..length)?);
        found.push(BuildId { path: text_to_nul(record.get(36..)?), id });
    }
    Some(found)
}

struct FeatureReader<'a> {
    endian: Endian,
    bytes: &'a [u8],
}

impl<'a> FeatureReader<'a> {
    fn read_bytes(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(usize::try_from(count).ok()?)?;
        self.bytes = rest;
        Some(taken)
    }

    fn read_u32(&mut self) -> Option<u32> {
        self.endian.u32(self.read_bytes(4)?, 0)
    }

    fn read_u64(&mut self) -> Option<u64> {
        self.endian.u64(self.read_bytes(8)?, 0)
    }

    /// Its length with padding, then its bytes.
    fn read_string(&mut self) -> Option<String> {
        let length = self.read_u32()?;
        self.read_bytes(u64::from(length)).map(text_to_nul)
    }

    /// A count, then the items. None of them is empty, so there are at most as many as bytes.
    fn read_list<T>(&mut self, mut read_item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.read_u32()?.min(ITEMS_MAX);
        (0..count).map(|_| read_item(self)).collect()
    }
}
