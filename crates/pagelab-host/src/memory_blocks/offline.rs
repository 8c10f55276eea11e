//! Taking a memory block offline, and putting it online again, each with a deadline.
//!
//! `offline_pages()` repeats the migration of movable pages for as long as it fails (mm/memory_hotplug.c);
//! under load that may be for ever, and nothing but a signal to the writing process ends it. So a child
//! writes, and SIGKILL ends it. Neither a successful write nor a kill proves the state: it is read back, and
//! compared with the memory that the kernel says it has.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagelab_formats::meminfo;
use pagelab_model::{Absence, Bytes, PageSize};
use pagelab_sys::bounded_write::{WriteEnd, write_with_deadline};
use rustix::io::Errno;

use super::{BlockState, MOVABLE_ZONE, MemoryBlockEntry, read_memory_block};
use crate::reader::Reader;
use crate::root::Root;
use crate::{machine, paths};

/// Time in which a killed writer must end: it finishes the page that it migrates.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// How taking a block offline ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OfflineEnd {
    /// It is offline.
    Offline {
        /// Time of the write.
        elapsed: Duration,
        /// What `MemTotal` lost.
        removed: Bytes,
    },
    /// The kernel refused, and it is online.
    Refused {
        /// The error, by name: `EBUSY`.
        errno: String,
        /// Time of the write.
        elapsed: Duration,
    },
    /// The kernel still tried at the deadline; the writer was killed, and the block is online.
    TimedOut {
        /// The deadline.
        deadline: Duration,
    },
    /// The writer was killed at the deadline, but the block is offline: the kernel was just done.
    OfflineAfterKill {
        /// The deadline.
        deadline: Duration,
        /// What `MemTotal` lost.
        removed: Bytes,
    },
    /// The write, `state` and `MemTotal` contradict each other, or another process killed the writer.
    Contradiction {
        /// What they say, in one sentence without a trailing dot.
        detail: String,
        /// Whether `state` is offline.
        is_offline: bool,
    },
}

impl OfflineEnd {
    /// Whether `state` reads offline.
    pub fn is_offline(&self) -> bool {
        match self {
            OfflineEnd::Offline { .. } | OfflineEnd::OfflineAfterKill { .. } => true,
            OfflineEnd::Refused { .. } | OfflineEnd::TimedOut { .. } => false,
            OfflineEnd::Contradiction { is_offline, .. } => *is_offline,
        }
    }

    /// A short name of the end; of a refusal that of its error.
    pub fn kind_name(&self) -> &str {
        match self {
            OfflineEnd::Offline { .. } => "offline",
            OfflineEnd::Refused { errno, .. } => errno,
            OfflineEnd::TimedOut { .. } => "timed out",
            OfflineEnd::OfflineAfterKill { .. } => "offline after the deadline",
            OfflineEnd::Contradiction { .. } => "contradiction",
        }
    }

    /// Time that it took, up to the deadline.
    pub fn elapsed(&self) -> Option<Duration> {
        match self {
            OfflineEnd::Offline { elapsed, .. } | OfflineEnd::Refused { elapsed, .. } => Some(*elapsed),
            OfflineEnd::TimedOut { deadline } | OfflineEnd::OfflineAfterKill { deadline, .. } => {
                Some(*deadline)
            }
            OfflineEnd::Contradiction { .. } => None,
        }
    }
}

/// How putting a block online ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnlineEnd {
    /// It is online, and in these zones.
    Online {
        /// Its zone, or several.
        zones: Vec<String>,
        /// Time of the write.
        elapsed: Duration,
    },
    /// It stays offline.
    Offline {
        /// The error of the write by name, or what happened.
        detail: String,
    },
}

/// Why nothing is known about a block, or nothing was tried: file, operation, and reason.
#[derive(Debug)]
pub struct BlockError {
    message: String,
    is_not_permitted: bool,
}

impl BlockError {
    fn from_io(operation: &str, path: &Path, error: &io::Error) -> BlockError {
        let is_not_permitted = error.kind() == io::ErrorKind::PermissionDenied;
        let hint = if is_not_permitted { "; hint: run as root" } else { "" };
        let message = format!("cannot {operation} {}: {error}{hint}", path.display());
        BlockError { message, is_not_permitted }
    }

    fn from_absence(absence: &Absence) -> BlockError {
        BlockError { message: format!("cannot read {absence}"), is_not_permitted: false }
    }

    /// Whether the caller may not do it.
    pub fn is_not_permitted(&self) -> bool {
        self.is_not_permitted
    }
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BlockError {}

/// The kernel whose blocks are taken offline: that of this machine.
///
/// It checks no reserve and keeps no journal: the caller decides where blocks may go. On a host none may.
#[derive(Debug)]
pub struct BlockSite {
    root: Root,
    /// In front of the kernel's paths; empty on a live machine.
    base: PathBuf,
    page_size: PageSize,
}

impl BlockSite {
    /// This machine.
    pub fn live() -> BlockSite {
        let page_size = machine::live_page_size().map_or(PageSize::DEFAULT, |size| size);
        BlockSite { root: Root::live(), base: PathBuf::from("/"), page_size }
    }

    /// A tree of files, in which a write only changes a file.
    #[cfg(test)]
    pub(super) fn with_base(base: &Path) -> BlockSite {
        let root = Root::open(base).unwrap();
        BlockSite { root, base: base.to_owned(), page_size: PageSize::DEFAULT }
    }

    /// The tree that its files are read from.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Page size of the machine.
    pub fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// Takes a block offline that is online and can go. At `deadline` the writer is killed.
    pub fn offline_block(
        &self,
        block: &MemoryBlockEntry,
        deadline: Duration,
    ) -> Result<OfflineEnd, BlockError> {
        let total_before = self.read_total()?;
        let written = self.write_state(block, "offline", deadline)?;
        let state = self.read_block(block)?.state;
        let removed = Bytes(total_before.0.saturating_sub(self.read_total()?.0));
        Ok(judge_offline(&written, state, removed, self.block_bytes(block), deadline))
    }

    /// Puts a block online again, as it was in `block`: in ZONE_MOVABLE, or in a zone for the kernel. In
    /// which of these, the kernel decides by the spans of its zones, so the zone is read back.
    pub fn online_block(
        &self,
        block: &MemoryBlockEntry,
        deadline: Duration,
    ) -> Result<OnlineEnd, BlockError> {
        let word = match &block.zones[..] {
            [zone] if zone == MOVABLE_ZONE => "online_movable",
            [_] => "online_kernel",
            _ => "online",
        };
        let written = self.write_state(block, word, deadline)?;
        let now = self.read_block(block)?;
        Ok(match (&written, now.state) {
            (WriteEnd::Returned { elapsed_ns, .. }, BlockState::Online) => {
                OnlineEnd::Online { zones: now.zones, elapsed: Duration::from_nanos(*elapsed_ns) }
            }
            (_, BlockState::Online) => OnlineEnd::Online { zones: now.zones, elapsed: deadline },
            (written, state) => OnlineEnd::Offline { detail: describe_write(written, word, state) },
        })
    }

    /// Writes a word to the block's `state` in a child.
    fn write_state(
        &self,
        block: &MemoryBlockEntry,
        word: &str,
        deadline: Duration,
    ) -> Result<WriteEnd, BlockError> {
        let inside = format!("{}/memory{}/state", paths::MEMORY_BLOCKS, block.number);
        let path = self.base.join(inside.trim_start_matches('/'));
        let operation = format!("write `{word}` to");
        let failed = |error: io::Error| BlockError::from_io(&operation, &path, &error);
        let file = File::options().write(true).open(&path).map_err(failed)?;
        write_with_deadline(file.as_fd(), word.as_bytes(), deadline, KILL_TIMEOUT).map_err(failed)
    }

    fn read_block(&self, block: &MemoryBlockEntry) -> Result<MemoryBlockEntry, BlockError> {
        let reader = Reader::new(&self.root);
        read_memory_block(&reader, self.page_size, block.number)
            .map_err(|absence| BlockError::from_absence(&absence))
    }

    fn read_total(&self) -> Result<Bytes, BlockError> {
        let meminfo = Reader::new(&self.root).parse(paths::MEMINFO, meminfo::parse);
        let meminfo = meminfo.map_err(|absence| BlockError::from_absence(&absence))?;
        meminfo.bytes("MemTotal").ok_or_else(|| {
            let path = self.root.display_path(paths::MEMINFO);
            BlockError { message: format!("cannot read {path}: it has no MemTotal"), is_not_permitted: false }
        })
    }

    fn block_bytes(&self, block: &MemoryBlockEntry) -> Bytes {
        Bytes(block.frames.count.0.saturating_mul(self.page_size.bytes()))
    }
}

/// What the write, the state afterwards and the memory that `MemTotal` lost say together. Another process may
/// change `MemTotal` by a little, and reserved frames of a block are not in it: half a block is enough.
fn judge_offline(
    written: &WriteEnd,
    state: BlockState,
    removed: Bytes,
    block_size: Bytes,
    deadline: Duration,
) -> OfflineEnd {
    let is_offline = state == BlockState::Offline;
    let is_gone = removed.0 >= block_size.0 / 2;
    match written {
        WriteEnd::Returned { result: Ok(_), elapsed_ns } if is_offline && is_gone => {
            OfflineEnd::Offline { elapsed: Duration::from_nanos(*elapsed_ns), removed }
        }
        WriteEnd::Returned { result: Err(errno), elapsed_ns } if !is_offline && !is_gone => {
            OfflineEnd::Refused {
                errno: errno_name(*errno).into_owned(),
                elapsed: Duration::from_nanos(*elapsed_ns),
            }
        }
        WriteEnd::Killed if is_offline && is_gone => OfflineEnd::OfflineAfterKill { deadline, removed },
        WriteEnd::Killed if state == BlockState::Online && !is_gone => OfflineEnd::TimedOut { deadline },
        _ => {
            let detail = describe_write(written, "offline", state);
            let detail = format!("{detail}, and MemTotal lost {} KiB", removed.0 >> 10);
            OfflineEnd::Contradiction { detail, is_offline }
        }
    }
}

fn describe_write(written: &WriteEnd, word: &str, state: BlockState) -> String {
    let end = match written {
        WriteEnd::Returned { result: Ok(_), .. } => "succeeded".to_owned(),
        WriteEnd::Returned { result: Err(errno), .. } => format!("failed with {}", errno_name(*errno)),
        WriteEnd::Killed => "was killed at the deadline".to_owned(),
        WriteEnd::ChildLost(status) => format!("was ended by another process ({status})"),
    };
    format!("the write of `{word}` {end}, the state is {state}")
}

/// Name of an error that `offline_pages` and `online_pages` return, else its number.
fn errno_name(errno: i32) -> Cow<'static, str> {
    const NAMES: [(Errno, &str); 9] = [
        (Errno::BUSY, "EBUSY"),
        (Errno::INVAL, "EINVAL"),
        (Errno::INTR, "EINTR"),
        (Errno::AGAIN, "EAGAIN"),
        (Errno::NOMEM, "ENOMEM"),
        (Errno::PERM, "EPERM"),
        (Errno::ACCESS, "EACCES"),
        (Errno::NODEV, "ENODEV"),
        (Errno::IO, "EIO"),
    ];
    let known = NAMES.iter().find(|(known, _)| known.raw_os_error() == errno);
    known.map_or_else(|| Cow::Owned(format!("errno {errno}")), |(_, name)| Cow::Borrowed(*name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;
    use crate::memory_blocks::read_memory_blocks;
    use crate::memory_blocks::tests::{MEMORY, two_blocks};

    const BLOCK: Bytes = Bytes(128 << 20);
    const DEADLINE: Duration = Duration::from_secs(10);

    #[test]
    fn a_success_is_believed_only_if_state_and_memory_agree() {
        use BlockState::{GoingOffline, Offline, Online};
        let ok = WriteEnd::Returned { result: Ok(7), elapsed_ns: 3_000_000 };
        let busy = WriteEnd::Returned { result: Err(16), elapsed_ns: 5 };
        let lost = WriteEnd::ChildLost(ExitStatus::from_raw(9));
        let took = Duration::from_millis(3);
        let refused = OfflineEnd::Refused { errno: "EBUSY".into(), elapsed: Duration::from_nanos(5) };
        let contradiction = |says: &'static str| Err(says);
        for (written, state, removed, expected) in [
            (ok, Offline, BLOCK, Ok(OfflineEnd::Offline { elapsed: took, removed: BLOCK })),
            (
                ok,
                Offline,
                Bytes(BLOCK.0 / 2),
                Ok(OfflineEnd::Offline { elapsed: took, removed: Bytes(BLOCK.0 / 2) }),
            ),
            (
                ok,
                Offline,
                Bytes(BLOCK.0 / 2 - 1),
                contradiction("succeeded, the state is offline, and MemTotal lost 65535 KiB"),
            ),
            (ok, Online, Bytes(0), contradiction("succeeded, the state is online")),
            (ok, Online, BLOCK, contradiction("MemTotal lost 131072 KiB")),
            (ok, GoingOffline, BLOCK, contradiction("going-offline")),
            (busy, Online, Bytes(0), Ok(refused.clone())),
            (busy, Online, Bytes(4 << 10), Ok(refused)),
            (busy, Offline, BLOCK, contradiction("failed with EBUSY, the state is offline")),
            (WriteEnd::Killed, Online, Bytes(0), Ok(OfflineEnd::TimedOut { deadline: DEADLINE })),
            (
                WriteEnd::Killed,
                Offline,
                BLOCK,
                Ok(OfflineEnd::OfflineAfterKill { deadline: DEADLINE, removed: BLOCK }),
            ),
            (
                WriteEnd::Killed,
                GoingOffline,
                Bytes(0),
                contradiction("killed at the deadline, the state is going-offline"),
            ),
            (WriteEnd::Killed, Offline, Bytes(0), contradiction("lost 0 KiB")),
            (lost, Online, Bytes(0), contradiction("ended by another process (signal: 9")),
        ] {
            let found = judge_offline(&written, state, removed, BLOCK, DEADLINE);
            match expected {
                Ok(expected) => assert_eq!(found, expected),
                Err(says) => {
                    let OfflineEnd::Contradiction { detail, is_offline } = &found else {
                        panic!("{found:?}")
                    };
                    assert!(detail.contains(says), "{detail}");
                    assert_eq!(*is_offline, state == Offline);
                }
            }
            assert_eq!(found.is_offline(), state == Offline, "{found:?}");
        }
        assert_eq!(
            [16, 22, 4, 11, 12, 99].map(errno_name),
            ["EBUSY", "EINVAL", "EINTR", "EAGAIN", "ENOMEM", "errno 99"]
        );
    }

    #[test]
    fn a_write_that_changes_the_file_alone_is_a_contradiction() {
        let tree = two_blocks();
        let site = BlockSite::with_base(tree.path());
        let blocks = read_memory_blocks(&Reader::new(site.root()), site.page_size()).unwrap().blocks;
        let end = site.offline_block(&blocks[1], DEADLINE).unwrap();
        // The whole file is the word that was written; MemTotal is what it was.
        let state = std::fs::read_to_string(tree.path().join(&MEMORY[1..]).join("memory5/state")).unwrap();
        assert_eq!(state, "offline");
        assert!(matches!(end, OfflineEnd::Contradiction { is_offline: true, .. }), "{end:?}");
    }

    #[test]
    fn the_word_for_online_is_that_of_the_zone() {
        let tree = two_blocks();
        let site = BlockSite::with_base(tree.path());
        let mut block = read_memory_block(&Reader::new(site.root()), site.page_size(), 5).unwrap();
        for (zones, word) in [
            (&["Movable"][..], "online_movable"),
            (&["DMA32"], "online_kernel"),
            (&["DMA32", "Normal"], "online"),
            (&[], "online"),
        ] {
            tree.add_file(&format!("{MEMORY}/memory5/state"), b"");
            block.zones = zones.iter().map(|&zone| zone.to_owned()).collect();
            // The kernel reads `online` back whatever the word was; the file of the tree reads the word.
            let end = site.online_block(&block, DEADLINE);
            let state =
                std::fs::read_to_string(tree.path().join(&MEMORY[1..]).join("memory5/state")).unwrap();
            assert_eq!(state, word);
            match word {
                "online" => assert!(matches!(end, Ok(OnlineEnd::Online { .. })), "{end:?}"),
                _ => assert!(end.unwrap_err().to_string().contains("unknown state `online_")),
            }
        }
    }

    #[test]
    fn errors_name_the_file_and_the_operation() {
        let tree = two_blocks();
        let site = BlockSite::with_base(tree.path());
        let mut block = read_memory_block(&Reader::new(site.root()), site.page_size(), 5).unwrap();
        tree.add_file("/proc/meminfo", b"MemFree: 5 kB\n");
        let error = site.offline_block(&block, DEADLINE).unwrap_err().to_string();
        assert!(error.contains("proc/meminfo") && error.contains("no MemTotal"), "{error}");
        block.number = 7;
        let error = site.online_block(&block, DEADLINE).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("cannot write `online_movable` to") && text.contains("memory7/state"),
            "{text}"
        );
        assert!(!error.is_not_permitted());
    }
}
