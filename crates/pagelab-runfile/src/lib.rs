//! Run file `NAME.pagelab`: one SQLite file with the measurements of a run.
//!
//! `docs/runfile.md` has every table and every guarantee.

mod blob;
mod committer;
mod earlier;
mod error;
pub mod failure;
mod header;
mod manifest;
mod maps;
mod open_file;
mod reader;
mod schema;
mod trace;
mod trials;
mod validate;
mod writer;

pub use blob::BLOB_BYTES_MAX;
pub use error::{Error, ErrorKind};
pub use maps::{EncodedMap, MAP_FRAMES_MAX, MapEncoder};
pub use reader::{BlobHeader, RunReader, SeriesFilter, TRACE_NOT_SHOWN, read_run_file};
pub use trace::{EncodedTraceBlock, TraceBlock, TraceDecoder, TraceEncoder, TraceReader};
pub use validate::{check_picture, check_trial};
pub use writer::{RunWriter, SeriesId, StreamId, remove_run_file};
