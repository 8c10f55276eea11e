//! Names in a tmpfs that is mounted nowhere (`fsmount`, Linux 5.2): each is a dentry and an inode in slab,
//! and all are gone with the last descriptor.

use std::io;
use std::os::fd::OwnedFd;

use pagelab_model::PageSize;
use rustix::fs::{AtFlags, FileType, Mode, mknodat, unlinkat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
};

use super::Source;

/// Bytes of slab for one name: a dentry of 192 and a `shmem_inode_cache` object of about 700, with what is
/// lost at the ends of slabs. It differs between kernels; the census has the truth.
const NAME_BYTES: u64 = 940;

/// A tmpfs of our own, with names in it that are numbers.
#[derive(Debug)]
pub struct Dentries {
    page: u64,
    /// Of the names of so many pages one will be kept.
    stride: u64,
    tmpfs: OwnedFd,
    names: u64,
}

impl Dentries {
    pub fn new(page_size: PageSize, stride: u64) -> io::Result<Dentries> {
        let tmpfs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        // As many as are asked for: half a machine's pages are the most otherwise.
        fsconfig_set_string(&tmpfs, "nr_inodes", "0")?;
        fsconfig_create(&tmpfs)?;
        let none = MountAttrFlags::empty();
        let tmpfs = fsmount(&tmpfs, FsMountFlags::FSMOUNT_CLOEXEC, none)?;
        Ok(Dentries { page: page_size.bytes(), stride, tmpfs, names: 0 })
    }

    fn names_of(&self, pages: u64) -> u64 {
        (pages.saturating_mul(self.page) / NAME_BYTES).max(1)
    }
}

impl Source for Dentries {
    fn grow(&mut self, pages: u64) -> io::Result<u64> {
        for _ in 0..self.names_of(pages) {
            let name = self.names.to_string();
            mknodat(&self.tmpfs, name, FileType::RegularFile, Mode::RUSR, 0)?;
            self.names += 1;
        }
        Ok(pages)
    }

    fn thin(&mut self) -> io::Result<u64> {
        let stride = self.names_of(self.stride);
        let mut kept = 0;
        for name in 0..self.names {
            if (name + 1).is_multiple_of(stride) {
                kept += 1;
            } else {
                unlinkat(&self.tmpfs, name.to_string(), AtFlags::empty())?;
            }
        }
        Ok(kept)
    }
}
