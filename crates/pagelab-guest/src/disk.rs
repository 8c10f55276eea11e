//! Disks of a guest: unnamed files of the host, of which nothing remains.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pagelab_model::Bytes;
use pagelab_model::{Failure, FailureKind};
use pagelab_packages::program::{self, CommandError, CommandOutput};
use rustix::fs::{Mode, OFlags};

use crate::console::printable;

const MKFS: &str = "mkfs.ext4";
/// Making a file system on a file with holes takes well below a second.
const FORMAT_TIMEOUT: Duration = Duration::from_secs(120);

/// include/uapi/linux/magic.h
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// With less free space a write to a disk is likely to fail.
const FULL_BELOW: Bytes = Bytes(64 << 10);

/// Number of the next file that needs a name: several guests may be started at the same time.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Whether disks can be formatted.
pub fn check_mkfs() -> Result<(), Failure> {
    program::find_program(Path::new(MKFS)).map(drop).ok_or_else(missing_mkfs)
}

fn missing_mkfs() -> Failure {
    Failure::not_available("cannot format the disk: mkfs.ext4 is missing; hint: apt-get install e2fsprogs")
}

/// Sparse disk of this size.
pub fn create_sparse_disk(size: Bytes) -> Result<File, Failure> {
    let dir = disk_dir();
    let made = open_tmpfile(&dir).and_then(|file| file.set_len(size.0).map(|()| file));
    made.map_err(|error| match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => host_disk_full(),
        _ => {
            let hint = "set TMPDIR to another directory";
            Failure::system_error(format!("cannot create a disk in {}; hint: {hint}", dir.display()), error)
        }
    })
}

/// The failure of a disk for which the host has no space. Other guests have none either.
pub fn host_disk_full() -> Failure {
    let text =
        format!("cannot write the disk of a guest in {}: no space left on device", disk_dir().display());
    Failure::new(FailureKind::Output, text).hint("free space, or set TMPDIR to a directory on another disk")
}

/// The directory of disks, and its size, if it is in memory (tmpfs).
pub fn find_tmpfs() -> Option<(PathBuf, Bytes)> {
    let dir = disk_dir();
    let stat = rustix::fs::statfs(&dir).ok().filter(|stat| stat.f_type as u64 == TMPFS_MAGIC)?;
    // A tmpfs without a limit has no blocks.
    let size = match stat.f_blocks {
        0 => u64::MAX,
        blocks => blocks.saturating_mul(u64::try_from(stat.f_bsize).unwrap_or(u64::MAX)),
    };
    Some((dir, Bytes(size)))
}

/// Whether the host has no space for what guests write to their disks. `false` if that cannot be read.
pub fn is_host_full() -> bool {
    rustix::fs::statvfs(disk_dir())
        .is_ok_and(|of| of.f_blocks > 0 && of.f_bavail.saturating_mul(of.f_frsize) < FULL_BELOW.0)
}

/// TMPDIR, else the directory for large files: `/tmp` is often in memory.
fn disk_dir() -> PathBuf {
    let large = Path::new("/var/tmp");
    match std::env::var_os("TMPDIR") {
        None if large.is_dir() => large.to_owned(),
        _ => std::env::temp_dir(),
    }
}

fn open_tmpfile(dir: &Path) -> std::io::Result<File> {
    let mode = Mode::from_raw_mode(0o600);
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    if let Ok(fd) = rustix::fs::open(dir, flags | OFlags::TMPFILE, mode) {
        return Ok(fd.into());
    }
    // A file system without nameless files: the name is gone at once, but a kill between the two calls
    // would leave an empty file.
    let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = dir.join(format!(".pagelab-disk-{}-{number}", std::process::id()));
    let fd = rustix::fs::open(&name, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode)?;
    std::fs::remove_file(&name)?;
    Ok(fd.into())
}

/// Puts an ext4 file system on a disk.
pub fn format_ext4(disk: &File, stop: &mut dyn FnMut() -> Option<i32>) -> Result<(), Failure> {
    let ran = run_mkfs("format the disk", FORMAT_TIMEOUT, stop, |command| {
        command.args(["-q", "-F", &format!("/dev/fd/{}", disk.as_raw_fd())]);
        pagelab_sys::spawn::keep_fds_open(command, &[disk.as_fd()]);
    })?;
    if ran.status.success() {
        return Ok(());
    }
    if is_host_full() {
        return Err(host_disk_full());
    }
    let said = ran.stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    let text = format!("cannot format the disk: mkfs.ext4: {}", printable(said));
    Err(Failure::new(FailureKind::Partial, text))
}

/// Runs mkfs.ext4 with these arguments, to `format the disk` or the like. It may have failed.
pub(crate) fn run_mkfs(
    action: &str,
    timeout: Duration,
    stop: &mut dyn FnMut() -> Option<i32>,
    add_arguments: impl FnOnce(&mut Command),
) -> Result<CommandOutput, Failure> {
    let program = program::find_program(Path::new(MKFS)).ok_or_else(missing_mkfs)?;
    let mut command = Command::new(program);
    add_arguments(&mut command);
    program::run_command(&mut command, timeout, stop).map_err(|error| match error {
        CommandError::NotFound => missing_mkfs(),
        CommandError::RunFailed(error) => Failure::system_error("cannot run mkfs.ext4", error),
        CommandError::TimedOut(_) => {
            let text = format!("cannot {action}: mkfs.ext4 took too long and was killed");
            Failure::new(FailureKind::Partial, text)
        }
        CommandError::Stopped(signal) => Failure::stopped(signal),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn a_disk_has_no_name_and_takes_no_room_until_it_is_written() {
        let disk = create_sparse_disk(Bytes(64 << 20)).unwrap();
        let meta = disk.metadata().unwrap();
        assert_eq!((meta.len(), meta.nlink(), meta.blocks()), (64 << 20, 0, 0));
        if program::find_program(Path::new("mkfs.ext4")).is_none() {
            eprintln!("skipped: mkfs-ext4-absent: no file system is made");
            return;
        }
        format_ext4(&disk, &mut || None).unwrap();
        let mut magic = [0; 2];
        disk.read_exact_at(&mut magic, 1024 + 56).unwrap();
        assert_eq!(u16::from_le_bytes(magic), 0xef53, "the superblock's magic number");
    }
}
