//! Layout of the account: shared memory of 64-bit words that the plugin writes in every process of the
//! profiled program, and that the profiler reads when all have ended, however they ended.
//!
//! A position is a number of words from the begin; 0 is none. All lists begin with the newest block.

/// The first word.
pub const MAGIC: u64 = 0x7067_6c62_746c_6202;

/// The header of the account.
pub mod header {
    /// [`super::MAGIC`].
    pub const MAGIC: u64 = 0;
    /// Words of the account.
    pub const WORDS: u64 = 1;
    /// The first free word.
    pub const NEXT_FREE: u64 = 2;
    /// Passes, the one of base pages among them.
    pub const PASSES: u64 = 3;
    /// Words of the geometry, at [`LENGTH`].
    pub const GEOMETRY: u64 = 4;
    /// Words of the sets of huge pages, after the geometry.
    pub const SETS: u64 = 5;
    /// The newest image.
    pub const IMAGES: u64 = 6;
    /// Accesses that are sampled of each period; 0: all are.
    pub const SAMPLED: u64 = 7;
    /// Accesses of a period.
    pub const PERIOD: u64 = 8;
    /// Allocations that failed, since the account was full.
    pub const FAILED_ALLOCATIONS: u64 = 9;
    /// Images for which there was no room.
    pub const LOST_IMAGES: u64 = 10;
    /// log2 of a huge page.
    pub const HUGE_SHIFT: u64 = 11;
    /// Words of the header.
    pub const LENGTH: u64 = 16;
}

/// A process image.
pub mod image {
    /// The next image.
    pub const NEXT: u64 = 0;
    /// Its process id.
    pub const PID: u64 = 1;
    /// The image that it was forked from; 0 for one that was launched or executed.
    pub const PARENT: u64 = 2;
    /// Events of the parent before the fork.
    pub const PARENT_EVENTS: u64 = 3;
    /// 0 launched or executed, 1 forked.
    pub const START_KIND: u64 = 4;
    /// Its end: see [`super::exit_kind`].
    pub const EXIT_KIND: u64 = 5;
    /// The newest block of events.
    pub const EVENTS: u64 = 6;
    /// Number of events.
    pub const EVENT_COUNT: u64 = 7;
    /// The newest block of a thread.
    pub const THREADS: u64 = 8;
    /// The newest chunk.
    pub const CHUNKS: u64 = 9;
    /// The program and its arguments, each ended by a zero byte.
    pub const TEXT: u64 = 10;
    /// Bytes of that text.
    pub const TEXT_BYTES: u64 = 11;
    /// Floating-point operations that were executed.
    pub const FLOAT_OPERATIONS: u64 = 12;
    /// Accesses to pages without a chunk, since the account was full.
    pub const UNRECORDED_ACCESSES: u64 = 13;
    /// Their misses in the first pass.
    pub const UNRECORDED_MISSES: u64 = 14;
    /// The program that was executed outside of QEMU: a path.
    pub const NATIVE_PROGRAM: u64 = 15;
    /// Bytes of that path.
    pub const NATIVE_PROGRAM_BYTES: u64 = 16;
    /// Threads that were not modelled, since there were too many.
    pub const UNMODELLED_THREADS: u64 = 17;
    /// Words of an image.
    pub const LENGTH: u64 = 24;
}

/// End of an image.
pub mod exit_kind {
    /// It was killed, or is still there.
    pub const UNKNOWN: u64 = 0;
    /// It called exit.
    pub const EXIT: u64 = 1;
    /// It executed another program, which is profiled too.
    pub const EXECUTED: u64 = 2;
    /// It executed another program, which is not profiled.
    pub const NATIVE: u64 = 3;
}

/// A block of events.
pub mod events {
    /// The block before.
    pub const NEXT: u64 = 0;
    /// Words before the events.
    pub const HEADER: u64 = 2;
    /// Events of a block.
    pub const PER_BLOCK: u64 = 64;
    /// Words of an event: its kind, four numbers, the position and the bytes of a text.
    pub const LENGTH: u64 = 8;
    /// Memory was mapped: from, to, kind, offset in the file; text: the file.
    pub const MMAP: u64 = 1;
    /// Memory was unmapped: from, to.
    pub const MUNMAP: u64 = 2;
    /// Memory was moved: old from, old to, new from, new to.
    pub const MREMAP: u64 = 3;
    /// The program break: end.
    pub const BRK: u64 = 4;
    /// The first thread's stack: from, to.
    pub const STACK: u64 = 5;
    /// The program advised on huge pages for memory: from, to, 1 against and 0 for them.
    pub const ADVISE: u64 = 6;
    /// The program disabled THP for itself.
    pub const DISABLE_THP: u64 = 7;
    /// Kinds of mapped memory.
    pub const ANONYMOUS: u64 = 0;
    /// Shared and anonymous.
    pub const SHARED: u64 = 1;
    /// Of a file.
    pub const FILE: u64 = 2;
}

/// The counts of one thread in one image.
pub mod thread {
    use super::super::geometry::{PAGE_SIZES, UPPER_LEVELS};

    /// The next thread.
    pub const NEXT: u64 = 0;
    /// Accesses that were counted.
    pub const ACCESSES: u64 = 1;
    /// Accesses that were not counted.
    pub const SKIPPED: u64 = 2;
    /// Sampling windows that were counted to their end.
    pub const WINDOWS: u64 = 3;
    /// Walks of the first pass in them.
    pub const WINDOW_WALKS: u64 = 4;
    /// The sum of the squares of these, a number with a binary point (`f64::to_bits`).
    pub const WINDOW_SQUARES: u64 = 5;
    /// The counts of the first pass.
    pub const PASSES: u64 = 8;
    /// Within a pass: walks by size of page.
    pub const WALKS: u64 = 0;
    /// Within a pass: reads of PDEs, PDPTEs and PML4Es besides the last entry of a walk.
    pub const UPPER_READS: u64 = PAGE_SIZES as u64;
    /// Within a pass: reuse distances by size of page, [`super::BUCKETS`] each.
    pub const REUSE: u64 = UPPER_READS + UPPER_LEVELS as u64;
    /// Words of a pass.
    pub const PASS: u64 = REUSE + PAGE_SIZES as u64 * super::BUCKETS;
}

/// Buckets of reuse distances: log2 from 0 on; the last one is of first walks.
pub const BUCKETS: u64 = 32;

/// The counts of some adjacent base pages.
pub mod chunk {
    use super::BUCKETS;

    /// Base pages of a chunk, as log2.
    pub const PAGES_BITS: u32 = 6;
    /// Base pages of a chunk.
    pub const PAGES: u64 = 1 << PAGES_BITS;
    /// Base pages of a line of page-table entries: 64 bytes with 8 each.
    pub const LINE_PAGES: u64 = 8;
    /// The next chunk.
    pub const NEXT: u64 = 0;
    /// The number of its first page, divided by [`PAGES`].
    pub const NUMBER: u64 = 1;
    /// 0 while it is in use; else 1 more than the number of events before it was closed.
    pub const CLOSED: u64 = 2;
    /// The first line: [`LINE`] words each, so that the words that a miss changes are adjacent.
    pub const LINES: u64 = 8;
    /// Words of a line: accesses and misses of the first pass for each page, then reuse distances.
    pub const LINE: u64 = LINE_PAGES * 2 + BUCKETS / 2;
    /// The bit of a page's accesses that is set if it was written.
    pub const WRITTEN: u64 = 1 << 63;
    /// Misses of the second pass, 32 bits a page; further passes follow.
    pub const OTHER_PASSES: u64 = LINES + PAGES / LINE_PAGES * LINE;

    /// The accesses of a page, by its index in the chunk; its misses are the next word.
    pub const fn page_cell(page: u64) -> u64 {
        LINES + page / LINE_PAGES * LINE + page % LINE_PAGES * 2
    }

    /// The reuse distances of a page's line: [`BUCKETS`] numbers of 32 bits.
    pub const fn reuse_histogram(page: u64) -> u64 {
        LINES + page / LINE_PAGES * LINE + LINE_PAGES * 2
    }

    /// Words of a chunk.
    pub const fn length(passes: u64) -> u64 {
        OTHER_PASSES + passes.saturating_sub(1) * (PAGES / 2)
    }
}

/// Sets of huge pages of the further passes, as words: for each its kind, then its contents.
pub mod sets {
    /// All private anonymous memory and the heap.
    pub const ALL: u64 = 1;
    /// Regions of mappings: their number, then [`super::sets::REGION`] words each.
    pub const REGIONS: u64 = 2;
    /// Huge pages at addresses: their number, then the addresses.
    pub const ADDRESSES: u64 = 3;
    /// Words of a region: kind of mapping, hash of its path, bytes, nth, offset.
    pub const REGION: u64 = 5;
    /// Kinds of mappings besides those of events: the heap.
    pub const HEAP: u64 = 3;
    /// The first thread's stack.
    pub const STACK: u64 = 4;
}

// Fields lie inside of their records; records do not overlap.
const _: () = assert!(header::HUGE_SHIFT < header::LENGTH && image::UNMODELLED_THREADS < image::LENGTH);
const _: () = assert!(events::HEADER > events::NEXT && events::LENGTH >= 7, "kind, four numbers, a text");
const _: () = assert!(thread::WINDOW_SQUARES < thread::PASSES);
const _: () = assert!(thread::WALKS + super::geometry::PAGE_SIZES as u64 == thread::UPPER_READS);
const _: () = assert!(chunk::CLOSED < chunk::LINES && chunk::PAGES.is_multiple_of(chunk::LINE_PAGES));
const _: () = assert!(chunk::page_cell(chunk::PAGES - 1) + 2 == chunk::reuse_histogram(chunk::PAGES - 1));
const _: () = assert!(chunk::reuse_histogram(chunk::PAGES - 1) + BUCKETS / 2 == chunk::OTHER_PASSES);
const _: () = assert!(chunk::length(1) == chunk::OTHER_PASSES);

/// FNV-1a of 64 bits: the hash of a path in [`sets`].
pub fn fnv1a(bytes: &[u8]) -> u64 {
    let fold = |sum: u64, &byte: &u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold)
}
