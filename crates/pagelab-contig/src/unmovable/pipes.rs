//! Pages of pipe buffers: in packet mode each write has a page of its own, whatever its length.

use std::io;
use std::os::fd::OwnedFd;

use pagelab_model::PageSize;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::{Source, raise_open_files};

/// Pages of one pipe: the usual `fs.pipe-max-size` of 1 MiB, which takes no privilege.
pub const PIPE_PAGES: u64 = 256;

/// Pipes that hold their pages by the reading end alone.
#[derive(Debug)]
pub struct Pipes {
    page_size: PageSize,
    /// Of so many pages one will be kept.
    stride: u64,
    /// Each with its pages, first written first.
    held: Vec<(OwnedFd, u64)>,
}

impl Pipes {
    pub fn new(page_size: PageSize, stride: u64) -> Pipes {
        raise_open_files();
        Pipes { page_size, stride, held: Vec::new() }
    }

    fn add(&mut self, pages: u64) -> io::Result<u64> {
        let (reader, writer) = pipe_with(PipeFlags::DIRECT | PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let size = usize::try_from(PIPE_PAGES * self.page_size.bytes()).unwrap_or(usize::MAX);
        // Refused to a user whose pipes have too many pages already: the pipe then keeps its few slots.
        let _ = fcntl_setpipe_size(&writer, size);
        let mut filled = 0;
        while filled < pages {
            match rustix::io::write(&writer, b"x") {
                Ok(_) => filled += 1,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        self.held.push((reader, filled));
        Ok(filled)
    }
}

impl Source for Pipes {
    fn grow(&mut self, pages: u64) -> io::Result<u64> {
        let mut taken = 0;
        while taken < pages {
            match self.add((pages - taken).min(PIPE_PAGES).min(self.stride))? {
                0 => break,
                filled => taken += filled,
            }
        }
        Ok(taken)
    }

    /// A pipe is read from its first page on, so its last one can be kept. The kernel keeps up to two pages
    /// that were read for the next writes (`tmp_page` of `struct pipe_inode_info`).
    fn thin(&mut self) -> io::Result<u64> {
        let (mut passed, mut kept) = (0, Vec::new());
        for (reader, pages) in std::mem::take(&mut self.held) {
            passed += pages;
            if passed < self.stride {
                continue;
            }
            passed %= self.stride;
            for _ in 1..pages {
                let mut byte = [0];
                while rustix::io::read(&reader, &mut byte[..]) == Err(Errno::INTR) {}
            }
            kept.push((reader, 1));
        }
        self.held = kept;
        Ok(self.held.len() as u64)
    }
}
