//! Actions of a child between fork and exec: die with the parent, keep descriptors open, join a control
//! group.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::wait::check_zero;

/// Runs `act` in the child, between fork and exec. Every closure of this module allocates nothing, takes no
/// lock, reads only data created before the fork, and makes only calls that are allowed there.
fn before_exec(command: &mut Command, act: impl FnMut() -> io::Result<()> + Send + Sync + 'static) {
    // SAFETY: only closures of this module come here, see above.
    // JUSTIFICATION: std has no safe way to act between fork and exec.
    unsafe { command.pre_exec(act) };
}

/// The child is killed (SIGKILL) as soon as the thread that starts it exits for any reason. Start it from a
/// thread that lives at least as long as the child.
///
/// PR_SET_PDEATHSIG does not cover a parent that exited before the call, so the parent is checked after it;
/// such a child exits without running its program.
pub fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let tie = move || {
        // SAFETY: prctl with these arguments and getppid touch no memory and may be called after a fork.
        // JUSTIFICATION: this runs in the child of a fork, where only such calls are allowed.
        let gone = unsafe {
            check_zero(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0, 0, 0))?;
            libc::getppid() as u32 != parent
        };
        if gone { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok(()) }
    };
    before_exec(command, tie);
}

/// The child writes its number (4 bytes, native order) to `pid_pipe` and waits for a byte from `release_pipe`
/// before it runs its program; where `release_pipe` ends instead, it does not run. `Command::spawn` returns
/// only after that, so it must be called from another thread than the one that gives the word. `release_end`
/// is the other end of `release_pipe`; the child closes its copy, so that it reads end of file when the
/// parent exits.
pub fn hold_before_exec(
    command: &mut Command,
    pid_pipe: OwnedFd,
    release_pipe: OwnedFd,
    release_end: BorrowedFd<'_>,
) {
    let word_fd = release_end.as_raw_fd();
    let hold = move || {
        // SAFETY: close touches no memory, and the number is that of the parent's end, which the child never
        // uses. JUSTIFICATION: as above: only such calls are allowed here.
        unsafe { libc::close(word_fd) };
        // SAFETY: getpid touches no memory; write reads 4 bytes of a local, read fills one byte of a local;
        // all may be called after a fork.
        // JUSTIFICATION: as above: only such calls are allowed here.
        let written = unsafe {
            let pid = libc::getpid();
            libc::write(pid_pipe.as_raw_fd(), (&raw const pid).cast(), size_of_val(&pid))
        };
        if written != size_of::<libc::pid_t>() as isize {
            return Err(io::Error::last_os_error());
        }
        let mut word = 0u8;
        loop {
            // SAFETY: one byte of a local is filled; read may be called after a fork.
            // JUSTIFICATION: as above.
            match unsafe { libc::read(release_pipe.as_raw_fd(), (&raw mut word).cast(), 1) } {
                1 => return Ok(()),
                0 => return Err(io::Error::from_raw_os_error(libc::ECANCELED)),
                _ if io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
                _ => return Err(io::Error::last_os_error()),
            }
        }
    };
    before_exec(command, hold);
}

/// The child has these descriptors under the same numbers. They must stay open until it is started.
pub fn keep_fds_open(command: &mut Command, fds: &[BorrowedFd<'_>]) {
    let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let keep = move || {
        for &fd in &fds {
            // SAFETY: F_SETFD touches no memory; a number that is not open is an error of the call.
            // JUSTIFICATION: as above: only such calls are allowed here, and std closes all on exec.
            check_zero(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) })?;
        }
        Ok(())
    };
    before_exec(command, keep);
}

/// The child joins the control group whose `cgroup.procs` is open for writing here, before it runs its
/// program: `0` is the writer itself.
pub fn join_cgroup(command: &mut Command, cgroup_procs: OwnedFd) {
    let join = move || {
        // SAFETY: one byte of a constant is read; write may be called after a fork.
        // JUSTIFICATION: as above: only such calls are allowed here.
        let written = unsafe { libc::write(cgroup_procs.as_raw_fd(), b"0".as_ptr().cast(), 1) };
        if written == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    before_exec(command, join);
}

/// Before it runs its program, the child writes to one of its own files under /proc/self. A file that cannot
/// be written stays as it is.
pub fn write_own_file(command: &mut Command, path: CString, bytes: Vec<u8>) {
    let write = move || {
        // SAFETY: the path ends in a zero byte and the bytes are only read; open, write and close may be
        // called after a fork. JUSTIFICATION: as above: only such calls are allowed here.
        unsafe {
            let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if fd >= 0 {
                libc::write(fd, bytes.as_ptr().cast(), bytes.len());
                libc::close(fd);
            }
        }
        Ok(())
    };
    before_exec(command, write);
}

/// The child has huge pages switched off but where advised, before it runs its program; a kernel before 6.18
/// leaves it as it is.
pub fn limit_thp_to_advised(command: &mut Command) {
    let switch = || {
        let _ = crate::thp_disable::set_thp_except_advised();
        Ok(())
    };
    before_exec(command, switch);
}

/// Takes over a descriptor that the program was started with ([`keep_fds_open`]): from now on it is closed
/// with its owner and on exec. To be called once for a number, before anything else is opened.
pub fn adopt_fd(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: a number that is not open, or is one of the first three, which std uses, is refused; the parent
    // passed the number to the caller, so nothing else in this process owns it. JUSTIFICATION: a number from
    // the command line becomes a descriptor nowhere else.
    unsafe {
        if fd <= 2 || libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) != 0 {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// The child has transparent huge pages switched off (PR_SET_THP_DISABLE, Linux 3.15), also where its program
/// asks for them, and so have its children. A kernel without them leaves it as it is.
pub fn disable_thp(command: &mut Command) {
    let off = || {
        let _ = crate::thp_disable::set_thp_disable(true);
        Ok(())
    };
    before_exec(command, off);
}

/// The child may be traced by this process of the same user also where Yama lets none but ancestors
/// (PR_SET_PTRACER, Linux 3.4). Without Yama it means nothing.
pub fn allow_tracer(command: &mut Command, pid: u32) {
    let allow = move || {
        // SAFETY: prctl with a number touches no memory and may be called after a fork.
        // JUSTIFICATION: as above: only such calls are allowed here.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(pid), 0, 0, 0) };
        Ok(())
    };
    before_exec(command, allow);
}

/// The child has this directory as its root, and one of it as its working directory.
pub fn enter_root(command: &mut Command, root: CString, working_dir: CString) {
    let enter = move || {
        // SAFETY: the paths end in a zero byte; chroot and chdir may be called after a fork.
        // JUSTIFICATION: as above: only such calls are allowed here, and std has no stable chroot.
        unsafe {
            check_zero(libc::chroot(root.as_ptr()))?;
            check_zero(libc::chdir(working_dir.as_ptr()))
        }
    };
    before_exec(command, enter);
}

/// The child leads a session of its own, whose terminal is its standard input.
pub fn lead_session(command: &mut Command) {
    let lead = || {
        // SAFETY: setsid takes nothing, and TIOCSCTTY a number; both may be called after a fork.
        // JUSTIFICATION: as above: only such calls are allowed here.
        unsafe {
            if libc::setsid() < 0 {
                return Err(io::Error::last_os_error());
            }
            check_zero(libc::ioctl(0, libc::TIOCSCTTY, 0))
        }
    };
    before_exec(command, lead);
}

/// The child begins with the default disposition of every signal that a terminal or a supervisor sends, also
/// where this process ignores some: a shell's background job ignores SIGINT and SIGQUIT, `nohup` SIGHUP.
pub fn reset_signals(command: &mut Command) {
    let reset = || {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2]
        {
            // SAFETY: signal with SIG_DFL takes numbers alone and may be called after a fork.
            // JUSTIFICATION: as above: only such calls are allowed here.
            if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    before_exec(command, reset);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::process::Stdio;

    #[test]
    fn a_child_dies_with_the_thread_that_started_it_and_keeps_its_descriptors() {
        let (mut reader, writer) = io::pipe().unwrap();
        // By its name, since a shell's `>&` knows numbers of one digit only.
        let mut child = std::thread::spawn(move || {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("echo here >/dev/fd/{}; exec sleep 60", writer.as_raw_fd())]);
            command.stdin(Stdio::null());
            keep_fds_open(&mut command, &[writer.as_fd()]);
            die_with_parent(&mut command);
            let child = command.spawn().unwrap();
            drop(writer);
            // Its program runs, so that all was done before.
            let mut said = [0; 4];
            reader.read_exact(&mut said).unwrap();
            assert_eq!(&said, b"here");
            child
        })
        .join()
        .unwrap();
        let status = child.wait().unwrap();
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(signal, Some(libc::SIGKILL));
    }

    #[test]
    fn a_file_of_the_child_is_the_childs() {
        let mut command = Command::new("cat");
        command.arg("/proc/self/oom_score_adj");
        write_own_file(&mut command, c"/proc/self/oom_score_adj".to_owned(), b"777".to_vec());
        let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
        assert_eq!(command.output().unwrap().stdout, b"777\n");
        assert_eq!(std::fs::read_to_string("/proc/self/oom_score_adj").unwrap(), own);
    }

    #[test]
    fn a_group_is_joined_by_a_zero() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut command = Command::new("true");
        join_cgroup(&mut command, writer.into());
        assert!(command.status().unwrap().success());
        drop(command);
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        assert_eq!(said, "0");
    }

    #[test]
    fn a_child_of_a_process_that_ignores_signals_has_the_defaults() {
        // SAFETY: signal with SIG_IGN takes numbers alone; the old disposition is put back below.
        // JUSTIFICATION: std cannot ignore a signal.
        let old = unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) };
        let ignored = |command: &mut Command| {
            let status = String::from_utf8(command.output().unwrap().stdout).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap() & (1 << (libc::SIGUSR2 - 1)) != 0
        };
        let mut command = Command::new("cat");
        command.arg("/proc/self/status");
        assert!(ignored(&mut command));
        reset_signals(&mut command);
        assert!(!ignored(&mut command));
        // SAFETY: as above. JUSTIFICATION: as above.
        unsafe { libc::signal(libc::SIGUSR2, old) };
    }
}
