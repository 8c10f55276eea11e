//! Disks of a guest: files of the host without a name, so that nothing is left of them.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pagelab_model::Bytes;
use rustix::fs::{Mode, OFlags};

use crate::console::printable;
use crate::error::{Error, Kind};
use pagelab_packages::program::{self, NoAnswer};

/// Making a file system on a file with holes takes well below a second.
const FORMAT: Duration = Duration::from_secs(120);

/// A disk of this size, with holes where nothing was written.
pub fn empty(size: Bytes) -> Result<File, Error> {
    let folder = folder();
    let what = || format!("cannot make a disk in {}; TMPDIR chooses another folder", folder.display());
    let file = nameless(&folder).map_err(|error| Error::refused(what(), error))?;
    file.set_len(size.0).map_err(|error| Error::refused(what(), error))?;
    Ok(file)
}

/// TMPDIR, else the folder for what is large: the other one is often in memory.
fn folder() -> PathBuf {
    let large = Path::new("/var/tmp");
    match std::env::var_os("TMPDIR") {
        None if large.is_dir() => large.to_owned(),
        _ => std::env::temp_dir(),
    }
}

fn nameless(folder: &Path) -> std::io::Result<File> {
    let mode = Mode::from_raw_mode(0o600);
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    if let Ok(fd) = rustix::fs::open(folder, flags | OFlags::TMPFILE, mode) {
        return Ok(fd.into());
    }
    // A file system without nameless files: the name is gone at once, but a kill between the two calls
    // would leave an empty file.
    let name = folder.join(format!(".pagelab-disk-{}", std::process::id()));
    let fd = rustix::fs::open(&name, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode)?;
    std::fs::remove_file(&name)?;
    Ok(fd.into())
}

/// Puts an ext4 file system on a disk.
pub fn format_ext4(disk: &File, stop: &mut dyn FnMut() -> Option<i32>) -> Result<(), Error> {
    let no_program = || {
        let message = "--disk wants mkfs.ext4, which is not on this machine: `apt-get install e2fsprogs`";
        Error::new(Kind::NotAvailable, message)
    };
    let program = program::find(Path::new("mkfs.ext4")).ok_or_else(no_program)?;
    let mut command = Command::new(program);
    command.args(["-q", "-F", &format!("/dev/fd/{}", disk.as_raw_fd())]);
    pagelab_sys::spawn::keep_open(&mut command, &[disk.as_fd()]);
    match program::run(&mut command, FORMAT, stop) {
        Ok(ran) if ran.status.success() => Ok(()),
        Ok(ran) => {
            let said =
                ran.stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason given");
            Err(Error::new(Kind::Refused, format!("mkfs.ext4 failed: {}", printable(said))))
        }
        Err(NoAnswer::NotThere) => Err(no_program()),
        Err(NoAnswer::Failed(error)) => Err(Error::refused("cannot run mkfs.ext4", error)),
        Err(NoAnswer::TooLong(_)) => Err(Error::new(Kind::Refused, "mkfs.ext4 took too long and was ended")),
        Err(NoAnswer::Stopped(signal)) => Err(Error::stopped(signal)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn a_disk_has_no_name_and_takes_no_room_until_it_is_written() {
        let disk = empty(Bytes(64 << 20)).unwrap();
        let meta = disk.metadata().unwrap();
        assert_eq!((meta.len(), meta.nlink(), meta.blocks()), (64 << 20, 0, 0));
        if program::find(Path::new("mkfs.ext4")).is_none() {
            eprintln!("skipped: mkfs-ext4-absent: no file system is made");
            return;
        }
        format_ext4(&disk, &mut || None).unwrap();
        let mut magic = [0; 2];
        disk.read_exact_at(&mut magic, 1024 + 56).unwrap();
        assert_eq!(u16::from_le_bytes(magic), 0xef53, "the superblock's magic number");
    }
}
