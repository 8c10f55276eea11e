//! Typed blobs: compressed with zstd, with a checksum of the contents, and never unpacked beyond a bound.

use std::io::{self, Read, Write};

/// A kind of blob that holds one record as JSON, by serde.
pub(crate) struct BlobKind {
    /// Bytes as stored in the file.
    pub name: &'static str,
    /// The version that is written, and the newest that is read.
    pub version: u32,
    /// Maximum bytes of its JSON; a file that states more is rejected.
    pub bytes_max: u64,
    /// Name of its contents, for messages.
    pub description: &'static str,
}

impl BlobKind {
    pub(crate) const fn new(
        name: &'static str,
        version: u32,
        bytes_max: u64,
        description: &'static str,
    ) -> BlobKind {
        BlobKind { name, version, bytes_max, description }
    }
}

/// A snapshot of the machine. A census of the 2 million pageblocks that are counted at most takes half of it.
pub(crate) const SNAPSHOT: BlobKind = BlobKind::new("snapshot", 2, 256 << 20, "the snapshot");

/// Call stacks of fallbacks, of which a later blob has all of an earlier one. As many as a collector keeps
/// take half of it.
pub(crate) const STACKS: BlobKind = BlobKind::new("stacks", 2, 128 << 20, "the call stacks");

/// The plan of an experiment; of two, the later one counts. Version 1 has no simulator and no grid, version 2
/// no early end.
pub(crate) const EXPERIMENT: BlobKind =
    BlobKind::new("experiment", 3, 64 << 20, "the plan of the experiment");

/// New heads of measures; a value refers to one by its index among all heads of the file.
pub(crate) const MEASURES: BlobKind = BlobKind::new("measures", 1, 64 << 20, "the measure headers");

/// Trials of an experiment, one or several. Of two with the same slot, the later one counts. Version 2 has no
/// lost trial.
pub(crate) const TRIALS: BlobKind = BlobKind::new("trials", 3, 256 << 20, "trials");

/// All series of a trial, before the trial.
pub(crate) const TRIAL_SERIES: BlobKind =
    BlobKind::new("trial_series", 1, 256 << 20, "the series of a trial");

/// A picture of memory of a trial, before the trial.
pub(crate) const TRIAL_PICTURE: BlobKind =
    BlobKind::new("trial_picture", 1, 256 << 20, "a picture of a trial");

/// One trial of an experiment in files of earlier versions.
pub(crate) const TRIAL: BlobKind = BlobKind::new("trial", 1, 64 << 20, "a trial");

/// The plan of a simulated study in files of earlier versions.
pub(crate) const STUDY: BlobKind = BlobKind::new("study", 1, 64 << 20, "the plan of the study");

/// One trial of a study in files of earlier versions.
pub(crate) const STUDY_TRIAL: BlobKind = BlobKind::new("study_trial", 1, 256 << 20, "a trial of the study");

/// TLB profile. Of several, the last one counts.
pub(crate) const PROFILE: BlobKind = BlobKind::new("profile", 2, 512 << 20, "the profile");

/// Profile and plans of `pagelab tune`. Of several, the last one counts.
pub(crate) const TUNE: BlobKind = BlobKind::new("tune", 2, 512 << 20, "the arms of tune");

/// Kinds that a reader knows; maps are separate.
pub(crate) const JSON_KINDS: [&BlobKind; 12] = [
    &SNAPSHOT,
    &STACKS,
    &EXPERIMENT,
    &MEASURES,
    &TRIALS,
    &TRIAL_SERIES,
    &TRIAL_PICTURE,
    &TRIAL,
    &PROFILE,
    &TUNE,
    &STUDY,
    &STUDY_TRIAL,
];

/// Name of an intermediate snapshot, which the next one contains completely: stored in case there is no next
/// one.
pub(crate) const PARTIAL_NAME: &str = "so far";

/// The one codec there is.
pub(crate) const CODEC_ZSTD: &str = "zstd";

/// Maximum bytes of a blob before compression; a file that states more is rejected, and unpacking stops at
/// the stated length.
pub const BLOB_BYTES_MAX: u64 = 512 << 20;

/// The binary logarithm of the largest window that a decoder keeps: 8 MiB, what zstd writes up to level 19.
const WINDOW_LOG_MAX: u32 = 23;

const ZSTD_LEVEL: i32 = 3;

/// A checksummed zstd frame that holds what `fill` writes, and how many bytes that was.
pub(crate) fn pack_blob(fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<(Vec<u8>, u64)> {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), ZSTD_LEVEL)?;
    encoder.include_checksum(true)?;
    let mut counting = CountingWriter { inner: encoder, bytes: 0 };
    fill(&mut counting)?;
    Ok((counting.inner.finish()?, counting.bytes))
}

/// The same of a record's JSON.
pub(crate) fn pack_json(value: &impl serde::Serialize) -> io::Result<(Vec<u8>, u64)> {
    pack_blob(|out| {
        let mut out = io::BufWriter::with_capacity(64 << 10, out);
        serde_json::to_writer(&mut out, value)?;
        out.flush()
    })
}

/// A reader of what a frame holds that ends with an error beyond `raw_bytes`.
pub(crate) fn unpack_blob(data: &[u8], raw_bytes: u64) -> io::Result<impl Read> {
    let mut decoder = zstd::stream::Decoder::with_buffer(data)?;
    decoder.window_log_max(WINDOW_LOG_MAX)?;
    Ok(ExactReader { inner: decoder, bytes_left: raw_bytes })
}

/// JSON that may not have more values and records than the largest snapshot: a value of two bytes becomes one
/// of up to 72 in memory.
pub(crate) struct BoundedJsonReader<R> {
    inner: R,
    values_left: usize,
    records_left: usize,
}

/// Commas in the JSON of a snapshot: five for each of 2 million pageblocks, and as many again.
const VALUES_MAX: usize = 20 << 20;

/// Objects in the JSON of a snapshot: one for each of 2 million pageblocks, and as many again.
const RECORDS_MAX: usize = 4 << 20;

impl<R: Read> BoundedJsonReader<R> {
    pub fn new(inner: R) -> BoundedJsonReader<R> {
        BoundedJsonReader { inner, values_left: VALUES_MAX, records_left: RECORDS_MAX }
    }
}

impl<R: Read> Read for BoundedJsonReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let count = |sign: u8| buffer[..read].iter().filter(|&&byte| byte == sign).count();
        let left = (self.values_left.checked_sub(count(b',')), self.records_left.checked_sub(count(b'{')));
        let (Some(values_left), Some(records_left)) = left else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it has an impossible number of values"));
        };
        (self.values_left, self.records_left) = (values_left, records_left);
        Ok(read)
    }
}

struct CountingWriter<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> Write for CountingWriter<W> {
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
struct ExactReader<R> {
    inner: R,
    bytes_left: u64,
}

impl<R: Read> Read for ExactReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let wrong = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        match self.bytes_left.checked_sub(read as u64) {
            None => wrong("it decompresses to more than the size in its header"),
            Some(left) if read == 0 && left > 0 && !buffer.is_empty() => {
                wrong("it decompresses to less than the size in its header")
            }
            Some(left) => {
                self.bytes_left = left;
                Ok(read)
            }
        }
    }
}
