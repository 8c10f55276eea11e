//! Typed blobs: compressed with zstd, with a checksum of the contents, and never unpacked beyond a bound.

use std::io::{self, Read, Write};

/// A kind of blob that holds one record as JSON, by serde.
pub(crate) struct Kind {
    /// As it stands in the file.
    pub name: &'static str,
    /// The version that is written, and the newest that is read.
    pub version: u32,
    /// Bytes of its JSON; a file that says more is refused.
    pub bytes_max: u64,
    /// What it holds, for messages.
    pub what: &'static str,
}

/// A look at the machine. A census of the 2 million pageblocks that are counted at most takes half of it.
pub(crate) const SNAPSHOT: Kind =
    Kind { name: "snapshot", version: 1, bytes_max: 256 << 20, what: "the look at the machine" };

/// Call stacks of fallbacks, of which a later blob has all of an earlier one. As many as a collector keeps
/// take half of it.
pub(crate) const STACKS: Kind =
    Kind { name: "stacks", version: 1, bytes_max: 128 << 20, what: "the call stacks" };

/// What an experiment is to do.
pub(crate) const EXPERIMENT: Kind =
    Kind { name: "experiment", version: 1, bytes_max: 64 << 20, what: "the plan of the experiment" };

/// One trial of an experiment. Of two with the same slot, the later one counts.
pub(crate) const TRIAL: Kind = Kind { name: "trial", version: 1, bytes_max: 64 << 20, what: "a trial" };

/// Where TLB misses cost time. Of several, the last one counts.
pub(crate) const PROFILE: Kind =
    Kind { name: "profile", version: 1, bytes_max: 512 << 20, what: "the profile" };

/// What `pagelab tune` chose its arms by. Of several, the last one counts.
pub(crate) const TUNE: Kind =
    Kind { name: "tune", version: 1, bytes_max: 512 << 20, what: "the arms of tune" };

/// What a simulated study is to do.
pub(crate) const STUDY: Kind =
    Kind { name: "study", version: 1, bytes_max: 64 << 20, what: "the plan of the study" };

/// One trial of a study. Of two with the same slot, the later one counts.
pub(crate) const STUDY_TRIAL: Kind =
    Kind { name: "study_trial", version: 1, bytes_max: 256 << 20, what: "a trial of the study" };

/// The kinds that a reader knows; maps stand apart.
pub(crate) const KINDS: [&Kind; 8] =
    [&SNAPSHOT, &STACKS, &EXPERIMENT, &TRIAL, &PROFILE, &TUNE, &STUDY, &STUDY_TRIAL];

/// The name of a look that the next one has all of: kept in case no next one comes.
pub(crate) const SO_FAR: &str = "so far";

/// The one codec there is.
pub(crate) const ZSTD: &str = "zstd";

/// Bytes of a blob before compression; a file that says more is refused, and one that holds more than it
/// says is cut off there.
pub const BLOB_BYTES_MAX: u64 = 512 << 20;

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

/// The same of a record's JSON.
pub(crate) fn pack_json(value: &impl serde::Serialize) -> io::Result<(Vec<u8>, u64)> {
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
