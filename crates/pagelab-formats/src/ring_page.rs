//! Pages of the kernel's trace buffers, as `per_cpu/cpuN/trace_pipe_raw` of tracefs gives them
//! (kernel/trace/ring_buffer.c, `struct buffer_data_page`; include/linux/ring_buffer.h for the records).
//!
//! ```text
//! u64 time of the page │ long commit │ records …                               │ [long lost]
//!                        bytes of records, bit 31: records before it were lost,
//!                        bit 30: their number follows the records
//! record: u32 (5 bits type and length, 27 bits nanoseconds since the record before) │ data
//! ```
//! Types 1 to 28 are data of as many words; 0 has its length in the next word; 29 is padding, 30 a longer
//! distance in time, 31 a time of its own (4.17 and later). The page's header is laid out as
//! `events/header_page` says, and that file is read on the machine: `commit` has the size of a `long`, and
//! a page the size that `buffer_subbuf_size_kb` has been given (6.8 and later).

use crate::ParseError;
use crate::text::{labelled, lines, number, show};
use crate::trace_format;

const PAGE: &str = "page of a trace buffer";
const HEADER_PAGE: &str = "header of trace pages";
const STATS: &str = "counts of a trace buffer";
const HEADER_EVENT: &str = "header of trace records";

/// The largest page that is taken: the kernel's are 128 pages at most (`subbuf_order` of 7).
const PAGE_MAX: u32 = 128 << 16;

/// Longest data of a record whose type is its length in words.
const WORDS_MAX: u32 = 28;
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;
/// Bits of a distance in time; a longer one has the rest in the next word.
const TIME_BITS: u32 = 27;
/// An absolute time has 59 bits; what is above them is as in the time before.
const STAMP_BITS: u32 = 59;
const MISSED_EVENTS: u32 = 1 << 31;
const MISSED_STORED: u32 = 1 << 30;

/// How pages are laid out on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    /// Where the length of the records stands, and how many bytes it has: 4 or 8.
    commit: (u32, u32),
    /// Where records begin.
    data: u32,
    /// Bytes of a whole page.
    page_bytes: u32,
}

/// What stands at a page's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageHead {
    /// The time that the first record counts from, in nanoseconds of the buffer's clock.
    pub time_ns: u64,
    /// Where records end.
    pub end: usize,
    /// What was lost between the page before and this one.
    pub missed: Option<Missed>,
}

/// Records that were lost before a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// So many.
    Events(u64),
    /// The page was too full to tell how many.
    Unknown,
}

/// A record in a page: where its data lie, and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRecord {
    /// Nanoseconds of the buffer's clock.
    pub time_ns: u64,
    /// The first byte of its data.
    pub from: usize,
    /// The byte behind its data.
    pub to: usize,
}

impl PageRecord {
    /// Its data; empty if this is not the page that it came from.
    #[inline]
    pub fn of(self, page: &[u8]) -> &[u8] {
        page.get(self.from..self.to).unwrap_or_default()
    }
}

/// Reading the records of a page one by one. It keeps no hold of the page, so that both can be kept side by
/// side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    at: usize,
    end: usize,
    time_ns: u64,
}

/// Reads `events/header_page` of tracefs.
pub fn parse_header_page(text: &[u8]) -> Result<PageLayout, ParseError> {
    let (mut time, mut commit, mut data) = (None, None, None);
    for (line_number, line) in lines(text) {
        let Some((b"field", rest)) = labelled(line) else { continue };
        let field = trace_format::field(rest).ok_or_else(|| {
            let problem = format!("`{}` is not `TYPE NAME; offset:N; size:N; signed:0;`", show(rest));
            ParseError::at_line(HEADER_PAGE, line_number, problem)
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
    let wrong = |problem: &str| ParseError::whole(HEADER_PAGE, problem.to_owned());
    let (Some(time), Some(commit), Some(data)) = (time, commit, data) else {
        return Err(wrong("no `timestamp`, `commit` and `data` in it"));
    };
    let page_bytes = data.0.checked_add(data.1).filter(|&bytes| bytes <= PAGE_MAX);
    let page_bytes = page_bytes.ok_or_else(|| wrong("a page is larger than any"))?;
    if time != (0, 8) || !matches!(commit.1, 4 | 8) || commit.0 < 8 || commit.0 + commit.1 > data.0 {
        return Err(wrong("time, length and data of a page lie otherwise than in any known kernel"));
    }
    Ok(PageLayout { commit, data: data.0, page_bytes })
}

/// What the kernel counted for one processor's buffer (`per_cpu/cpuN/stats`), in records.
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
    /// What will never be read.
    pub fn lost(&self) -> u64 {
        self.overrun.saturating_add(self.commit_overrun).saturating_add(self.dropped)
    }

    /// All that happened.
    pub fn written(&self) -> u64 {
        self.entries.saturating_add(self.read).saturating_add(self.lost())
    }
}

/// Reads `per_cpu/cpuN/stats` of tracefs (`dropped events` since 3.7). Lines of other names are passed over.
pub fn parse_stats(text: &[u8]) -> Result<BufferStats, ParseError> {
    let (mut stats, mut is_whole) = (BufferStats::default(), (false, false));
    for (line_number, line) in lines(text) {
        let Some((name, value)) = labelled(line) else { continue };
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
        *place = number(value).ok_or_else(|| {
            ParseError::at_line(STATS, line_number, format!("`{}` is no number", show(value)))
        })?;
    }
    match is_whole {
        (true, true) => Ok(stats),
        _ => Err(ParseError::whole(STATS, "no `entries:` and `overrun:` in it".to_owned())),
    }
}

/// Whether `events/header_event` of tracefs says that records are what is read here.
pub fn check_header_event(text: &[u8]) -> Result<(), ParseError> {
    const KNOWN: [(&[u8], u64); 4] = [
        (b"padding", PADDING as u64),
        (b"time_extend", TIME_EXTEND as u64),
        (b"type_len", 5),
        (b"time_delta", 27),
    ];
    for (name, wanted) in KNOWN {
        let line = lines(text).find_map(|(_, line)| {
            labelled(line).filter(|(label, _)| label.trim_ascii() == name).map(|(_, rest)| rest)
        });
        let word = line.and_then(|rest| {
            let mut words = rest.split(|byte| !byte.is_ascii_digit()).filter(|word| !word.is_empty());
            number(words.next()?)
        });
        if word != Some(wanted) {
            let problem = format!("`{}` is not {wanted}", show(name));
            return Err(ParseError::whole(HEADER_EVENT, problem));
        }
    }
    Ok(())
}

impl PageLayout {
    /// Bytes of a whole page.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes as usize
    }

    /// The same with pages of another size, where a buffer's own differs from what the header says.
    pub fn with_page_bytes(self, page_bytes: u32) -> Option<PageLayout> {
        (page_bytes > self.data && page_bytes <= PAGE_MAX).then_some(PageLayout { page_bytes, ..self })
    }

    /// Reads the head of a page.
    pub fn head(&self, page: &[u8]) -> Result<(PageHead, Cursor), ParseError> {
        let wrong = |problem: &str| ParseError::whole(PAGE, format!("{problem}, {} bytes", page.len()));
        let (at, size) = (self.commit.0 as usize, self.commit.1 as usize);
        let short = || wrong("it ends in its head");
        let time_ns = page.first_chunk().map(|time| u64::from_ne_bytes(*time)).ok_or_else(short)?;
        let commit = page.get(at..at + size).ok_or_else(short)?;
        // The flags are an int that was added to a long: the upper half is the sign.
        let commit = match *commit {
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]),
            [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]) as u32,
            _ => return Err(short()),
        };
        let data = self.data as usize;
        let end = data + (commit & !(MISSED_EVENTS | MISSED_STORED)) as usize;
        if end > page.len() {
            return Err(wrong("its records end behind it"));
        }
        let stored = || {
            let bytes = page.get(end..end + size)?;
            match size {
                4 => bytes.first_chunk().map(|lost| u64::from(u32::from_ne_bytes(*lost))),
                _ => bytes.first_chunk().map(|lost| u64::from_ne_bytes(*lost)),
            }
        };
        let missed = match (commit & MISSED_EVENTS != 0, commit & MISSED_STORED != 0) {
            (false, _) => None,
            (true, false) => Some(Missed::Unknown),
            (true, true) => Some(stored().map_or(Missed::Unknown, Missed::Events)),
        };
        Ok((PageHead { time_ns, end, missed }, Cursor { at: data, end, time_ns }))
    }
}

impl Cursor {
    /// The next record of the page; `None` behind the last one. After an error nothing of the page is of
    /// use.
    #[inline]
    pub fn next(&mut self, page: &[u8]) -> Result<Option<PageRecord>, ParseError> {
        loop {
            if self.at >= self.end {
                return Ok(None);
            }
            let Some(head) = self.word(page, self.at) else { return Err(self.cut()) };
            let (kind, delta) = (head & 31, u64::from(head >> 5));
            let (from, to) = match kind {
                1..=WORDS_MAX => (self.at + 4, self.at + 4 + 4 * kind as usize),
                0 => {
                    // The length counts its own word.
                    let Some(length) = self.word(page, self.at + 4) else { return Err(self.cut()) };
                    if length < 4 {
                        return Err(self.cut());
                    }
                    (self.at + 8, self.at + 4 + (length as usize).next_multiple_of(4))
                }
                TIME_EXTEND | TIME_STAMP => {
                    let Some(more) = self.word(page, self.at + 4) else { return Err(self.cut()) };
                    let told = u64::from(more) << TIME_BITS | delta;
                    self.time_ns = match kind {
                        TIME_EXTEND => self.time_ns.wrapping_add(told),
                        _ => absolute(self.time_ns, told),
                    };
                    self.at += 8;
                    continue;
                }
                // The rest of the page.
                PADDING if delta == 0 => {
                    self.at = self.end;
                    return Ok(None);
                }
                // A record that was taken back. A distance of 1 only says that it is not the rest.
                _ => {
                    let Some(length) = self.word(page, self.at + 4) else { return Err(self.cut()) };
                    if length < 4 {
                        return Err(self.cut());
                    }
                    self.time_ns = self.time_ns.wrapping_add(if delta == 1 { 0 } else { delta });
                    self.at = self.at.saturating_add(4 + length as usize);
                    continue;
                }
            };
            if to > self.end || to > page.len() {
                return Err(self.cut());
            }
            self.time_ns = self.time_ns.wrapping_add(delta);
            self.at = to;
            return Ok(Some(PageRecord { time_ns: self.time_ns, from, to }));
        }
    }

    #[inline]
    fn word(&self, page: &[u8], at: usize) -> Option<u32> {
        let page = page.get(..self.end)?;
        page.get(at..)?.first_chunk().map(|word| u32::from_ne_bytes(*word))
    }

    #[cold]
    fn cut(&self) -> ParseError {
        ParseError::whole(PAGE, format!("the record at byte {} does not end in the page", self.at))
    }
}

/// A time of 59 bits, completed by the time before it (ring_buffer.c, `rb_fix_abs_ts`).
fn absolute(before: u64, told: u64) -> u64 {
    let above = before >> STAMP_BITS << STAMP_BITS;
    let time = told | above;
    // A step backwards of more than a moment is a carry out of the 59 bits.
    match above != 0 && time < before {
        true => time.wrapping_add(1 << STAMP_BITS),
        false => time,
    }
}

/// Any bytes as a page: each record lies in the page, behind the one before it.
pub fn fuzz(data: &[u8]) -> Result<u64, ParseError> {
    let layout = parse_header_page(USUAL)?;
    let (head, mut cursor) = layout.head(data)?;
    assert!(head.end <= data.len());
    let (mut records, mut behind) = (0, layout.data as usize);
    while let Some(record) = cursor.next(data)? {
        assert!(record.from >= behind && record.from <= record.to && record.to <= head.end);
        assert_eq!(record.of(data).len(), record.to - record.from);
        behind = record.to;
        records += 1;
    }
    Ok(records)
}

/// `events/header_page` of a machine with pages of 4 KiB, Linux 6.18 on x86-64.
const USUAL: &[u8] = b"\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
    \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
    \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
    \tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n";

#[cfg(test)]
mod tests;
