//! What a child does between fork and exec: die with its parent, keep descriptors open, join a control group.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The child is killed (SIGKILL) as soon as the thread that starts it is gone, however that ended. Start it
/// from a thread that lives as long as the child shall.
///
/// PR_SET_PDEATHSIG says nothing about a parent that was gone before the call, so the parent is looked at
/// after it; such a child ends without running its program.
pub fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let tie = move || {
        // SAFETY: prctl with these arguments and getppid touch no memory and may be called after a fork.
        // JUSTIFICATION: this runs in the child of a fork, where only such calls are allowed.
        let gone = unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0, 0, 0) != 0 {
                return Err(io::Error::last_os_error());
            }
            libc::getppid() as u32 != parent
        };
        if gone { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok(()) }
    };
    // SAFETY: the closure allocates nothing, takes no lock and makes calls that are allowed after a fork.
    // JUSTIFICATION: std has no safe way to act between fork and exec.
    unsafe { command.pre_exec(tie) };
}

/// The child writes its number (4 bytes, native order) to `say` and waits for a byte from `wait` before it
/// runs its program; where `wait` ends instead, it does not run. `Command::spawn` returns only after that,
/// so it must be called from another thread than the one that gives the word. `word` is the other end of
/// `wait`; the child closes its copy, so that it sees the end when the giver is gone.
pub fn hold(command: &mut Command, say: OwnedFd, wait: OwnedFd, word: BorrowedFd<'_>) {
    let word_fd = word.as_raw_fd();
    let hold = move || {
        // SAFETY: close touches no memory, and the number is that of the parent's end, which the child never
        // uses. JUSTIFICATION: as above: only such calls are allowed here.
        unsafe { libc::close(word_fd) };
        // SAFETY: getpid touches no memory; write reads 4 bytes of a local, read fills one byte of a local;
        // all may be called after a fork.
        // JUSTIFICATION: as above: only such calls are allowed here.
        let told = unsafe {
            let pid = libc::getpid();
            libc::write(say.as_raw_fd(), (&raw const pid).cast(), size_of_val(&pid))
        };
        if told != size_of::<libc::pid_t>() as isize {
            return Err(io::Error::last_os_error());
        }
        let mut word = 0u8;
        loop {
            // SAFETY: one byte of a local is filled; read may be called after a fork.
            // JUSTIFICATION: as above.
            match unsafe { libc::read(wait.as_raw_fd(), (&raw mut word).cast(), 1) } {
                1 => return Ok(()),
                0 => return Err(io::Error::from_raw_os_error(libc::ECANCELED)),
                _ if io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
                _ => return Err(io::Error::last_os_error()),
            }
        }
    };
    // SAFETY: the closure allocates nothing, takes no lock and makes calls that are allowed after a fork.
    // JUSTIFICATION: std has no safe way to act between fork and exec.
    unsafe { command.pre_exec(hold) };
}

/// The child has these descriptors under the same numbers. They must stay open until it is started.
pub fn keep_open(command: &mut Command, fds: &[BorrowedFd<'_>]) {
    let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let keep = move || {
        for &fd in &fds {
            // SAFETY: F_SETFD touches no memory; a number that is not open is an error of the call.
            // JUSTIFICATION: as above: only such calls are allowed here, and std closes all on exec.
            if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure reads a list that was made before the fork, and makes calls that are allowed there.
    // JUSTIFICATION: std has no safe way to act between fork and exec.
    unsafe { command.pre_exec(keep) };
}

/// The child joins the control group whose `cgroup.procs` is open for writing here, before it runs its
/// program: `0` is the writer itself.
pub fn join_cgroup(command: &mut Command, procs: OwnedFd) {
    let join = move || {
        // SAFETY: one byte of a constant is read; write may be called after a fork.
        // JUSTIFICATION: as above: only such calls are allowed here.
        let written = unsafe { libc::write(procs.as_raw_fd(), b"0".as_ptr().cast(), 1) };
        if written == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: the closure writes to a descriptor that it owns; the call is allowed after a fork.
    // JUSTIFICATION: std has no safe way to act between fork and exec.
    unsafe { command.pre_exec(join) };
}

/// The child writes to one of its own files, whose name means another file for each process, before it runs
/// its program. What cannot be written stays as it is.
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
    // SAFETY: the closure reads what was made before the fork, and makes calls that are allowed there.
    // JUSTIFICATION: std has no safe way to act between fork and exec.
    unsafe { command.pre_exec(write) };
}

/// The child has huge pages switched off but where advised, before it runs its program; a kernel before 6.18
/// leaves it as it is.
pub fn only_advised_huge_pages(command: &mut Command) {
    let switch = || {
        let _ = crate::thp_disable::set_except_advised();
        Ok(())
    };
    // SAFETY: the closure makes one call with numbers, which is allowed after a fork.
    // JUSTIFICATION: std has no safe way to act between fork and exec.
    unsafe { command.pre_exec(switch) };
}

/// Takes over a descriptor that the program was started with ([`keep_open`]): from now on it is closed with
/// its owner and on exec. To be called once for a number, before anything else is opened.
pub fn take_over(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: a number that is not open, or is one of the first three, which std uses, is refused; the caller
    // was told the number by who started it, so that nothing else in this process owns it.
    // JUSTIFICATION: a number from the command line becomes a descriptor nowhere else.
    unsafe {
        if fd <= 2 || libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) != 0 {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// The child has transparent huge pages switched off (PR_SET_THP_DISABLE, Linux 3.15), also where its program
/// asks for them, and so have its children. A kernel without them leaves it as it is.
pub fn without_huge_pages(command: &mut Command) {
    let off = move || {
        // SAFETY: prctl with one flag and zeros touches no memory and may be called after a fork.
        // JUSTIFICATION: as above: only such calls are allowed here.
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1 as libc::c_ulong, 0, 0, 0) };
        Ok(())
    };
    // SAFETY: the closure makes one call that is allowed after a fork.
    // JUSTIFICATION: std has no safe way to act between fork and exec.
    unsafe { command.pre_exec(off) };
}

/// The child may be traced by this process of the same user also where Yama lets none but ancestors
/// (PR_SET_PTRACER, Linux 3.4). Without Yama it means nothing.
pub fn may_be_traced_by(command: &mut Command, pid: u32) {
    let allow = move || {
        // SAFETY: prctl with a number touches no memory and may be called after a fork.
        // JUSTIFICATION: as above: only such calls are allowed here.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(pid), 0, 0, 0) };
        Ok(())
    };
    // SAFETY: the closure makes one call that is allowed after a fork.
    // JUSTIFICATION: std has no safe way to act between fork and exec.
    unsafe { command.pre_exec(allow) };
}

/// The child begins with the default disposition of every signal that a terminal or a supervisor sends, also
/// where this process ignores some: a shell's background job ignores SIGINT and SIGQUIT, `nohup` SIGHUP.
pub fn default_signals(command: &mut Command) {
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
    // SAFETY: the closure makes calls with numbers, which are allowed after a fork.
    // JUSTIFICATION: std has no safe way to act between fork and exec.
    unsafe { command.pre_exec(reset) };
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
            keep_open(&mut command, &[writer.as_fd()]);
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
        default_signals(&mut command);
        assert!(!ignored(&mut command));
        // SAFETY: as above. JUSTIFICATION: as above.
        unsafe { libc::signal(libc::SIGUSR2, old) };
    }
}
