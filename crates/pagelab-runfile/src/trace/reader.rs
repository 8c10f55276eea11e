//! Reader of traces: header, initial memory, samples, losses, and events block by block.

use std::path::{Path, PathBuf};

use pagelab_formats::ParseError;
use pagelab_formats::alloc_trace::{self, BLOCK_BYTES_MAX, BLOCK_EVENTS_MAX};
use pagelab_model::alloc_trace::{
    FrameRun, FreeAreasSample, LostEvents, TraceEvent, TraceHeader, TraceSummary, TraceThread,
};
use pagelab_model::run::{Manifest, RunEnd};
use serde::de::DeserializeOwned;

use super::{
    END_KIND, EVENTS_KIND, HEADER_KIND, LOSSES_KIND, RUNS_KIND, SAMPLES_KIND, THREADS_KIND, TRACE_VERSION,
};
use crate::blob::BlobKind;
use crate::error::{Error, ErrorKind};
use crate::reader::{BlobHeader, RunReader};

/// Runs of a snapshot at most, which bounds the memory that reading one takes: one a frame of 256 GiB.
const SNAPSHOT_RUNS_MAX: usize = 1 << 26;

/// A trace that was opened for reading.
pub struct TraceReader {
    reader: RunReader,
    manifest: Manifest,
    ending: RunEnd,
    header: TraceHeader,
    blob_headers: Vec<BlobHeader>,
    blocks: Vec<TraceBlock>,
    decoder: TraceDecoder,
}

/// Decompresses and decodes blocks, independently of their file: several threads can do this in parallel.
/// Keeps its memory from block to block.
pub struct TraceDecoder {
    path: PathBuf,
    decompressor: zstd::bulk::Decompressor<'static>,
    raw_buffer: Vec<u8>,
}

/// A stored block of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceBlock {
    /// The number of its blob in the file.
    pub id: i64,
    /// Nanoseconds from the start of the trace to its first event.
    pub at_ns: u64,
    /// Its number of events according to the file: at most 65 536.
    pub events: u64,
    /// Bytes before compression according to the file: at most 4 MiB.
    pub raw_bytes: u64,
    /// Bytes in the file.
    pub packed_bytes: u64,
}

impl TraceReader {
    /// Opens and checks a file, and reads the head of its trace. The events stay in the file.
    pub fn open(path: &Path) -> Result<TraceReader, Error> {
        let reader = RunReader::open(path)?;
        let (manifest, ending, _) = reader.read_manifest()?;
        let blobs = reader.read_blob_headers()?;
        let Some(header) = blobs.iter().find(|blob| blob.kind == HEADER_KIND.name) else {
            let kind = &manifest.kind;
            let problem = format!(
                "it is a run file of `{kind}` without a trace; hint: create one with `pagelab trace record \
                 -o FILE`"
            );
            return Err(Error::cannot_read(ErrorKind::NotARunFile, path, problem));
        };
        if let Some(newer) = blobs.iter().find(|b| b.kind.starts_with("trace_") && b.version > TRACE_VERSION)
        {
            let problem = format!(
                "its trace has version {}; this pagelab reads version {TRACE_VERSION}; hint: use a newer \
                 pagelab",
                newer.version
            );
            return Err(Error::cannot_read(ErrorKind::NewerVersion, path, problem));
        }
        let header: TraceHeader = reader.read_json_record(header, &HEADER_KIND)?;
        let blocks = list_blocks(&reader, &blobs)?;
        let decoder = TraceDecoder::new(path)?;
        Ok(TraceReader { reader, manifest, ending, header, blob_headers: blobs, blocks, decoder })
    }

    /// Manifest of the recording.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// End of the recording. [`RunEnd::NotClosed`]: it has every block up to the death of its writer.
    pub fn run_end(&self) -> &RunEnd {
        &self.ending
    }

    /// The machine.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// The memory that the trace began with, ascending; empty where it was not scanned.
    pub fn read_frame_runs(&self) -> Result<Vec<FrameRun>, Error> {
        let mut runs = Vec::new();
        for blob in self.blob_headers.iter().filter(|blob| blob.kind == RUNS_KIND) {
            let damaged = |problem: &str| self.reader.damaged_blob_error(blob, problem);
            if blob.raw_bytes > BLOCK_BYTES_MAX as u64 {
                return Err(damaged("the size in its header exceeds the limit"));
            }
            let piece = self.reader.read_blob(blob)?;
            let before = runs.last().map_or(0, run_end);
            let first = runs.len();
            alloc_trace::decode_runs(&piece, &mut runs)
                .map_err(|error| damaged(&format_parse_error(&error)))?;
            if runs.get(first).is_some_and(|run| u64::from(run.pfn) < before) {
                return Err(damaged("its page frames overlap or precede those of the previous piece"));
            }
            if runs.len() > SNAPSHOT_RUNS_MAX {
                return Err(damaged("impossible number of page runs in the snapshot"));
            }
        }
        Ok(runs)
    }

    /// Free memory as reported by the kernel during the trace.
    pub fn read_samples(&self) -> Result<Vec<FreeAreasSample>, Error> {
        self.read_lists(&SAMPLES_KIND)
    }

    /// Events that were lost.
    pub fn read_losses(&self) -> Result<Vec<LostEvents>, Error> {
        self.read_lists(&LOSSES_KIND)
    }

    /// The entries of the lists that all blobs of a kind hold.
    fn read_lists<T: DeserializeOwned>(&self, kind: &BlobKind) -> Result<Vec<T>, Error> {
        let mut all = Vec::new();
        for blob in self.blob_headers.iter().filter(|blob| blob.kind == kind.name) {
            all.extend(self.reader.read_json_record::<Vec<T>>(blob, kind)?);
        }
        Ok(all)
    }

    /// Threads with events, with their names if they were read. Empty: the writer was killed, is at work, or
    /// knew no names.
    pub fn read_threads(&self) -> Result<Vec<TraceThread>, Error> {
        let blob = self.blob_headers.iter().find(|blob| blob.kind == THREADS_KIND.name);
        blob.map_or(Ok(Vec::new()), |blob| self.reader.read_json_record(blob, &THREADS_KIND))
    }

    /// Result of the recording; `None` if its writer was killed, or is still running.
    pub fn read_summary(&self) -> Result<Option<TraceSummary>, Error> {
        let blob = self.blob_headers.iter().find(|blob| blob.kind == END_KIND.name);
        blob.map(|blob| self.reader.read_json_record(blob, &END_KIND)).transpose()
    }

    /// The blocks, in the order of time.
    pub fn blocks(&self) -> &[TraceBlock] {
        &self.blocks
    }

    /// Bytes of the file, including its log.
    pub fn file_bytes(&self) -> u64 {
        self.reader.file_bytes()
    }

    /// Reads the block with this place in [`TraceReader::blocks`] into `events`, whose contents are replaced
    /// and whose memory is used again. After an error it is empty.
    pub fn read_block(&mut self, block_index: usize, events: &mut Vec<TraceEvent>) -> Result<(), Error> {
        let decoder = &mut self.decoder;
        let block = find_block(&self.reader, &self.blocks, block_index);
        let decoded = block.and_then(|block| {
            let filled =
                self.reader.read_packed(block.id, |packed| decoder.decode_into(&block, packed, events));
            filled.map_err(|problem| decoder.damaged_block_error(block_index, &block, &problem))
        });
        // Their contents are overwritten, which is faster than clearing them first.
        if decoded.is_err() {
            events.clear();
        }
        decoded
    }

    /// Copies the block at this position into `packed`, compressed as in the file: for
    /// [`TraceDecoder::decode_block`]. After an error that is empty.
    pub fn copy_packed_block(&self, block_index: usize, packed: &mut Vec<u8>) -> Result<TraceBlock, Error> {
        packed.clear();
        let block = find_block(&self.reader, &self.blocks, block_index)?;
        let copied = self.reader.read_packed(block.id, |stored| {
            packed.extend_from_slice(stored);
            Ok(())
        });
        copied.map_err(|problem| self.decoder.damaged_block_error(block_index, &block, &problem))?;
        Ok(block)
    }

    /// Another decoder for the blocks of this file; the error is that of zstd, which had no memory.
    pub fn new_decoder(&self) -> Result<TraceDecoder, Error> {
        TraceDecoder::new(&self.decoder.path)
    }
}

fn find_block(reader: &RunReader, blocks: &[TraceBlock], block_index: usize) -> Result<TraceBlock, Error> {
    let none = || reader.damaged_error(format!("it has only {} event blocks", blocks.len()));
    blocks.get(block_index).copied().ok_or_else(none)
}

impl TraceDecoder {
    fn new(path: &Path) -> Result<TraceDecoder, Error> {
        let decompressor = zstd::bulk::Decompressor::new().map_err(|error| {
            Error::cannot_read(ErrorKind::Io, path, format_args!("cannot start zstd: {error}"))
        })?;
        Ok(TraceDecoder { path: path.to_owned(), decompressor, raw_buffer: Vec::new() })
    }

    /// Unpacks and decodes the block with this place, which [`TraceReader::copy_packed_block`] copied, into
    /// `events`. Their contents are replaced; after an error there are none.
    pub fn decode_block(
        &mut self,
        block_index: usize,
        block: &TraceBlock,
        packed: &[u8],
        events: &mut Vec<TraceEvent>,
    ) -> Result<(), Error> {
        self.decode_into(block, packed, events)
            .map_err(|problem| self.damaged_block_error(block_index, block, &problem))
    }

    fn decode_into(
        &mut self,
        block: &TraceBlock,
        packed: &[u8],
        events: &mut Vec<TraceEvent>,
    ) -> Result<(), String> {
        let filled = self.unpack_block(block, packed).and_then(|()| {
            alloc_trace::decode(&self.raw_buffer, events).map_err(|error| format_parse_error(&error))?;
            match events.len() as u64 == block.events {
                true => Ok(()),
                false => Err(format!("it has {} events; expected {}", events.len(), block.events)),
            }
        });
        if filled.is_err() {
            events.clear();
        }
        filled
    }

    fn unpack_block(&mut self, block: &TraceBlock, packed: &[u8]) -> Result<(), String> {
        self.raw_buffer.clear();
        self.raw_buffer.reserve(block.raw_bytes as usize);
        let unpacked = self.decompressor.decompress_to_buffer(packed, &mut self.raw_buffer);
        match unpacked.map_err(|error| error.to_string())? {
            bytes if bytes as u64 == block.raw_bytes => Ok(()),
            bytes => Err(format!("it decompresses to {bytes} bytes; expected {}", block.raw_bytes)),
        }
    }

    fn damaged_block_error(&self, block_index: usize, block: &TraceBlock, problem: &str) -> Error {
        let (number, at) = (block_index + 1, block.at_ns as f64 / 1e9);
        let problem = format!("event block {number}, {at:.3} s after the start: {problem}");
        Error::damaged(&self.path, problem)
    }
}

fn run_end(run: &FrameRun) -> u64 {
    u64::from(run.pfn) + u64::from(run.frames)
}

/// `byte 57: a column is truncated`
fn format_parse_error(error: &ParseError) -> String {
    let text = error.message_in_file("");
    let text = text.strip_prefix(": ").unwrap_or(&text);
    text.split(" (read as ").next().unwrap_or(text).to_owned()
}

fn list_blocks(reader: &RunReader, blobs: &[BlobHeader]) -> Result<Vec<TraceBlock>, Error> {
    let bytes = reader.blob_sizes(EVENTS_KIND)?;
    let mut blocks: Vec<TraceBlock> = Vec::new();
    let events = blobs.iter().filter(|blob| blob.kind == EVENTS_KIND);
    for (blob, packed_bytes) in events.zip(bytes) {
        let count = blob.name.parse::<u64>().ok().filter(|&count| count <= BLOCK_EVENTS_MAX as u64);
        let is_late = blocks.last().is_none_or(|before| before.at_ns <= blob.at_ns);
        let (Some(count), true, true) = (count, blob.raw_bytes <= BLOCK_BYTES_MAX as u64, is_late) else {
            let id = blob.id;
            return Err(reader.damaged_error(format!(
                "blob {id} is not an event block: invalid size, event count or time"
            )));
        };
        let (id, at_ns, raw_bytes) = (blob.id, blob.at_ns, blob.raw_bytes);
        blocks.push(TraceBlock { id, at_ns, events: count, raw_bytes, packed_bytes });
    }
    Ok(blocks)
}
