//! Traces of the page allocator in a run file: blocks of events, and the initial state of memory.
//!
//! | kind of blob | contents |
//! |---|---|
//! | `trace_head` | `TraceHeader` as JSON; makes the file a trace |
//! | `trace_runs` | a piece of the snapshot (`pagelab_formats::alloc_trace::encode_runs`) |
//! | `trace_events` | a block of events (`pagelab_formats::alloc_trace::RangeEncoder`); its name is their number |
//! | `trace_samples` | some `FreeAreasSample`s as a JSON array |
//! | `trace_losses` | some `LostEvents`es as a JSON array |
//! | `trace_threads` | all threads as an array of `TraceThread`s; missing if the writer was killed |
//! | `trace_end` | `TraceSummary` as JSON; missing if the writer was killed |
//!
//! Every blob is one zstd frame with a checksum. The file of a killed writer has every committed blob:
//! complete blocks, and no part of one.

mod reader;

use pagelab_formats::alloc_trace::{self, BLOCK_EVENTS_MAX, DEFAULT_SHIFT, RUNS_MAX};
use pagelab_model::alloc_trace::{
    FrameRun, FreeAreasSample, LostEvents, TraceEvent, TraceHeader, TraceSummary, TraceThread,
};

use crate::blob::{self, BlobKind};
use crate::error::{Error, ErrorKind};
use crate::writer::RunWriter;

pub use reader::{TraceBlock, TraceDecoder, TraceReader};

/// The version of all blobs of a trace. Version 1 has earlier names in its head and its end.
pub(crate) const TRACE_VERSION: u32 = 2;

pub(crate) const HEADER_KIND: BlobKind =
    BlobKind::new("trace_head", TRACE_VERSION, 16 << 20, "the trace header");

pub(crate) const SAMPLES_KIND: BlobKind =
    BlobKind::new("trace_samples", TRACE_VERSION, 64 << 20, "samples of free memory");

pub(crate) const LOSSES_KIND: BlobKind =
    BlobKind::new("trace_losses", TRACE_VERSION, 64 << 20, "lost events of the trace");

pub(crate) const THREADS_KIND: BlobKind =
    BlobKind::new("trace_threads", TRACE_VERSION, 16 << 20, "thread names of the trace");

pub(crate) const END_KIND: BlobKind =
    BlobKind::new("trace_end", TRACE_VERSION, 1 << 20, "the end of the trace");

/// Kinds that are no JSON.
pub(crate) const RUNS_KIND: &str = "trace_runs";
pub(crate) const EVENTS_KIND: &str = "trace_events";

/// Compression level of a block. Level 3 saves some 4 % for twice the time.
const ZSTD_LEVEL: i32 = 1;

/// Whether a blob is of a trace, in a version that is known.
pub(crate) fn is_trace_blob(kind: &str, version: u32) -> bool {
    let kinds = [
        HEADER_KIND.name,
        SAMPLES_KIND.name,
        LOSSES_KIND.name,
        THREADS_KIND.name,
        END_KIND.name,
        RUNS_KIND,
        EVENTS_KIND,
    ];
    kinds.contains(&kind) && version <= TRACE_VERSION
}

/// Encodes the events of a trace, apart from the writer. Keeps its memory from block to block.
pub struct TraceEncoder {
    encoder: alloc_trace::Encoder,
    compressor: zstd::bulk::Compressor<'static>,
    raw_buffer: Vec<u8>,
}

/// A block as it is stored.
#[derive(Clone, Debug)]
pub struct EncodedTraceBlock {
    at_ns: u64,
    event_count: usize,
    packed: Vec<u8>,
    raw_bytes: u64,
}

impl EncodedTraceBlock {
    /// Bytes that it takes in a file.
    pub fn packed_bytes(&self) -> u64 {
        self.packed.len() as u64
    }
}

impl TraceEncoder {
    /// The time as a reader of the file sees it.
    pub fn stored_ns(&self, at_ns: u64) -> u64 {
        self.encoder.stored_ns(at_ns)
    }

    /// An encoder; the error is that of zstd, which had no memory.
    pub fn new() -> Result<TraceEncoder, Error> {
        let compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL).and_then(|mut compressor| {
            compressor.include_checksum(true)?;
            Ok(compressor)
        });
        let compressor = compressor.map_err(|error| zstd_error(&error))?;
        let encoder = alloc_trace::Encoder::new(DEFAULT_SHIFT);
        Ok(TraceEncoder { encoder, compressor, raw_buffer: Vec::new() })
    }

    /// A block of up to [`BLOCK_EVENTS_MAX`] events, whose times do not go back; it takes some 100 ns an
    /// event.
    pub fn encode_block(&mut self, events: &[TraceEvent]) -> Result<EncodedTraceBlock, Error> {
        if events.len() > BLOCK_EVENTS_MAX {
            let problem = format!("{} events are too many for a block", events.len());
            return Err(Error::new(ErrorKind::NotStorable, problem));
        }
        self.raw_buffer.clear();
        self.encoder.encode(events, &mut self.raw_buffer);
        let packed = self.compressor.compress(&self.raw_buffer).map_err(|error| zstd_error(&error))?;
        let at_ns = events.first().map_or(0, |event| event.time_ns);
        let (event_count, raw_bytes) = (events.len(), self.raw_buffer.len() as u64);
        Ok(EncodedTraceBlock { at_ns, event_count, packed, raw_bytes })
    }
}

fn zstd_error(error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot compress a trace: {error}"))
}

impl RunWriter {
    /// Stores the description of the machine: once, before any event.
    pub fn add_trace_header(&mut self, head: &TraceHeader) -> Result<(), Error> {
        self.add_json_record(&HEADER_KIND, "", 0, head)
    }

    /// Stores the threads that have events: once, after all events. Without any nothing is stored.
    pub fn add_trace_threads(&mut self, at_ns: u64, threads: &[TraceThread]) -> Result<(), Error> {
        if threads.is_empty() { Ok(()) } else { self.add_json_record(&THREADS_KIND, "", at_ns, &threads) }
    }

    /// Stores the result of the recording: once, after all events.
    pub fn add_trace_summary(&mut self, at_ns: u64, end: &TraceSummary) -> Result<(), Error> {
        self.add_json_record(&END_KIND, "", at_ns, end)
    }

    /// Stores runs of frames as a scan found them, ascending; several calls make one snapshot.
    pub fn add_trace_runs(&mut self, runs: &[FrameRun]) -> Result<(), Error> {
        for piece in runs.chunks(RUNS_MAX) {
            let mut raw = Vec::new();
            alloc_trace::encode_runs(piece, &mut raw);
            let packed = blob::pack_blob(|out| out.write_all(&raw));
            let (packed, raw_bytes) = packed
                .map_err(|error| self.unstorable_error(format_args!("the snapshot of the trace: {error}")))?;
            let at_ns = piece.first().map_or(0, |run| run.read_ns);
            self.add_packed_blob(
                RUNS_KIND,
                TRACE_VERSION,
                &piece.len().to_string(),
                at_ns,
                packed,
                raw_bytes,
            )?;
        }
        Ok(())
    }

    /// Stores a block of events. Blocks follow each other in time.
    pub fn add_trace_block(&mut self, block: EncodedTraceBlock) -> Result<(), Error> {
        let EncodedTraceBlock { at_ns, event_count: events, packed, raw_bytes } = block;
        self.add_packed_blob(EVENTS_KIND, TRACE_VERSION, &events.to_string(), at_ns, packed, raw_bytes)
    }

    /// Stores some readings of free memory, in the order of time.
    pub fn add_trace_samples(&mut self, samples: &[FreeAreasSample]) -> Result<(), Error> {
        let Some(first) = samples.first() else { return Ok(()) };
        self.add_json_record(&SAMPLES_KIND, "", first.at_ns, &samples)
    }

    /// Stores some losses, in the order of their reports.
    pub fn add_trace_losses(&mut self, losses: &[LostEvents]) -> Result<(), Error> {
        let Some(first) = losses.first() else { return Ok(()) };
        self.add_json_record(&LOSSES_KIND, "", first.at_ns, &losses)
    }
}
