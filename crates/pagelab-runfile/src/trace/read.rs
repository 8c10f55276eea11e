//! Reading a trace: its head, the memory it began with, samples, losses, and its events block by block.

use std::path::{Path, PathBuf};

use pagelab_formats::ParseError;
use pagelab_formats::alloc_trace::{self, BLOCK_BYTES_MAX, BLOCK_EVENTS_MAX};
use pagelab_model::alloc_trace::{
    TraceEnd, TraceEvent, TraceHead, TraceLoss, TraceRun, TraceSample, TraceThread,
};
use pagelab_model::run::{Ending, Manifest};

use super::{END, EVENTS, HEAD, LOSSES, RUNS, SAMPLES, THREADS, VERSION};
use crate::error::{Error, ErrorKind};
use crate::reader::{BlobHead, Reader};

/// Runs of a snapshot at most, which bounds the memory that reading one takes: one a frame of 256 GiB.
const SNAPSHOT_RUNS_MAX: usize = 1 << 26;

/// A trace that was opened for reading.
pub struct TraceReader {
    reader: Reader,
    manifest: Manifest,
    ending: Ending,
    head: TraceHead,
    blobs: Vec<BlobHead>,
    blocks: Vec<TraceBlock>,
    decoder: TraceDecoder,
}

/// Unpacks and decodes blocks, apart from the file that they stand in: several can be at it at once. Keeps
/// its memory from block to block.
pub struct TraceDecoder {
    path: PathBuf,
    decompressor: zstd::bulk::Decompressor<'static>,
    raw: Vec<u8>,
}

/// A stored block of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceBlock {
    /// The number of its blob in the file.
    pub id: i64,
    /// Nanoseconds from the start of the trace to its first event.
    pub at_ns: u64,
    /// How many events it has, as the file says: at most 65 536.
    pub events: u64,
    /// Bytes before compression, as the file says: at most 4 MiB.
    pub raw_bytes: u64,
    /// Bytes in the file.
    pub packed_bytes: u64,
}

impl TraceReader {
    /// Opens and checks a file, and reads the head of its trace. The events stay in the file.
    pub fn open(path: &Path) -> Result<TraceReader, Error> {
        let reader = Reader::open(path)?;
        let (manifest, ending) = reader.told()?;
        let blobs = reader.blobs()?;
        let Some(head) = blobs.iter().find(|blob| blob.kind == HEAD.name) else {
            let kind = &manifest.kind;
            let problem = format!(
                "it is a run file of `{kind}` and holds no trace; `pagelab trace record -o FILE` makes one"
            );
            return Err(Error::read(ErrorKind::NotOurs, path, problem));
        };
        if let Some(newer) = blobs.iter().find(|b| b.kind.starts_with("trace_") && b.version > VERSION) {
            let problem = format!(
                "its trace is of version {}, this pagelab reads {VERSION}; get a newer one",
                newer.version
            );
            return Err(Error::read(ErrorKind::Newer, path, problem));
        }
        let head: TraceHead = reader.record(head, &HEAD)?;
        let blocks = blocks(&reader, &blobs)?;
        let decoder = TraceDecoder::new(path)?;
        Ok(TraceReader { reader, manifest, ending, head, blobs, blocks, decoder })
    }

    /// Who recorded what, where and when.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// How the recording ended. [`Ending::NotClosed`]: it has every block up to the death of its writer.
    pub fn ending(&self) -> &Ending {
        &self.ending
    }

    /// The machine.
    pub fn head(&self) -> &TraceHead {
        &self.head
    }

    /// The memory that the trace began with, ascending; empty where it was not scanned.
    pub fn snapshot(&self) -> Result<Vec<TraceRun>, Error> {
        let mut runs = Vec::new();
        for blob in self.blobs.iter().filter(|blob| blob.kind == RUNS) {
            if blob.raw_bytes > BLOCK_BYTES_MAX as u64 {
                return Err(self.damaged(blob, "it says that it is larger than any piece"));
            }
            let piece = self.reader.blob(blob)?;
            let before = runs.last().map_or(0, end);
            let first = runs.len();
            alloc_trace::decode_runs(&piece, &mut runs).map_err(|error| self.parse(blob, &error))?;
            if runs.get(first).is_some_and(|run| u64::from(run.pfn) < before) {
                return Err(self.damaged(blob, "its frames are not behind those of the piece before"));
            }
            if runs.len() > SNAPSHOT_RUNS_MAX {
                return Err(self.damaged(blob, "the snapshot has more runs than any machine"));
            }
        }
        Ok(runs)
    }

    /// Free memory as the kernel told it during the trace.
    pub fn samples(&self) -> Result<Vec<TraceSample>, Error> {
        let mut samples: Vec<TraceSample> = Vec::new();
        for blob in self.blobs.iter().filter(|blob| blob.kind == SAMPLES.name) {
            samples.extend(self.reader.record::<Vec<TraceSample>>(blob, &SAMPLES)?);
        }
        Ok(samples)
    }

    /// Events that were lost.
    pub fn losses(&self) -> Result<Vec<TraceLoss>, Error> {
        let mut losses: Vec<TraceLoss> = Vec::new();
        for blob in self.blobs.iter().filter(|blob| blob.kind == LOSSES.name) {
            losses.extend(self.reader.record::<Vec<TraceLoss>>(blob, &LOSSES)?);
        }
        Ok(losses)
    }

    /// The threads that have events, with their names as far as they were read. Empty: the writer was killed,
    /// is at work, or knew no names.
    pub fn threads(&self) -> Result<Vec<TraceThread>, Error> {
        let blob = self.blobs.iter().find(|blob| blob.kind == THREADS.name);
        blob.map_or(Ok(Vec::new()), |blob| self.reader.record(blob, &THREADS))
    }

    /// What the recording came to; `None` where its writer was killed, or is at work.
    pub fn end(&self) -> Result<Option<TraceEnd>, Error> {
        let blob = self.blobs.iter().find(|blob| blob.kind == END.name);
        blob.map(|blob| self.reader.record(blob, &END)).transpose()
    }

    /// The blocks, in the order of time.
    pub fn blocks(&self) -> &[TraceBlock] {
        &self.blocks
    }

    /// Bytes of the file, what is in its log included.
    pub fn file_bytes(&self) -> u64 {
        self.reader.file_bytes()
    }

    /// Reads the block with this place in [`TraceReader::blocks`] into `events`, whose contents are replaced
    /// and whose memory is used again. After an error it is empty.
    pub fn block(&mut self, place: usize, events: &mut Vec<TraceEvent>) -> Result<(), Error> {
        let decoder = &mut self.decoder;
        let block = known(&self.reader, &self.blocks, place);
        let decoded = block.and_then(|block| {
            let filled = self.reader.with_packed(block.id, |packed| decoder.fill(&block, packed, events));
            filled.map_err(|problem| decoder.damaged(place, &block, &problem))
        });
        // What was in them is written over, which is quicker than to clear them first.
        if decoded.is_err() {
            events.clear();
        }
        decoded
    }

    /// Copies the block with this place, packed as it stands in the file, over what `packed` holds: for
    /// [`TraceDecoder::decode`]. After an error that is empty.
    pub fn packed(&self, place: usize, packed: &mut Vec<u8>) -> Result<TraceBlock, Error> {
        packed.clear();
        let block = known(&self.reader, &self.blocks, place)?;
        let copied = self.reader.with_packed(block.id, |stored| {
            packed.extend_from_slice(stored);
            Ok(())
        });
        copied.map_err(|problem| self.decoder.damaged(place, &block, &problem))?;
        Ok(block)
    }

    /// Another decoder for the blocks of this file; the error is that of zstd, which had no memory.
    pub fn decoder(&self) -> Result<TraceDecoder, Error> {
        TraceDecoder::new(&self.decoder.path)
    }

    fn parse(&self, blob: &BlobHead, error: &ParseError) -> Error {
        self.damaged(blob, &plain(error))
    }

    fn damaged(&self, blob: &BlobHead, problem: &str) -> Error {
        self.reader.damaged(format!("blob {} ({}): {problem}", blob.id, blob.kind))
    }
}

fn known(reader: &Reader, blocks: &[TraceBlock], place: usize) -> Result<TraceBlock, Error> {
    let none = || reader.damaged(format!("it has {} blocks of events", blocks.len()));
    blocks.get(place).copied().ok_or_else(none)
}

impl TraceDecoder {
    fn new(path: &Path) -> Result<TraceDecoder, Error> {
        let decompressor = zstd::bulk::Decompressor::new()
            .map_err(|error| Error::read(ErrorKind::Io, path, format_args!("no memory: {error}")))?;
        Ok(TraceDecoder { path: path.to_owned(), decompressor, raw: Vec::new() })
    }

    /// Unpacks and decodes the block with this place, which [`TraceReader::packed`] copied, into `events`.
    /// Their contents are replaced; after an error there are none.
    pub fn decode(
        &mut self,
        place: usize,
        block: &TraceBlock,
        packed: &[u8],
        events: &mut Vec<TraceEvent>,
    ) -> Result<(), Error> {
        self.fill(block, packed, events).map_err(|problem| self.damaged(place, block, &problem))
    }

    fn fill(
        &mut self,
        block: &TraceBlock,
        packed: &[u8],
        events: &mut Vec<TraceEvent>,
    ) -> Result<(), String> {
        let filled = self.unpack(block, packed).and_then(|()| {
            alloc_trace::decode(&self.raw, events).map_err(|error| plain(&error))?;
            match events.len() as u64 == block.events {
                true => Ok(()),
                false => Err(format!("it has {} events, not {}", events.len(), block.events)),
            }
        });
        if filled.is_err() {
            events.clear();
        }
        filled
    }

    fn unpack(&mut self, block: &TraceBlock, packed: &[u8]) -> Result<(), String> {
        self.raw.clear();
        self.raw.reserve(block.raw_bytes as usize);
        let unpacked = self.decompressor.decompress_to_buffer(packed, &mut self.raw);
        match unpacked.map_err(|error| error.to_string())? {
            bytes if bytes as u64 == block.raw_bytes => Ok(()),
            bytes => Err(format!("it unpacks to {bytes} bytes, not {}", block.raw_bytes)),
        }
    }

    fn damaged(&self, place: usize, block: &TraceBlock, problem: &str) -> Error {
        let (number, at) = (place + 1, block.at_ns as f64 / 1e9);
        let problem = format!("block {number} of its events, {at:.3} s after the start: {problem}");
        Error::damaged(&self.path, problem)
    }
}

fn end(run: &TraceRun) -> u64 {
    u64::from(run.pfn) + u64::from(run.frames)
}

/// `byte 57: a column is cut off`
fn plain(error: &ParseError) -> String {
    let text = error.in_file("");
    let text = text.strip_prefix(": ").unwrap_or(&text);
    text.split(" (read as ").next().unwrap_or(text).to_owned()
}

fn blocks(reader: &Reader, blobs: &[BlobHead]) -> Result<Vec<TraceBlock>, Error> {
    let bytes = reader.packed_bytes(EVENTS)?;
    let mut blocks: Vec<TraceBlock> = Vec::new();
    let events = blobs.iter().filter(|blob| blob.kind == EVENTS);
    for (blob, packed_bytes) in events.zip(bytes) {
        let count = blob.name.parse::<u64>().ok().filter(|&count| count <= BLOCK_EVENTS_MAX as u64);
        let is_late = blocks.last().is_none_or(|before| before.at_ns <= blob.at_ns);
        let (Some(count), true, true) = (count, blob.raw_bytes <= BLOCK_BYTES_MAX as u64, is_late) else {
            let id = blob.id;
            return Err(reader.damaged(format!("blob {id} is no block of events: its size, number or time")));
        };
        let (id, at_ns, raw_bytes) = (blob.id, blob.at_ns, blob.raw_bytes);
        blocks.push(TraceBlock { id, at_ns, events: count, raw_bytes, packed_bytes });
    }
    Ok(blocks)
}
