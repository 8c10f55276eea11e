//! A write(2) with a deadline, made by a forked child: SIGKILL ends a write that the kernel repeats for ever.
//!
//! A thread would not do: SIGKILL ends the whole process, and nothing else ends a system call that ignores
//! signals of less weight.

use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::clock::monotonic_ns;
use crate::wait::wait4;

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEnd {
    /// It returned.
    Returned {
        /// The bytes written, or the errno.
        result: Result<usize, i32>,
        /// Nanoseconds that it took.
        elapsed_ns: u64,
    },
    /// It had not returned at the deadline, and SIGKILL ended it.
    Killed,
    /// The child ended without a report before the deadline: another process, or the OOM killer, killed it.
    ChildLost(ExitStatus),
}

/// Words of a child's report: bytes written, errno (0: none), nanoseconds.
const REPORT_WORDS: usize = 3;
const REPORT_BYTES: usize = REPORT_WORDS * size_of::<u64>();
/// A child that is killed by another process while a third one holds its pipe is noticed after this time.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Longer deadlines are cut to this: no clock ends before.
const DEADLINE_MAX: Duration = Duration::from_secs(365 * 86_400);
/// Interval of checks whether a killed child has ended.
const WAIT_INTERVAL: Duration = Duration::from_millis(5);

/// Writes `bytes` to `file` in one call. At `deadline` the child that writes is killed, and waited for no
/// longer than `kill_timeout`; one that does not end by then is an error of the kind `TimedOut`. The child
/// dies with the calling thread too.
pub fn write_with_deadline(
    file: BorrowedFd<'_>,
    bytes: &[u8],
    deadline: Duration,
    kill_timeout: Duration,
) -> io::Result<WriteEnd> {
    let (mut reader, writer) = io::pipe()?;
    let parent = std::process::id();
    let (file, report) = (file.as_raw_fd(), writer.as_raw_fd());
    // SAFETY: the child runs `run_child`, which makes only calls that are allowed after a fork of a program
    // with threads, reads only memory from before the fork, and never returns.
    // JUSTIFICATION: std starts children by exec only, and the write needs no program.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => return Err(io::Error::last_os_error()),
        0 => run_child(parent, file, bytes, report),
        _ => drop(writer),
    }
    let child = WritingChild { pid: pid.cast_unsigned() };
    let end = Instant::now() + deadline.min(DEADLINE_MAX);
    loop {
        let rest = end.saturating_duration_since(Instant::now());
        if let Some(said) = read_report(&mut reader, rest.min(POLL_INTERVAL))? {
            child.wait_until(Instant::now() + kill_timeout.min(DEADLINE_MAX))?;
            return Ok(said);
        }
        if let Some((status, _)) = wait4(child.pid, true)? {
            // It may have reported between the two calls.
            let said = read_report(&mut reader, Duration::ZERO)?;
            return Ok(said.unwrap_or(WriteEnd::ChildLost(status)));
        }
        if rest.is_zero() {
            child.kill();
            child.wait_until(Instant::now() + kill_timeout.min(DEADLINE_MAX))?;
            let said = read_report(&mut reader, Duration::ZERO)?;
            return Ok(said.unwrap_or(WriteEnd::Killed));
        }
    }
}

/// A child that is not waited for yet, so that its number is its own.
struct WritingChild {
    pid: u32,
}

impl WritingChild {
    fn kill(&self) {
        // SAFETY: the number is that of our own child, which is not waited for yet.
        // JUSTIFICATION: std has no way to end a child that it has not started.
        unsafe { libc::kill(self.pid.cast_signed(), libc::SIGKILL) };
    }

    /// Waits for its end; an error if it has not ended by then.
    fn wait_until(&self, end: Instant) -> io::Result<()> {
        while wait4(self.pid, true)?.is_none() {
            if Instant::now() >= end {
                let text = format!("process {}, which writes, does not end", self.pid);
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            std::thread::sleep(WAIT_INTERVAL);
        }
        Ok(())
    }
}

/// The child's report, if it comes within this time. A pipe that ends without one is none.
fn read_report(reader: &mut PipeReader, timeout: Duration) -> io::Result<Option<WriteEnd>> {
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    let mut fds = [PollFd::from_borrowed_fd(reader.as_fd(), PollFlags::IN)];
    match poll(&mut fds, Some(&timeout)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    let mut report = [0; REPORT_BYTES];
    match reader.read_exact(&mut report) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            // The child has ended or is ending: do not come back at once.
            std::thread::sleep(WAIT_INTERVAL);
            return Ok(None);
        }
        Err(error) => return Err(error),
    }
    let word = |at: usize| {
        let words = report.as_chunks::<{ size_of::<u64>() }>().0;
        words.get(at).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    };
    let result = match word(1) {
        0 => Ok(usize::try_from(word(0)).unwrap_or(usize::MAX)),
        errno => Err(i32::try_from(errno).unwrap_or(libc::EIO)),
    };
    Ok(Some(WriteEnd::Returned { result, elapsed_ns: word(2) }))
}

/// The child: writes, reports, ends.
fn run_child(parent: u32, file: libc::c_int, bytes: &[u8], report: libc::c_int) -> ! {
    // SAFETY: prctl with these arguments, getppid and _exit touch no memory and may be called after a fork.
    // JUSTIFICATION: the child of a program with threads may make only such calls.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0, 0, 0);
        if libc::getppid() as u32 != parent {
            libc::_exit(0);
        }
    }
    let began_ns = monotonic_ns();
    // SAFETY: the bytes are only read; write may be called after a fork. JUSTIFICATION: as above.
    let written = unsafe { libc::write(file, bytes.as_ptr().cast(), bytes.len()) };
    // SAFETY: the address is that of this thread's errno. JUSTIFICATION: `io::Error` reads it the same way,
    // but makes no promise about a forked child.
    let errno = if written < 0 { unsafe { *libc::__errno_location() } } else { 0 };
    let elapsed_ns = monotonic_ns().saturating_sub(began_ns);
    let said: [u64; REPORT_WORDS] =
        [u64::try_from(written).unwrap_or(0), u64::try_from(errno).unwrap_or(0), elapsed_ns];
    // SAFETY: the report is only read; _exit runs nothing of the parent's. JUSTIFICATION: as above.
    unsafe {
        libc::write(report, said.as_ptr().cast(), size_of_val(&said));
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead, BufReader};
    use std::os::fd::OwnedFd;
    use std::process::{Command, Stdio};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn write(file: &impl AsFd, bytes: &[u8], deadline: Duration) -> WriteEnd {
        write_with_deadline(file.as_fd(), bytes, deadline, MINUTE).unwrap()
    }

    /// A pipe whose next write waits for a reader.
    fn full_pipe() -> (OwnedFd, OwnedFd) {
        let (reader, writer) = io::pipe().unwrap();
        let writer = OwnedFd::from(writer);
        rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::NONBLOCK).unwrap();
        while rustix::io::write(&writer, &[0; 512]).is_ok() {}
        rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::empty()).unwrap();
        (reader.into(), writer)
    }

    #[test]
    fn a_write_returns_its_bytes_or_its_errno() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let file = File::create(&path).unwrap();
        let WriteEnd::Returned { result, elapsed_ns } = write(&file, b"offline", MINUTE) else { panic!() };
        assert_eq!((result, elapsed_ns > 0), (Ok(7), true));
        assert_eq!(std::fs::read(&path).unwrap(), b"offline");
        for (file, errno) in [
            (File::open(&path).unwrap(), libc::EBADF),
            (File::options().write(true).open("/dev/full").unwrap(), libc::ENOSPC),
        ] {
            let end = write(&file, b"x", MINUTE);
            assert!(
                matches!(end, WriteEnd::Returned { result: Err(found), .. } if found == errno),
                "{end:?}"
            );
        }
    }

    #[test]
    fn a_write_that_does_not_return_is_killed_at_the_deadline() {
        let (reader, writer) = full_pipe();
        for ms in [0, 1, 30, 250] {
            let began = Instant::now();
            assert_eq!(write(&writer, b"offline", Duration::from_millis(ms)), WriteEnd::Killed);
            assert!(began.elapsed() >= Duration::from_millis(ms));
        }
        drop(reader);
        // Nothing was written, and without a reader the write returns: SIGPIPE is ignored by Rust programs.
        let end = write(&writer, b"offline", MINUTE);
        assert!(matches!(end, WriteEnd::Returned { result: Err(libc::EPIPE), .. }), "{end:?}");
    }

    /// The first child of a thread, once it has one: `PID/task/TID`.
    fn first_child(thread: &str) -> u32 {
        let began = Instant::now();
        loop {
            let list = std::fs::read_to_string(format!("/proc/{thread}/children")).unwrap_or_default();
            if let Some(pid) = list.split_whitespace().next() {
                return pid.parse().unwrap();
            }
            assert!(began.elapsed() < MINUTE, "thread {thread} has no child");
            std::thread::sleep(WAIT_INTERVAL);
        }
    }

    #[test]
    fn a_child_that_another_process_kills_is_lost_and_not_waited_for() {
        let (_reader, writer) = full_pipe();
        let (send, receive) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            send.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
            write(&writer, b"offline", MINUTE)
        });
        let pid = first_child(receive.recv().unwrap().to_str().unwrap()).cast_signed();
        // SAFETY: the number is that of a child which its parent has not waited for.
        // JUSTIFICATION: the killer of this test is not the parent.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        let end = thread.join().unwrap();
        assert!(matches!(end, WriteEnd::ChildLost(status) if !status.success()), "{end:?}");
    }

    const ROLE: &str = "PAGELAB_TEST_BOUNDED_WRITE";

    /// Nothing, unless the next test starts it.
    #[test]
    fn is_the_process_that_is_killed() {
        if std::env::var_os(ROLE).is_some() {
            println!("thread {}", std::fs::read_link("/proc/thread-self").unwrap().display());
            let (_reader, writer) = full_pipe();
            write(&writer, b"offline", Duration::from_secs(600));
        }
    }

    #[test]
    fn the_writer_dies_with_a_process_that_is_killed() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "bounded_write::tests::is_the_process_that_is_killed", "--nocapture"]);
        let mut killed = command.env(ROLE, "1").stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(killed.stdout.take().unwrap()).lines();
        let thread = loop {
            let line = lines.next().unwrap().unwrap();
            if let Some((_, thread)) = line.split_once("thread ") {
                break thread.to_owned();
            }
        };
        let writer = first_child(&thread);
        killed.kill().unwrap();
        killed.wait().unwrap();
        let began = Instant::now();
        // A zombie that its new parent has not waited for yet has ended.
        let runs = || {
            let stat = std::fs::read_to_string(format!("/proc/{writer}/stat"));
            stat.is_ok_and(|stat| !stat.rsplit(") ").next().unwrap().starts_with(['Z', 'X']))
        };
        while runs() {
            assert!(began.elapsed() < MINUTE, "process {writer} outlives its parent");
            std::thread::sleep(WAIT_INTERVAL);
        }
    }
}
