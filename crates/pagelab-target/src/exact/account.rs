//! The account that the plugin writes: unnamed shared memory, which outlives the program.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use pagelab_host::paths;
use pagelab_tlb::engine::account_layout::{MAGIC, chunk, events, header, image, thread};
use pagelab_tlb::engine::geometry::Geometry;
use rustix::fs::{MemfdFlags, memfd_create};

use pagelab_model::Failure;

/// Bytes of the account at most; memory is taken as it is written. With about 2 KiB for 256 KiB that are
/// touched, that is half a TiB of a program's memory.
pub const BYTES_MAX: u64 = 4 << 30;
const WORD_BYTES: u64 = 8;

/// The account.
#[derive(Debug)]
pub struct SharedAccount {
    file: File,
}

impl SharedAccount {
    /// Creates an account with its header, for a number of passes.
    pub fn create(
        geometry: &Geometry,
        sets: &[u64],
        passes: usize,
        fill_header: impl FnOnce(&mut Vec<u64>),
    ) -> Result<SharedAccount, Failure> {
        let geometry = geometry.encode();
        let mut words = vec![0; header::LENGTH as usize];
        // Blocks begin with a cache line of 8 words.
        let free = (header::LENGTH + (geometry.len() + sets.len()) as u64).next_multiple_of(8);
        for (field, value) in [
            (header::MAGIC, MAGIC),
            (header::WORDS, BYTES_MAX / WORD_BYTES),
            (header::NEXT_FREE, free),
            (header::PASSES, passes as u64),
            (header::GEOMETRY, geometry.len() as u64),
            (header::SETS, sets.len() as u64),
        ] {
            words[field as usize] = value;
        }
        fill_header(&mut words);
        words.extend(geometry);
        words.extend(sets);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let create_file = || -> std::io::Result<SharedAccount> {
            let file = File::from(memfd_create("pagelab-account", MemfdFlags::CLOEXEC)?);
            file.set_len(BYTES_MAX)?;
            file.write_all_at(&bytes, 0)?;
            Ok(SharedAccount { file })
        };
        create_file().map_err(|error| {
            Failure::refused(format!("cannot allocate memory for the profile's account: {error}"))
        })
    }

    /// A path at which the plugin finds it, as long as we live.
    pub fn path(&self) -> String {
        format!("{}/{}/fd/{}", paths::PROC, std::process::id(), self.file.as_raw_fd())
    }

    /// Words of the account; `None` beyond the allocated part.
    pub fn read_words(&self, position: u64, count: u64) -> Option<Vec<u64>> {
        let end = position.checked_add(count)?;
        if position == 0 || end > self.read_header(header::NEXT_FREE).min(BYTES_MAX / WORD_BYTES) {
            return None;
        }
        self.read_raw(position, count)
    }

    /// A word of the head.
    pub fn read_header(&self, field: u64) -> u64 {
        self.read_raw(field, 1).map_or(0, |words| words[0])
    }

    fn read_raw(&self, position: u64, count: u64) -> Option<Vec<u64>> {
        let mut bytes = vec![0; usize::try_from(count.checked_mul(WORD_BYTES)?).ok()?];
        self.file.read_exact_at(&mut bytes, position.checked_mul(WORD_BYTES)?).ok()?;
        let (words, _) = bytes.as_chunks::<{ WORD_BYTES as usize }>();
        Some(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
    }

    /// A text of a given length.
    pub fn read_text(&self, position: u64, bytes: u64) -> Option<Vec<u8>> {
        let words = self.read_words(position, bytes.div_ceil(WORD_BYTES))?;
        let mut text: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        text.truncate(usize::try_from(bytes).ok()?);
        Some(text)
    }

    /// The places of a list's blocks, the oldest first. A list that goes in a circle, which only a program
    /// that wrote into the account can have made, ends.
    pub fn list_blocks(&self, head: u64) -> Vec<u64> {
        let blocks_max = BYTES_MAX / WORD_BYTES / 16;
        let mut blocks = Vec::new();
        let mut position = head;
        while position != 0 && (blocks.len() as u64) < blocks_max {
            let Some(words) = self.read_words(position, 1) else { break };
            blocks.push(position);
            // A newer block is never at the position of its successor.
            if words[0] == position {
                break;
            }
            position = words[0];
        }
        blocks.reverse();
        blocks
    }
}

/// Events of one image at most that are believed.
const EVENTS_MAX: u64 = 1 << 28;

/// One process image.
#[derive(Debug)]
pub struct ImageRecord {
    /// Position.
    pub position: u64,
    /// Its words, see `account_layout::image`.
    pub words: Vec<u64>,
    /// The program and its arguments.
    pub text: Vec<u8>,
    /// Program executed outside QEMU.
    pub native: Option<Vec<u8>>,
    /// Changes of its mappings, in order.
    pub events: Vec<MappingEvent>,
    /// The words of its threads, see [`thread`].
    pub threads: Vec<Vec<u64>>,
    /// The words of its chunks, see [`chunk`]; the oldest first.
    pub chunks: Vec<Vec<u64>>,
}

impl ImageRecord {
    /// A word of it.
    pub fn field(&self, field: u64) -> u64 {
        self.words.get(field as usize).copied().unwrap_or(0)
    }

    /// A word of its threads, summed up.
    pub fn thread_sum(&self, field: u64) -> u64 {
        self.threads.iter().map(|thread| thread[field as usize]).sum()
    }
}

/// A change of mappings.
#[derive(Clone, Debug)]
pub struct MappingEvent {
    /// Its kind, see `account_layout::events`.
    pub kind: u64,
    /// Its numbers.
    pub numbers: [u64; 4],
    /// Its text: a path.
    pub text: String,
}

/// All images, in the order in which they began.
pub fn read_images(account: &SharedAccount) -> Vec<ImageRecord> {
    let places = account.list_blocks(account.read_header(header::IMAGES));
    places.into_iter().filter_map(|at| read_image(account, at)).collect()
}

fn read_image(account: &SharedAccount, position: u64) -> Option<ImageRecord> {
    let words = account.read_words(position, image::LENGTH)?;
    let passes = account.read_header(header::PASSES);
    let field = |field: u64| words[field as usize];
    let text = |at: u64, bytes: u64| account.read_text(field(at), field(bytes));
    let blocks = |list: u64, length: u64| -> Vec<Vec<u64>> {
        account.list_blocks(field(list)).into_iter().filter_map(|at| account.read_words(at, length)).collect()
    };
    let events = read_events(account, field(image::EVENTS), field(image::EVENT_COUNT).min(EVENTS_MAX));
    Some(ImageRecord {
        position,
        text: text(image::TEXT, image::TEXT_BYTES).unwrap_or_default(),
        native: text(image::NATIVE_PROGRAM, image::NATIVE_PROGRAM_BYTES),
        events,
        threads: blocks(image::THREADS, thread::PASSES + passes * thread::PASS),
        chunks: blocks(image::CHUNKS, chunk::length(passes)),
        words,
    })
}

fn read_events(account: &SharedAccount, newest: u64, count: u64) -> Vec<MappingEvent> {
    let mut found = Vec::new();
    for block in account.list_blocks(newest) {
        let Some(words) = account.read_words(block + events::HEADER, events::PER_BLOCK * events::LENGTH)
        else {
            break;
        };
        for event in words.chunks_exact(events::LENGTH as usize) {
            if found.len() as u64 == count {
                return found;
            }
            let text = match (event[5], event[6]) {
                (0, _) => String::new(),
                (at, bytes) => {
                    String::from_utf8_lossy(&account.read_text(at, bytes).unwrap_or_default()).into_owned()
                }
            };
            let numbers = [event[1], event[2], event[3], event[4]];
            found.push(MappingEvent { kind: event[0], numbers, text });
        }
    }
    found
}
