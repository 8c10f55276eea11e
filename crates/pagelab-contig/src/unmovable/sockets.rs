//! Pages of messages that nobody reads: a message of exactly one page puts its data into one page of its own,
//! and its head into slab (net/unix/af_unix.c, `unix_stream_sendmsg`).

use std::io;
use std::os::fd::OwnedFd;

use pagelab_model::PageSize;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt,
};

use super::{Source, raise_open_files};

/// Messages that wait in one socket at most.
pub const QUEUE: u64 = 256;

/// Unix stream sockets with messages in them.
#[derive(Debug)]
pub struct Sockets {
    /// One page.
    message: Vec<u8>,
    /// Of so many messages one will be kept.
    stride: u64,
    /// The reading ends, each with its messages, first sent first.
    held: Vec<(OwnedFd, u64)>,
}

impl Sockets {
    pub fn new(page_size: PageSize, stride: u64) -> Sockets {
        raise_open_files();
        let message = vec![1; usize::try_from(page_size.bytes()).unwrap_or(0)];
        Sockets { message, stride, held: Vec::new() }
    }

    fn add(&mut self, pages: u64) -> io::Result<u64> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (writer, reader) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Twice the data: the kernel counts the heads too. Others than root get `net.core.wmem_max`.
        let wanted = self.message.len() * 2 * QUEUE as usize;
        if sockopt::set_socket_send_buffer_size_force(&writer, wanted).is_err() {
            let _ = sockopt::set_socket_send_buffer_size(&writer, wanted);
        }
        let mut sent = 0;
        while sent < pages {
            match send(&writer, &self.message, SendFlags::NOSIGNAL) {
                Ok(_) => sent += 1,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        self.held.push((reader, sent));
        Ok(sent)
    }
}

impl Source for Sockets {
    fn grow(&mut self, pages: u64) -> io::Result<u64> {
        let mut taken = 0;
        while taken < pages {
            match self.add((pages - taken).min(QUEUE).min(self.stride))? {
                0 => break,
                sent => taken += sent,
            }
        }
        Ok(taken)
    }

    /// A socket is read from its first message on, so its last one can be kept.
    fn thin(&mut self) -> io::Result<u64> {
        let (mut passed, mut kept) = (0, Vec::new());
        for (reader, messages) in std::mem::take(&mut self.held) {
            passed += messages;
            if passed < self.stride {
                continue;
            }
            passed %= self.stride;
            let mut left = (messages.saturating_sub(1)) * self.message.len() as u64;
            while left > 0 {
                let part = self.message.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                match recv(&reader, &mut self.message[..part], RecvFlags::empty()) {
                    Ok((0, _)) => break,
                    Ok((read, _)) => left = left.saturating_sub(read as u64),
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            kept.push((reader, 1));
        }
        self.held = kept;
        Ok(self.held.len() as u64)
    }
}
