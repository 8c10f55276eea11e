//! Pages of the kernel's trace buffers, as read from `per_cpu/cpuN/trace_pipe_raw` of tracefs
//! (kernel/trace/ring_buffer.c, `struct buffer_data_page`; include/linux/ring_buffer.h for the records).
//!
//! ```text
//! u64 time of the page │ long commit │ records …                               │ [long lost]
//!                        bytes of records, bit 31: records before it were lost,
//!                        bit 30: their number follows the records
//! record: u32 (5 bits type and length, 27 bits nanoseconds since the record before) │ data
//! ```
//! Types 1 to 28 are data of this number of words; 0 has its length in the next word; 29 is padding, 30 a
//! longer time difference, 31 an absolute time (4.17 and later). The page's header is laid out as
//! `events/header_page` states, and that file is read on the machine: `commit` has the size of a `long`, and
//! a page the size in `buffer_subbuf_size_kb` (6.8 and later).

use crate::ParseError;
use crate::text::{lines, parse_number, split_label, to_printable};
use crate::trace_format;

const PAGE_FORMAT: &str = "trace buffer page";
const HEADER_PAGE_FORMAT: &str = "header_page of tracefs";
const STATS_FORMAT: &str = "trace buffer stats";
const HEADER_EVENT_FORMAT: &str = "header_event of tracefs";

/// The largest page that is read: the kernel's have at most 128 base pages (`subbuf_order` of 7).
const PAGE_BYTES_MAX: u32 = 128 << 16;

/// Longest data of a record whose type is its length in words.
const TYPE_LEN_DATA_MAX: u32 = 28;
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;
/// Bits of a time difference; a longer one has the rest in the next word.
const DELTA_BITS: u32 = 27;
/// An absolute time has 59 bits; the higher bits are those of the previous time.
const STAMP_BITS: u32 = 59;
const MISSED_EVENTS: u32 = 1 << 31;
const MISSED_STORED: u32 = 1 << 30;

const _: () = {
    // `type_len` has the 5 bits beside the time, and the special types follow the lengths.
    assert!(DELTA_BITS + 5 == u32::BITS && TIME_STAMP < 1 << 5);
    assert!(PADDING == TYPE_LEN_DATA_MAX + 1 && TIME_EXTEND == PADDING + 1 && TIME_STAMP == TIME_EXTEND + 1);
};

/// Layout of the pages of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPageLayout {
    /// Position of the length of the records, and its size: 4 or 8 bytes.
    commit_field: (u32, u32),
    /// Offset of the first record.
    data_offset: u32,
    page_bytes: u32,
}

/// Header of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPageHeader {
    /// Base time of the first record, in nanoseconds of the buffer's clock.
    pub time_ns: u64,
    /// Offset of the end of the records.
    pub end: usize,
    /// Loss between the previous page and this one.
    pub missed_events: Option<MissedEvents>,
}

/// Records that were lost before a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissedEvents {
    /// Their number.
    Events(u64),
    /// Unknown: the page has no room for their number.
    Unknown,
}

/// Record in a page: the position of its data, and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingPageRecord {
    /// Nanoseconds of the buffer's clock.
    pub time_ns: u64,
    /// The first byte of its data.
    pub start: usize,
    /// The byte after its data.
    pub end: usize,
}

impl RingPageRecord {
    /// Its data; empty if `page` is not its page.
    #[inline]
    pub fn data_in(self, page: &[u8]) -> &[u8] {
        page.get(self.start..self.end).unwrap_or_default()
    }
}

/// Position in the records of a page. It does not borrow the page, so that both can be stored together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    offset: usize,
    end: usize,
    time_ns: u64,
}

/// Reads `events/header_page` of tracefs.
pub fn parse_header_page(text: &[u8]) -> Result<RingPageLayout, ParseError> {
    let (mut time, mut commit, mut data) = (None, None, None);
    for (line_number, line) in lines(text) {
        let Some((b"field", rest)) = split_label(line) else { continue };
        let field = trace_format::parse_field(rest).ok_or_else(|| {
            let problem =
                format!("expected `TYPE NAME; offset:N; size:N; signed:0;`, found `{}`", to_printable(rest));
            ParseError::at_line(HEADER_PAGE_FORMAT, line_number, problem)
        })?;
        let place = (field.offset, field.size);
        match field.name.as_str() {
            "timestamp" => time = Some(place),
            "commit" => commit = Some(place),
            "data" => data = Some(place),
            // `overwrite` names a part of `commit`.
            _ => {}
        }
    }
    let wrong = |problem: &str| ParseError::for_input(HEADER_PAGE_FORMAT, problem.to_owned());
    let (Some(time), Some(commit), Some(data)) = (time, commit, data) else {
        return Err(wrong("no `timestamp`, `commit` or `data` field"));
    };
    let page_bytes = data.0.checked_add(data.1).filter(|&bytes| bytes <= PAGE_BYTES_MAX);
    let page_bytes = page_bytes.ok_or_else(|| wrong("invalid page size"))?;
    if time != (0, 8) || !matches!(commit.1, 4 | 8) || commit.0 < 8 || commit.0 + commit.1 > data.0 {
        return Err(wrong("unsupported layout of the ring buffer page header"));
    }
    Ok(RingPageLayout { commit_field: commit, data_offset: data.0, page_bytes })
}

/// Counts of the kernel for one processor's buffer (`per_cpu/cpuN/stats`), in records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferStats {
    /// In the buffer now, not read yet.
    pub entries: u64,
    /// Overwritten before they were read.
    pub overrun: u64,
    /// Not written, because interrupted writers had filled the whole buffer.
    pub commit_overrun: u64,
    /// Not written, because the buffer was full and is not overwritten.
    pub dropped: u64,
    /// Read.
    pub read: u64,
}

impl BufferStats {
    /// Records that will never be read.
    pub fn lost_records(&self) -> u64 {
        self.overrun.saturating_add(self.commit_overrun).saturating_add(self.dropped)
    }

    /// All events, read, unread and lost.
    pub fn total_events(&self) -> u64 {
        self.entries.saturating_add(self.read).saturating_add(self.lost_records())
    }
}

/// Reads `per_cpu/cpuN/stats` of tracefs (`dropped events` since 3.7). Other lines are skipped.
pub fn parse_stats(text: &[u8]) -> Result<BufferStats, ParseError> {
    let (mut stats, mut is_whole) = (BufferStats::default(), (false, false));
    for (line_number, line) in lines(text) {
        let Some((name, value)) = split_label(line) else { continue };
        let place = match name {
            b"entries" => &mut stats.entries,
            b"overrun" => &mut stats.overrun,
            b"commit overrun" => &mut stats.commit_overrun,
            b"dropped events" => &mut stats.dropped,
            b"read events" => &mut stats.read,
            _ => continue,
        };
        is_whole.0 |= name == b"entries";
        is_whole.1 |= name == b"overrun";
        *place = parse_number(value).ok_or_else(|| {
            let problem = format!("`{}`: expected a number", to_printable(value));
            ParseError::at_line(STATS_FORMAT, line_number, problem)
        })?;
    }
    match is_whole {
        (true, true) => Ok(stats),
        _ => Err(ParseError::for_input(STATS_FORMAT, "no `entries:` or `overrun:` line found".to_owned())),
    }
}

/// Whether `events/header_event` of tracefs describes the record format that is read here.
pub fn check_header_event(text: &[u8]) -> Result<(), ParseError> {
    const KNOWN: [(&[u8], u64); 4] = [
        (b"padding", PADDING as u64),
        (b"time_extend", TIME_EXTEND as u64),
        (b"type_len", 5),
        (b"time_delta", 27),
    ];
    for (name, wanted) in KNOWN {
        let line = lines(text).find_map(|(_, line)| {
            split_label(line).filter(|(label, _)| label.trim_ascii() == name).map(|(_, rest)| rest)
        });
        let word = line.and_then(|rest| {
            let mut words = rest.split(|byte| !byte.is_ascii_digit()).filter(|word| !word.is_empty());
            parse_number(words.next()?)
        });
        if word != Some(wanted) {
            let problem = format!("`{}`: expected {wanted}", to_printable(name));
            return Err(ParseError::for_input(HEADER_EVENT_FORMAT, problem));
        }
    }
    Ok(())
}

impl RingPageLayout {
    /// Bytes of a whole page.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes as usize
    }

    /// The same with pages of another size, if that of a buffer differs from the header.
    pub fn with_page_bytes(self, page_bytes: u32) -> Option<RingPageLayout> {
        (page_bytes > self.data_offset && page_bytes <= PAGE_BYTES_MAX)
            .then_some(RingPageLayout { page_bytes, ..self })
    }

    /// Reads the head of a page.
    pub fn read_header(&self, page: &[u8]) -> Result<(RingPageHeader, Cursor), ParseError> {
        let to_error =
            |problem: &str| ParseError::for_input(PAGE_FORMAT, format!("{problem}, {} bytes", page.len()));
        let (at, size) = (self.commit_field.0 as usize, self.commit_field.1 as usize);
        let short = || to_error("truncated header");
        let time_ns = page.first_chunk().map(|time| u64::from_ne_bytes(*time)).ok_or_else(short)?;
        let commit = page.get(at..at + size).ok_or_else(short)?;
        // The flags are an int that was added to a long: the upper half is its sign extension.
        let commit = match *commit {
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]),
            [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]) as u32,
            _ => return Err(short()),
        };
        let data = self.data_offset as usize;
        let end = data + (commit & !(MISSED_EVENTS | MISSED_STORED)) as usize;
        if end > page.len() {
            return Err(to_error("the records extend past the end of the page"));
        }
        let stored = || {
            let bytes = page.get(end..end + size)?;
            match size {
                4 => bytes.first_chunk().map(|lost| u64::from(u32::from_ne_bytes(*lost))),
                _ => bytes.first_chunk().map(|lost| u64::from_ne_bytes(*lost)),
            }
        };
        let missed_events = match (commit & MISSED_EVENTS != 0, commit & MISSED_STORED != 0) {
            (false, _) => None,
            (true, false) => Some(MissedEvents::Unknown),
            (true, true) => Some(stored().map_or(MissedEvents::Unknown, MissedEvents::Events)),
        };
        Ok((RingPageHeader { time_ns, end, missed_events }, Cursor { offset: data, end, time_ns }))
    }
}

impl Cursor {
    /// The next record of the page; `None` after the last one. After an error the rest of the page is
    /// unusable.
    #[inline]
    pub fn next(&mut self, page: &[u8]) -> Result<Option<RingPageRecord>, ParseError> {
        loop {
            if self.offset >= self.end {
                return Ok(None);
            }
            let head = self.read_word(page, self.offset)?;
            let (kind, delta) = (head & 31, u64::from(head >> 5));
            let (from, to) = match kind {
                1..=TYPE_LEN_DATA_MAX => (self.offset + 4, self.offset + 4 + 4 * kind as usize),
                0 => {
                    // The length counts its own word.
                    let length = self.read_length(page)?;
                    (self.offset + 8, self.offset + 4 + length.next_multiple_of(4))
                }
                TIME_EXTEND | TIME_STAMP => {
                    let more = self.read_word(page, self.offset + 4)?;
                    let told = u64::from(more) << DELTA_BITS | delta;
                    self.time_ns = match kind {
                        TIME_EXTEND => self.time_ns.wrapping_add(told),
                        _ => complete_time_stamp(self.time_ns, told),
                    };
                    self.offset += 8;
                    continue;
                }
                // The rest of the page.
                PADDING if delta == 0 => {
                    self.offset = self.end;
                    return Ok(None);
                }
                // A discarded record. A time difference of 1 only marks that it is not the rest of the page.
                _ => {
                    let length = self.read_length(page)?;
                    self.time_ns = self.time_ns.wrapping_add(if delta == 1 { 0 } else { delta });
                    self.offset = self.offset.saturating_add(4 + length);
                    continue;
                }
            };
            if to > self.end || to > page.len() {
                return Err(self.truncated_error());
            }
            self.time_ns = self.time_ns.wrapping_add(delta);
            self.offset = to;
            return Ok(Some(RingPageRecord { time_ns: self.time_ns, start: from, end: to }));
        }
    }

    #[inline]
    fn read_word(&self, page: &[u8], offset: usize) -> Result<u32, ParseError> {
        let word = page.get(..self.end).and_then(|page| page.get(offset..)?.first_chunk());
        word.map(|word| u32::from_ne_bytes(*word)).ok_or_else(|| self.truncated_error())
    }

    /// The length in the second word of a record, which counts this word.
    #[inline]
    fn read_length(&self, page: &[u8]) -> Result<usize, ParseError> {
        let length = self.read_word(page, self.offset + 4)?;
        if length < 4 { Err(self.truncated_error()) } else { Ok(length as usize) }
    }

    #[cold]
    fn truncated_error(&self) -> ParseError {
        let problem = format!("the record at byte {} extends past the end of the page", self.offset);
        ParseError::for_input(PAGE_FORMAT, problem)
    }
}

/// A time of 59 bits, completed by the time before it (ring_buffer.c, `rb_fix_abs_ts`).
fn complete_time_stamp(before: u64, told: u64) -> u64 {
    let above = before >> STAMP_BITS << STAMP_BITS;
    let time = told | above;
    // A step backwards of more than a moment is a carry out of the 59 bits.
    match above != 0 && time < before {
        true => time.wrapping_add(1 << STAMP_BITS),
        false => time,
    }
}

/// Any bytes as a page: each record is within the page, after the previous one.
pub fn fuzz(data: &[u8]) -> Result<u64, ParseError> {
    let layout = parse_header_page(SAMPLE_HEADER_PAGE)?;
    let (head, mut cursor) = layout.read_header(data)?;
    assert!(head.end <= data.len());
    let (mut records, mut behind) = (0, layout.data_offset as usize);
    while let Some(record) = cursor.next(data)? {
        assert!(record.start >= behind && record.start <= record.end && record.end <= head.end);
        assert_eq!(record.data_in(data).len(), record.end - record.start);
        behind = record.end;
        records += 1;
    }
    Ok(records)
}

/// `events/header_page` of a machine with pages of 4 KiB, Linux 6.18 on x86-64.
const SAMPLE_HEADER_PAGE: &[u8] = b"\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
    \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
    \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
    \tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n";

#[cfg(test)]
mod tests;
