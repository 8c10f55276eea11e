//! The run file, `NAME.pagelab`: one SQLite file for what a run measured.
//!
//! `docs/runfile.md` has every table and every promise.

mod blob;
mod committer;
mod copy;
mod error;
mod header;
mod live;
mod manifest;
mod maps;
mod open;
mod plausible;
mod queue;
mod reader;
mod schema;
mod trace;
mod trust;
mod writer;

pub use blob::BLOB_BYTES_MAX;
pub use error::{Error, ErrorKind};
pub use maps::{EncodedMap, MAP_FRAMES_MAX, MapEncoder};
pub use reader::{BlobHead, Reader, TRACE_NOT_SHOWN, read};
pub use trace::{EncodedTrace, TraceBlock, TraceDecoder, TraceEncoder, TraceReader};
pub use writer::{SeriesId, StreamId, Writer, remove};
