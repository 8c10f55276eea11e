//! System calls that are injected into a stopped thread, transparently to its program.
//!
//! All signals that can be blocked are blocked meanwhile, so that no handler runs on injected registers.
//! SIGSTOP cannot be blocked: it is delivered at once, so that a later SIGCONT finds a stopped group, and
//! only this thread continues to the end of its calls. If it were delivered at the end instead, it could stop
//! for ever a program that was continued in the meantime.

use std::io;

use pagelab_sys::ptrace::{self, Registers, Stop, event};

const SYSCALL_BYTES: u64 = 2;
/// The largest error number (include/linux/err.h, MAX_ERRNO).
const MAX_ERRNO: i64 = 4095;

/// The error number in the result of a system call; `None` for a success.
pub fn errno_of(result: i64) -> Option<i32> {
    (-MAX_ERRNO..0).contains(&result).then(|| -result as i32)
}

/// A system call to be made: its number and arguments. The sixth is the mark that the filter lets pass, but
/// for `mmap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InjectedCall {
    pub number: i64,
    pub arguments: [u64; 6],
}

impl InjectedCall {
    /// madvise over a range.
    pub fn madvise(range: &std::ops::Range<u64>, advice: u64, mark: u64) -> InjectedCall {
        let arguments = [range.start, range.end - range.start, advice, 0, 0, mark];
        InjectedCall { number: libc::SYS_madvise, arguments }
    }
}

/// Position of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectionPoint {
    /// At the exit of a call of its own.
    SyscallExit,
    /// At a call that a filter passed to the tracer: this call is repeated afterwards, from its start.
    SyscallEntry,
    /// At the point of interruption; `syscall` is the address of a syscall instruction.
    Trap {
        /// The address.
        syscall: u64,
    },
}

/// The results of injected calls, if the thread is still there and in its former state.
#[derive(Debug, PartialEq, Eq)]
pub struct InjectionResult {
    /// The result of each call: a negative error number on failure.
    pub results: Vec<i64>,
    /// Its group was stopped meanwhile, as reported at a trap: after an interrupt it stops with the others if
    /// the group still is.
    pub was_group_stopped: bool,
}

impl InjectionResult {
    /// The result of the one call that was made.
    pub fn single(&self) -> i64 {
        debug_assert_eq!(self.results.len(), 1, "calls made in place of one");
        self.results[0]
    }
}

/// Why injected calls did not complete.
#[derive(Debug)]
pub enum InjectionFailure {
    /// The thread ended or executed another program: its stop, which is still to be handled.
    ThreadGone(u32, Stop),
    /// A ptrace request failed: the thread was killed, and its end will be reported.
    Refused,
}

impl From<io::Error> for InjectionFailure {
    fn from(_: io::Error) -> InjectionFailure {
        InjectionFailure::Refused
    }
}

struct Injection {
    tid: u32,
    saved: Registers,
    was_group_stopped: bool,
}

/// A function that makes one call and returns its result.
pub type CallFn<'c> = dyn FnMut(&InjectedCall) -> Result<i64, InjectionFailure> + 'c;

/// Makes the stopped thread `tid` execute `calls`, one after the other. It is in its former state at the end,
/// and has to be interrupted if [`InjectionResult::was_group_stopped`].
pub fn inject_calls(
    tid: u32,
    at: InjectionPoint,
    calls: &[InjectedCall],
) -> Result<InjectionResult, InjectionFailure> {
    inject_with(tid, at, |caller| calls.iter().map(caller).collect())
}

/// The same with calls that depend on the results of earlier ones.
pub fn inject_with(
    tid: u32,
    at: InjectionPoint,
    make_calls: impl FnOnce(&mut CallFn<'_>) -> Result<Vec<i64>, InjectionFailure>,
) -> Result<InjectionResult, InjectionFailure> {
    let saved = ptrace::read_registers(tid)?;
    let mask = ptrace::read_signal_mask(tid)?;
    ptrace::set_signal_mask(tid, u64::MAX)?;
    let mut injection = Injection { tid, saved, was_group_stopped: false };
    let mut is_first = true;
    let results = make_calls(&mut |call| injection.make_call(at, std::mem::take(&mut is_first), call))?;
    let mut restored = saved;
    match at {
        InjectionPoint::SyscallExit => {}
        InjectionPoint::SyscallEntry => {
            restored.rip = saved.rip - SYSCALL_BYTES;
            restored.rax = saved.orig_rax;
        }
        // At the exit stop of a system call, the kernel would not check again whether the interrupted call is
        // to be restarted. At a trap it does.
        InjectionPoint::Trap { .. } => injection.run_to_trap()?,
    }
    ptrace::write_registers(tid, &restored)?;
    ptrace::set_signal_mask(tid, mask)?;
    Ok(InjectionResult { results, was_group_stopped: injection.was_group_stopped })
}

impl Injection {
    fn make_call(
        &mut self,
        at: InjectionPoint,
        is_first: bool,
        call: &InjectedCall,
    ) -> Result<i64, InjectionFailure> {
        let mut registers = self.saved;
        let [rdi, rsi, rdx, r10, r8, r9] = call.arguments;
        (registers.rdi, registers.rsi, registers.rdx) = (rdi, rsi, rdx);
        (registers.r10, registers.r8, registers.r9) = (r10, r8, r9);
        // The kernel is about to execute a call: only its number has to be changed.
        let mut is_in_call = at == InjectionPoint::SyscallEntry && is_first;
        if is_in_call {
            registers.orig_rax = call.number as u64;
        } else {
            registers.rax = call.number as u64;
            registers.rip = match at {
                InjectionPoint::Trap { syscall } => {
                    registers.orig_rax = u64::MAX;
                    syscall
                }
                InjectionPoint::SyscallExit | InjectionPoint::SyscallEntry => self.saved.rip - SYSCALL_BYTES,
            };
        }
        ptrace::write_registers(self.tid, &registers)?;
        loop {
            match self.run_to_next_stop(true)? {
                Stop::Syscall if is_in_call => return Ok(ptrace::read_registers(self.tid)?.rax as i64),
                Stop::Syscall => is_in_call = true,
                // A call without the mark.
                _ => {}
            }
        }
    }

    /// Resumes it until its next stop that it causes itself.
    fn run_to_next_stop(&mut self, to_syscall: bool) -> Result<Stop, InjectionFailure> {
        let mut delivered = 0;
        loop {
            match to_syscall {
                true => ptrace::resume_to_syscall(self.tid, delivered)?,
                false => ptrace::resume(self.tid, delivered)?,
            }
            delivered = 0;
            let Some((tid, stop)) = ptrace::wait(Some(self.tid), false)? else { continue };
            match stop {
                Stop::Syscall | Stop::Event(event::SECCOMP) => return Ok(stop),
                Stop::Signal(signal) => {
                    delivered = signal;
                    if !to_syscall {
                        // This stop consumed the requested trap.
                        ptrace::interrupt(self.tid)?;
                    }
                }
                Stop::Group(signal) if !to_syscall => {
                    // It may have been continued since the last report.
                    self.was_group_stopped = signal != libc::SIGTRAP;
                    return Ok(stop);
                }
                Stop::Group(signal) => self.was_group_stopped |= signal != libc::SIGTRAP,
                Stop::Exited(_) | Stop::Killed(_) | Stop::Event(_) => {
                    return Err(InjectionFailure::ThreadGone(tid, stop));
                }
            }
        }
    }

    fn run_to_trap(&mut self) -> Result<(), InjectionFailure> {
        ptrace::interrupt(self.tid)?;
        while !matches!(self.run_to_next_stop(false)?, Stop::Group(_)) {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_4095_results_below_zero_are_errors() {
        let errors = [-1, -4095, -i64::from(libc::ENOMEM)].map(errno_of);
        assert_eq!(errors, [Some(1), Some(4095), Some(libc::ENOMEM)]);
        assert_eq!([0, 1, i64::MAX, -4096, i64::MIN].map(errno_of), [None; 5]);
    }

    #[test]
    #[should_panic(expected = "calls made in place of one")]
    fn a_missing_result_is_not_a_success() {
        InjectionResult { results: Vec::new(), was_group_stopped: false }.single();
    }
}
