//! Files of `perf record` and `perf mem record`, and perf's text output of them.
//!
//! The file form and the pipe form are read record by record, in bounded memory, in either byte order, with
//! compressed records in them; samples and the records that identify their process are delivered in time
//! order. Written after tools/perf/Documentation/perf.data-file-format.txt and
//! include/uapi/linux/perf_event.h (up to 6.16: the last new record is PERF_RECORD_COMPRESSED2).
//!
//! There is one crate for these files, `linux-perf-data`. It adds 30 packages and 29 seconds of compiling,
//! and does not decode the texts or the TLB bits. The only library needed here, zstd, is passed by the caller
//! as a function ([`Decompress`]).
//!
//! Records of the kernel's ring have the same form ([`Decoder`]).

mod file;
mod record;
mod report;
mod script;
mod stream;
#[cfg(test)]
mod tests;
mod tlb;

pub use file::{
    BuildId, Endian, EventInfo, FileForm, FileInfo, MemoryNode, PerfEventAttr, detect_form, read_perf_data,
};
pub use record::{Decoder, Event, Mapping, Sample};
pub use report::{Report, ReportRow, parse_report};
pub use script::{Script, ScriptSample, parse_script};
pub use stream::EventQueue;
pub use tlb::{DataSource, TlbOutcome, ibs_tlb_outcome};

use crate::ParseError;

pub(crate) const FORMAT: &str = "perf.data";

/// Where bytes come from: a file, a pipe, a buffer.
pub trait Input {
    /// Fills `bytes` from this offset on, and returns the number of bytes read: fewer only at the end. A pipe
    /// in the pipe form is read at ascending offsets only.
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

/// Unpacks a part of one zstd stream that continues over several calls: input, room for output; returns the
/// bytes consumed and produced. It makes nothing more when it takes nothing and makes nothing.
pub type Decompress<'a> = dyn FnMut(&[u8], &mut [u8]) -> Result<(usize, usize), String> + 'a;

/// Data of a file besides its events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadSummary {
    /// Records of all kinds, unpacked ones counted and compressed ones not.
    pub records: u64,
    /// Samples whose event is not in the file's list.
    pub unknown_samples: u64,
    /// Events that arrived too late for the time order.
    pub late_events: u64,
    /// Kinds of auxiliary traces that are in the file and are not decoded here: `arm_spe` and others.
    pub undecoded: Vec<&'static str>,
    /// Whether perf was killed before it could write the length of its data: the end may be missing.
    pub is_unfinished: bool,
}

fn error_at(offset: u64, problem: impl Into<String>) -> ParseError {
    ParseError::at_byte(FORMAT, offset, problem)
}
