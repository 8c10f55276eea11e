//! Children that are forked and waited for.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The exit code of a child that could not run its program.
const NOT_RUN: i32 = 127;

/// Forks a child that leaves at once, and waits for it.
pub fn fork_and_wait() -> io::Result<()> {
    // SAFETY: the child calls nothing but _exit, which is allowed after a fork of a program with threads.
    // JUSTIFICATION: std starts children by vfork and exec only; here the fork itself is measured.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: it ends this child and runs nothing of what the parent has registered.
        // JUSTIFICATION: the child is a copy of the parent, whose destructors are not the child's to run.
        0 => unsafe { libc::_exit(0) },
        _ => match wait_for(pid)? {
            0 => Ok(()),
            status => Err(io::Error::other(format!("the child ended with status {status:#x}"))),
        },
    }
}

/// Forks a child that runs `program` (a path) with these arguments, whose first is its name, and an empty
/// environment; waits for it. What it says goes to `output`. Its exit code.
pub fn exec_and_wait(program: &CStr, arguments: &[&CStr], output: BorrowedFd<'_>) -> io::Result<i32> {
    let output = output.as_raw_fd();
    let mut words: Vec<*const libc::c_char> = arguments.iter().map(|word| word.as_ptr()).collect();
    words.push(std::ptr::null());
    let environment = [std::ptr::null::<libc::c_char>()];
    // SAFETY: the child calls nothing but dup2, execve and _exit, which are allowed after a fork of a program
    // with threads, with lists that were made before it.
    // JUSTIFICATION: std would use vfork, which does not copy the page tables.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => return Err(io::Error::last_os_error()),
        // SAFETY: path, words and environment end in zeros and live in the child's copy of this frame; _exit
        // as in `fork_and_wait`. JUSTIFICATION: as above.
        0 => unsafe {
            libc::dup2(output, libc::STDOUT_FILENO);
            libc::dup2(output, libc::STDERR_FILENO);
            libc::execve(program.as_ptr(), words.as_ptr(), environment.as_ptr());
            libc::_exit(NOT_RUN)
        },
        _ => {}
    }
    let status = wait_for(pid)?;
    match libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)) {
        Some(NOT_RUN) => Err(io::Error::new(io::ErrorKind::NotFound, "the program could not be run")),
        Some(code) => Ok(code),
        None => Err(io::Error::other(format!("the child ended with status {status:#x}"))),
    }
}

/// Waits for one child; its status as wait(2) gives it.
pub(crate) fn wait_for(pid: libc::pid_t) -> io::Result<libc::c_int> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is writable and outlives the call.
        // JUSTIFICATION: the child was not started by std, which has no way to wait for it.
        if unsafe { libc::waitpid(pid, &mut status, 0) } == pid {
            return Ok(status);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn children_come_and_go() {
        for _ in 0..3 {
            fork_and_wait().unwrap();
        }
        let (mut reader, writer) = io::pipe().unwrap();
        let shell = |script: &CStr| exec_and_wait(c"/bin/sh", &[c"sh", c"-c", script], writer.as_fd());
        assert_eq!(shell(c"exit 3").unwrap(), 3);
        assert!(shell(c"kill -9 $$").is_err());
        assert_eq!(shell(c"echo one; echo two >&2").unwrap(), 0);
        let none = exec_and_wait(c"/none", &[c"none"], writer.as_fd());
        drop(writer);
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        assert_eq!(said, "one\ntwo\n");
        assert_eq!(none.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
