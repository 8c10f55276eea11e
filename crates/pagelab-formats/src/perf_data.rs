//! Files that `perf record` and `perf mem record` write, and the texts that perf prints of them.
//!
//! The file form and the pipe form are read record by record, in bounded memory, in either byte order, with
//! compressed records in them; samples and what says whose they are come out in the order of time. Written
//! after tools/perf/Documentation/perf.data-file-format.txt and include/uapi/linux/perf_event.h (up to 6.16:
//! the last new record is PERF_RECORD_COMPRESSED2).
//!
//! This reader is ours: `linux-perf-data`, the one crate that reads these files, brings 30 packages and 29
//! seconds of compiling with it, and knows neither the words of the texts nor what a TLB bit means. The one
//! thing that needs a library, zstd, comes from the caller as a function ([`Unpack`]).
//!
//! Records of the kernel's ring are the same records ([`Decoder`]), so what holds for files holds for the
//! ring.

mod attr;
mod feature;
mod file;
mod order;
mod record;
mod report;
mod script;
mod stream;
#[cfg(test)]
mod tests;
mod tlb;

pub use attr::{Attr, Endian};
pub use feature::{About, BuildId, EventAbout, MemoryNode};
pub use file::{Form, form, read};
pub use order::Queue;
pub use record::{Decoder, Event, Mapping, Sample};
pub use report::{Report, ReportRow, report};
pub use script::{Script, ScriptSample, script};
pub use tlb::{Answer, DataSource, ibs_answer};

use crate::ParseError;

pub(crate) const FORMAT: &str = "perf.data";

/// Where bytes come from: a file, a pipe, a buffer.
pub trait Input {
    /// Fills `bytes` from this offset on, and says how many there were: fewer only at the end. A pipe is
    /// asked for rising offsets alone, if what it brings is the pipe form.
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<usize, String>;
}

impl Input for &[u8] {
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<usize, String> {
        let there = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)).unwrap_or_default();
        let count = there.len().min(bytes.len());
        bytes[..count].copy_from_slice(&there[..count]);
        Ok(count)
    }
}

/// Unpacks a part of one zstd stream that goes on from call to call: input, room for output; how many bytes
/// were taken and how many were made. It makes nothing more when it takes nothing and makes nothing.
pub type Unpack<'a> = dyn FnMut(&[u8], &mut [u8]) -> Result<(usize, usize), String> + 'a;

/// What stands beside the events of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Records of all kinds, unpacked ones counted and compressed ones not.
    pub records: u64,
    /// Samples whose event is not in the file's list.
    pub strange: u64,
    /// Events that came too late to be put in the order of time.
    pub late: u64,
    /// Kinds of auxiliary traces that are in the file and are not decoded here: `arm_spe` and others.
    pub undecoded: Vec<&'static str>,
    /// Whether perf was killed before it could write the length of its data: the end may be missing.
    pub unfinished: bool,
}

fn at(offset: u64, problem: impl Into<String>) -> ParseError {
    ParseError::at_byte(FORMAT, offset, problem)
}
