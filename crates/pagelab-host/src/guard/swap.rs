//! A swap file of pagelab's own: made before it is swapped to, and taken away after all of it came back.
//!
//! It is written for the time of an experiment. Swap areas that were there before are never touched; ours is
//! filled before them, so that what is swapped out meanwhile comes back with it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use pagelab_formats::{meminfo, swap_header, swaps};
use pagelab_model::settings::SwapArea;
use pagelab_model::{Bytes, PageSize};
use pagelab_sys::swap::PRIORITY_MAX;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::error::{ErrorKind, GuardError};
use super::journal::{Act, Entry, Seen};
use super::kernel::{Kernel, Room};
use super::owner::Owner;
use super::undo::{Fate, removed};
use super::{Guard, created, failed};
use crate::{machine, paths};

/// Every swap file of pagelab begins so; no other is ever removed.
const PREFIX: &str = "pagelab-swap-";
/// What `blkid` and `swaplabel` show of it.
const LABEL: &str = "pagelab";
/// The least that stays free on its file system, whatever is asked for.
const FREE_MIN: Bytes = Bytes(1 << 30);
/// Or this part of the file system, where that is more.
const FREE_PART: u64 = 20;
/// Zeros that are written at once.
const PIECE: usize = 1 << 20;
/// Tries of a swapoff that signals end early.
const TRIES: usize = 16;

/// File systems that cannot hold one, by their magic numbers (include/uapi/linux/magic.h), and why.
const UNFIT: [(u64, &str); 8] = [
    (0x0102_1994, "tmpfs, which is memory itself"),
    (0x8584_58f6, "ramfs, which is memory itself"),
    (0x794c_7630, "overlayfs, which has no blocks of its own"),
    (0x9123_683e, "btrfs, which copies on write"),
    (0x2fc1_2fc1, "ZFS, which copies on write"),
    (0x6969, "NFS, over which pages would be swapped"),
    (0x6573_5546, "FUSE, which has no blocks of its own"),
    (0x0102_1997, "9p, over which pages would be swapped"),
];

/// A swap file that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapFile {
    /// Where it is.
    pub path: String,
    /// What it holds, as the kernel says (`/proc/swaps`).
    pub size: Bytes,
}

impl Guard {
    /// Makes a swap file of `size` in the directory `dir` (absolute, without links), and swaps to it until
    /// the guard ends, before all areas that were there. Its file system keeps a reserve: 5 %, and 1 GiB at
    /// least.
    pub fn swap_file(&self, dir: &str, size: Bytes) -> Result<SwapFile, GuardError> {
        let kernel = self.site.kernel.as_ref();
        let Owner { pid, start_ticks, .. } = self.site.owner;
        let path = format!("{}/{PREFIX}{pid}-{start_ticks}-{}", dir.trim_end_matches('/'), self.number);
        if !is_ours(&path) {
            return Err(GuardError::new(
                ErrorKind::Usage,
                format!("{dir} is no absolute path of a directory"),
            ));
        }
        let room = kernel.room(dir).map_err(|e| GuardError::io(format!("a swap file in {dir}"), e))?;
        check_room(dir, room, size)?;
        let page_size = machine::live_page_size().unwrap_or(PageSize::USUAL);
        let header = swap_header::page(size, page_size, LABEL).ok_or_else(|| {
            GuardError::new(ErrorKind::Usage, format!("{} bytes cannot be a swap file", size.0))
        })?;
        let (mut ledger, locked) = self.claim(&path, "swap file")?;
        if kernel.file_inode(&path).is_ok() {
            let message = format!("{path} is there already; one guard has one swap file");
            return Err(GuardError::new(ErrorKind::Usage, message));
        }
        let Some(at) = self.announce(&mut ledger, locked, Act::SwapFile { path: path.clone() })? else {
            return Ok(SwapFile { path, size });
        };
        let made = kernel.make_swap_file(&path, size, &header).and_then(|()| kernel.file_inode(&path));
        let used = made.and_then(|inode| {
            ledger.saw(at, Seen { value: inode.to_string(), min_free_kbytes: None });
            kernel.swap_on(&path, PRIORITY_MAX)
        });
        match used.and_then(|()| area(kernel, &path)) {
            Ok(Some(area)) => Ok(SwapFile { path, size: area.size }),
            Ok(None) => {
                let undone = ledger.take_back(at);
                let message =
                    format!("{path} was switched on without an error, and is not in {}", paths::SWAPS);
                Err(failed(ErrorKind::Refused, message, &undone))
            }
            Err(error) => {
                let undone = ledger.take_back(at);
                Err(failed(ErrorKind::of(&error), refusal(&path, &error), &undone))
            }
        }
    }
}

/// Whether a path may be a swap file that pagelab made: named by us, without detours.
pub(super) fn is_ours(path: &str) -> bool {
    created::is_plain(path) && path.rsplit('/').next().is_some_and(|name| name.starts_with(PREFIX))
}

/// The process that made the swap file of this name (without its directory), if it is named as ours are.
pub fn swap_file_maker(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

/// Whether the file system can hold it, and keeps its reserve.
fn check_room(dir: &str, room: Room, size: Bytes) -> Result<(), GuardError> {
    if let Some((_, what)) = UNFIT.iter().find(|(magic, _)| *magic == room.magic) {
        let message = format!(
            "a swap file cannot be in {dir}: its file system is {what}; a way out: --swap-dir, or TMPDIR, \
             with a directory on ext4 or XFS"
        );
        return Err(GuardError::new(ErrorKind::NotAvailable, message));
    }
    let reserve = FREE_MIN.0.max(room.total.0 / FREE_PART);
    let most = room.free.0.saturating_sub(reserve);
    if size.0 > most {
        let message = format!(
            "a swap file of {} MiB does not fit into {dir}: {} MiB are free, and {} MiB of them are the \
             reserve of its file system; a way out: --swap-dir, or TMPDIR, with another disk, or a smaller \
             swap",
            size.0 >> 20,
            room.free.0 >> 20,
            reserve >> 20
        );
        return Err(GuardError::new(ErrorKind::NotAvailable, message));
    }
    Ok(())
}

fn refusal(path: &str, error: &io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::INVAL) => format!(
            "{path} cannot be swapped to: the file system does not say where its blocks are ({error}); a way \
             out: --swap-dir, or TMPDIR, with a directory on ext4 or XFS"
        ),
        Some(Errno::PERM | Errno::ACCESS) => format!("{path} cannot be swapped to: {error}; run as root"),
        Some(Errno::NOSPC | Errno::DQUOT) => {
            format!("{path} cannot be made: {error}; a way out: --swap-dir, or TMPDIR, with another disk")
        }
        _ => format!("{path} cannot be a swap file: {error}"),
    }
}

/// Gives an empty file its size and its header. Blocks are reserved where the file system can do that, else
/// zeros are written: a hole has no block to swap to.
pub(super) fn fill(file: &File, size: Bytes, header: &[u8]) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size.0) {
        Ok(()) => {}
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let zeros = vec![0; PIECE];
            for at in (0..size.0).step_by(PIECE) {
                let left = usize::try_from(size.0 - at).unwrap_or(PIECE).min(PIECE);
                file.write_all_at(&zeros[..left], at)?;
            }
        }
        Err(errno) => return Err(errno.into()),
    }
    file.write_all_at(header, 0)?;
    file.sync_all()
}

/// The area of this file, if it is in use. One whose file was removed meanwhile is told apart by its name.
fn area(kernel: &dyn Kernel, path: &str) -> io::Result<Option<SwapArea>> {
    let text = kernel.read(paths::SWAPS)?;
    let areas = swaps::parse(text.as_bytes())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.in_file(paths::SWAPS)))?;
    let removed = format!("{path} (deleted)");
    Ok(areas.into_iter().find(|area| area.name == path || area.name == removed))
}

/// A text of `/proc/swaps` without these areas.
pub(super) fn without(text: &str, off: &BTreeSet<String>) -> String {
    let Ok(areas) = swaps::parse(text.as_bytes()) else { return text.to_owned() };
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let head: String = lines.next().map(|line| format!("{line}\n")).unwrap_or_default();
    let on = lines.zip(&areas).filter(|(_, area)| !off.contains(&area.name));
    head + &on.map(|(line, _)| format!("{line}\n")).collect::<String>()
}

/// Brings everything back, and takes the file away.
pub(super) fn undo(kernel: &dyn Kernel, entry: &Entry, path: &str) -> io::Result<(Fate, &'static str)> {
    let area = area(kernel, path)?;
    let inode = match kernel.file_inode(path) {
        Ok(inode) => Some(inode.to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let is_other = |inode: &String| entry.seen.as_ref().is_some_and(|seen| seen.value != *inode);
    match (&area, &inode) {
        (None, None) => return Ok((Fate::AlreadyBack, "")),
        (Some(area), _) if area.name != path => {
            let text = "somebody removed the file while it was in use; it is swapped to until the next boot";
            return Err(io::Error::other(text));
        }
        (_, Some(inode)) if is_other(inode) => {
            return Ok((Fate::LeftAlone, "another file has its name now"));
        }
        _ => {}
    }
    if let Some(area) = &area {
        bring_back(kernel, path, area)?;
    }
    kernel.remove_file(path)?;
    removed(kernel.file_inode(path))
}

/// Memory must have room for what is in it: else the kernel would kill programs to make some.
fn bring_back(kernel: &dyn Kernel, path: &str, area: &SwapArea) -> io::Result<()> {
    let info = kernel.read(paths::MEMINFO).ok().and_then(|text| meminfo::parse(text.as_bytes()).ok());
    if let Some(available) = info.and_then(|info| info.bytes("MemAvailable"))
        && available < area.used
    {
        let text = format!(
            "{} MiB are in it and {} MiB of memory are available: end a program, then run pagelab restore",
            area.used.0.div_ceil(1 << 20),
            available.0 >> 20
        );
        return Err(io::Error::new(io::ErrorKind::OutOfMemory, text));
    }
    let mut tries = 0;
    loop {
        match kernel.swap_off(path) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted && tries < TRIES => tries += 1,
            Err(error) => {
                return Err(io::Error::new(error.kind(), format!("cannot be switched off: {error}")));
            }
            Ok(()) => break,
        }
    }
    match self::area(kernel, path)? {
        None => Ok(()),
        Some(_) => Err(io::Error::other("it is still in use after it was switched off")),
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
            let room = Room { total: Bytes(100 * G), free: Bytes(90 * G), magic };
            let error = check_room("/x", room, Bytes(G)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotAvailable);
            assert!(error.to_string().contains(word) && error.to_string().contains("--swap-dir"), "{error}");
        }
    }

    #[test]
    fn the_reserve_of_the_file_system_stays() {
        // Total, free, asked for, whether it fits: 5 % and 1 GiB at least stay.
        let cases = [
            (100 * G, 10 * G, 5 * G, true),
            (100 * G, 10 * G, 5 * G + 1, false),
            (10 * G, 10 * G, 9 * G, true),
            (10 * G, 10 * G, 9 * G + 1, false),
            (10 * G, G / 2, 1 << 20, false),
        ];
        for (total, free, size, fits) in cases {
            let room = Room { total: Bytes(total), free: Bytes(free), magic: EXT4 };
            let found = check_room("/x", room, Bytes(size));
            assert_eq!(found.is_ok(), fits, "{total} {free} {size}: {found:?}");
        }
    }

    #[test]
    fn only_our_names_are_ours() {
        for path in
            ["/var/tmp/swapfile", "/var/tmp/pagelab-swap-1/x", "var/pagelab-swap-1", "/a/../pagelab-swap-1"]
        {
            assert!(!is_ours(path), "{path}");
        }
        assert!(is_ours("/var/tmp/pagelab-swap-1-2-3"));
        for (name, maker) in [("pagelab-swap-17-2-3", Some(17)), ("pagelab-swap-x", None), ("swapfile", None)]
        {
            assert_eq!(swap_file_maker(name), maker, "{name}");
        }
    }

    #[test]
    fn areas_that_are_off_are_not_in_the_text() {
        let text = "Filename Type Size Used Priority\n/a\\040b file 8 0 1\n/c file 8 0 1\n";
        let off = BTreeSet::from(["/a b".to_owned()]);
        assert_eq!(without(text, &off), "Filename Type Size Used Priority\n/c file 8 0 1\n");
    }
}
