//! Blocks of a trace of the page allocator, in columns: small once compressed, and quickly read.
//!
//! A block has at most 65 536 events and needs no other. Numbers are varints whose first byte says by its
//! trailing zeros how many bytes follow, so that reading one takes no branch: `n` bytes hold `7 n` bits up to
//! eight bytes, and a first byte of 0 stands before eight bytes. Pieces, in this order:
//!
//! | piece | what |
//! |---|---|
//! | shift | times are stored in units of 2^shift ns |
//! | events, first time | counts; the time in units |
//! | who | a list of pairs (thread, processor), each once |
//! | shapes | a list of what an event can be, without its frame and its counts, each once |
//! | who by event | an index of one byte, or of two where the list is longer than 256 |
//! | shape by event | likewise |
//! | times | a varint an event: units since the one before |
//! | frames | a zigzag varint an event that has one: from the last frame of the same thread and processor |
//! | counts | varints: pages moved and failed, pages freed |
//! | eight zero bytes | so that a varint is always read as one word |
//!
//! Compression and checksums are whoever's who keeps the blocks.

mod read;
mod runs;
#[cfg(test)]
mod tests;
mod varint;
mod write;

pub use read::decode;
pub use runs::{decode_runs, encode_runs};
pub use write::Encoder;

use crate::ParseError;

/// Events of a block at most.
pub const BLOCK_EVENTS_MAX: usize = 1 << 16;

/// Bytes of a block at most, whatever its events.
pub const BLOCK_BYTES_MAX: usize = 4 << 20;

/// Runs of frames that one piece of a snapshot has at most.
pub const RUNS_MAX: usize = 1 << 17;

/// Times are kept to 32 ns, an eighth of what the cheapest event takes. Each bit of a time that is kept more
/// costs an eighth of a byte, since these bits are chance and do not compress.
pub const USUAL_SHIFT: u8 = 5;

/// The coarsest unit of time: a millisecond.
const SHIFT_MAX: u8 = 20;

const FORMAT: &str = "a block of an allocator trace";

fn wrong(byte: usize, problem: impl Into<String>) -> ParseError {
    ParseError::at_byte(FORMAT, byte as u64, problem)
}

/// Any bytes: what is read of them is a block, and is the same block once written and read again.
pub fn fuzz(data: &[u8]) {
    let mut events = Vec::new();
    if decode(data, &mut events).is_ok() {
        let (mut again, mut block) = (Vec::new(), Vec::new());
        Encoder::new(0).encode(&events, &mut block);
        assert!(decode(&block, &mut again).is_ok());
        assert_eq!(events, again);
    } else {
        assert!(events.is_empty());
    }
    let mut runs = Vec::new();
    if decode_runs(data, &mut runs).is_ok() {
        let (mut again, mut piece) = (Vec::new(), Vec::new());
        encode_runs(&runs, &mut piece);
        assert!(decode_runs(&piece, &mut again).is_ok());
        assert_eq!(runs, again);
    } else {
        assert!(runs.is_empty());
    }
}
