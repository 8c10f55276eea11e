//! Traces of the page allocator in a run file: blocks of events, and what they began with.
//!
//! | kind of blob | contents |
//! |---|---|
//! | `trace_head` | `TraceHead` as JSON; makes the file a trace |
//! | `trace_runs` | a piece of the snapshot (`pagelab_formats::alloc_trace::encode_runs`) |
//! | `trace_events` | a block of events (`pagelab_formats::alloc_trace::Encoder`); its name is their number |
//! | `trace_samples` | some `TraceSample`s as a JSON array |
//! | `trace_losses` | some `TraceLoss`es as a JSON array |
//! | `trace_threads` | all threads as an array of `TraceThread`s; missing where the writer was killed |
//! | `trace_end` | `TraceEnd` as JSON; missing where the writer was killed |
//!
//! Every blob is one zstd frame with a checksum. A file that was cut short by the death of its writer has
//! every blob that was committed: whole blocks, and no part of one.

mod read;

use pagelab_formats::alloc_trace::{self, BLOCK_EVENTS_MAX, RUNS_MAX, USUAL_SHIFT};
use pagelab_model::alloc_trace::{
    TraceEnd, TraceEvent, TraceHead, TraceLoss, TraceRun, TraceSample, TraceThread,
};

use crate::blob::{self, Kind};
use crate::error::{Error, ErrorKind};
use crate::writer::Writer;

pub use read::{TraceBlock, TraceDecoder, TraceReader};

pub(crate) const HEAD: Kind =
    Kind { name: "trace_head", version: 1, bytes_max: 16 << 20, what: "the head of the trace" };

pub(crate) const SAMPLES: Kind =
    Kind { name: "trace_samples", version: 1, bytes_max: 64 << 20, what: "samples of free memory" };

pub(crate) const LOSSES: Kind =
    Kind { name: "trace_losses", version: 1, bytes_max: 64 << 20, what: "losses of the trace" };

pub(crate) const THREADS: Kind =
    Kind { name: "trace_threads", version: 1, bytes_max: 16 << 20, what: "names of the trace's threads" };

pub(crate) const END: Kind =
    Kind { name: "trace_end", version: 1, bytes_max: 1 << 20, what: "the end of the trace" };

/// Kinds that are no JSON.
pub(crate) const RUNS: &str = "trace_runs";
pub(crate) const EVENTS: &str = "trace_events";

/// The version of both.
pub(crate) const VERSION: u32 = 1;

/// How a block is compressed. Level 3 saves some 4 % of it for twice the time.
const LEVEL: i32 = 1;

/// Whether a blob is of a trace, in a version that is known.
pub(crate) fn is_trace(kind: &str, version: u32) -> bool {
    let kinds = [HEAD.name, SAMPLES.name, LOSSES.name, THREADS.name, END.name, RUNS, EVENTS];
    kinds.contains(&kind) && version <= VERSION
}

/// Encodes the events of a trace, apart from the writer. Keeps its memory from block to block.
pub struct TraceEncoder {
    columns: alloc_trace::Encoder,
    compressor: zstd::bulk::Compressor<'static>,
    raw: Vec<u8>,
}

/// A block as it is stored.
#[derive(Clone, Debug)]
pub struct EncodedTrace {
    at_ns: u64,
    events: usize,
    packed: Vec<u8>,
    raw_bytes: u64,
}

impl EncodedTrace {
    /// Bytes that it takes in a file.
    pub fn bytes(&self) -> u64 {
        self.packed.len() as u64
    }

    /// Bytes before compression.
    pub fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }
}

impl TraceEncoder {
    /// The time as a reader of the file sees it.
    pub fn stored_ns(&self, at_ns: u64) -> u64 {
        self.columns.stored_ns(at_ns)
    }

    /// An encoder; the error is that of zstd, which had no memory.
    pub fn new() -> Result<TraceEncoder, Error> {
        let compressor = zstd::bulk::Compressor::new(LEVEL).and_then(|mut compressor| {
            compressor.include_checksum(true)?;
            Ok(compressor)
        });
        let compressor = compressor.map_err(|error| refused(&error))?;
        Ok(TraceEncoder { columns: alloc_trace::Encoder::new(USUAL_SHIFT), compressor, raw: Vec::new() })
    }

    /// A block of up to [`BLOCK_EVENTS_MAX`] events, whose times do not go back; it takes some 100 ns an
    /// event.
    pub fn encode(&mut self, events: &[TraceEvent]) -> Result<EncodedTrace, Error> {
        if events.len() > BLOCK_EVENTS_MAX {
            let problem = format!("{} events are more than a block has", events.len());
            return Err(Error::new(ErrorKind::NotStorable, problem));
        }
        self.raw.clear();
        self.columns.encode(events, &mut self.raw);
        let packed = self.compressor.compress(&self.raw).map_err(|error| refused(&error))?;
        let at_ns = events.first().map_or(0, |event| event.at_ns);
        Ok(EncodedTrace { at_ns, events: events.len(), packed, raw_bytes: self.raw.len() as u64 })
    }
}

fn refused(error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot compress a trace: {error}"))
}

impl Writer {
    /// Stores what is known of the machine: once, before any event.
    pub fn trace_head(&mut self, head: &TraceHead) -> Result<(), Error> {
        self.record(&HEAD, "", 0, head)
    }

    /// Stores the threads that have events, each once: once, behind all events. Without any nothing is
    /// stored.
    pub fn trace_threads(&mut self, at_ns: u64, threads: &[TraceThread]) -> Result<(), Error> {
        if threads.is_empty() { Ok(()) } else { self.record(&THREADS, "", at_ns, &threads) }
    }

    /// Stores what the recording came to: once, behind all events.
    pub fn trace_end(&mut self, at_ns: u64, end: &TraceEnd) -> Result<(), Error> {
        self.record(&END, "", at_ns, end)
    }

    /// Stores runs of frames as a scan found them, ascending; several calls make one snapshot.
    pub fn trace_runs(&mut self, runs: &[TraceRun]) -> Result<(), Error> {
        for piece in runs.chunks(RUNS_MAX) {
            let mut raw = Vec::new();
            alloc_trace::encode_runs(piece, &mut raw);
            let packed = blob::pack(|out| out.write_all(&raw));
            let (packed, raw_bytes) =
                packed.map_err(|error| self.refuse(format_args!("the snapshot of the trace: {error}")))?;
            let at_ns = piece.first().map_or(0, |run| run.read_ns);
            self.packed(RUNS, VERSION, &piece.len().to_string(), at_ns, packed, raw_bytes)?;
        }
        Ok(())
    }

    /// Stores a block of events. Blocks follow each other in time.
    pub fn trace_events(&mut self, block: EncodedTrace) -> Result<(), Error> {
        let EncodedTrace { at_ns, events, packed, raw_bytes } = block;
        self.packed(EVENTS, VERSION, &events.to_string(), at_ns, packed, raw_bytes)
    }

    /// Stores some readings of free memory, in the order of time.
    pub fn trace_samples(&mut self, samples: &[TraceSample]) -> Result<(), Error> {
        let Some(first) = samples.first() else { return Ok(()) };
        self.record(&SAMPLES, "", first.at_ns, &samples)
    }

    /// Stores some losses, in the order in which they were told.
    pub fn trace_losses(&mut self, losses: &[TraceLoss]) -> Result<(), Error> {
        let Some(first) = losses.first() else { return Ok(()) };
        self.record(&LOSSES, "", first.at_ns, &losses)
    }
}
