//! The records of a file's data, or of a pipe, one after the other, with what is packed in them.

use super::record::{Decoder, HEADER};
use super::{About, Attr, Event, FORMAT, Input, Queue, Tally, Unpack, at};
use crate::ParseError;

/// Kinds of records that perf itself writes (tools/lib/perf/include/perf/event.h).
mod kinds {
    pub const AUX: u32 = 11;
    pub const HEADER_ATTR: u32 = 64;
    pub const HEADER_TRACING_DATA: u32 = 66;
    pub const FINISHED_ROUND: u32 = 68;
    pub const AUXTRACE_INFO: u32 = 70;
    pub const AUXTRACE: u32 = 71;
    pub const EVENT_UPDATE: u32 = 78;
    pub const HEADER_FEATURE: u32 = 80;
    pub const COMPRESSED: u32 = 81;
    pub const COMPRESSED2: u32 = 83;
}

/// Bytes that are read at once; more than a record can have.
const PIECE: usize = 128 << 10;
/// Bytes that are unpacked at once.
const UNPACKED_PIECE: usize = 64 << 10;
/// Events of one file, and numbers of one event, at most: as many as there are CPUs.
const EVENTS_MAX: usize = 1 << 13;

/// Bytes of the input that are read once, in order.
struct Pieces<'a> {
    input: &'a mut dyn Input,
    buffer: Vec<u8>,
    /// Offset of the buffer's first byte.
    base: u64,
    /// Where the next record begins in the buffer.
    next: usize,
    /// Where the data end, if it is told.
    end: Option<u64>,
    ended: bool,
}

impl Pieces<'_> {
    fn offset(&self) -> u64 {
        self.base + self.next as u64
    }

    /// Sees to it that `bytes` of the next record are there; how many there are.
    fn want(&mut self, bytes: usize) -> Result<usize, ParseError> {
        let there = self.buffer.len() - self.next;
        if there >= bytes || self.ended {
            return Ok(there);
        }
        self.buffer.drain(..self.next);
        self.base += self.next as u64;
        self.next = 0;
        while self.buffer.len() < bytes && !self.ended {
            let from = self.base + self.buffer.len() as u64;
            let left =
                self.end.map_or(PIECE as u64, |end| end.saturating_sub(from)).min(PIECE as u64) as usize;
            let old = self.buffer.len();
            self.buffer.resize(old + left, 0);
            let read =
                self.input.read_at(from, &mut self.buffer[old..]).map_err(|problem| at(from, problem))?;
            self.buffer.truncate(old + read.min(left));
            self.ended = read == 0;
        }
        Ok(self.buffer.len())
    }

    /// Passes over bytes behind a record, which must be there.
    fn skip(&mut self, mut bytes: u64) -> Result<(), ParseError> {
        while bytes > 0 {
            let there = self.want(1)? as u64;
            if there == 0 {
                return Err(at(self.offset(), format!("{bytes} bytes are missing at the end")));
            }
            let step = there.min(bytes);
            self.next += step as usize;
            bytes -= step;
        }
        Ok(())
    }
}

/// Reading goes on here.
pub(super) struct Session<'a, 'u> {
    pub(super) about: About,
    pub(super) decoder: Decoder,
    pub(super) tally: Tally,
    queue: Queue,
    unpack: &'a mut Unpack<'u>,
    /// Unpacked bytes of a record whose rest is in the next packed one.
    unpacked: Vec<u8>,
    visit: &'a mut dyn FnMut(&About, Event),
}

impl<'a, 'u> Session<'a, 'u> {
    pub(super) fn new(
        decoder: Decoder,
        about: About,
        unpack: &'a mut Unpack<'u>,
        visit: &'a mut dyn FnMut(&About, Event),
    ) -> Session<'a, 'u> {
        let (tally, queue, unpacked) = (Tally::default(), Queue::default(), Vec::new());
        Session { about, decoder, tally, queue, unpack, unpacked, visit }
    }

    /// Reads all records from `start` up to `end`, or up to the end of the input.
    pub(super) fn run(
        &mut self,
        input: &mut dyn Input,
        start: u64,
        end: Option<u64>,
    ) -> Result<(), ParseError> {
        let mut pieces = Pieces { input, buffer: Vec::new(), base: start, next: 0, end, ended: false };
        loop {
            let there = pieces.want(HEADER)?;
            if there < HEADER {
                break self.end(&pieces, there)?;
            }
            let offset = pieces.offset();
            let endian = self.decoder.endian();
            let head = &pieces.buffer[pieces.next..];
            let kind = endian.u32(head, 0).unwrap_or(0);
            let size = usize::from(endian.u16(head, 6).unwrap_or(0));
            let size = if size == 0 && kind == kinds::COMPRESSED2 { self.long(&mut pieces)? } else { size };
            if size < HEADER {
                return Err(at(offset, format!("a record of {size} bytes, which none can have")));
            }
            let there = pieces.want(size)?;
            if there < size {
                break self.end(&pieces, there)?;
            }
            let record = &pieces.buffer[pieces.next..pieces.next + size];
            let behind = self.record(record, kind, offset)?;
            pieces.next += size;
            pieces.skip(behind)?;
        }
        if !self.unpacked.is_empty() && !self.tally.unfinished {
            return Err(at(pieces.offset(), "the last packed record ends within a record"));
        }
        let Session { queue, about, visit, tally, .. } = self;
        queue.finish(&mut |event| visit(about, event));
        tally.late = queue.late();
        Ok(())
    }

    /// The input ended with so many bytes of a record left.
    fn end(&mut self, pieces: &Pieces<'_>, left: usize) -> Result<(), ParseError> {
        let offset = pieces.offset();
        let short = pieces.end.map_or(left > 0, |end| offset + left as u64 != end || left > 0);
        if short && !self.tally.unfinished {
            let missing = "the file ends here, within its records: it was cut off, or perf was killed";
            return Err(at(offset + left as u64, missing));
        }
        Ok(())
    }

    /// A packed record of 64 KiB, whose length does not fit into its header: perf 6.16 writes 0 there.
    fn long(&self, pieces: &mut Pieces<'_>) -> Result<usize, ParseError> {
        pieces.want(HEADER + 8)?;
        let bytes = self.decoder.endian().u64(&pieces.buffer[pieces.next..], HEADER).unwrap_or(0);
        let size = bytes.saturating_add(HEADER as u64 + 8).next_multiple_of(8);
        let fits = size > u64::from(u16::MAX) && size <= u64::from(u16::MAX) + 9;
        if fits { Ok(size as usize) } else { Ok(0) }
    }

    /// Takes one record in, and says how many bytes follow behind it that are no records.
    fn record(&mut self, record: &[u8], kind: u32, offset: u64) -> Result<u64, ParseError> {
        let endian = self.decoder.endian();
        match kind {
            kinds::COMPRESSED => self.packed(record.get(HEADER..).unwrap_or_default(), offset)?,
            kinds::COMPRESSED2 => {
                let bytes = endian.u64(record, HEADER).and_then(|bytes| usize::try_from(bytes).ok());
                let data = bytes.and_then(|bytes| record.get(HEADER + 8..)?.get(..bytes));
                let data = data.ok_or_else(|| at(offset, "a packed record that says it is longer"))?;
                self.packed(data, offset)?;
            }
            kinds::AUXTRACE => return endian.u64(record, HEADER).ok_or_else(|| short(offset)),
            kinds::HEADER_TRACING_DATA => {
                let bytes = endian.u32(record, HEADER).ok_or_else(|| short(offset))?;
                return Ok(u64::from(bytes).next_multiple_of(8));
            }
            _ => self.plain(record, kind, offset)?,
        }
        Ok(0)
    }

    /// A record that may also come out of a packed one.
    fn plain(&mut self, record: &[u8], kind: u32, offset: u64) -> Result<(), ParseError> {
        self.tally.records += 1;
        let Session { queue, about, visit, .. } = self;
        let mut out = |event| visit(about, event);
        match kind {
            kinds::FINISHED_ROUND => queue.round(&mut out),
            kinds::HEADER_ATTR => self.attr(record, offset)?,
            kinds::HEADER_FEATURE => self.feature(record, offset)?,
            kinds::EVENT_UPDATE => self.update(record),
            kinds::AUXTRACE_INFO => self.trace(record),
            kinds::AUX => self.aux(record, offset)?,
            kind if kind >= 64 => {}
            kind => match self.decoder.decode(record, offset)? {
                Some((time, event)) => self.queue.push(time, event, &mut out),
                None => self.tally.strange += u64::from(kind == 9),
            },
        }
        Ok(())
    }

    fn attr(&mut self, record: &[u8], offset: u64) -> Result<(), ParseError> {
        let endian = self.decoder.endian();
        let body = record.get(HEADER..).unwrap_or_default();
        let attr = Attr::parse(body, endian).ok_or_else(|| short(offset))?;
        let attr_bytes = endian.u32(body, 4).unwrap_or(0) as usize;
        let ids = body.get(attr_bytes..).unwrap_or_default();
        if self.about.events.len() >= EVENTS_MAX {
            return Err(at(offset, format!("more than {EVENTS_MAX} events")));
        }
        self.decoder.add(attr, (0..ids.len() / 8).filter_map(|place| endian.u64(ids, 8 * place)));
        self.about.events.push(super::EventAbout { name: String::new(), attr });
        Ok(())
    }

    fn feature(&mut self, record: &[u8], offset: u64) -> Result<(), ParseError> {
        let endian = self.decoder.endian();
        let feature = endian.u64(record, HEADER).ok_or_else(|| short(offset))?;
        let body = record.get(HEADER + 8..).unwrap_or_default();
        self.about.take(feature, body, endian).ok_or_else(|| at(offset, cut_feature(feature)))
    }

    /// A new name of an event: kind 2, number, text (`struct perf_record_event_update`).
    fn update(&mut self, record: &[u8]) {
        const NAME: u64 = 2;
        let endian = self.decoder.endian();
        let of = || {
            let id = endian.u64(record, HEADER + 8)?;
            (endian.u64(record, HEADER)? == NAME).then_some(())?;
            self.decoder.event_of_id(id)
        };
        let Some(event) = of().and_then(|event| self.about.events.get_mut(event)) else { return };
        let text = record.get(HEADER + 16..).unwrap_or_default();
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        event.name = String::from_utf8_lossy(&text[..end]).into_owned();
    }

    /// `enum auxtrace_type` (tools/perf/util/auxtrace.h).
    fn trace(&mut self, record: &[u8]) {
        const TRACES: [&str; 7] =
            ["auxiliary", "intel_pt", "intel_bts", "cs_etm", "arm_spe", "s390_cpumsf", "hisi_ptt"];
        let kind = self.decoder.endian().u32(record, HEADER).unwrap_or(0) as usize;
        let name = TRACES.get(kind).copied().unwrap_or(TRACES[0]);
        if !self.tally.undecoded.contains(&name) {
            self.tally.undecoded.push(name);
        }
    }

    /// A part of an auxiliary trace was lost if bit 0 of its flags is set.
    fn aux(&mut self, record: &[u8], offset: u64) -> Result<(), ParseError> {
        let flags = self.decoder.endian().u64(record, HEADER + 16).ok_or_else(|| short(offset))?;
        if flags & 1 != 0 {
            let Session { queue, about, visit, .. } = self;
            queue.push(0, Event::LostSamples { samples: 1 }, &mut |event| visit(about, event));
        }
        Ok(())
    }

    /// Unpacks a part of the zstd stream, and takes the records in that are whole by now.
    fn packed(&mut self, mut packed: &[u8], offset: u64) -> Result<(), ParseError> {
        let endian = self.decoder.endian();
        loop {
            let old = self.unpacked.len();
            self.unpacked.resize(old + UNPACKED_PIECE, 0);
            let done = (self.unpack)(packed, &mut self.unpacked[old..]);
            let (taken, made) = done.map_err(|problem| at(offset, problem))?;
            self.unpacked.truncate(old + made.min(UNPACKED_PIECE));
            packed = packed.get(taken..).unwrap_or_default();
            let unpacked = std::mem::take(&mut self.unpacked);
            let mut rest = &unpacked[..];
            while let Some(size) = endian.u16(rest, 6).map(usize::from) {
                let kind = endian.u32(rest, 0).unwrap_or(0);
                let carries = [kinds::COMPRESSED, kinds::COMPRESSED2, kinds::AUXTRACE].contains(&kind);
                if size < HEADER || carries || kind == kinds::HEADER_TRACING_DATA {
                    return Err(at(offset, format!("a packed record of kind {kind} and {size} bytes")));
                }
                let Some((record, behind)) = rest.split_at_checked(size) else { break };
                self.plain(record, kind, offset)?;
                rest = behind;
            }
            self.unpacked = rest.to_vec();
            match (packed.is_empty(), taken, made) {
                // Full room: there may be more.
                (true, _, UNPACKED_PIECE) => {}
                (true, ..) => return Ok(()),
                (false, 0, 0) => {
                    return Err(at(offset, format!("a {FORMAT} record that cannot be unpacked")));
                }
                (false, ..) => {}
            }
        }
    }
}

fn short(offset: u64) -> ParseError {
    at(offset, "a record that is too short for its kind")
}

pub(super) fn cut_feature(feature: u64) -> String {
    format!("what the file tells about the machine (feature {feature}) is cut off")
}
