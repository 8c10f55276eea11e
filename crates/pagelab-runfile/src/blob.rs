//! Typed blobs: compressed with zstd, with a checksum of the contents, and never unpacked beyond a bound.

use std::io::{self, Read, Write};

use pagelab_model::experiment::{Plan, Trial};
use pagelab_model::{Snapshot, Stacks};

/// The kind of the blob that holds a look at the machine.
pub(crate) const SNAPSHOT: &str = "snapshot";

/// The version of that kind that is written, and the newest that is read: JSON of the serde records.
pub(crate) const SNAPSHOT_VERSION: u32 = 1;

/// The kind of the blob that holds the call stacks of fallbacks. A later one has all of an earlier one.
pub(crate) const STACKS: &str = "stacks";

/// The version of that kind that is written, and the newest that is read: JSON of the serde records.
pub(crate) const STACKS_VERSION: u32 = 1;

/// Bytes of the JSON of call stacks: as many as a collector keeps take half of it.
pub(crate) const STACKS_BYTES_MAX: u64 = 128 << 20;

/// The kind of the blob that holds what an experiment is to do, and its version.
pub(crate) const EXPERIMENT: &str = "experiment";
pub(crate) const EXPERIMENT_VERSION: u32 = 1;

/// The kind of a blob that holds one trial of an experiment, and its version. Of two with the same slot, the
/// later one counts.
pub(crate) const TRIAL: &str = "trial";
pub(crate) const TRIAL_VERSION: u32 = 1;

/// Bytes of the JSON of a plan, and of a trial.
pub(crate) const EXPERIMENT_BYTES_MAX: u64 = 64 << 20;

/// The name of a look that the next one has all of: kept in case no next one comes.
pub(crate) const SO_FAR: &str = "so far";

/// The one codec there is.
pub(crate) const ZSTD: &str = "zstd";

/// Bytes of a blob before compression; a file that says more is refused, and one that holds more than it
/// says is cut off there.
pub const BLOB_BYTES_MAX: u64 = 512 << 20;

/// Bytes of a snapshot's JSON: a census of the 2 million pageblocks that are counted at most
/// takes half of it.
pub(crate) const SNAPSHOT_BYTES_MAX: u64 = 256 << 20;

/// The binary logarithm of the largest window that a decoder keeps: 8 MiB, what zstd writes up to level 19.
const WINDOW_LOG_MAX: u32 = 23;

const LEVEL: i32 = 3;

/// A checksummed zstd frame that holds what `fill` writes, and how many bytes that was.
pub(crate) fn pack(fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<(Vec<u8>, u64)> {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), LEVEL)?;
    encoder.include_checksum(true)?;
    let mut counting = Counting { inner: encoder, bytes: 0 };
    fill(&mut counting)?;
    Ok((counting.inner.finish()?, counting.bytes))
}

/// The packed JSON of a snapshot.
pub(crate) fn pack_snapshot(snapshot: &Snapshot) -> io::Result<(Vec<u8>, u64)> {
    pack_json(snapshot)
}

/// The packed JSON of call stacks.
pub(crate) fn pack_stacks(stacks: &Stacks) -> io::Result<(Vec<u8>, u64)> {
    pack_json(stacks)
}

/// The packed JSON of a plan.
pub(crate) fn pack_plan(plan: &Plan) -> io::Result<(Vec<u8>, u64)> {
    pack_json(plan)
}

/// The packed JSON of a trial.
pub(crate) fn pack_trial(trial: &Trial) -> io::Result<(Vec<u8>, u64)> {
    pack_json(trial)
}

fn pack_json(value: &impl serde::Serialize) -> io::Result<(Vec<u8>, u64)> {
    pack(|out| {
        let mut out = io::BufWriter::with_capacity(64 << 10, out);
        serde_json::to_writer(&mut out, value)?;
        out.flush()
    })
}

/// A reader of what a frame holds that ends with an error beyond `raw_bytes`.
pub(crate) fn unpack(data: &[u8], raw_bytes: u64) -> io::Result<impl Read> {
    let mut decoder = zstd::stream::Decoder::with_buffer(data)?;
    decoder.window_log_max(WINDOW_LOG_MAX)?;
    Ok(Exact { inner: decoder, left: raw_bytes })
}

/// JSON that may not have more values and records than the largest snapshot: a value of two bytes becomes one
/// of up to 72 in memory.
pub(crate) struct Bounded<R> {
    inner: R,
    values_left: usize,
    records_left: usize,
}

/// Commas in the JSON of a snapshot: five for each of 2 million pageblocks, and as many again.
const VALUES_MAX: usize = 20 << 20;

/// Objects in the JSON of a snapshot: one for each of 2 million pageblocks, and as many again.
const RECORDS_MAX: usize = 4 << 20;

impl<R: Read> Bounded<R> {
    pub fn new(inner: R) -> Bounded<R> {
        Bounded { inner, values_left: VALUES_MAX, records_left: RECORDS_MAX }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let count = |sign: u8| buffer[..read].iter().filter(|&&byte| byte == sign).count();
        let left = (self.values_left.checked_sub(count(b',')), self.records_left.checked_sub(count(b'{')));
        let (Some(values_left), Some(records_left)) = left else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it has more values than any machine"));
        };
        (self.values_left, self.records_left) = (values_left, records_left);
        Ok(read)
    }
}

struct Counting<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(buffer)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Reads as many bytes as were promised, neither fewer nor more.
struct Exact<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Exact<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let wrong = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        match self.left.checked_sub(read as u64) {
            None => wrong("it unpacks to more than it says"),
            Some(left) if read == 0 && left > 0 && !buffer.is_empty() => {
                wrong("it unpacks to less than it says")
            }
            Some(left) => {
                self.left = left;
                Ok(read)
            }
        }
    }
}
