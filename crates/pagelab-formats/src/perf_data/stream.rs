//! Records of a perf file or pipe, one after the other, with compressed records decompressed.

use super::record::{Decoder, HEADER_BYTES};
use super::{
    Decompress, Endian, Event, EventInfo, FORMAT, FileInfo, Input, PerfEventAttr, ReadSummary, error_at,
};
use crate::ParseError;
use crate::text::text_to_nul;

/// Kinds of records that perf itself writes (tools/lib/perf/include/perf/event.h).
mod record_type {
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

/// Bytes read at once; more than the maximum of a record.
const READ_BYTES: usize = 128 << 10;
const DECOMPRESSED_CHUNK_BYTES: usize = 64 << 10;
/// Maximum number of events of one file, and of ids of one event: one for each CPU.
const EVENTS_MAX: usize = 1 << 13;

/// Bytes of the input that are read once, in order.
struct BufferedInput<'a> {
    input: &'a mut dyn Input,
    buffer: Vec<u8>,
    buffer_offset: u64,
    /// Where the next record begins in the buffer.
    next: usize,
    /// End of the data, if known.
    end: Option<u64>,
    is_at_end: bool,
}

impl BufferedInput<'_> {
    fn offset(&self) -> u64 {
        self.buffer_offset + self.next as u64
    }

    /// Fills the buffer to `bytes` of the next record, and returns the number available.
    fn fill_to(&mut self, bytes: usize) -> Result<usize, ParseError> {
        let available = self.buffer.len() - self.next;
        if available >= bytes || self.is_at_end {
            return Ok(available);
        }
        self.buffer.drain(..self.next);
        self.buffer_offset += self.next as u64;
        self.next = 0;
        while self.buffer.len() < bytes && !self.is_at_end {
            let from = self.buffer_offset + self.buffer.len() as u64;
            let left =
                self.end.map_or(u64::MAX, |end| end.saturating_sub(from)).min(READ_BYTES as u64) as usize;
            let old = self.buffer.len();
            self.buffer.resize(old + left, 0);
            let read = self.input.read_at(from, &mut self.buffer[old..]);
            let read = read.map_err(|problem| error_at(from, problem))?;
            self.buffer.truncate(old + read.min(left));
            self.is_at_end = read == 0;
        }
        Ok(self.buffer.len())
    }

    /// Skips bytes after a record, which must exist.
    fn skip(&mut self, mut bytes: u64) -> Result<(), ParseError> {
        while bytes > 0 {
            let there = self.fill_to(1)? as u64;
            if there == 0 {
                return Err(error_at(
                    self.offset(),
                    format!("truncated: {bytes} bytes are missing at the end"),
                ));
            }
            let step = there.min(bytes);
            self.next += step as usize;
            bytes -= step;
        }
        Ok(())
    }
}

/// Reading continues here.
pub(super) struct ReadSession<'a, 'u> {
    pub(super) info: FileInfo,
    pub(super) decoder: Decoder,
    pub(super) summary: ReadSummary,
    queue: EventQueue,
    decompress: &'a mut Decompress<'u>,
    /// Decompressed bytes of a record whose rest is in the next compressed one.
    decompressed: Vec<u8>,
    visit: &'a mut dyn FnMut(&FileInfo, Event),
}

impl<'a, 'u> ReadSession<'a, 'u> {
    pub(super) fn new(
        endian: Endian,
        decompress: &'a mut Decompress<'u>,
        visit: &'a mut dyn FnMut(&FileInfo, Event),
    ) -> ReadSession<'a, 'u> {
        let (decoder, info, summary) = (Decoder::new(endian), FileInfo::default(), ReadSummary::default());
        let (queue, decompressed) = (EventQueue::default(), Vec::new());
        ReadSession { info, decoder, summary, queue, decompress, decompressed, visit }
    }

    /// One more event, with its numbers: words of 8 bytes.
    pub(super) fn add_event(&mut self, attr: PerfEventAttr, ids: &[u8]) {
        let endian = self.decoder.endian();
        self.decoder.add_event(attr, (0..ids.len() / 8).filter_map(|place| endian.u64(ids, 8 * place)));
        self.info.events.push(EventInfo { name: String::new(), attr });
    }

    /// Reads all records from `start` up to `end`, or up to the end of the input.
    pub(super) fn read_records(
        &mut self,
        input: &mut dyn Input,
        start: u64,
        end: Option<u64>,
    ) -> Result<(), ParseError> {
        let mut buffered =
            BufferedInput { input, buffer: Vec::new(), buffer_offset: start, next: 0, end, is_at_end: false };
        loop {
            let available = buffered.fill_to(HEADER_BYTES)?;
            if available < HEADER_BYTES {
                break self.check_end(&buffered, available)?;
            }
            let offset = buffered.offset();
            let endian = self.decoder.endian();
            let head = &buffered.buffer[buffered.next..];
            let kind = endian.u32(head, 0).unwrap_or(0);
            let size = usize::from(endian.u16(head, 6).unwrap_or(0));
            let size = match size == 0 && kind == record_type::COMPRESSED2 {
                true => self.long_record_size(&mut buffered)?,
                false => size,
            };
            if size < HEADER_BYTES {
                return Err(error_at(offset, format!("invalid record size of {size} bytes")));
            }
            let there = buffered.fill_to(size)?;
            if there < size {
                break self.check_end(&buffered, there)?;
            }
            let record = &buffered.buffer[buffered.next..buffered.next + size];
            let behind = self.handle_record(record, kind, offset)?;
            buffered.next += size;
            buffered.skip(behind)?;
        }
        if !self.decompressed.is_empty() && !self.summary.is_unfinished {
            return Err(error_at(
                buffered.offset(),
                "the last compressed record ends in the middle of a record",
            ));
        }
        let ReadSession { queue, info: about, visit, summary: tally, .. } = self;
        queue.finish(&mut |event| visit(about, event));
        tally.late_events = queue.late_events();
        Ok(())
    }

    /// The input ended inside a record, with this number of bytes left.
    fn check_end(&mut self, buffered: &BufferedInput<'_>, left: usize) -> Result<(), ParseError> {
        let offset = buffered.offset();
        let short = buffered.end.map_or(left > 0, |end| offset + left as u64 != end || left > 0);
        if short && !self.summary.is_unfinished {
            let missing = "the data section ends early: the file is truncated, or perf was killed";
            return Err(error_at(offset + left as u64, missing));
        }
        Ok(())
    }

    /// A compressed record of 64 KiB, whose length does not fit into its header: perf 6.16 writes 0 there.
    fn long_record_size(&self, buffered: &mut BufferedInput<'_>) -> Result<usize, ParseError> {
        buffered.fill_to(HEADER_BYTES + 8)?;
        let bytes = self.decoder.endian().u64(&buffered.buffer[buffered.next..], HEADER_BYTES).unwrap_or(0);
        let size = bytes.saturating_add(HEADER_BYTES as u64 + 8).next_multiple_of(8);
        let fits = size > u64::from(u16::MAX) && size <= u64::from(u16::MAX) + 9;
        Ok(if fits { size as usize } else { 0 })
    }

    /// Reads one record, and returns the number of bytes after it that are no records.
    fn handle_record(&mut self, record: &[u8], kind: u32, offset: u64) -> Result<u64, ParseError> {
        let endian = self.decoder.endian();
        match kind {
            record_type::COMPRESSED => {
                self.handle_compressed(record.get(HEADER_BYTES..).unwrap_or_default(), offset)?
            }
            record_type::COMPRESSED2 => {
                let bytes = endian.u64(record, HEADER_BYTES).and_then(|bytes| usize::try_from(bytes).ok());
                let data = bytes.and_then(|bytes| record.get(HEADER_BYTES + 8..)?.get(..bytes));
                let data =
                    data.ok_or_else(|| error_at(offset, "compressed record with an invalid length"))?;
                self.handle_compressed(data, offset)?;
            }
            record_type::AUXTRACE => {
                return endian.u64(record, HEADER_BYTES).ok_or_else(|| truncated_error(offset));
            }
            record_type::HEADER_TRACING_DATA => {
                let bytes = endian.u32(record, HEADER_BYTES).ok_or_else(|| truncated_error(offset))?;
                return Ok(u64::from(bytes).next_multiple_of(8));
            }
            _ => self.handle_plain_record(record, kind, offset)?,
        }
        Ok(0)
    }

    /// A record that may also be inside a compressed one.
    fn handle_plain_record(&mut self, record: &[u8], kind: u32, offset: u64) -> Result<(), ParseError> {
        self.summary.records += 1;
        let ReadSession { queue, info: about, visit, .. } = self;
        let mut out = |event| visit(about, event);
        match kind {
            record_type::FINISHED_ROUND => queue.end_round(&mut out),
            record_type::HEADER_ATTR => self.handle_attr(record, offset)?,
            record_type::HEADER_FEATURE => self.handle_feature(record, offset)?,
            record_type::EVENT_UPDATE => self.handle_event_update(record),
            record_type::AUXTRACE_INFO => self.note_auxtrace(record),
            record_type::AUX => self.handle_aux(record, offset)?,
            kind if kind >= 64 => {}
            kind => match self.decoder.decode(record, offset)? {
                Some((time, event)) => self.queue.push(time, event, &mut out),
                None => self.summary.unknown_samples += u64::from(kind == 9),
            },
        }
        Ok(())
    }

    fn handle_attr(&mut self, record: &[u8], offset: u64) -> Result<(), ParseError> {
        let endian = self.decoder.endian();
        let body = record.get(HEADER_BYTES..).unwrap_or_default();
        let attr = PerfEventAttr::parse(body, endian).ok_or_else(|| truncated_error(offset))?;
        let attr_bytes = endian.u32(body, 4).unwrap_or(0) as usize;
        let ids = body.get(attr_bytes..).unwrap_or_default();
        if self.info.events.len() >= EVENTS_MAX {
            return Err(error_at(offset, format!("more than {EVENTS_MAX} events")));
        }
        self.add_event(attr, ids);
        Ok(())
    }

    fn handle_feature(&mut self, record: &[u8], offset: u64) -> Result<(), ParseError> {
        let endian = self.decoder.endian();
        let feature = endian.u64(record, HEADER_BYTES).ok_or_else(|| truncated_error(offset))?;
        let body = record.get(HEADER_BYTES + 8..).unwrap_or_default();
        let added = self.info.add_feature(feature, body, endian);
        added.ok_or_else(|| error_at(offset, truncated_feature(feature)))
    }

    /// A new name of an event: kind 2, number, text (`struct perf_record_event_update`).
    fn handle_event_update(&mut self, record: &[u8]) {
        const NAME: u64 = 2;
        let endian = self.decoder.endian();
        let of = || {
            let id = endian.u64(record, HEADER_BYTES + 8)?;
            (endian.u64(record, HEADER_BYTES)? == NAME).then_some(())?;
            self.decoder.find_event(id)
        };
        let Some(event) = of().and_then(|event| self.info.events.get_mut(event)) else { return };
        event.name = text_to_nul(record.get(HEADER_BYTES + 16..).unwrap_or_default());
    }

    /// `enum auxtrace_type` (tools/perf/util/auxtrace.h).
    fn note_auxtrace(&mut self, record: &[u8]) {
        const TRACES: [&str; 7] =
            ["auxiliary", "intel_pt", "intel_bts", "cs_etm", "arm_spe", "s390_cpumsf", "hisi_ptt"];
        let kind = self.decoder.endian().u32(record, HEADER_BYTES).unwrap_or(0) as usize;
        let name = TRACES.get(kind).copied().unwrap_or(TRACES[0]);
        if !self.summary.undecoded.contains(&name) {
            self.summary.undecoded.push(name);
        }
    }

    /// A part of an auxiliary trace was lost if bit 0 of its flags is set.
    fn handle_aux(&mut self, record: &[u8], offset: u64) -> Result<(), ParseError> {
        let flags =
            self.decoder.endian().u64(record, HEADER_BYTES + 16).ok_or_else(|| truncated_error(offset))?;
        if flags & 1 != 0 {
            let ReadSession { queue, info: about, visit, .. } = self;
            queue.push(0, Event::LostSamples { samples: 1 }, &mut |event| visit(about, event));
        }
        Ok(())
    }

    /// Decompresses a part of the zstd stream, and reads the complete records.
    fn handle_compressed(&mut self, mut compressed: &[u8], offset: u64) -> Result<(), ParseError> {
        let endian = self.decoder.endian();
        loop {
            let old = self.decompressed.len();
            self.decompressed.resize(old + DECOMPRESSED_CHUNK_BYTES, 0);
            let done = (self.decompress)(compressed, &mut self.decompressed[old..]);
            let (bytes_consumed, bytes_produced) = done.map_err(|problem| error_at(offset, problem))?;
            self.decompressed.truncate(old + bytes_produced.min(DECOMPRESSED_CHUNK_BYTES));
            compressed = compressed.get(bytes_consumed..).unwrap_or_default();
            let unpacked = std::mem::take(&mut self.decompressed);
            let mut rest = &unpacked[..];
            while let Some(size) = endian.u16(rest, 6).map(usize::from) {
                let kind = endian.u32(rest, 0).unwrap_or(0);
                let carries = [record_type::COMPRESSED, record_type::COMPRESSED2, record_type::AUXTRACE]
                    .contains(&kind);
                if size < HEADER_BYTES || carries || kind == record_type::HEADER_TRACING_DATA {
                    return Err(error_at(
                        offset,
                        format!("invalid record in compressed data: type {kind}, {size} bytes"),
                    ));
                }
                let Some((record, behind)) = rest.split_at_checked(size) else { break };
                self.handle_plain_record(record, kind, offset)?;
                rest = behind;
            }
            self.decompressed = rest.to_vec();
            match (compressed.is_empty(), bytes_consumed, bytes_produced) {
                // The output is full: there may be more.
                (true, _, DECOMPRESSED_CHUNK_BYTES) => {}
                (true, ..) => return Ok(()),
                (false, 0, 0) => {
                    return Err(error_at(offset, format!("corrupt {FORMAT} record: decompression failed")));
                }
                (false, ..) => {}
            }
        }
    }
}

fn truncated_error(offset: u64) -> ParseError {
    error_at(offset, "record too short for its type")
}

pub(super) fn truncated_feature(feature: u64) -> String {
    format!("the machine description (feature {feature}) is truncated")
}

// Queue of events in time order.
//
// Each CPU's ring is in order, and perf writes one ring after the other in rounds. At the end of a round it
// writes a mark; events older than all those of the previous round can then be released
// (tools/perf/util/ordered-events.c). If no mark comes for long, the older half is released, so that memory
// stays bounded; events that arrive after their time was released are counted.

/// Maximum number of held events: about 300 MB.
const QUEUED_MAX: usize = 2 << 20;

/// Events held until no older one can arrive.
#[derive(Debug, Default)]
pub struct EventQueue {
    /// With their time.
    queued: Vec<(u64, Event)>,
    latest_time: u64,
    /// Latest time of the last round: events up to it may be released at the next mark.
    round_time: u64,
    last_released_time: u64,
    late_events: u64,
}

impl EventQueue {
    /// Adds an event. Those without a time, 0, came before all others or have no order; they are released at
    /// once while nothing is held.
    pub fn push(&mut self, time: u64, event: Event, out: &mut dyn FnMut(Event)) {
        if time == 0 && self.queued.is_empty() {
            return out(event);
        }
        self.late_events += u64::from(time != 0 && time < self.last_released_time);
        self.latest_time = self.latest_time.max(time);
        self.queued.push((time, event));
        if self.queued.len() >= QUEUED_MAX {
            self.queued.sort_by_key(|(time, _)| *time);
            let middle = self.queued[QUEUED_MAX / 2].0;
            self.release_until(middle, out);
        }
    }

    /// A round ended.
    pub fn end_round(&mut self, out: &mut dyn FnMut(Event)) {
        self.release_until(self.round_time, out);
        self.round_time = self.latest_time;
    }

    /// End of input: all events are released.
    pub fn finish(&mut self, out: &mut dyn FnMut(Event)) {
        self.release_until(u64::MAX, out);
    }

    /// Events that arrived too late for their place.
    pub fn late_events(&self) -> u64 {
        self.late_events
    }

    fn release_until(&mut self, until_time: u64, out: &mut dyn FnMut(Event)) {
        // Equal times keep the order of the file.
        self.queued.sort_by_key(|(time, _)| *time);
        let count = self.queued.partition_point(|(time, _)| *time <= until_time);
        for (time, event) in self.queued.drain(..count) {
            self.last_released_time = self.last_released_time.max(time);
            out(event);
        }
    }
}
