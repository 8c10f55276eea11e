//! One record: whose it is, and what it says.

use std::collections::HashMap;

use super::{Attr, Endian, at};
use crate::ParseError;

pub use crate::perf_record::sample_type as bit;

/// Kinds of records that say something here.
mod kinds {
    pub const MMAP: u32 = 1;
    pub const LOST: u32 = 2;
    pub const COMM: u32 = 3;
    pub const EXIT: u32 = 4;
    pub const THROTTLE: u32 = 5;
    pub const FORK: u32 = 7;
    pub const SAMPLE: u32 = 9;
    pub const MMAP2: u32 = 10;
    pub const LOST_SAMPLES: u32 = 13;
}

/// Bytes of `struct perf_event_header`.
pub(super) const HEADER: usize = 8;

/// Bits of `misc`.
const CPU_MODE: u16 = 7;
const CPU_MODE_KERNEL: u16 = 1;
/// Of COMM: it is an exec (3.16). Of FORK: the mappings of the parent are not those of the child.
const EXEC: u16 = 1 << 13;
/// Of MMAP2: a build id stands for the file's numbers (5.12).
const HAS_BUILD_ID: u16 = 1 << 14;

pub(super) fn count_bits(bits: u64) -> usize {
    bits.count_ones() as usize
}

/// One sample. What the event was not asked for is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Which event: its place in the list.
    pub event: usize,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Nanoseconds on the recording's clock.
    pub time: Option<u64>,
    /// CPU.
    pub cpu: Option<u32>,
    /// Instruction.
    pub ip: u64,
    /// Data address; 0 is none.
    pub address: u64,
    /// Events that this sample stands for.
    pub period: Option<u64>,
    /// Latency in cycles.
    pub weight: Option<u64>,
    /// What the access met.
    pub data_src: Option<u64>,
    /// Physical data address; 0 is none.
    pub physical: Option<u64>,
    /// Size of the data's page in bytes; 0 is unknown.
    pub page: Option<u64>,
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
    /// The file, or what perf calls it: `//anon`, `[heap]`.
    pub name: String,
    /// The file's build id, in hexadecimal, where the record has it.
    pub build_id: Option<String>,
    /// Whether it is the kernel's own.
    pub kernel: bool,
}

/// What a record says.
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
        exec: bool,
    },
    /// A process or thread was made.
    Forked {
        /// The new process.
        pid: u32,
        /// Its parent; the same for a new thread.
        parent: u32,
        /// Whether it has what its parent has mapped. Not so in records that perf makes of processes that
        /// ran already: their own mappings follow.
        keeps: bool,
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
    attrs: Vec<Attr>,
    ids: HashMap<u64, usize>,
}

/// A record that was read: when it was, if that is told, and what it says.
pub(super) type Read = Result<Option<(u64, Event)>, ParseError>;

impl Decoder {
    /// No event is known yet.
    pub fn new(endian: Endian) -> Decoder {
        Decoder { endian, ..Decoder::default() }
    }

    /// One more event, with its numbers. Its place in the list is what [`Sample::event`] says.
    pub fn add(&mut self, attr: Attr, ids: impl IntoIterator<Item = u64>) {
        let place = self.attrs.len();
        self.attrs.push(attr);
        self.ids.extend(ids.into_iter().map(|id| (id, place)));
    }

    /// The events.
    pub fn attrs(&self) -> &[Attr] {
        &self.attrs
    }

    pub(super) fn endian(&self) -> Endian {
        self.endian
    }

    pub(super) fn event_of_id(&self, id: u64) -> Option<usize> {
        self.ids.get(&id).copied()
    }

    /// Reads one whole record, header included. The time is 0 where it has none. `None`: it says nothing
    /// here, or is of an event that is not in the list. `offset` is where it begins, for the error.
    pub fn decode(&self, record: &[u8], offset: u64) -> Result<Option<(u64, Event)>, ParseError> {
        let cut =
            |what: &str| at(offset, format!("a record of {} bytes is too short for {what}", record.len()));
        let kind = self.endian.u32(record, 0).ok_or_else(|| cut("its header"))?;
        let (event, what) = match kind {
            kinds::SAMPLE => return self.sample(record, offset),
            kinds::MMAP | kinds::MMAP2 => (self.mapping(record, kind), "a mapping"),
            kinds::COMM => (self.name(record), "a name"),
            kinds::FORK | kinds::EXIT => (self.fork_or_exit(record, kind), "a fork or exit"),
            kinds::LOST => (self.word(record, 1).map(|records| Event::Lost { records }), "a loss"),
            kinds::LOST_SAMPLES => {
                (self.word(record, 0).map(|samples| Event::LostSamples { samples }), "a loss of samples")
            }
            kinds::THROTTLE => (Some(Event::Throttled), ""),
            _ => return Ok(None),
        };
        Ok(Some((self.trailer_time(record), event.ok_or_else(|| cut(what))?)))
    }

    fn word(&self, record: &[u8], place: usize) -> Option<u64> {
        self.endian.u64(record, HEADER + 8 * place)
    }

    fn half(&self, record: &[u8], place: usize) -> Option<u32> {
        self.endian.u32(record, HEADER + 4 * place)
    }

    fn misc(&self, record: &[u8]) -> u16 {
        self.endian.u16(record, 4).unwrap_or(0)
    }

    fn trailer_time(&self, record: &[u8]) -> u64 {
        let time = || {
            let from_end = self.attrs.first()?.before_end(bit::TIME)?;
            self.endian.u64(record, record.len().checked_sub(from_end).filter(|&place| place >= HEADER)?)
        };
        time().unwrap_or(0)
    }

    fn mapping(&self, record: &[u8], kind: u32) -> Option<Event> {
        let misc = self.misc(record);
        let has_build_id = kind == kinds::MMAP2 && misc & HAS_BUILD_ID != 0;
        let build_id = || {
            let length = usize::from(*record.get(HEADER + 32)?).min(20);
            Some(record.get(HEADER + 36..)?.get(..length)?.iter().map(|byte| format!("{byte:02x}")).collect())
        };
        let name_at = HEADER + if kind == kinds::MMAP2 { 64 } else { 32 };
        Some(Event::Mapped(Mapping {
            pid: self.half(record, 0)?,
            start: self.word(record, 1)?,
            bytes: self.word(record, 2)?,
            offset: self.word(record, 3)?,
            name: text_to_zero(record.get(name_at..)?),
            build_id: if has_build_id { build_id() } else { None },
            kernel: misc & CPU_MODE == CPU_MODE_KERNEL,
        }))
    }

    fn name(&self, record: &[u8]) -> Option<Event> {
        let (pid, tid) = (self.half(record, 0)?, self.half(record, 1)?);
        let name = text_to_zero(record.get(HEADER + 8..)?);
        Some(Event::Named { pid, tid, name, exec: self.misc(record) & EXEC != 0 })
    }

    fn fork_or_exit(&self, record: &[u8], kind: u32) -> Option<Event> {
        let (pid, parent, tid) = (self.half(record, 0)?, self.half(record, 1)?, self.half(record, 2)?);
        if kind != kinds::FORK {
            return Some(Event::Ended { pid, tid });
        }
        // The time of the fork, behind the four numbers; perf's own records have none, and say so by a flag
        // (tools/perf/util/synthetic-events.c, since 4.16).
        let found_running = self.misc(record) & EXEC != 0 || self.word(record, 2)? == 0;
        Some(Event::Forked { pid, parent, keeps: !found_running })
    }

    fn sample(&self, record: &[u8], offset: u64) -> Read {
        let event = match &self.attrs[..] {
            [] => return Err(at(offset, "a sample before any event")),
            [_] => Some(0),
            [first, ..] => match first.id_at().and_then(|place| self.endian.u64(record, HEADER + place)) {
                Some(0) | None => Some(0),
                Some(id) => self.event_of_id(id),
            },
        };
        let Some((event, attr)) = event.and_then(|event| Some((event, self.attrs.get(event)?))) else {
            return Ok(None);
        };
        let mut words = Words { endian: self.endian, record, at: HEADER };
        let mut sample = Sample { event, ..Sample::default() };
        match words.sample(attr, &mut sample) {
            Some(()) => Ok(Some((sample.time.unwrap_or(0), Event::Sample(sample)))),
            None => Err(at(offset, format!("a sample of {} bytes is cut off", record.len()))),
        }
    }
}

fn text_to_zero(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A sample's words, one after the other.
struct Words<'a> {
    endian: Endian,
    record: &'a [u8],
    at: usize,
}

impl<'a> Words<'a> {
    fn word(&mut self) -> Option<u64> {
        let word = self.endian.u64(self.record, self.at)?;
        self.at += 8;
        Some(word)
    }

    fn pair(&mut self) -> Option<(u32, u32)> {
        let pair = (self.endian.u32(self.record, self.at)?, self.endian.u32(self.record, self.at + 4)?);
        self.at += 8;
        Some(pair)
    }

    fn bytes(&mut self, count: u64) -> Option<&'a [u8]> {
        let bytes = self.record.get(self.at..)?.get(..usize::try_from(count).ok()?)?;
        self.at += bytes.len();
        Some(bytes)
    }

    /// `count` things of so many bytes each.
    fn skip(&mut self, count: u64, each: u64) -> Option<()> {
        self.bytes(count.checked_mul(each)?).map(drop)
    }

    /// In the order of `perf_output_sample` (kernel/events/core.c).
    fn sample(&mut self, attr: &Attr, sample: &mut Sample) -> Option<()> {
        let has = |bit| attr.has(bit);
        if has(bit::IDENTIFIER) {
            self.word()?;
        }
        if has(bit::IP) {
            sample.ip = self.word()?;
        }
        if has(bit::TID) {
            (sample.pid, sample.tid) = self.pair()?;
        }
        if has(bit::TIME) {
            sample.time = Some(self.word()?);
        }
        if has(bit::ADDR) {
            sample.address = self.word()?;
        }
        self.skip(count_bits(attr.sample_type & (bit::ID | bit::STREAM_ID)) as u64, 8)?;
        if has(bit::CPU) {
            sample.cpu = Some(self.pair()?.0);
        }
        if has(bit::PERIOD) {
            sample.period = Some(self.word()?);
        }
        if has(bit::READ) {
            self.read_values(attr.read_format)?;
        }
        if has(bit::CALLCHAIN) {
            let frames = self.word()?;
            self.skip(frames, 8)?;
        }
        if has(bit::RAW) {
            let size = self.endian.u32(self.record, self.at)?;
            self.at += 4;
            let raw = self.bytes(u64::from(size))?;
            sample.ibs_data3 = self.endian.u64(raw, IBS_DATA3);
        }
        self.stacks(attr)?;
        if has(bit::WEIGHT | bit::WEIGHT_STRUCT) {
            let weight = self.word()?;
            sample.weight = Some(if has(bit::WEIGHT) { weight } else { weight & u64::from(u32::MAX) });
        }
        if has(bit::DATA_SRC) {
            sample.data_src = Some(self.word()?);
        }
        if has(bit::TRANSACTION) {
            self.word()?;
        }
        if has(bit::REGS_INTR) {
            self.registers(attr.regs_intr)?;
        }
        if has(bit::PHYS_ADDR) {
            sample.physical = Some(self.word()?);
        }
        if has(bit::CGROUP) {
            self.word()?;
        }
        if has(bit::DATA_PAGE_SIZE) {
            sample.page = Some(self.word()?);
        }
        Some(())
    }

    fn stacks(&mut self, attr: &Attr) -> Option<()> {
        if attr.has(bit::BRANCH_STACK) {
            let branches = self.word()?;
            if attr.branch_sample_type & BRANCH_HW_INDEX != 0 {
                self.word()?;
            }
            self.skip(branches, 24)?;
            if attr.branch_sample_type & BRANCH_COUNTERS != 0 {
                self.skip(branches, 8)?;
            }
        }
        if attr.has(bit::REGS_USER) {
            self.registers(attr.regs_user)?;
        }
        if attr.has(bit::STACK_USER) {
            let size = self.word()?;
            if size > 0 {
                self.skip(size, 1)?;
                self.word()?;
            }
        }
        Some(())
    }

    fn registers(&mut self, mask: u64) -> Option<()> {
        let abi = self.word()?;
        self.skip(if abi == 0 { 0 } else { count_bits(mask) as u64 }, 8)
    }

    /// Counter values: for each its value, and its number and losses where they were asked for.
    fn read_values(&mut self, format: u64) -> Option<()> {
        let group = format & FORMAT_GROUP != 0;
        let each = 1 + count_bits(format & (FORMAT_ID | FORMAT_LOST)) as u64;
        let times = count_bits(format & FORMAT_TIMES) as u64;
        let counters = if group { self.word()? } else { 1 };
        self.skip(times, 8)?;
        self.skip(counters, 8 * each)
    }
}

/// IbsOpData3 in the raw record: capabilities (4 bytes), then OpCtl, OpRip, OpData, OpData2, OpData3.
const IBS_DATA3: usize = 4 + 8 * 4;
const BRANCH_HW_INDEX: u64 = 1 << 17;
const BRANCH_COUNTERS: u64 = 1 << 19;
const FORMAT_TIMES: u64 = 0b11;
const FORMAT_ID: u64 = 1 << 2;
const FORMAT_GROUP: u64 = 1 << 3;
const FORMAT_LOST: u64 = 1 << 4;
