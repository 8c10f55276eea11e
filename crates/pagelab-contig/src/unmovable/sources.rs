//! Sources of unmovable pages: dentries, page tables, pipes and sockets.

use std::io;
use std::os::fd::OwnedFd;

use pagelab_model::{Bytes, PageSize};
use pagelab_sys::mapping::{Advice, Mapping};
use rustix::fs::{AtFlags, FileType, Mode, mknodat, unlinkat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt,
};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::{PageSource, raise_nofile_limit};
use crate::fragment::fragmenter::ignore_unsupported;

/// Bytes of slab for one name: a dentry of 192 and a `shmem_inode_cache` object of about 700, with the unused
/// ends of slabs. It differs between kernels; the census has the truth.
const NAME_BYTES: u64 = 940;

/// A tmpfs of our own, with names in it that are numbers.
#[derive(Debug)]
pub struct DentrySource {
    page_bytes: u64,
    /// One in the names of this number of pages will be kept.
    stride: u64,
    tmpfs: OwnedFd,
    names: u64,
}

impl DentrySource {
    pub fn new(page_size: PageSize, stride: u64) -> io::Result<DentrySource> {
        let tmpfs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        // The requested number; the default maximum is half of the machine's pages.
        fsconfig_set_string(&tmpfs, "nr_inodes", "0")?;
        fsconfig_create(&tmpfs)?;
        let none = MountAttrFlags::empty();
        let tmpfs = fsmount(&tmpfs, FsMountFlags::FSMOUNT_CLOEXEC, none)?;
        Ok(DentrySource { page_bytes: page_size.bytes(), stride, tmpfs, names: 0 })
    }

    fn count_names(&self, pages: u64) -> u64 {
        (pages.saturating_mul(self.page_bytes) / NAME_BYTES).max(1)
    }
}

impl PageSource for DentrySource {
    fn allocate_pages(&mut self, pages: u64) -> io::Result<u64> {
        for _ in 0..self.count_names(pages) {
            let name = self.names.to_string();
            mknodat(&self.tmpfs, name, FileType::RegularFile, Mode::RUSR, 0)?;
            self.names += 1;
        }
        Ok(pages)
    }

    fn keep_one_per_stride(&mut self) -> io::Result<u64> {
        let stride = self.count_names(self.stride);
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

// Page tables: a page that is read in each PMD range of a mapping that was never written takes one page for
// its table and none for data, since all of them map the zero page.

/// Mappings that are read at one page in each PMD range.
#[derive(Debug)]
pub struct PageTableSource {
    /// A page and the range that one page table maps, in bytes.
    page_bytes: u64,
    range_bytes: u64,
    /// One in this number of page tables will be kept. Page tables are freed with the whole mapping, so each
    /// is in a separate mapping.
    stride: u64,
    /// Each with its page tables.
    mappings: Vec<(Mapping, u64)>,
}

impl PageTableSource {
    pub fn new(page_size: PageSize, stride: u64) -> PageTableSource {
        let range = page_size.block_bytes(page_size.default_pmd_order()).0;
        PageTableSource { page_bytes: page_size.bytes(), range_bytes: range, stride, mappings: Vec::new() }
    }

    fn add_mapping(&mut self, ranges: u64) -> io::Result<()> {
        let mut mapping = Mapping::anonymous(Bytes(ranges * self.range_bytes), Bytes(self.range_bytes))?;
        let len = mapping.len().0;
        // A kernel without transparent huge pages has no huge zero page to map either.
        ignore_unsupported(mapping.advise(0..len, Advice::NoHugePage))?;
        for range in 0..ranges {
            let at = range * self.range_bytes;
            mapping.touch_for_reading(at..at + self.page_bytes)?;
        }
        self.mappings.push((mapping, ranges));
        Ok(())
    }
}

impl PageSource for PageTableSource {
    fn allocate_pages(&mut self, pages: u64) -> io::Result<u64> {
        let mut allocated = 0;
        while allocated < pages {
            if self.stride > 1 {
                self.add_mapping(self.stride - 1)?;
            }
            self.add_mapping(1)?;
            allocated += self.stride;
        }
        Ok(allocated)
    }

    fn keep_one_per_stride(&mut self) -> io::Result<u64> {
        self.mappings.retain(|(_, ranges)| *ranges == 1);
        Ok(self.mappings.len() as u64)
    }
}

/// Reading ends of queues that hold pages, each with its number of them, first written first.
#[derive(Debug)]
struct PageQueues {
    /// One in this number of pages will be kept.
    stride: u64,
    queues: Vec<(OwnedFd, u64)>,
}

impl PageQueues {
    fn new(stride: u64) -> PageQueues {
        raise_nofile_limit();
        PageQueues { stride, queues: Vec::new() }
    }

    /// Adds queues of at most `queue_pages`, which `open` makes and `write_page` fills, until they hold
    /// `pages` or a new one takes none.
    fn allocate_pages(
        &mut self,
        pages: u64,
        queue_pages: u64,
        open: impl Fn() -> io::Result<(OwnedFd, OwnedFd)>,
        write_page: impl Fn(&OwnedFd) -> Result<usize, Errno>,
    ) -> io::Result<u64> {
        let mut allocated = 0;
        while allocated < pages {
            let (reader, writer) = open()?;
            let (wanted, mut filled) = ((pages - allocated).min(queue_pages).min(self.stride), 0);
            while filled < wanted {
                match write_page(&writer) {
                    Ok(_) => filled += 1,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Err(errno) => return Err(errno.into()),
                }
            }
            self.queues.push((reader, filled));
            if filled == 0 {
                break;
            }
            allocated += filled;
        }
        Ok(allocated)
    }

    /// Keeps the last page of a queue in each stride. A queue is read from its first page on: `read_pages`
    /// reads a number of them.
    fn keep_one_per_stride(
        &mut self,
        mut read_pages: impl FnMut(&OwnedFd, u64) -> io::Result<()>,
    ) -> io::Result<u64> {
        let (mut pages_passed, mut kept) = (0, Vec::new());
        for (reader, pages) in std::mem::take(&mut self.queues) {
            pages_passed += pages;
            if pages_passed < self.stride {
                continue;
            }
            pages_passed %= self.stride;
            read_pages(&reader, pages.saturating_sub(1))?;
            kept.push((reader, 1));
        }
        self.queues = kept;
        Ok(self.queues.len() as u64)
    }
}

/// Pages of one pipe: the usual `fs.pipe-max-size` of 1 MiB, which takes no privilege.
pub const PIPE_PAGES: u64 = 256;

/// Pipes that hold their pages by the reading end alone.
#[derive(Debug)]
pub struct PipeSource {
    page_size: PageSize,
    pipes: PageQueues,
}

impl PipeSource {
    pub fn new(page_size: PageSize, stride: u64) -> PipeSource {
        PipeSource { page_size, pipes: PageQueues::new(stride) }
    }
}

impl PageSource for PipeSource {
    fn allocate_pages(&mut self, pages: u64) -> io::Result<u64> {
        let size = usize::try_from(PIPE_PAGES * self.page_size.bytes()).unwrap_or(usize::MAX);
        let open = || {
            let (reader, writer) = pipe_with(PipeFlags::DIRECT | PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
            // Refused to a user whose pipes have too many pages already: the pipe then keeps its few slots.
            let _ = fcntl_setpipe_size(&writer, size);
            Ok((reader, writer))
        };
        self.pipes.allocate_pages(pages, PIPE_PAGES, open, |writer| rustix::io::write(writer, b"x"))
    }

    /// The kernel keeps up to two pages that were read for the next writes (`tmp_page` of
    /// `struct pipe_inode_info`).
    fn keep_one_per_stride(&mut self) -> io::Result<u64> {
        self.pipes.keep_one_per_stride(|reader, pages| {
            for _ in 0..pages {
                let mut byte = [0];
                while rustix::io::read(reader, &mut byte[..]) == Err(Errno::INTR) {}
            }
            Ok(())
        })
    }
}

// Unread socket messages as unmovable pages: a message of one page has its data in one page, and its head in
// slab (net/unix/af_unix.c, `unix_stream_sendmsg`).

/// Messages that wait in one socket at most.
pub const QUEUE_LENGTH_MAX: u64 = 256;

/// Unix stream sockets with messages in them.
#[derive(Debug)]
pub struct SocketSource {
    /// One page.
    message: Vec<u8>,
    sockets: PageQueues,
}

impl SocketSource {
    pub fn new(page_size: PageSize, stride: u64) -> SocketSource {
        let message = vec![1; usize::try_from(page_size.bytes()).unwrap_or(0)];
        SocketSource { message, sockets: PageQueues::new(stride) }
    }
}

impl PageSource for SocketSource {
    fn allocate_pages(&mut self, pages: u64) -> io::Result<u64> {
        // Twice the data: the kernel counts the heads too. Others than root get `net.core.wmem_max`.
        let buffer_bytes = self.message.len() * 2 * QUEUE_LENGTH_MAX as usize;
        let open = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (writer, reader) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            if sockopt::set_socket_send_buffer_size_force(&writer, buffer_bytes).is_err() {
                let _ = sockopt::set_socket_send_buffer_size(&writer, buffer_bytes);
            }
            Ok((reader, writer))
        };
        let write = |writer: &OwnedFd| send(writer, &self.message, SendFlags::NOSIGNAL);
        self.sockets.allocate_pages(pages, QUEUE_LENGTH_MAX, open, write)
    }

    fn keep_one_per_stride(&mut self) -> io::Result<u64> {
        let message = &mut self.message;
        self.sockets.keep_one_per_stride(|reader, messages| {
            let mut left = messages * message.len() as u64;
            while left > 0 {
                let part = message.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                match recv(reader, &mut message[..part], RecvFlags::empty()) {
                    Ok((0, _)) => break,
                    Ok((read, _)) => left = left.saturating_sub(read as u64),
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            Ok(())
        })
    }
}
