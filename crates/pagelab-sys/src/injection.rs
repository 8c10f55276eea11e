//! Injection of system calls into a running thread, which continues as if nothing had happened.
//!
//! A thread is seized and stopped, its registers are kept, and it is sent through a `syscall` instruction
//! that it has mapped already (of the vdso: no text is written). Requirements:
//!
//! - A system call that the stop interrupts waits with an error of the kernel's own (-512 to -516) for the
//!   way back to the program, where it is restarted. That way leads through signal delivery alone. So
//!   registers are restored in a trap at that place (a second PTRACE_INTERRUPT), never in the stop at a
//!   call's exit, from which the raw number would reach the program.
//! - A signal that arrives in between is delivered with the thread's own registers, and the call is made
//!   afterwards.
//! - In a restartable sequence (rseq) nothing is injected: the kernel would not abort it.
//! - A thread of a stopped process returns to its stop.
//! - Only one thread is stopped; the others continue. Where all have to stand
//!   ([`inject_with_threads_stopped`]), each is seized, and each call that waits in one of them ends as at
//!   any stop.
//!
//! If the tracing process is killed while the thread has borrowed registers, the kernel releases the thread,
//! and it continues with them: it will most likely crash. The time for it is that of the calls alone (some
//! 10 µs each), so keep batches short, and make them from a process that is not killed with the one that a
//! person sees.

use std::fmt;
use std::io;
use std::ops::Range;
use std::time::Duration;

#[cfg(target_arch = "x86_64")]
pub use x86_64::{Injector, inject, inject_with_threads_stopped, wait_all_released};

/// How many times as long as the thread may take to stop all calls together may take. They wait for a CPU and
/// for the lock of the address space.
#[cfg(target_arch = "x86_64")]
const CALL_TIMEOUT_FACTOR: u32 = 20;

/// Why a thread cannot be used.
#[derive(Debug)]
pub enum InjectionError {
    /// It has exited, or exits meanwhile.
    ThreadExited,
    /// The kernel refuses to trace it: another's, or traced already (EPERM).
    NotPermitted,
    /// It did not stop in time: it waits in the kernel for something that no signal interrupts.
    StopTimeout,
    /// An injected call has not returned in time; the thread is released unchanged as soon as it does.
    CallTimeout,
    /// It runs code of 32 bits, or another kind of processor.
    UnsupportedMode,
    /// No `syscall` instruction was found in the ranges that were given.
    NoSyscallInstruction,
    /// It has system calls sent to itself (syscall user dispatch), or refuses them by a filter.
    CallsIntercepted,
    /// It was in a restartable sequence, or had signals delivered, each time that it was stopped.
    ThreadBusy,
    /// The kernel refused something else.
    Io(io::Error),
}

impl fmt::Display for InjectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InjectionError::ThreadExited => "it has exited",
            InjectionError::NotPermitted => {
                "the kernel denies ptrace: another user's process, another tracer, or Yama \
                 (kernel.yama.ptrace_scope)"
            }
            InjectionError::StopTimeout => "it does not stop: it is in an uninterruptible sleep",
            InjectionError::CallTimeout => "an injected call did not return in time",
            InjectionError::UnsupportedMode => "it does not run 64-bit code of this architecture",
            InjectionError::NoSyscallInstruction => {
                "it has no mapped system call instruction where one is expected"
            }
            InjectionError::CallsIntercepted => {
                "its system calls are intercepted before they reach the kernel"
            }
            InjectionError::ThreadBusy => "it was never stopped where a call can be injected",
            InjectionError::Io(error) => return write!(f, "{error}"),
        })
    }
}

impl std::error::Error for InjectionError {}

impl From<io::Error> for InjectionError {
    fn from(error: io::Error) -> InjectionError {
        match error.raw_os_error() {
            Some(libc::ESRCH | libc::ECHILD) => InjectionError::ThreadExited,
            Some(libc::EPERM | libc::EACCES) => InjectionError::NotPermitted,
            _ => InjectionError::Io(error),
        }
    }
}

/// Where and how a thread is to be used.
#[derive(Clone, Debug)]
pub struct InjectionTarget {
    /// The thread.
    pub tid: u32,
    /// Executable mappings of it in which a `syscall` instruction may be looked for; the vdso is best.
    pub code_ranges: Vec<Range<u64>>,
    /// How long it may take to stop; its calls may take twenty times as long.
    pub stop_timeout: Duration,
}

/// Cost for the thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InjectionCost {
    /// Calls that were made in its name.
    pub calls: u64,
    /// From the request to stop to the release.
    pub stopped_ns: u64,
}

#[cfg(not(target_arch = "x86_64"))]
mod unsupported {
    use super::{InjectionCost, InjectionError, InjectionTarget};

    /// A stopped thread; there is none on this platform.
    #[derive(Debug)]
    pub struct Injector {}

    impl Injector {
        /// Makes a system call.
        pub fn call(&mut self, _number: libc::c_long, _arguments: [u64; 6]) -> Result<i64, InjectionError> {
            Err(InjectionError::UnsupportedMode)
        }
    }

    /// Not written for this processor.
    pub fn inject<T: Send + 'static>(
        _site: &InjectionTarget,
        _act: impl FnOnce(&mut Injector) -> Result<T, InjectionError> + Send + 'static,
    ) -> Result<(T, InjectionCost), InjectionError> {
        Err(InjectionError::UnsupportedMode)
    }

    /// Not written for this processor.
    pub fn inject_with_threads_stopped<T: Send + 'static>(
        _site: &InjectionTarget,
        _threads: impl Fn() -> Vec<u32> + Send + 'static,
        _act: impl FnOnce(&mut Injector) -> Result<T, InjectionError> + Send + 'static,
    ) -> Result<(T, InjectionCost), InjectionError> {
        Err(InjectionError::UnsupportedMode)
    }

    /// Nothing is ever held.
    pub fn wait_all_released(_most: std::time::Duration) -> bool {
        true
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub use unsupported::{Injector, inject, inject_with_threads_stopped, wait_all_released};

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::io;
    use std::ops::Range;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{self, RecvTimeoutError};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{CALL_TIMEOUT_FACTOR, InjectionCost, InjectionError, InjectionTarget};
    use crate::ptrace::{self, Registers, Stop, TraceOptions};

    const SYSCALL_INSTRUCTION: [u8; 2] = [0x0f, 0x05];

    /// The code segment of 64-bit programs (`__USER_CS` of arch/x86/include/asm/segment.h).
    const USER_CS: u64 = 0x33;

    /// Bytes that are searched for an instruction.
    const SEARCH_BYTES_MAX: usize = 4 << 20;

    /// Maximum of attempts at which a thread is resumed because it was in a restartable sequence or got a
    /// signal.
    const ATTEMPTS_MAX: u32 = 200;

    /// A thread that is stopped, and can be made to call.
    #[derive(Debug)]
    pub struct Injector {
        pub(super) tid: u32,
        syscall_address: u64,
        pub(super) saved_registers: Registers,
        stop_point: StopPoint,
        calls: u64,
    }

    /// Which stop the thread is in.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum StopPoint {
        /// A trap on the way back to the program, with its own registers.
        Trap,
        /// The exit of a call that we made.
        SyscallExit,
        ThreadExited,
    }

    /// Injector threads that still control a thread although their callers have returned.
    static ABANDONED_INJECTIONS: AtomicUsize = AtomicUsize::new(0);

    /// Stops the thread, lets `action` make calls in its name, puts everything back and lets it go. All of it
    /// runs on its own thread: when that thread exits, the kernel detaches everything that is still traced.
    ///
    /// A call that does not come back in time ([`InjectionTarget::stop_timeout`], twenty times) is a refusal.
    /// Registers can be put back in a stopped thread alone, so it stays in the hands of that thread
    /// until the call has come back; see [`wait_all_released`].
    pub fn inject<T: Send + 'static>(
        target: &InjectionTarget,
        action: impl FnOnce(&mut Injector) -> Result<T, InjectionError> + Send + 'static,
    ) -> Result<(T, InjectionCost), InjectionError> {
        run_on_own_thread(target, None::<fn() -> Vec<u32>>, action)
    }

    /// The same while all `threads` of the process are stopped: the list is read again until none of them
    /// runs. They continue unchanged after the calls.
    pub fn inject_with_threads_stopped<T: Send + 'static>(
        target: &InjectionTarget,
        threads: impl Fn() -> Vec<u32> + Send + 'static,
        action: impl FnOnce(&mut Injector) -> Result<T, InjectionError> + Send + 'static,
    ) -> Result<(T, InjectionCost), InjectionError> {
        run_on_own_thread(target, Some(threads), action)
    }

    fn run_on_own_thread<T: Send + 'static>(
        target: &InjectionTarget,
        threads: Option<impl Fn() -> Vec<u32> + Send + 'static>,
        action: impl FnOnce(&mut Injector) -> Result<T, InjectionError> + Send + 'static,
    ) -> Result<(T, InjectionCost), InjectionError> {
        let (says, hears) = mpsc::channel();
        let most = target.stop_timeout.saturating_mul(CALL_TIMEOUT_FACTOR);
        let site = target.clone();
        let run = move || {
            ABANDONED_INJECTIONS.fetch_add(1, Ordering::SeqCst);
            let done = inject_from_this_thread(&site, threads, action);
            ABANDONED_INJECTIONS.fetch_sub(1, Ordering::SeqCst);
            // The requester may have exited.
            let _ = says.send(done);
        };
        thread::Builder::new().spawn(run).map_err(InjectionError::Io)?;
        hears.recv_timeout(most).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => Err(InjectionError::CallTimeout),
            RecvTimeoutError::Disconnected => Err(InjectionError::Io(io::Error::other("a thread panicked"))),
        })
    }

    /// Waits, at most so long, until no thread is in our hands any more: whether that is so. A process that
    /// ends earlier leaves threads that did not come back in time with borrowed registers.
    pub fn wait_all_released(timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        while ABANDONED_INJECTIONS.load(Ordering::SeqCst) > 0 {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// The other threads of a process, stopped until this is dropped.
    struct StoppedThreads {
        /// Each with the signal that is to be delivered to it.
        stopped: Vec<(u32, i32)>,
    }

    impl StoppedThreads {
        fn stop_all(
            target: &InjectionTarget,
            threads: impl Fn() -> Vec<u32>,
            deadline: Instant,
        ) -> Result<StoppedThreads, InjectionError> {
            let mut stopped_threads = StoppedThreads { stopped: Vec::new() };
            for _ in 0..ATTEMPTS_MAX {
                let held = |tid: &u32| stopped_threads.stopped.iter().any(|(known, _)| known == tid);
                let new: Vec<u32> =
                    threads().into_iter().filter(|tid| *tid != target.tid && !held(tid)).collect();
                if new.is_empty() {
                    return Ok(stopped_threads);
                }
                for &tid in &new {
                    match ptrace::seize(tid, TraceOptions(libc::PTRACE_O_TRACESYSGOOD)) {
                        Ok(()) => {
                            stopped_threads.stopped.push((tid, 0));
                            ptrace::interrupt(tid)?;
                        }
                        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                for (tid, signal) in stopped_threads.stopped.iter_mut().filter(|(tid, _)| new.contains(tid)) {
                    match wait_stop_until(*tid, deadline) {
                        Ok(Stop::Signal(came)) => *signal = came,
                        Ok(_) | Err(InjectionError::ThreadExited) => {}
                        Err(refusal) => return Err(refusal),
                    }
                }
            }
            Err(InjectionError::ThreadBusy)
        }
    }

    impl Drop for StoppedThreads {
        fn drop(&mut self) {
            for &(tid, signal) in &self.stopped {
                // A thread that never stopped is released when this injector thread exits.
                let _ = ptrace::detach(tid, signal);
            }
        }
    }

    fn inject_from_this_thread<T>(
        target: &InjectionTarget,
        threads: Option<impl Fn() -> Vec<u32>>,
        action: impl FnOnce(&mut Injector) -> Result<T, InjectionError>,
    ) -> Result<(T, InjectionCost), InjectionError> {
        ptrace::seize(target.tid, TraceOptions(libc::PTRACE_O_TRACESYSGOOD))?;
        let begun = Instant::now();
        let mut injector = Injector::stop_thread(target, begun + target.stop_timeout)?;
        let standing = threads
            .map(|threads| StoppedThreads::stop_all(target, threads, begun + target.stop_timeout))
            .transpose();
        let (result, standing) = match standing {
            Ok(standing) => (action(&mut injector), standing),
            Err(refusal) => (Err(refusal), None),
        };
        let let_go = injector.release();
        drop(standing);
        let stopped_ns = begun.elapsed().as_nanos() as u64;
        let injected = InjectionCost { calls: injector.calls, stopped_ns };
        let result = result?;
        let_go?;
        Ok((result, injected))
    }

    impl Injector {
        fn stop_thread(target: &InjectionTarget, deadline: Instant) -> Result<Injector, InjectionError> {
            ptrace::interrupt(target.tid)?;
            let saved_registers = stop_and_read_registers(target.tid, deadline)?;
            let instruction = match saved_registers.cs == USER_CS {
                true => find_syscall_instruction(target.tid, &target.code_ranges)
                    .ok_or(InjectionError::NoSyscallInstruction),
                false => Err(InjectionError::UnsupportedMode),
            };
            let mut injector = Injector {
                tid: target.tid,
                syscall_address: instruction.as_ref().map_or(0, |&address| address),
                saved_registers,
                stop_point: StopPoint::Trap,
                calls: 0,
            };
            if let Err(refusal) = instruction {
                injector.release()?;
                return Err(refusal);
            }
            Ok(injector)
        }

        /// Makes one system call in the thread. Returns its result, negative for an error number.
        pub fn call(&mut self, number: libc::c_long, arguments: [u64; 6]) -> Result<i64, InjectionError> {
            for _ in 0..ATTEMPTS_MAX {
                match self.try_call(number, arguments) {
                    Ok(Some(value)) => {
                        self.calls += 1;
                        return Ok(value);
                    }
                    Ok(None) => {}
                    Err(refusal) => {
                        if matches!(refusal, InjectionError::ThreadExited) {
                            self.stop_point = StopPoint::ThreadExited;
                        }
                        return Err(refusal);
                    }
                }
            }
            Err(InjectionError::ThreadBusy)
        }

        /// `None`: a signal arrived first, and was delivered.
        fn try_call(
            &mut self,
            number: libc::c_long,
            arguments: [u64; 6],
        ) -> Result<Option<i64>, InjectionError> {
            let mut borrowed = self.saved_registers;
            borrowed.rip = self.syscall_address;
            borrowed.rax = number as u64;
            // No call was interrupted, so none is restarted at this address.
            borrowed.orig_rax = u64::MAX;
            [borrowed.rdi, borrowed.rsi, borrowed.rdx, borrowed.r10, borrowed.r8, borrowed.r9] = arguments;
            ptrace::write_registers(self.tid, &borrowed)?;
            self.stop_point = StopPoint::SyscallExit;
            for at_entry in [true, false] {
                match self.next_syscall_stop()? {
                    Stop::Signal(signal) => return self.deliver_signal(signal).map(|()| None),
                    _ if at_entry => {}
                    _ => break,
                }
            }
            Ok(Some(ptrace::read_registers(self.tid)?.rax as i64))
        }

        /// The next entry or exit of a call, or a signal. A stopped process traps on the way (once more if
        /// requested), and returns to its stop when it is resumed.
        fn next_syscall_stop(&mut self) -> Result<Stop, InjectionError> {
            for _ in 0..ATTEMPTS_MAX {
                ptrace::resume_to_syscall(self.tid, 0)?;
                match wait_stop(self.tid)? {
                    Stop::Group(_) => {}
                    stop @ (Stop::Syscall | Stop::Signal(_)) => return Ok(stop),
                    _ => return Err(InjectionError::ThreadExited),
                }
            }
            Err(InjectionError::ThreadBusy)
        }

        /// A signal is about to be delivered while registers are borrowed: it is, with the thread's own, and
        /// the thread is stopped again after.
        fn deliver_signal(&mut self, signal: i32) -> Result<(), InjectionError> {
            ptrace::write_registers(self.tid, &self.saved_registers)?;
            self.stop_point = StopPoint::Trap;
            if signal == libc::SIGSYS {
                // Ours was caught before the kernel saw it; it is not the program's signal. This is a signal
                // delivery stop, after which an interrupted call is restarted.
                ptrace::detach(self.tid, 0)?;
                self.stop_point = StopPoint::ThreadExited;
                return Err(InjectionError::CallsIntercepted);
            }
            ptrace::interrupt(self.tid)?;
            ptrace::resume(self.tid, signal)?;
            self.saved_registers =
                stop_and_read_registers(self.tid, Instant::now() + Duration::from_secs(1))?;
            Ok(())
        }

        /// Restores the thread's registers at the point at which an interrupted call is restarted, and
        /// resumes the thread.
        fn release(&mut self) -> Result<(), InjectionError> {
            let mut signal = 0;
            if self.stop_point == StopPoint::ThreadExited {
                return Ok(());
            }
            if self.stop_point == StopPoint::SyscallExit {
                ptrace::interrupt(self.tid)?;
                ptrace::resume(self.tid, 0)?;
                match wait_stop(self.tid)? {
                    Stop::Group(_) => {}
                    Stop::Signal(came) => signal = came,
                    _ => return Err(InjectionError::ThreadExited),
                }
                ptrace::write_registers(self.tid, &self.saved_registers)?;
            }
            self.stop_point = StopPoint::ThreadExited;
            Ok(ptrace::detach(self.tid, signal)?)
        }
    }

    /// The registers in a trap on the way back to the program, outside of restartable sequences. A stop was
    /// requested.
    fn stop_and_read_registers(tid: u32, deadline: Instant) -> Result<Registers, InjectionError> {
        for _ in 0..ATTEMPTS_MAX {
            match wait_stop_until(tid, deadline)? {
                Stop::Group(_) => {
                    let own = ptrace::read_registers(tid)?;
                    if !ptrace::is_in_rseq(tid, own.rip) {
                        return Ok(own);
                    }
                    // The kernel aborts the sequence on the way back; the next stop is behind it.
                    ptrace::interrupt(tid)?;
                    ptrace::resume(tid, 0)?;
                }
                Stop::Signal(signal) => ptrace::resume(tid, signal)?,
                Stop::Exited(_) | Stop::Killed(_) => return Err(InjectionError::ThreadExited),
                Stop::Syscall | Stop::Event(_) => ptrace::resume(tid, 0)?,
            }
        }
        Err(InjectionError::ThreadBusy)
    }

    /// The next stop, even if late: nothing else can be done while the registers are borrowed. An exit status
    /// stays for the process that waits for the program.
    fn wait_stop(tid: u32) -> Result<Stop, InjectionError> {
        if ptrace::peek_is_ended(tid, true)? { Err(InjectionError::ThreadExited) } else { collect_stop(tid) }
    }

    fn wait_stop_until(tid: u32, deadline: Instant) -> Result<Stop, InjectionError> {
        let mut pause = Duration::from_micros(20);
        loop {
            match ptrace::peek_pending_stop(tid)? {
                Some(true) => return Err(InjectionError::ThreadExited),
                Some(false) => return collect_stop(tid),
                None if Instant::now() >= deadline => return Err(InjectionError::StopTimeout),
                None => thread::sleep(pause),
            }
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    fn collect_stop(tid: u32) -> Result<Stop, InjectionError> {
        match ptrace::wait(Some(tid), true)? {
            Some((_, stop)) => Ok(stop),
            None => Err(InjectionError::ThreadExited),
        }
    }

    /// The address of a `syscall` instruction.
    fn find_syscall_instruction(tid: u32, code: &[Range<u64>]) -> Option<u64> {
        for range in code {
            let length = usize::try_from(range.end.saturating_sub(range.start)).ok()?.min(SEARCH_BYTES_MAX);
            let mut bytes = vec![0; length];
            let got = ptrace::read_memory(tid, range.start, &mut bytes).unwrap_or(0);
            if let Some(at) = bytes[..got].windows(2).position(|pair| pair == SYSCALL_INSTRUCTION) {
                return Some(range.start + at as u64);
            }
        }
        None
    }
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests;
