//! System calls made by a stopped thread in place of its own, so that its program cannot tell.
//!
//! All signals that can be are blocked while it does, so that no handler runs on registers that are ours.
//! SIGSTOP cannot be blocked: it is delivered where it comes, so that the SIGCONT after it finds a group that
//! is stopped, and the thread alone goes on to the end of its calls. Sent again at the end, it would stop a
//! program that has been continued meanwhile, for ever.

use std::io;

use pagelab_sys::ptrace::{self, Registers, Stop, event};

/// The length of the instruction `syscall`.
const SYSCALL_BYTES: u64 = 2;

/// A system call to be made: its number and arguments. The sixth is the mark that the filter lets pass, but
/// for `mmap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number.
    pub number: i64,
    /// Its arguments.
    pub arguments: [u64; 6],
}

impl Call {
    /// madvise over a range.
    pub fn madvise(range: &std::ops::Range<u64>, advice: u64, mark: u64) -> Call {
        let arguments = [range.start, range.end - range.start, advice, 0, 0, mark];
        Call { number: libc::SYS_madvise, arguments }
    }
}

/// Where the thread stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// At the exit of a call of its own.
    Exit,
    /// Where a filter handed a call over: that one is made again afterwards, from its start.
    Entry,
    /// Where it was interrupted; `syscall` is the address of an instruction that makes a call.
    Trap {
        /// The address.
        syscall: u64,
    },
}

/// What came of it, when the thread is still there and as it was.
#[derive(Debug, PartialEq, Eq)]
pub struct Made {
    /// What each call returned: an error number below zero.
    pub results: Vec<i64>,
    /// Its group is stopped, as far as it was told at a trap, or was at some time: interrupt it, and it will
    /// stop with the others if that is so.
    pub was_group_stopped: bool,
}

/// Why it did not come to its end.
#[derive(Debug)]
pub enum Broken {
    /// The thread ended or became another program: its stop, which is still to be looked at.
    Gone(u32, Stop),
    /// The kernel refused: the thread was killed, and tells its end.
    Refused,
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Broken {
        Broken::Refused
    }
}

struct Injection {
    tid: u32,
    saved: Registers,
    was_group_stopped: bool,
}

/// What has calls made, one after the other: each is what it returned.
pub type Caller<'c> = dyn FnMut(&Call) -> Result<i64, Broken> + 'c;

/// Lets the stopped thread `tid` make `calls`, one after the other. It stands as before at the end, and
/// is to be interrupted where [`Made::was_group_stopped`].
pub fn make(tid: u32, at: At, calls: &[Call]) -> Result<Made, Broken> {
    make_as_asked(tid, at, |caller| calls.iter().map(caller).collect())
}

/// The same with calls that follow from what the ones before returned.
pub fn make_as_asked(
    tid: u32,
    at: At,
    ask: impl FnOnce(&mut Caller<'_>) -> Result<Vec<i64>, Broken>,
) -> Result<Made, Broken> {
    let saved = ptrace::registers(tid)?;
    let mask = ptrace::signal_mask(tid)?;
    ptrace::set_signal_mask(tid, u64::MAX)?;
    let mut injection = Injection { tid, saved, was_group_stopped: false };
    let mut is_first = true;
    let results = ask(&mut |call| injection.one(at, std::mem::take(&mut is_first), call))?;
    let mut restored = saved;
    match at {
        At::Exit => {}
        At::Entry => {
            restored.rip = saved.rip - SYSCALL_BYTES;
            restored.rax = saved.orig_rax;
        }
        // In the stop that a system call ends in, the kernel would not look again at whether the call that
        // was interrupted is to be restarted. In a trap it does.
        At::Trap { .. } => injection.go_to_trap()?,
    }
    ptrace::set_registers(tid, &restored)?;
    ptrace::set_signal_mask(tid, mask)?;
    Ok(Made { results, was_group_stopped: injection.was_group_stopped })
}

impl Injection {
    fn one(&mut self, at: At, is_first: bool, call: &Call) -> Result<i64, Broken> {
        let mut registers = self.saved;
        let [rdi, rsi, rdx, r10, r8, r9] = call.arguments;
        (registers.rdi, registers.rsi, registers.rdx) = (rdi, rsi, rdx);
        (registers.r10, registers.r8, registers.r9) = (r10, r8, r9);
        // The kernel is about to make a call: only its number is to be changed.
        let mut is_in_call = at == At::Entry && is_first;
        if is_in_call {
            registers.orig_rax = call.number as u64;
        } else {
            registers.rax = call.number as u64;
            registers.rip = match at {
                At::Trap { syscall } => {
                    registers.orig_rax = u64::MAX;
                    syscall
                }
                At::Exit | At::Entry => self.saved.rip - SYSCALL_BYTES,
            };
        }
        ptrace::set_registers(self.tid, &registers)?;
        loop {
            match self.next(true)? {
                Stop::Syscall if is_in_call => return Ok(ptrace::registers(self.tid)?.rax as i64),
                Stop::Syscall => is_in_call = true,
                // A call without the mark.
                _ => {}
            }
        }
    }

    /// Lets it go on to its next stop of its own making.
    fn next(&mut self, to_syscall: bool) -> Result<Stop, Broken> {
        let mut delivered = 0;
        loop {
            match to_syscall {
                true => ptrace::go_on_to_syscall(self.tid, delivered)?,
                false => ptrace::go_on(self.tid, delivered)?,
            }
            delivered = 0;
            let Some((tid, stop)) = ptrace::wait(Some(self.tid), false)? else { continue };
            match stop {
                Stop::Syscall | Stop::Event(event::SECCOMP) => return Ok(stop),
                Stop::Signal(signal) => {
                    delivered = signal;
                    if !to_syscall {
                        // This stop has taken the trap that was asked for.
                        ptrace::interrupt(self.tid)?;
                    }
                }
                Stop::Group(signal) if !to_syscall => {
                    // It may have been continued since it was told before.
                    self.was_group_stopped = signal != libc::SIGTRAP;
                    return Ok(stop);
                }
                Stop::Group(signal) => self.was_group_stopped |= signal != libc::SIGTRAP,
                Stop::Exited(_) | Stop::Killed(_) | Stop::Event(_) => return Err(Broken::Gone(tid, stop)),
            }
        }
    }

    fn go_to_trap(&mut self) -> Result<(), Broken> {
        ptrace::interrupt(self.tid)?;
        while !matches!(self.next(false)?, Stop::Group(_)) {}
        Ok(())
    }
}
