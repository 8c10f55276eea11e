//! Thread under ptrace: its stops, registers and memory. Policy is elsewhere: the traced threads and the
//! actions at a stop.
//!
//! All calls about one tracee must come from the thread that seized it.

use std::io;
use std::mem::offset_of;

use libc::{c_int, c_long, pid_t};

use crate::wait::retry_interrupted;

/// Events that a tracer is notified of (`PTRACE_O_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceOptions(pub c_int);

impl TraceOptions {
    /// All events for a supervisor: new threads and processes, execs, exits, calls that a filter passes on,
    /// system-call stops marked as such; and its tracees are killed with it (`PTRACE_O_EXITKILL`, Linux 3.8).
    pub const SUPERVISE: TraceOptions = TraceOptions(
        libc::PTRACE_O_TRACESYSGOOD
            | libc::PTRACE_O_TRACEFORK
            | libc::PTRACE_O_TRACEVFORK
            | libc::PTRACE_O_TRACECLONE
            | libc::PTRACE_O_TRACEEXEC
            | libc::PTRACE_O_TRACEEXIT
            | libc::PTRACE_O_TRACESECCOMP
            | libc::PTRACE_O_EXITKILL,
    );
}

/// `PTRACE_EVENT_*` of include/uapi/linux/ptrace.h.
pub mod event {
    /// A child with SIGCHLD was made.
    pub const FORK: i32 = libc::PTRACE_EVENT_FORK;
    /// A child for which its parent waits was made.
    pub const VFORK: i32 = libc::PTRACE_EVENT_VFORK;
    /// Any other child or thread was made.
    pub const CLONE: i32 = libc::PTRACE_EVENT_CLONE;
    /// Another program runs.
    pub const EXEC: i32 = libc::PTRACE_EVENT_EXEC;
    /// It is about to end; its memory is still there.
    pub const EXIT: i32 = libc::PTRACE_EVENT_EXIT;
    /// A filter hands a call over, before it is made.
    pub const SECCOMP: i32 = libc::PTRACE_EVENT_SECCOMP;
}

/// A stop of a tracee, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It ended with this code.
    Exited(i32),
    /// A signal ended it.
    Killed(i32),
    /// A signal is about to be delivered.
    Signal(i32),
    /// A group stop by this signal (seized tracees only), or the answer to [`interrupt`] with SIGTRAP.
    Group(i32),
    /// Entry to or exit from a system call (PTRACE_O_TRACESYSGOOD is set).
    Syscall,
    /// A `PTRACE_EVENT_*` of this number.
    Event(i32),
}

/// The registers of a stopped thread.
#[cfg(target_arch = "x86_64")]
pub type Registers = libc::user_regs_struct;

fn check_result(result: c_long) -> io::Result<c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A request whose two last arguments are plain numbers.
fn send_request(request: libc::c_uint, tid: u32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: only requests whose arguments are numbers come here; the kernel checks the thread.
    // JUSTIFICATION: no crate here has a safe face for ptrace.
    check_result(unsafe { libc::ptrace(request, tid as pid_t, address, data) }).map(drop)
}

/// Begins to trace a thread without stopping it (Linux 3.4).
pub fn seize(tid: u32, options: TraceOptions) -> io::Result<()> {
    send_request(libc::PTRACE_SEIZE, tid, 0, options.0 as usize)
}

/// Asks a seized thread to stop: a [`Stop::Group`] with SIGTRAP follows, unless another stop is first.
pub fn interrupt(tid: u32) -> io::Result<()> {
    send_request(libc::PTRACE_INTERRUPT, tid, 0, 0)
}

/// Resumes a stopped thread and delivers this signal; 0 for none.
pub fn resume(tid: u32, signal: i32) -> io::Result<()> {
    send_request(libc::PTRACE_CONT, tid, 0, signal as usize)
}

/// Resumes it until the next entry to or exit from a system call.
pub fn resume_to_syscall(tid: u32, signal: i32) -> io::Result<()> {
    send_request(libc::PTRACE_SYSCALL, tid, 0, signal as usize)
}

/// Leaves a seized thread in its group stop, and hears of its end (Linux 3.4).
pub fn listen(tid: u32) -> io::Result<()> {
    send_request(libc::PTRACE_LISTEN, tid, 0, 0)
}

/// Ends tracing; the thread continues with this signal delivered.
pub fn detach(tid: u32, signal: i32) -> io::Result<()> {
    send_request(libc::PTRACE_DETACH, tid, 0, signal as usize)
}

/// The number that belongs to an event: a new thread's id, an exit status.
pub fn event_message(tid: u32) -> io::Result<u64> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the kernel writes one word to the place given. JUSTIFICATION: as in `request`.
    let got = unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, tid as pid_t, 0, &raw mut message) };
    check_result(got).map(|_| message)
}

/// The registers of a stopped thread.
#[cfg(target_arch = "x86_64")]
pub fn read_registers(tid: u32) -> io::Result<Registers> {
    let mut registers = std::mem::MaybeUninit::<Registers>::zeroed();
    // SAFETY: the kernel writes the structure of this architecture to a place of its size; all of its bit
    // patterns are numbers. JUSTIFICATION: as in `request`.
    unsafe {
        check_result(libc::ptrace(libc::PTRACE_GETREGS, tid as pid_t, 0, registers.as_mut_ptr()))?;
        Ok(registers.assume_init())
    }
}

/// Changes the registers of a stopped thread.
#[cfg(target_arch = "x86_64")]
pub fn write_registers(tid: u32, registers: &Registers) -> io::Result<()> {
    // SAFETY: the kernel reads the structure of this architecture. JUSTIFICATION: as in `request`.
    check_result(unsafe {
        libc::ptrace(libc::PTRACE_SETREGS, tid as pid_t, 0, std::ptr::from_ref(registers))
    })
    .map(drop)
}

/// `PTRACE_GETSIGMASK` and `PTRACE_SETSIGMASK` of include/uapi/linux/ptrace.h (Linux 3.11).
const GET_MASK: libc::c_uint = 0x420a;
const SET_MASK: libc::c_uint = 0x420b;

/// The signals that a stopped thread blocks, one bit a signal.
pub fn read_signal_mask(tid: u32) -> io::Result<u64> {
    let mut mask = 0u64;
    // SAFETY: the kernel writes at most the given number of bytes to the given address. JUSTIFICATION: as in
    // `request`.
    let got = unsafe { libc::ptrace(GET_MASK, tid as pid_t, size_of::<u64>(), &raw mut mask) };
    check_result(got).map(|_| mask)
}

/// Changes the signals that a stopped thread blocks. SIGKILL and SIGSTOP cannot be blocked.
pub fn set_signal_mask(tid: u32, mask: u64) -> io::Result<()> {
    // SAFETY: the kernel reads at most the given number of bytes at the given address. JUSTIFICATION: as in
    // `request`.
    check_result(unsafe { libc::ptrace(SET_MASK, tid as pid_t, size_of::<u64>(), &raw const mask) }).map(drop)
}

/// Waits for a thread (`Some`) or for any that is traced by this thread or its child (`None`). `Ok(None)`: no
/// event in a call that does not block, or a signal arrived during a wait for any thread.
pub fn wait(tid: Option<u32>, no_hang: bool) -> io::Result<Option<(u32, Stop)>> {
    let mut status: c_int = 0;
    let mut flags = libc::__WALL | if no_hang { libc::WNOHANG } else { 0 };
    if tid.is_none() {
        // Children of other threads are waited for by them.
        flags |= libc::__WNOTHREAD;
    }
    loop {
        let whom = tid.map_or(-1, |tid| tid as pid_t);
        // SAFETY: the kernel writes one number. JUSTIFICATION: rustix has no __WALL.
        let got = unsafe { libc::waitpid(whom, &raw mut status, flags) };
        match got {
            0 => return Ok(None),
            -1 => {
                let error = io::Error::last_os_error();
                match (error.kind(), tid) {
                    (io::ErrorKind::Interrupted, Some(_)) => {}
                    (io::ErrorKind::Interrupted, None) => return Ok(None),
                    _ => return Err(error),
                }
            }
            tid => return Ok(Some((tid as u32, decode_stop(status)))),
        }
    }
}

fn decode_stop(status: c_int) -> Stop {
    if libc::WIFEXITED(status) {
        return Stop::Exited(libc::WEXITSTATUS(status));
    }
    if libc::WIFSIGNALED(status) {
        return Stop::Killed(libc::WTERMSIG(status));
    }
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        0 if signal == libc::SIGTRAP | 0x80 => Stop::Syscall,
        0 => Stop::Signal(signal),
        libc::PTRACE_EVENT_STOP => Stop::Group(signal),
        event => Stop::Event(event),
    }
}

/// Pending event of this thread, which [`wait`] still reports: `Some(true)` for its exit, `Some(false)` for a
/// stop.
pub fn peek_pending_stop(tid: u32) -> io::Result<Option<bool>> {
    peek_stop(tid, libc::WNOHANG)
}

/// Waits for its next stop or end, and leaves it to [`wait`]: whether it is the end.
pub fn peek_is_ended(tid: u32, wait: bool) -> io::Result<bool> {
    Ok(peek_stop(tid, if wait { 0 } else { libc::WNOHANG })? == Some(true))
}

fn peek_stop(tid: u32, flags: c_int) -> io::Result<Option<bool>> {
    let flags = flags | libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL;
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the kernel writes the structure. JUSTIFICATION: rustix has no __WALL.
    retry_interrupted(|| unsafe { libc::waitid(libc::P_PID, tid, info.as_mut_ptr(), flags) })?;
    // SAFETY: all zeros is a siginfo_t, and waitid fills these fields or leaves zeros.
    // JUSTIFICATION: libc's accessor of a union.
    let (info, pid) = unsafe { (info.assume_init(), info.assume_init().si_pid()) };
    let ended = matches!(info.si_code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED);
    Ok((pid != 0).then_some(ended))
}

/// `struct ptrace_rseq_configuration` of include/uapi/linux/ptrace.h (Linux 5.13).
#[repr(C)]
#[derive(Default)]
struct RseqConfiguration {
    area: u64,
    area_bytes: u32,
    signature: u32,
    flags: u32,
    padding: u32,
}

const _: () = assert!(size_of::<RseqConfiguration>() == 24 && offset_of!(RseqConfiguration, area) == 0);
const _: () = assert!(
    offset_of!(RseqConfiguration, area_bytes) == 8
        && offset_of!(RseqConfiguration, signature) == 12
        && offset_of!(RseqConfiguration, flags) == 16
);

/// `PTRACE_GET_RSEQ_CONFIGURATION` of include/uapi/linux/ptrace.h.
const GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;

/// Whether this address is in the restartable sequence that a stopped thread is in (rseq(2)). Before Linux
/// 5.13 this cannot be queried, and the result is false.
pub fn is_in_rseq(tid: u32, address: u64) -> bool {
    let mut descriptor_address = RseqConfiguration::default();
    let length = size_of::<RseqConfiguration>();
    // SAFETY: the kernel writes at most the length that is given. JUSTIFICATION: as in `request`.
    let bytes_read =
        unsafe { libc::ptrace(GET_RSEQ_CONFIGURATION, tid as pid_t, length, &raw mut descriptor_address) };
    if bytes_read < length as c_long || descriptor_address.area == 0 {
        return false;
    }
    let word = |address: u64| {
        let mut bytes = [0; 8];
        let read = read_memory(tid, address, &mut bytes).unwrap_or(0);
        (read == bytes.len()).then(|| u64::from_ne_bytes(bytes))
    };
    // struct rseq: `rseq_cs` follows two 32-bit numbers; struct rseq_cs: so does `start_ip`, and the length
    // follows it.
    let Some(sequence) = word(descriptor_address.area.wrapping_add(8)).filter(|&sequence| sequence != 0)
    else {
        return false;
    };
    match (word(sequence.wrapping_add(8)), word(sequence.wrapping_add(16))) {
        (Some(start), Some(length)) => address.wrapping_sub(start) < length,
        _ => true,
    }
}

/// Reads memory of another process (process_vm_readv); returns the number of bytes that were read from the
/// start.
pub fn read_memory(pid: u32, address: u64, bytes: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: the local part is a slice that lives through the call; the remote address is only a
    // number to the kernel, which checks it. JUSTIFICATION: rustix has no face for this call.
    let got = unsafe { libc::process_vm_readv(pid as pid_t, &raw const local, 1, &raw const remote, 1, 0) };
    check_result(got as c_long).map(|got| got as usize)
}

/// Writes memory of another process (process_vm_writev); returns how many bytes could be written.
pub fn write_memory(pid: u32, address: u64, bytes: &[u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: the local part is a slice that is only read; the remote address is only a number to
    // the kernel, which checks it. JUSTIFICATION: rustix has no face for this call.
    let got = unsafe { libc::process_vm_writev(pid as pid_t, &raw const local, 1, &raw const remote, 1, 0) };
    check_result(got as c_long).map(|got| got as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_thread_is_seized_looked_at_and_let_go() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let tid = child.id();
        seize(tid, TraceOptions::default()).unwrap();
        interrupt(tid).unwrap();
        assert_eq!(wait(Some(tid), false).unwrap(), Some((tid, Stop::Group(libc::SIGTRAP))));
        let seen = read_registers(tid).unwrap();
        let mut code = [0; 2];
        assert_eq!(read_memory(tid, seen.rip - 2, &mut code).unwrap(), 2);
        write_registers(tid, &seen).unwrap();
        assert_eq!(read_registers(tid).unwrap().rsp, seen.rsp);
        detach(tid, 0).unwrap();
        assert!(child.try_wait().unwrap().is_none(), "it continues");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
