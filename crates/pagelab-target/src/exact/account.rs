//! The account that the plugin writes: memory without a name, which is there whatever becomes of the program.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use pagelab_host::paths;
use pagelab_tlb::engine::geometry::Geometry;
use pagelab_tlb::engine::layout::{MAGIC, head};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::error::{Error, ErrorKind};

/// Bytes of the account at most; memory is taken as it is written. With about 2 KiB for 256 KiB that are
/// touched, that is half a TiB of a program's memory.
pub const BYTES_MOST: u64 = 4 << 30;
const WORD: u64 = 8;

/// The account.
#[derive(Debug)]
pub struct Account {
    file: File,
}

impl Account {
    /// An account with its head, in which `passes` passes are asked for.
    pub fn create(
        geometry: &Geometry,
        sets: &[u64],
        passes: usize,
        more: impl FnOnce(&mut Vec<u64>),
    ) -> Result<Account, Error> {
        let geometry = geometry.encode();
        let mut words = vec![0; head::LENGTH as usize];
        // Blocks begin with a cache line of 8 words.
        let free = (head::LENGTH + (geometry.len() + sets.len()) as u64).next_multiple_of(8);
        for (field, value) in [
            (head::MAGIC, MAGIC),
            (head::WORDS, BYTES_MOST / WORD),
            (head::FREE, free),
            (head::PASSES, passes as u64),
            (head::GEOMETRY, geometry.len() as u64),
            (head::SETS, sets.len() as u64),
        ] {
            words[field as usize] = value;
        }
        more(&mut words);
        words.extend(geometry);
        words.extend(sets);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let made = || -> std::io::Result<Account> {
            let file = File::from(memfd_create("pagelab-account", MemfdFlags::CLOEXEC)?);
            file.set_len(BYTES_MOST)?;
            file.write_all_at(&bytes, 0)?;
            Ok(Account { file })
        };
        made().map_err(|error| {
            let message = format!("cannot make memory for the account of the profile: {error}");
            Error::new(ErrorKind::Refused, message)
        })
    }

    /// A path at which the plugin finds it, as long as we live.
    pub fn path(&self) -> String {
        format!("{}/{}/fd/{}", paths::PROC, std::process::id(), self.file.as_raw_fd())
    }

    /// Words of the account; `None` beyond what was handed out.
    pub fn words(&self, at: u64, count: u64) -> Option<Vec<u64>> {
        let end = at.checked_add(count)?;
        if at == 0 || end > self.head(head::FREE).min(BYTES_MOST / WORD) {
            return None;
        }
        self.read(at, count)
    }

    /// A word of the head.
    pub fn head(&self, field: u64) -> u64 {
        self.read(field, 1).map_or(0, |words| words[0])
    }

    fn read(&self, at: u64, count: u64) -> Option<Vec<u64>> {
        let mut bytes = vec![0; usize::try_from(count.checked_mul(WORD)?).ok()?];
        self.file.read_exact_at(&mut bytes, at.checked_mul(WORD)?).ok()?;
        let (words, _) = bytes.as_chunks::<{ WORD as usize }>();
        Some(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
    }

    /// A text of so many bytes.
    pub fn text(&self, at: u64, bytes: u64) -> Option<Vec<u8>> {
        let words = self.words(at, bytes.div_ceil(WORD))?;
        let mut text: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        text.truncate(usize::try_from(bytes).ok()?);
        Some(text)
    }

    /// The places of a list's blocks, the oldest first. A list that goes in a circle, which only a program
    /// that wrote into the account can have made, ends.
    pub fn list(&self, head: u64) -> Vec<u64> {
        let most = BYTES_MOST / WORD / 16;
        let mut found = Vec::new();
        let mut at = head;
        while at != 0 && (found.len() as u64) < most {
            let Some(words) = self.words(at, 1) else { break };
            found.push(at);
            // A newer block never lies at the place of its successor.
            if words[0] == at {
                break;
            }
            at = words[0];
        }
        found.reverse();
        found
    }
}
