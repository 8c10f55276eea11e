//! Small process that holds some memory, waits to be woken, and touches all of it each time.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;

use pagelab_model::Bytes;

use crate::mapping::Mapping;
use crate::syscall_loop::wait_child;

/// The process. It ends when this value is dropped, and when the thread that started it exits.
#[derive(Debug)]
pub struct ResidentProcess {
    pid: libc::pid_t,
    wake_pipe: PipeWriter,
    reply_pipe: PipeReader,
    /// Pages that it touches at each wake.
    pages: u64,
    /// How often it was woken.
    wakes: u64,
}

impl ResidentProcess {
    /// Starts a process that will hold `bytes`, rounded up to pages. It has none of them before the first
    /// wake.
    pub fn start(bytes: Bytes) -> io::Result<ResidentProcess> {
        // The memory is mapped before the fork and never touched here, so each side has a copy of nothing.
        let mut memory = Mapping::anonymous(bytes, Bytes(1))?;
        let words = memory.words_mut();
        let (start, count) = (NonNull::from(&mut *words).cast::<u64>(), words.len());
        let words_in_page = rustix::param::page_size() / size_of::<u64>();
        let (asked, ask) = io::pipe()?;
        let (answer, answered) = io::pipe()?;
        let parent = std::process::id();
        let fds = (asked.as_raw_fd(), answered.as_raw_fd());
        // SAFETY: the child runs `run_child`, which makes only calls that are allowed after a fork of a
        // program with threads, touches only its copy of the mapping, and never returns. JUSTIFICATION: the
        // purpose is a process of the same program without exec: it is small.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => run_child(parent, fds, start, count, words_in_page),
            _ => Ok(ResidentProcess {
                pid,
                wake_pipe: ask,
                reply_pipe: answer,
                pages: count.div_ceil(words_in_page) as u64,
                wakes: 0,
            }),
        }
    }

    /// Wakes it, and waits until it has read and written a word in each of its pages.
    pub fn wake(&mut self) -> io::Result<()> {
        self.wake_pipe.write_all(b"w")?;
        let mut sum = [0; size_of::<u64>()];
        self.reply_pipe.read_exact(&mut sum)?;
        self.wakes += 1;
        // Each page counts the wakes.
        match u64::from_ne_bytes(sum) == self.pages.wrapping_mul(self.wakes) {
            true => Ok(()),
            false => Err(io::Error::other("a page of a waiting process has wrong contents")),
        }
    }
}

impl Drop for ResidentProcess {
    fn drop(&mut self) {
        // SAFETY: the child is not waited for yet, so the number is still its own.
        // JUSTIFICATION: it was not started by std, which has no way to end it.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        // A process that has ended needs no kill.
        let _ = wait_child(self.pid);
    }
}

/// The child: waits for a byte, touches a word in each page, answers with the sum of these words.
fn run_child(
    parent: u32,
    (asked, answered): (RawFd, RawFd),
    start: NonNull<u64>,
    count: usize,
    words_in_page: usize,
) -> ! {
    // SAFETY: prctl with these arguments, getppid and _exit touch no memory and may be called after a fork.
    // JUSTIFICATION: the child of a program with threads may make only such calls.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0, 0, 0);
        if libc::getppid() as u32 != parent {
            libc::_exit(0);
        }
    }
    loop {
        let mut byte = 0u8;
        // SAFETY: one byte is written to `byte`. JUSTIFICATION: as above.
        let read = unsafe { libc::read(asked, (&raw mut byte).cast(), 1) };
        let mut sum = 0u64;
        for at in (0..count).step_by(words_in_page) {
            // SAFETY: `at` is below the number of words of the mapping, of which this process has its own
            // copy and no other view. JUSTIFICATION: plain accesses would be optimised away.
            unsafe {
                let word = start.add(at).as_ptr();
                let value = word.read_volatile().wrapping_add(1);
                word.write_volatile(value);
                sum = sum.wrapping_add(value);
            }
        }
        // SAFETY: `sum` is read whole; _exit runs nothing of the parent's. JUSTIFICATION: as above.
        unsafe {
            let written = libc::write(answered, (&raw const sum).cast(), size_of::<u64>());
            if read != 1 || written != size_of::<u64>() as isize {
                libc::_exit(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_its_memory_from_wake_to_wake() {
        let mut all: Vec<ResidentProcess> =
            (0..3).map(|_| ResidentProcess::start(Bytes(1 << 18)).unwrap()).collect();
        for _ in 0..4 {
            for resident in &mut all {
                resident.wake().unwrap();
            }
        }
        let pids: Vec<libc::pid_t> = all.iter().map(|resident| resident.pid).collect();
        drop(all);
        for pid in pids {
            // SAFETY: signal 0 only checks. JUSTIFICATION: whether a process exists.
            let there = unsafe { libc::kill(pid, 0) };
            assert_eq!(there, -1, "process {pid} ended");
        }
    }
}
