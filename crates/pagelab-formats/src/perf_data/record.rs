//! One record of a perf file: its event and its contents.

use std::collections::HashMap;

use super::{Endian, PerfEventAttr, error_at};
use crate::ParseError;
use crate::perf_record::record_type;
use crate::text::{format_hex_bytes, text_to_nul};

pub(super) use crate::perf_record::HEADER_BYTES;
pub use crate::perf_record::sample_type as bit;

/// Bits of `misc`.
const CPU_MODE: u16 = 7;
const CPU_MODE_KERNEL: u16 = 1;
/// Of COMM: it is an exec (3.16). Of FORK: the mappings of the parent are not those of the child.
const EXEC: u16 = 1 << 13;
/// MMAP2: a build id replaces the file's numbers (5.12).
const HAS_BUILD_ID: u16 = 1 << 14;

pub(super) fn count_bits(bits: u64) -> usize {
    bits.count_ones() as usize
}

/// One sample. Fields that were not requested are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Which event: its place in the list.
    pub event_index: usize,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Nanoseconds on the recording's clock.
    pub time_ns: Option<u64>,
    /// CPU.
    pub cpu: Option<u32>,
    /// Data address; 0: none.
    pub address: u64,
    /// Number of events that this sample represents.
    pub period: Option<u64>,
    /// Latency in cycles.
    pub weight: Option<u64>,
    /// Outcome of the access.
    pub data_src: Option<u64>,
    /// Physical data address; 0: none.
    pub physical_address: Option<u64>,
    /// Size of the data's page in bytes; 0 is unknown.
    pub page_bytes: Option<u64>,
    /// IbsOpData3 out of the raw record of an AMD IBS op sample.
    pub ibs_data3: Option<u64>,
}

/// Memory that was mapped, or was found mapped when the recording began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Process.
    pub pid: u32,
    /// Its first address.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
    /// Offset in the file.
    pub offset: u64,
    /// The file, or perf's name for it: `//anon`, `[heap]`.
    pub name: String,
    /// The file's build id, in hexadecimal, where the record has it.
    pub build_id: Option<String>,
    /// Whether it is the kernel's own.
    pub is_kernel: bool,
}

/// Content of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A sample.
    Sample(Sample),
    /// Memory was mapped.
    Mapped(Mapping),
    /// A thread has this name; `exec`: from now on it runs another program.
    Named {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// The name.
        name: String,
        /// Whether an exec gave it the name.
        is_exec: bool,
    },
    /// A process or thread was made.
    Forked {
        /// The new process.
        pid: u32,
        /// Its parent; the same for a new thread.
        parent: u32,
        /// Whether it has its parent's mappings. False in records that perf synthesizes for running
        /// processes: their own mappings follow.
        inherits_mappings: bool,
    },
    /// A thread ended.
    Ended {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
    },
    /// Records that did not fit into a ring.
    Lost {
        /// How many.
        records: u64,
    },
    /// Samples that the kernel or the hardware dropped.
    LostSamples {
        /// How many.
        samples: u64,
    },
    /// The kernel stopped sampling for a moment.
    Throttled,
}

/// Reads records of events with known attributes.
#[derive(Clone, Debug, Default)]
pub struct Decoder {
    endian: Endian,
    attrs: Vec<PerfEventAttr>,
    ids: HashMap<u64, usize>,
}

/// Record: its time, if known, and its contents.
pub(super) type DecodeResult = Result<Option<(u64, Event)>, ParseError>;

impl Decoder {
    /// No event is known yet.
    pub fn new(endian: Endian) -> Decoder {
        Decoder { endian, ..Decoder::default() }
    }

    /// One more event, with its numbers. [`Sample::event_index`] is its index in the list.
    pub fn add_event(&mut self, attr: PerfEventAttr, ids: impl IntoIterator<Item = u64>) {
        let place = self.attrs.len();
        self.attrs.push(attr);
        self.ids.extend(ids.into_iter().map(|id| (id, place)));
    }

    pub(super) fn endian(&self) -> Endian {
        self.endian
    }

    pub(super) fn find_event(&self, id: u64) -> Option<usize> {
        self.ids.get(&id).copied()
    }

    /// Reads one whole record, header included. The time is 0 if it has none. `None`: it has no content here,
    /// or is of an event that is not in the list. `offset` is where it begins, for the error.
    pub fn decode(&self, record: &[u8], offset: u64) -> Result<Option<(u64, Event)>, ParseError> {
        let cut = |what: &str| {
            error_at(offset, format!("a record of {} bytes is too short for {what}", record.len()))
        };
        let kind = self.endian.u32(record, 0).ok_or_else(|| cut("its header"))?;
        let (event, what) = match kind {
            record_type::SAMPLE => return self.decode_sample(record, offset),
            record_type::MMAP | record_type::MMAP2 => (self.decode_mapping(record, kind), "a mapping"),
            record_type::COMM => (self.decode_comm(record), "a name"),
            record_type::FORK | record_type::EXIT => {
                (self.decode_fork_or_exit(record, kind), "a fork or exit event")
            }
            record_type::LOST => {
                (self.read_u64(record, 1).map(|records| Event::Lost { records }), "a lost-records count")
            }
            record_type::LOST_SAMPLES => (
                self.read_u64(record, 0).map(|samples| Event::LostSamples { samples }),
                "a lost-samples count",
            ),
            record_type::THROTTLE => (Some(Event::Throttled), ""),
            _ => return Ok(None),
        };
        Ok(Some((self.read_trailer_time(record), event.ok_or_else(|| cut(what))?)))
    }

    fn read_u64(&self, record: &[u8], place: usize) -> Option<u64> {
        self.endian.u64(record, HEADER_BYTES + 8 * place)
    }

    fn read_u32(&self, record: &[u8], place: usize) -> Option<u32> {
        self.endian.u32(record, HEADER_BYTES + 4 * place)
    }

    fn read_misc(&self, record: &[u8]) -> u16 {
        self.endian.u16(record, 4).unwrap_or(0)
    }

    fn read_trailer_time(&self, record: &[u8]) -> u64 {
        let time = || {
            let from_end = self.attrs.first()?.trailer_offset(bit::TIME)?;
            self.endian
                .u64(record, record.len().checked_sub(from_end).filter(|&place| place >= HEADER_BYTES)?)
        };
        time().unwrap_or(0)
    }

    fn decode_mapping(&self, record: &[u8], kind: u32) -> Option<Event> {
        let misc = self.read_misc(record);
        let has_build_id = kind == record_type::MMAP2 && misc & HAS_BUILD_ID != 0;
        let build_id = || {
            let length = usize::from(*record.get(HEADER_BYTES + 32)?).min(20);
            Some(format_hex_bytes(record.get(HEADER_BYTES + 36..)?.get(..length)?))
        };
        let name_at = HEADER_BYTES + if kind == record_type::MMAP2 { 64 } else { 32 };
        Some(Event::Mapped(Mapping {
            pid: self.read_u32(record, 0)?,
            start: self.read_u64(record, 1)?,
            bytes: self.read_u64(record, 2)?,
            offset: self.read_u64(record, 3)?,
            name: text_to_nul(record.get(name_at..)?),
            build_id: if has_build_id { build_id() } else { None },
            is_kernel: misc & CPU_MODE == CPU_MODE_KERNEL,
        }))
    }

    fn decode_comm(&self, record: &[u8]) -> Option<Event> {
        let (pid, tid) = (self.read_u32(record, 0)?, self.read_u32(record, 1)?);
        let name = text_to_nul(record.get(HEADER_BYTES + 8..)?);
        Some(Event::Named { pid, tid, name, is_exec: self.read_misc(record) & EXEC != 0 })
    }

    fn decode_fork_or_exit(&self, record: &[u8], kind: u32) -> Option<Event> {
        let word = |place| self.read_u32(record, place);
        let (pid, parent, tid) = (word(0)?, word(1)?, word(2)?);
        if kind != record_type::FORK {
            return Some(Event::Ended { pid, tid });
        }
        // The time of the fork, after the four numbers; perf's own records have none, which a flag states
        // (tools/perf/util/synthetic-events.c, since 4.16).
        let found_running = self.read_misc(record) & EXEC != 0 || self.read_u64(record, 2)? == 0;
        Some(Event::Forked { pid, parent, inherits_mappings: !found_running })
    }

    fn decode_sample(&self, record: &[u8], offset: u64) -> DecodeResult {
        let event = match &self.attrs[..] {
            [] => return Err(error_at(offset, "a sample before the first event definition")),
            [_] => Some(0),
            [first, ..] => {
                match first.id_offset().and_then(|place| self.endian.u64(record, HEADER_BYTES + place)) {
                    Some(0) | None => Some(0),
                    Some(id) => self.find_event(id),
                }
            }
        };
        let Some((event, attr)) = event.and_then(|event| Some((event, self.attrs.get(event)?))) else {
            return Ok(None);
        };
        let mut words = SampleReader { endian: self.endian, record, offset: HEADER_BYTES };
        let mut sample = Sample { event_index: event, ..Sample::default() };
        match words.read_fields(attr, &mut sample) {
            Some(()) => Ok(Some((sample.time_ns.unwrap_or(0), Event::Sample(sample)))),
            None => Err(error_at(offset, format!("truncated sample of {} bytes", record.len()))),
        }
    }
}

/// A sample's words, one after the other.
struct SampleReader<'a> {
    endian: Endian,
    record: &'a [u8],
    offset: usize,
}

impl<'a> SampleReader<'a> {
    fn next_u64(&mut self) -> Option<u64> {
        let word = self.endian.u64(self.record, self.offset)?;
        self.offset += 8;
        Some(word)
    }

    /// The next word, if the sample has it.
    fn next_u64_if(&mut self, is_present: bool) -> Option<Option<u64>> {
        if is_present { self.next_u64().map(Some) } else { Some(None) }
    }

    fn next_u32_pair(&mut self) -> Option<(u32, u32)> {
        let half = |at| self.endian.u32(self.record, at);
        let pair = (half(self.offset)?, half(self.offset + 4)?);
        self.offset += 8;
        Some(pair)
    }

    fn next_bytes(&mut self, count: u64) -> Option<&'a [u8]> {
        let bytes = self.record.get(self.offset..)?.get(..usize::try_from(count).ok()?)?;
        self.offset += bytes.len();
        Some(bytes)
    }

    /// `count` items of this size in bytes.
    fn skip_items(&mut self, count: u64, item_bytes: u64) -> Option<()> {
        self.next_bytes(count.checked_mul(item_bytes)?).map(drop)
    }

    /// In the order of `perf_output_sample` (kernel/events/core.c).
    fn read_fields(&mut self, attr: &PerfEventAttr, sample: &mut Sample) -> Option<()> {
        let has = |bit| attr.has_sample_bit(bit);
        self.next_u64_if(has(bit::IDENTIFIER))?;
        self.next_u64_if(has(bit::IP))?;
        if has(bit::TID) {
            (sample.pid, sample.tid) = self.next_u32_pair()?;
        }
        sample.time_ns = self.next_u64_if(has(bit::TIME))?;
        sample.address = self.next_u64_if(has(bit::ADDR))?.unwrap_or(0);
        self.skip_items(count_bits(attr.sample_type & (bit::ID | bit::STREAM_ID)) as u64, 8)?;
        if has(bit::CPU) {
            sample.cpu = Some(self.next_u32_pair()?.0);
        }
        sample.period = self.next_u64_if(has(bit::PERIOD))?;
        if has(bit::READ) {
            self.skip_read_values(attr.read_format)?;
        }
        if has(bit::CALLCHAIN) {
            let frames = self.next_u64()?;
            self.skip_items(frames, 8)?;
        }
        if has(bit::RAW) {
            let size = self.endian.u32(self.record, self.offset)?;
            self.offset += 4;
            let raw = self.next_bytes(u64::from(size))?;
            sample.ibs_data3 = self.endian.u64(raw, IBS_DATA3_OFFSET);
        }
        self.skip_stacks(attr)?;
        let weight_mask = if has(bit::WEIGHT) { u64::MAX } else { u64::from(u32::MAX) };
        let weight = self.next_u64_if(has(bit::WEIGHT | bit::WEIGHT_STRUCT))?;
        sample.weight = weight.map(|weight| weight & weight_mask);
        sample.data_src = self.next_u64_if(has(bit::DATA_SRC))?;
        self.next_u64_if(has(bit::TRANSACTION))?;
        if has(bit::REGS_INTR) {
            self.skip_registers(attr.regs_intr)?;
        }
        sample.physical_address = self.next_u64_if(has(bit::PHYS_ADDR))?;
        self.next_u64_if(has(bit::CGROUP))?;
        sample.page_bytes = self.next_u64_if(has(bit::DATA_PAGE_SIZE))?;
        Some(())
    }

    fn skip_stacks(&mut self, attr: &PerfEventAttr) -> Option<()> {
        if attr.has_sample_bit(bit::BRANCH_STACK) {
            let branches = self.next_u64()?;
            self.next_u64_if(attr.branch_sample_type & BRANCH_HW_INDEX != 0)?;
            self.skip_items(branches, 24)?;
            if attr.branch_sample_type & BRANCH_COUNTERS != 0 {
                self.skip_items(branches, 8)?;
            }
        }
        if attr.has_sample_bit(bit::REGS_USER) {
            self.skip_registers(attr.regs_user)?;
        }
        if attr.has_sample_bit(bit::STACK_USER) {
            let size = self.next_u64()?;
            if size > 0 {
                self.skip_items(size, 1)?;
                self.next_u64()?;
            }
        }
        Some(())
    }

    fn skip_registers(&mut self, mask: u64) -> Option<()> {
        let abi = self.next_u64()?;
        self.skip_items(if abi == 0 { 0 } else { count_bits(mask) as u64 }, 8)
    }

    /// Counter values: for each its value, and its id and losses if requested.
    fn skip_read_values(&mut self, format: u64) -> Option<()> {
        let group = format & FORMAT_GROUP != 0;
        let each = 1 + count_bits(format & (FORMAT_ID | FORMAT_LOST)) as u64;
        let times = count_bits(format & FORMAT_TIMES) as u64;
        let counters = if group { self.next_u64()? } else { 1 };
        self.skip_items(times, 8)?;
        self.skip_items(counters, 8 * each)
    }
}

/// IbsOpData3 in the raw record: capabilities (4 bytes), then OpCtl, OpRip, OpData, OpData2, OpData3.
const IBS_DATA3_OFFSET: usize = 4 + 8 * 4;
const BRANCH_HW_INDEX: u64 = 1 << 17;
const BRANCH_COUNTERS: u64 = 1 << 19;
const FORMAT_TIMES: u64 = 0b11;
const FORMAT_ID: u64 = 1 << 2;
const FORMAT_GROUP: u64 = 1 << 3;
const FORMAT_LOST: u64 = 1 << 4;
