//! Swap file of pagelab: created before its first use, and removed when all its pages are back in memory.
//!
//! It is for the duration of an experiment. Existing swap areas are never touched; the swap file is filled
//! before them, so that pages swapped out meanwhile are read back when it is removed.

use std::io;
use std::time::Duration;

use pagelab_formats::{meminfo, swap};
use pagelab_model::Bytes;
use pagelab_model::settings::SwapArea;
use pagelab_model::size::format_bytes;
use rustix::io::Errno;

use super::journal::{JournalEntry, UndoOutcome, UndoResult, check_removed, existing_inode};
use super::kernel::{FsSpace, Kernel};
use super::kernel_objects::retry;
use super::{GuardError, GuardErrorKind};
use crate::paths;

/// Label of the swap area, as `blkid` and `swaplabel` show it.
pub(super) const AREA_LABEL: &str = "pagelab";
/// Minimum free space of its file system.
const FREE_MIN: Bytes = Bytes(1 << 30);
/// Divisor of the file system's size: the reserve, if that is more.
const FREE_DIVISOR: u64 = 20;
/// Maximum tries of a swapoff that signals interrupt.
const SWAPOFF_ATTEMPTS_MAX: usize = 16;

/// File systems that cannot hold one, by their magic numbers (include/uapi/linux/magic.h), and why.
const UNSUPPORTED_FILE_SYSTEMS: [(u64, &str); 8] = [
    (0x0102_1994, "tmpfs, which is backed by memory"),
    (0x8584_58f6, "ramfs, which is backed by memory"),
    (0x794c_7630, "overlayfs, which has no blocks"),
    (0x9123_683e, "btrfs, which is copy-on-write"),
    (0x2fc1_2fc1, "ZFS, which is copy-on-write"),
    (0x6969, "NFS, which would swap over the network"),
    (0x6573_5546, "FUSE, which has no blocks"),
    (0x0102_1997, "9p, which would swap over a transport"),
];

/// A swap file in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapFile {
    /// Where it is.
    pub path: String,
    /// Swapped bytes, as the kernel reports (`/proc/swaps`).
    pub size: Bytes,
}

/// Whether the file system can hold it, and keeps its reserve.
pub(super) fn check_space(dir: &str, space: FsSpace, size: Bytes) -> Result<(), GuardError> {
    if let Some((_, what)) = UNSUPPORTED_FILE_SYSTEMS.iter().find(|(magic, _)| *magic == space.magic) {
        let message = format!(
            "cannot create a swap file in {dir}: its file system is {what}; hint: set --swap-dir or TMPDIR \
             to a directory on ext4 or XFS"
        );
        return Err(GuardError::new(GuardErrorKind::NotAvailable, message));
    }
    let reserve = FREE_MIN.0.max(space.total.0 / FREE_DIVISOR);
    let most = space.free.0.saturating_sub(reserve);
    if size.0 > most {
        let message = format!(
            "cannot create a swap file of {} in {dir}: {} is free, and {} of it is reserved by \
             the file system; hint: set --swap-dir or TMPDIR to another disk, or use less swap",
            format_bytes(size),
            format_bytes(space.free),
            format_bytes(Bytes(reserve))
        );
        return Err(GuardError::new(GuardErrorKind::NotAvailable, message));
    }
    Ok(())
}

pub(super) fn describe_error(path: &str, error: &io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::INVAL) => format!(
            "cannot swap to {path}: the file system does not report the blocks of a file ({error}); hint: \
             set --swap-dir or TMPDIR to a directory on ext4 or XFS"
        ),
        Some(Errno::PERM | Errno::ACCESS) => format!("cannot swap to {path}: {error}; hint: run as root"),
        Some(Errno::NOSPC | Errno::DQUOT) => {
            format!("cannot create {path}: {error}; hint: set --swap-dir or TMPDIR to another disk")
        }
        _ => format!("cannot use {path} as a swap file: {error}"),
    }
}

/// The area of this file, if it is in use; `/proc/swaps` marks a removed file by its name.
pub(super) fn find_area(kernel: &dyn Kernel, path: &str) -> io::Result<Option<SwapArea>> {
    let text = kernel.read(paths::SWAPS)?;
    let areas = swap::parse(text.as_bytes())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.message_in_file(paths::SWAPS)))?;
    let removed = format!("{path} (deleted)");
    Ok(areas.into_iter().find(|area| area.name == path || area.name == removed))
}

/// Disables the swap file and removes it.
pub(super) fn undo_swap_file(kernel: &dyn Kernel, entry: &JournalEntry, path: &str) -> UndoResult {
    let area = find_area(kernel, path)?;
    let inode = existing_inode(kernel.file_inode(path))?;
    match (&area, inode) {
        (None, None) => return Ok((UndoOutcome::AlreadyRestored, "")),
        (Some(area), _) if area.name != path => {
            let text = "the file was removed while in use; it remains in use as swap until the next boot";
            return Err(io::Error::other(text));
        }
        (_, Some(inode)) if entry.is_foreign(inode) => {
            return Ok((UndoOutcome::LeftUnchanged, "another file has this name now"));
        }
        _ => {}
    }
    if let Some(area) = &area {
        swap_off_area(kernel, path, area)?;
    }
    kernel.remove_file(path)?;
    check_removed(kernel.file_inode(path))
}

/// Disables the area, if its contents fit in memory: else the kernel would kill programs.
fn swap_off_area(kernel: &dyn Kernel, path: &str, area: &SwapArea) -> io::Result<()> {
    let info = kernel.read(paths::MEMINFO).ok().and_then(|text| meminfo::parse(text.as_bytes()).ok());
    if let Some(available) = info.and_then(|info| info.bytes("MemAvailable"))
        && available < area.used
    {
        let text = format!(
            "it holds {}, but only {} of memory is available; hint: stop a program, then run pagelab \
             restore",
            format_bytes(area.used),
            format_bytes(available)
        );
        return Err(io::Error::new(io::ErrorKind::OutOfMemory, text));
    }
    retry(SWAPOFF_ATTEMPTS_MAX, Duration::ZERO, io::ErrorKind::Interrupted, || kernel.swap_off(path))
        .map_err(|error| io::Error::new(error.kind(), format!("cannot disable it: {error}")))?;
    match find_area(kernel, path)? {
        None => Ok(()),
        Some(_) => Err(io::Error::other("it is still in use after swapoff")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXT4: u64 = 0xef53;
    const G: u64 = 1 << 30;

    #[test]
    fn a_file_system_that_cannot_hold_one_is_named_with_a_way_out() {
        for (magic, word) in [(0x0102_1994, "tmpfs"), (0x9123_683e, "btrfs"), (0x794c_7630, "overlayfs")] {
            let room = FsSpace { total: Bytes(100 * G), free: Bytes(90 * G), magic };
            let error = check_space("/x", room, Bytes(G)).unwrap_err();
            assert_eq!(error.kind(), GuardErrorKind::NotAvailable);
            assert!(error.to_string().contains(word) && error.to_string().contains("--swap-dir"), "{error}");
        }
    }

    #[test]
    fn the_reserve_of_the_file_system_stays() {
        // Total, free, requested, whether it fits: 5 % and 1 GiB at least stay free.
        let cases = [
            (100 * G, 10 * G, 5 * G, true),
            (100 * G, 10 * G, 5 * G + 1, false),
            (10 * G, 10 * G, 9 * G, true),
            (10 * G, 10 * G, 9 * G + 1, false),
            (10 * G, G / 2, 1 << 20, false),
        ];
        for (total, free, size, fits) in cases {
            let room = FsSpace { total: Bytes(total), free: Bytes(free), magic: EXT4 };
            let found = check_space("/x", room, Bytes(size));
            assert_eq!(found.is_ok(), fits, "{total} {free} {size}: {found:?}");
        }
    }
}
