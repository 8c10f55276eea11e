//! Records in the ring of a perf event (include/uapi/linux/perf_event.h, `enum perf_event_type`).
//!
//! A record begins with its kind, flags and size. The `sample_type` of the event determines the content of a
//! sample; a [`SampleLayout`] computes the offsets once.

use crate::ParseError;

const FORMAT: &str = "perf record";

/// Bytes of `struct perf_event_header`.
pub const HEADER_BYTES: usize = 8;

/// Bits of `perf_event_attr.sample_type` (include/uapi/linux/perf_event.h, `enum perf_event_sample_format`).
pub mod sample_type {
    /// Instruction pointer.
    pub const IP: u64 = 1 << 0;
    /// Process and thread.
    pub const TID: u64 = 1 << 1;
    /// Time.
    pub const TIME: u64 = 1 << 2;
    /// Data address.
    pub const ADDR: u64 = 1 << 3;
    /// Counter values.
    pub const READ: u64 = 1 << 4;
    /// Call chain.
    pub const CALLCHAIN: u64 = 1 << 5;
    /// Number of the event.
    pub const ID: u64 = 1 << 6;
    /// CPU.
    pub const CPU: u64 = 1 << 7;
    /// Sampling period.
    pub const PERIOD: u64 = 1 << 8;
    /// Number of the event's stream.
    pub const STREAM_ID: u64 = 1 << 9;
    /// The PMU's own record.
    pub const RAW: u64 = 1 << 10;
    /// Branches.
    pub const BRANCH_STACK: u64 = 1 << 11;
    /// Registers of the program.
    pub const REGS_USER: u64 = BRANCH_STACK << 1;
    /// A piece of the program's stack.
    pub const STACK_USER: u64 = 1 << 13;
    /// Latency in one word.
    pub const WEIGHT: u64 = 1 << 14;
    /// Outcome of the access.
    pub const DATA_SRC: u64 = 1 << 15;
    /// Number of the event, in front.
    pub const IDENTIFIER: u64 = 1 << 16;
    /// Transaction.
    pub const TRANSACTION: u64 = 1 << 17;
    /// Registers of the interrupt.
    pub const REGS_INTR: u64 = 1 << 18;
    /// Physical data address.
    pub const PHYS_ADDR: u64 = 1 << 19;
    /// Control group.
    pub const CGROUP: u64 = 1 << 21;
    /// Size of the data's page.
    pub const DATA_PAGE_SIZE: u64 = 1 << 22;
    /// Latencies in three parts of a word (5.12).
    pub const WEIGHT_STRUCT: u64 = 1 << 24;

    /// Bits that this module can read in a ring.
    pub const SUPPORTED: u64 =
        IP | TID | TIME | ADDR | CALLCHAIN | ID | CPU | PERIOD | STREAM_ID | RAW | IDENTIFIER;
}

/// The fixed words of a sample in the order in which the kernel writes them (kernel/events/core.c,
/// `perf_output_sample`).
const FIXED_FIELDS: [u64; 9] = {
    use sample_type::{ADDR, CPU, ID, IDENTIFIER, IP, PERIOD, STREAM_ID, TID, TIME};
    [IDENTIFIER, IP, TID, TIME, ADDR, ID, STREAM_ID, CPU, PERIOD]
};

/// `sample_id_all` in the bit field of `struct perf_event_attr`.
pub const SAMPLE_ID_ALL: u64 = 1 << 18;

/// The words at the end of every other record with `sample_id_all` (`__perf_event__output_id_sample`).
const TRAILER_FIELDS: [u64; 6] = {
    use sample_type::{CPU, ID, IDENTIFIER, STREAM_ID, TID, TIME};
    [TID, TIME, ID, STREAM_ID, CPU, IDENTIFIER]
};

/// Positions of the words of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleLayout {
    tid: Option<usize>,
    time: Option<usize>,
    cpu: Option<usize>,
    /// Offset of the parts of varying length.
    fixed_end: usize,
    has_callchain: bool,
    has_raw: bool,
    /// Offset of the time from the end of a record that is not a sample.
    time_from_end: Option<usize>,
}

impl SampleLayout {
    /// The layout of samples of this `sample_type`; `None` if it has bits that are not known here. Records
    /// other than samples must be requested with `sample_id_all`.
    pub fn new(sample_type: u64) -> Option<SampleLayout> {
        if sample_type & !sample_type::SUPPORTED != 0 {
            return None;
        }
        let there = |bit: &&u64| sample_type & **bit != 0;
        let place = |word: u64| {
            let at = FIXED_FIELDS.iter().filter(there).position(|&bit| bit == word)?;
            Some(HEADER_BYTES + 8 * at)
        };
        let from_end = TRAILER_FIELDS.iter().rev().filter(there).position(|&bit| bit == sample_type::TIME);
        Some(SampleLayout {
            tid: place(sample_type::TID),
            time: place(sample_type::TIME),
            cpu: place(sample_type::CPU),
            fixed_end: HEADER_BYTES + 8 * FIXED_FIELDS.iter().filter(there).count(),
            has_callchain: sample_type & sample_type::CALLCHAIN != 0,
            has_raw: sample_type & sample_type::RAW != 0,
            time_from_end: from_end.map(|words| 8 * (words + 1)),
        })
    }

    /// The time of a whole record on the event's clock; `None` if it has none.
    #[inline]
    pub fn time(&self, record: &[u8]) -> Option<u64> {
        let at = match record_kind(record)? {
            record_type::SAMPLE => self.time?,
            _ => record.len().checked_sub(self.time_from_end?).filter(|&at| at >= HEADER_BYTES)?,
        };
        read_u64(record, at)
    }
}

/// Kinds of records of the kernel.
pub(crate) mod record_type {
    pub const MMAP: u32 = 1;
    pub const LOST: u32 = 2;
    pub const COMM: u32 = 3;
    pub const EXIT: u32 = 4;
    pub const THROTTLE: u32 = 5;
    pub const UNTHROTTLE: u32 = 6;
    pub const FORK: u32 = 7;
    pub const SAMPLE: u32 = 9;
    pub const MMAP2: u32 = 10;
    pub const LOST_SAMPLES: u32 = 13;
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// An event.
    Sample(Sample<'a>),
    /// Records that did not fit into the ring since the last one that did.
    Lost {
        /// How many.
        records: u64,
    },
    /// Samples that the hardware or the kernel dropped.
    LostSamples {
        /// How many.
        samples: u64,
    },
    /// The kernel stopped sampling for a moment, because it took too much time.
    Throttle,
    /// It continued.
    Unthrottle,
    /// Another kind.
    Other {
        /// Its number.
        kind: u32,
    },
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    /// Process, in the PID namespace of the process that opened the event; 0 if it is not visible there.
    pub pid: u32,
    /// Thread, likewise.
    pub tid: u32,
    /// Nanoseconds on the event's clock.
    pub time_ns: u64,
    /// Its CPU.
    pub cpu: u32,
    /// Call chain, innermost first; empty if not requested.
    pub callchain: Callchain<'a>,
    /// The tracepoint's own record, with padding at its end; empty if not requested.
    pub raw: &'a [u8],
}

/// Addresses of a call chain, innermost first, with marks between kernel and user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Callchain<'a> {
    words: &'a [[u8; 8]],
}

/// Owner of the addresses that follow in a call chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallchainContext {
    /// The kernel's.
    Kernel,
    /// The program's.
    User,
    /// A hypervisor's or a guest's, or unknown.
    Other,
}

impl<'a> Callchain<'a> {
    /// Words in it, marks included.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The addresses with their owners, without the marks. Addresses before the first mark are the kernel's.
    pub fn frames(self) -> impl Iterator<Item = (CallchainContext, u64)> + 'a {
        // PERF_CONTEXT_MAX is -4095: larger values are context markers.
        const FIRST_CONTEXT: u64 = -4095i64 as u64;
        const KERNEL: u64 = -128i64 as u64;
        const USER: u64 = -512i64 as u64;
        let mut space = CallchainContext::Kernel;
        self.words.iter().filter_map(move |word| {
            let word = u64::from_ne_bytes(*word);
            if word < FIRST_CONTEXT {
                return Some((space, word));
            }
            space = match word {
                KERNEL => CallchainContext::Kernel,
                USER => CallchainContext::User,
                _ => CallchainContext::Other,
            };
            None
        })
    }
}

#[inline]
fn read_u64(record: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*record.get(at..)?.first_chunk()?))
}

#[inline]
fn read_u32(record: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*record.get(at..)?.first_chunk()?))
}

#[inline]
fn record_kind(record: &[u8]) -> Option<u32> {
    read_u32(record, 0)
}

/// Reads one whole record: header and the number of bytes in it.
#[inline]
pub fn parse<'a>(record: &'a [u8], layout: &SampleLayout) -> Result<Record<'a>, ParseError> {
    match record_kind(record).ok_or_else(|| truncated_error(record, "header"))? {
        record_type::SAMPLE => {
            parse_sample(record, layout).map(Record::Sample).ok_or_else(|| truncated_error(record, "sample"))
        }
        record_type::LOST => {
            let records = read_u64(record, HEADER_BYTES + 8);
            Ok(Record::Lost { records: records.ok_or_else(|| truncated_error(record, "lost record"))? })
        }
        record_type::LOST_SAMPLES => {
            let samples = read_u64(record, HEADER_BYTES);
            let truncated = || truncated_error(record, "record of lost samples");
            Ok(Record::LostSamples { samples: samples.ok_or_else(truncated)? })
        }
        record_type::THROTTLE => Ok(Record::Throttle),
        record_type::UNTHROTTLE => Ok(Record::Unthrottle),
        kind => Ok(Record::Other { kind }),
    }
}

#[cold]
fn truncated_error(record: &[u8], what: &str) -> ParseError {
    let problem = format!("the {what} is truncated after {} bytes", record.len());
    ParseError::at_byte(FORMAT, record.len() as u64, problem)
}

#[inline]
fn parse_sample<'a>(record: &'a [u8], layout: &SampleLayout) -> Option<Sample<'a>> {
    let mut rest = record.get(layout.fixed_end..)?;
    let mut sample = Sample { pid: 0, tid: 0, time_ns: 0, cpu: 0, callchain: Callchain::default(), raw: &[] };
    if let Some(at) = layout.tid {
        (sample.pid, sample.tid) = (read_u32(record, at)?, read_u32(record, at + 4)?);
    }
    if let Some(at) = layout.time {
        sample.time_ns = read_u64(record, at)?;
    }
    if let Some(at) = layout.cpu {
        sample.cpu = read_u32(record, at)?;
    }
    if layout.has_callchain {
        let (count, after) = rest.split_first_chunk::<8>()?;
        let bytes = usize::try_from(u64::from_ne_bytes(*count)).ok()?.checked_mul(8)?;
        let (words, after) = after.split_at_checked(bytes)?;
        (sample.callchain.words, rest) = (words.as_chunks().0, after);
    }
    if layout.has_raw {
        let (size, after) = rest.split_first_chunk::<4>()?;
        sample.raw = after.get(..u32::from_ne_bytes(*size) as usize)?;
    }
    Some(sample)
}

/// The records of a buffer one after the other, each of the length in its header. A record shorter than a
/// header or longer than the rest ends the walk with an error.
pub fn split_records(mut buffer: &[u8]) -> impl Iterator<Item = Result<&[u8], ParseError>> {
    let all = buffer.len();
    std::iter::from_fn(move || {
        if buffer.is_empty() {
            return None;
        }
        let at = (all - buffer.len()) as u64;
        let split = record_size(buffer).and_then(|size| buffer.split_at_checked(size));
        Some(match split {
            Some((record, rest)) => {
                buffer = rest;
                Ok(record)
            }
            None => {
                buffer = &[];
                Err(ParseError::at_byte(FORMAT, at, "invalid record size"))
            }
        })
    })
}

/// The size of the record that begins here, header included; `None` if no record can be this short.
#[inline]
pub fn record_size(bytes: &[u8]) -> Option<usize> {
    let size = u16::from_ne_bytes(*bytes.get(6..)?.first_chunk()?);
    Some(usize::from(size)).filter(|&size| size >= HEADER_BYTES)
}

/// Any bytes under several layouts: parts are within their record, and every walk ends.
pub fn fuzz(data: &[u8]) {
    use sample_type::{CALLCHAIN, CPU, RAW, SUPPORTED, TID, TIME};
    for sample_type in [TID | TIME | CPU | RAW, TID | TIME | CPU | CALLCHAIN | RAW, TIME, SUPPORTED] {
        let Some(layout) = SampleLayout::new(sample_type) else { continue };
        let mut walked = 0;
        for record in split_records(data).map_while(Result::ok) {
            walked += record.len();
            layout.time(record);
            if let Ok(Record::Sample(sample)) = parse(record, &layout) {
                assert!(sample.raw.len() + 8 * sample.callchain.len() <= record.len());
                assert!(sample.callchain.frames().count() <= sample.callchain.len());
                assert_eq!(layout.time(record).unwrap_or(0), sample.time_ns);
            }
        }
        assert!(walked <= data.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sample_type::{CALLCHAIN, CPU, IDENTIFIER, IP, RAW, STREAM_ID, TID, TIME};

    fn record(kind: u32, words: &[u64]) -> Vec<u8> {
        let size = (HEADER_BYTES + 8 * words.len()) as u16;
        let head = [kind.to_ne_bytes(), [0, 0, size.to_ne_bytes()[0], size.to_ne_bytes()[1]]].concat();
        words.iter().fold(head, |mut bytes, word| {
            bytes.extend(word.to_ne_bytes());
            bytes
        })
    }

    fn pair(low: u32, high: u32) -> u64 {
        u64::from_ne_bytes([low.to_ne_bytes(), high.to_ne_bytes()].concat().try_into().unwrap())
    }

    #[test]
    fn a_sample_with_stack_and_raw_is_taken_apart() {
        let layout = SampleLayout::new(TID | TIME | CPU | CALLCHAIN | RAW).unwrap();
        let (kernel, user) = (-128i64 as u64, -512i64 as u64);
        let words = [
            pair(7, 8),
            1000,
            pair(3, 0),
            5,
            kernel,
            0xffff_8000,
            0xffff_9000,
            user,
            0x40_0000,
            pair(4, 0x2_028a),
        ];
        let bytes = record(9, &words);
        let Record::Sample(sample) = parse(&bytes, &layout).unwrap() else { panic!("a sample") };
        assert_eq!((sample.pid, sample.tid, sample.time_ns, sample.cpu), (7, 8, 1000, 3));
        let frames: Vec<_> = sample.callchain.frames().collect();
        let (k, u) = (CallchainContext::Kernel, CallchainContext::User);
        assert_eq!(frames, [(k, 0xffff_8000), (k, 0xffff_9000), (u, 0x40_0000)]);
        assert_eq!(sample.raw, 0x2_028au32.to_ne_bytes());
        assert_eq!(layout.time(&bytes), Some(1000));
        for cut in HEADER_BYTES..bytes.len() {
            assert!(parse(&bytes[..cut], &layout).is_err(), "{cut} bytes");
        }
    }

    #[test]
    fn losses_and_throttling_have_their_time_at_the_end() {
        let layout = SampleLayout::new(TID | TIME | CPU | RAW).unwrap();
        let trailer = [pair(1, 1), 77, pair(2, 0)];
        let with = |own: &[u64]| [own, &trailer].concat();
        let cases = [
            (2, vec![9, 12], Record::Lost { records: 12 }),
            (13, vec![5], Record::LostSamples { samples: 5 }),
            (5, vec![1, 2, 3], Record::Throttle),
            (6, vec![1, 2, 3], Record::Unthrottle),
            (99, vec![], Record::Other { kind: 99 }),
        ];
        for (kind, own, expected) in cases {
            let bytes = record(kind, &with(&own));
            assert_eq!(parse(&bytes, &layout).unwrap(), expected);
            assert_eq!(layout.time(&bytes), Some(77), "{expected:?}");
        }
    }

    #[test]
    fn a_layout_follows_the_order_of_the_kernel() {
        let layout = SampleLayout::new(IDENTIFIER | IP | TID | TIME | STREAM_ID | CPU).unwrap();
        let bytes = record(9, &[1, 2, pair(3, 4), 5, 6, pair(7, 0)]);
        let Record::Sample(sample) = parse(&bytes, &layout).unwrap() else { panic!("a sample") };
        assert_eq!((sample.pid, sample.tid, sample.time_ns, sample.cpu), (3, 4, 5, 7));
        assert_eq!(SampleLayout::new(1 << 4), None, "PERF_SAMPLE_READ is not read here");
        assert_eq!(SampleLayout::new(RAW).unwrap().time(&bytes), None);
    }

    #[test]
    fn a_walk_ends_at_an_impossible_size() {
        let good = record(5, &[1]);
        let twice = [good.clone(), good.clone()].concat();
        assert_eq!(split_records(&twice).filter(|record| record.is_ok()).count(), 2);
        let mut zero = twice.clone();
        zero[22..24].copy_from_slice(&[0, 0]);
        let walked: Vec<_> = split_records(&zero).collect();
        assert_eq!((walked.len(), walked[1].is_err()), (2, true), "a size of 0 does not go on for ever");
        assert!(split_records(&twice[..20]).last().unwrap().is_err());
        fuzz(&zero);
    }
}
