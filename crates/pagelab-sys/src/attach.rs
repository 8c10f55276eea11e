//! System calls made in the name of a running thread, which afterwards goes on as if nothing had been.
//!
//! A thread is seized and stopped, its registers are kept, and it is sent through a `syscall` instruction
//! that it has mapped already (of the vdso: no text is written). What has to be right:
//!
//! - A system call that the stop interrupts waits with an error of the kernel's own (-512 to -516) for the
//!   way back to the program, where it is begun again. That way leads through signal delivery alone. So
//!   registers are put back in a trap of that place (a second PTRACE_INTERRUPT), never in the stop at a
//!   call's exit, from where the raw number would reach the program.
//! - A signal that comes in between is delivered with the thread's own registers, and the call is made after.
//! - In a restartable sequence (rseq) nothing is injected: the kernel would forget that it has to be aborted.
//! - A thread of a stopped process goes back to its stop.
//! - Only one thread is stopped; the others go on. Where all have to stand ([`with_all`]), each is seized,
//!   and each call that waits in one of them ends as at any stop.
//!
//! If the tracing process is killed while the thread has borrowed registers, the kernel lets the thread go,
//! and it goes on with them: it will most likely crash. The time for it is that of the calls
//! alone (some 10 µs each, [`Injected::calls_ns`]), so keep batches short, and make them from a process that
//! is not killed with the one that a person sees.

use std::fmt;
use std::io;
use std::ops::Range;
use std::time::Duration;

#[cfg(target_arch = "x86_64")]
pub use here::{Injector, all_let_go, with, with_all};

/// How many times as long as the thread may take to stop all calls together may take. They wait for a CPU and
/// for the lock of the address space.
#[cfg(target_arch = "x86_64")]
const CALLS_PATIENCE: u32 = 20;

/// Why a thread cannot be used.
#[derive(Debug)]
pub enum Refusal {
    /// It is gone, or ended meanwhile.
    Gone,
    /// The kernel refuses to trace it: another's, or traced already (EPERM).
    NotPermitted,
    /// It did not stop in time: it waits in the kernel for something that no signal interrupts.
    DoesNotStop,
    /// A call in its name has not come back in time; it is let go as it was as soon as that does.
    DoesNotComeBack,
    /// It runs code of 32 bits, or another kind of processor.
    OtherCode,
    /// No `syscall` instruction was found in the ranges that were given.
    NoInstruction,
    /// It has system calls sent to itself (syscall user dispatch), or refuses them by a filter.
    CallsRefused,
    /// It was in a restartable sequence, or had signals delivered, each time that it was stopped.
    Busy,
    /// The kernel refused something else.
    Io(io::Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Gone => "it has ended",
            Refusal::NotPermitted => {
                "the kernel does not let us trace it: it is another user's, has another \
                                      tracer, or Yama forbids it (kernel.yama.ptrace_scope)"
            }
            Refusal::DoesNotStop => "it does not stop: it waits in the kernel where no signal is heard",
            Refusal::DoesNotComeBack => "a call in its name did not come back in time",
            Refusal::OtherCode => "it does not run 64-bit code of this kind of processor",
            Refusal::NoInstruction => "it has no system call instruction mapped where one was looked for",
            Refusal::CallsRefused => "system calls of its own are caught before the kernel sees them",
            Refusal::Busy => "it was in the middle of something each time that it was stopped",
            Refusal::Io(error) => return write!(f, "{error}"),
        })
    }
}

impl std::error::Error for Refusal {}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        match error.raw_os_error() {
            Some(libc::ESRCH | libc::ECHILD) => Refusal::Gone,
            Some(libc::EPERM | libc::EACCES) => Refusal::NotPermitted,
            _ => Refusal::Io(error),
        }
    }
}

/// Where and how a thread is to be used.
#[derive(Clone, Debug)]
pub struct Site {
    /// The thread.
    pub tid: u32,
    /// Executable mappings of it in which a `syscall` instruction may be looked for; the vdso is best.
    pub code: Vec<Range<u64>>,
    /// How long it may take to stop; its calls may take twenty times as long.
    pub patience: Duration,
}

/// What it cost the thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Injected {
    /// Calls that were made in its name.
    pub calls: u64,
    /// From the request to stop to the time it was let go.
    pub stopped_ns: u64,
    /// The part of it in which its registers were borrowed.
    pub calls_ns: u64,
}

#[cfg(not(target_arch = "x86_64"))]
mod elsewhere {
    use super::{Injected, Refusal, Site};

    /// A thread that is stopped; there is none here.
    #[derive(Debug)]
    pub struct Injector {}

    impl Injector {
        /// Makes a system call.
        pub fn call(&mut self, _number: libc::c_long, _arguments: [u64; 6]) -> Result<i64, Refusal> {
            Err(Refusal::OtherCode)
        }
    }

    /// Not written for this processor.
    pub fn with<T: Send + 'static>(
        _site: &Site,
        _act: impl FnOnce(&mut Injector) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<(T, Injected), Refusal> {
        Err(Refusal::OtherCode)
    }

    /// Not written for this processor.
    pub fn with_all<T: Send + 'static>(
        _site: &Site,
        _threads: impl Fn() -> Vec<u32> + Send + 'static,
        _act: impl FnOnce(&mut Injector) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<(T, Injected), Refusal> {
        Err(Refusal::OtherCode)
    }

    /// Nothing is ever held.
    pub fn all_let_go(_most: std::time::Duration) -> bool {
        true
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub use elsewhere::{Injector, all_let_go, with, with_all};

#[cfg(target_arch = "x86_64")]
mod here {
    use std::io;
    use std::ops::Range;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{self, RecvTimeoutError};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{CALLS_PATIENCE, Injected, Refusal, Site};
    use crate::ptrace::{self, Options, Registers, Stop};

    /// `syscall`.
    const INSTRUCTION: [u8; 2] = [0x0f, 0x05];

    /// The code segment of 64-bit programs (`__USER_CS` of arch/x86/include/asm/segment.h).
    const CODE_OF_64_BITS: u64 = 0x33;

    /// Bytes that are looked through for an instruction.
    const LOOKED_THROUGH: usize = 4 << 20;

    /// How often a thread is let go on because it was in a restartable sequence or got a signal.
    const TRIES: u32 = 200;

    /// A thread that is stopped, and can be made to call.
    #[derive(Debug)]
    pub struct Injector {
        pub(super) tid: u32,
        instruction: u64,
        pub(super) own: Registers,
        at: At,
        calls: u64,
        borrowed: Duration,
    }

    /// Which stop the thread is in.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum At {
        /// A trap on the way back to the program, with its own registers.
        Trap,
        /// The exit of a call that we made.
        Exit,
        /// It is gone.
        Gone,
    }

    /// Threads of ours that still have a thread in their hands, their callers being gone.
    static LEFT: AtomicUsize = AtomicUsize::new(0);

    /// Stops the thread, lets `act` make calls in its name, puts everything back and lets it go. All of it
    /// happens on a thread of its own: when that ends, the kernel lets go whatever is still traced.
    ///
    /// A call that does not come back in time ([`Site::patience`], twenty times) is a refusal.
    /// Registers can be put back in a stopped thread alone, so it stays in the hands of that thread of ours
    /// until the call has come back; see [`all_let_go`].
    pub fn with<T: Send + 'static>(
        site: &Site,
        act: impl FnOnce(&mut Injector) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<(T, Injected), Refusal> {
        on_a_thread(site, None::<fn() -> Vec<u32>>, act)
    }

    /// The same while all `threads` of the process stand: those that are told, asked for again and again
    /// until nobody of them runs. They go on after the calls, as they were.
    pub fn with_all<T: Send + 'static>(
        site: &Site,
        threads: impl Fn() -> Vec<u32> + Send + 'static,
        act: impl FnOnce(&mut Injector) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<(T, Injected), Refusal> {
        on_a_thread(site, Some(threads), act)
    }

    fn on_a_thread<T: Send + 'static>(
        site: &Site,
        threads: Option<impl Fn() -> Vec<u32> + Send + 'static>,
        act: impl FnOnce(&mut Injector) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<(T, Injected), Refusal> {
        let (says, hears) = mpsc::channel();
        let most = site.patience.saturating_mul(CALLS_PATIENCE);
        let site = site.clone();
        let run = move || {
            LEFT.fetch_add(1, Ordering::SeqCst);
            let done = of_this_thread(&site, threads, act);
            LEFT.fetch_sub(1, Ordering::SeqCst);
            // Whoever asked may have gone.
            let _ = says.send(done);
        };
        thread::Builder::new().spawn(run).map_err(Refusal::Io)?;
        hears.recv_timeout(most).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => Err(Refusal::DoesNotComeBack),
            RecvTimeoutError::Disconnected => Err(Refusal::Io(io::Error::other("a thread panicked"))),
        })
    }

    /// Waits, at most so long, until no thread is in our hands any more: whether that is so. A process that
    /// ends earlier leaves threads that did not come back in time with borrowed registers.
    pub fn all_let_go(most: Duration) -> bool {
        let until = Instant::now() + most;
        while LEFT.load(Ordering::SeqCst) > 0 {
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// The other threads of a process, which stand until this is dropped.
    struct Standing {
        /// Each with the signal that is to be delivered to it.
        held: Vec<(u32, i32)>,
    }

    impl Standing {
        fn of(site: &Site, threads: impl Fn() -> Vec<u32>, until: Instant) -> Result<Standing, Refusal> {
            let mut standing = Standing { held: Vec::new() };
            for _ in 0..TRIES {
                let held = |tid: &u32| standing.held.iter().any(|(known, _)| known == tid);
                let new: Vec<u32> =
                    threads().into_iter().filter(|tid| *tid != site.tid && !held(tid)).collect();
                if new.is_empty() {
                    return Ok(standing);
                }
                for &tid in &new {
                    match ptrace::seize(tid, Options(libc::PTRACE_O_TRACESYSGOOD)) {
                        Ok(()) => {
                            standing.held.push((tid, 0));
                            ptrace::interrupt(tid)?;
                        }
                        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                for (tid, signal) in standing.held.iter_mut().filter(|(tid, _)| new.contains(tid)) {
                    match stop_until(*tid, until) {
                        Ok(Stop::Signal(came)) => *signal = came,
                        Ok(_) | Err(Refusal::Gone) => {}
                        Err(refusal) => return Err(refusal),
                    }
                }
            }
            Err(Refusal::Busy)
        }
    }

    impl Drop for Standing {
        fn drop(&mut self) {
            for &(tid, signal) in &self.held {
                // One that never stopped is let go with this thread of ours.
                let _ = ptrace::detach(tid, signal);
            }
        }
    }

    fn of_this_thread<T>(
        site: &Site,
        threads: Option<impl Fn() -> Vec<u32>>,
        act: impl FnOnce(&mut Injector) -> Result<T, Refusal>,
    ) -> Result<(T, Injected), Refusal> {
        ptrace::seize(site.tid, Options(libc::PTRACE_O_TRACESYSGOOD))?;
        let begun = Instant::now();
        let mut injector = Injector::stopped(site, begun + site.patience)?;
        let standing = threads.map(|threads| Standing::of(site, threads, begun + site.patience)).transpose();
        let (result, standing) = match standing {
            Ok(standing) => (act(&mut injector), standing),
            Err(refusal) => (Err(refusal), None),
        };
        let let_go = injector.let_go();
        drop(standing);
        let stopped_ns = begun.elapsed().as_nanos() as u64;
        let calls_ns = injector.borrowed.as_nanos() as u64;
        let injected = Injected { calls: injector.calls, stopped_ns, calls_ns };
        let result = result?;
        let_go?;
        Ok((result, injected))
    }

    impl Injector {
        fn stopped(site: &Site, until: Instant) -> Result<Injector, Refusal> {
            ptrace::interrupt(site.tid)?;
            let own = own_registers(site.tid, until)?;
            let found = if own.cs == CODE_OF_64_BITS {
                instruction(site.tid, &site.code).ok_or(Refusal::NoInstruction)
            } else {
                Err(Refusal::OtherCode)
            };
            let mut injector = Injector {
                tid: site.tid,
                instruction: 0,
                own,
                at: At::Trap,
                calls: 0,
                borrowed: Duration::ZERO,
            };
            match found {
                Ok(instruction) => injector.instruction = instruction,
                Err(refusal) => {
                    injector.let_go()?;
                    return Err(refusal);
                }
            }
            Ok(injector)
        }

        /// Makes one system call in the thread's name: what it returned, negative for an error number.
        pub fn call(&mut self, number: libc::c_long, arguments: [u64; 6]) -> Result<i64, Refusal> {
            for _ in 0..TRIES {
                let begun = Instant::now();
                let returned = self.try_call(number, arguments);
                self.borrowed += begun.elapsed();
                match returned {
                    Ok(Some(value)) => {
                        self.calls += 1;
                        return Ok(value);
                    }
                    Ok(None) => {}
                    Err(refusal) => {
                        if matches!(refusal, Refusal::Gone) {
                            self.at = At::Gone;
                        }
                        return Err(refusal);
                    }
                }
            }
            Err(Refusal::Busy)
        }

        /// `None`: a signal came first, and was delivered.
        fn try_call(&mut self, number: libc::c_long, arguments: [u64; 6]) -> Result<Option<i64>, Refusal> {
            let mut borrowed = self.own;
            borrowed.rip = self.instruction;
            borrowed.rax = number as u64;
            // No call was interrupted, so that none is begun again at this address.
            borrowed.orig_rax = u64::MAX;
            [borrowed.rdi, borrowed.rsi, borrowed.rdx, borrowed.r10, borrowed.r8, borrowed.r9] = arguments;
            ptrace::set_registers(self.tid, &borrowed)?;
            self.at = At::Exit;
            for at_entry in [true, false] {
                match self.next_call_stop()? {
                    Stop::Signal(signal) => return self.deliver(signal).map(|()| None),
                    _ if at_entry => {}
                    _ => break,
                }
            }
            Ok(Some(ptrace::registers(self.tid)?.rax as i64))
        }

        /// The next entry or exit of a call, or a signal. A process that is stopped traps on the way (once
        /// more where it was asked to), and goes back to its stop when it is let go.
        fn next_call_stop(&mut self) -> Result<Stop, Refusal> {
            for _ in 0..TRIES {
                ptrace::go_on_to_syscall(self.tid, 0)?;
                match stop(self.tid)? {
                    Stop::Group(_) => {}
                    stop @ (Stop::Syscall | Stop::Signal(_)) => return Ok(stop),
                    _ => return Err(Refusal::Gone),
                }
            }
            Err(Refusal::Busy)
        }

        /// A signal is about to be delivered while registers are borrowed: it is, with the thread's own, and
        /// the thread is stopped again after.
        fn deliver(&mut self, signal: i32) -> Result<(), Refusal> {
            ptrace::set_registers(self.tid, &self.own)?;
            self.at = At::Trap;
            if signal == libc::SIGSYS {
                // Ours was caught before the kernel saw it; it is not the program's signal. This is a stop of
                // signal delivery, where a call that was interrupted is begun again.
                ptrace::detach(self.tid, 0)?;
                self.at = At::Gone;
                return Err(Refusal::CallsRefused);
            }
            ptrace::interrupt(self.tid)?;
            ptrace::go_on(self.tid, signal)?;
            self.own = own_registers(self.tid, Instant::now() + Duration::from_secs(1))?;
            Ok(())
        }

        /// Puts its own registers back where a call that was interrupted is begun again, and lets it go.
        fn let_go(&mut self) -> Result<(), Refusal> {
            let begun = Instant::now();
            let mut signal = 0;
            if self.at == At::Gone {
                return Ok(());
            }
            if self.at == At::Exit {
                ptrace::interrupt(self.tid)?;
                ptrace::go_on(self.tid, 0)?;
                match stop(self.tid)? {
                    Stop::Group(_) => {}
                    Stop::Signal(came) => signal = came,
                    _ => return Err(Refusal::Gone),
                }
                ptrace::set_registers(self.tid, &self.own)?;
                self.borrowed += begun.elapsed();
            }
            self.at = At::Gone;
            Ok(ptrace::detach(self.tid, signal)?)
        }
    }

    /// The registers in a trap on the way back to the program, outside of restartable sequences. It has been
    /// asked to stop.
    fn own_registers(tid: u32, until: Instant) -> Result<Registers, Refusal> {
        for _ in 0..TRIES {
            match stop_until(tid, until)? {
                Stop::Group(_) => {
                    let own = ptrace::registers(tid)?;
                    if !ptrace::in_restartable_sequence(tid, own.rip) {
                        return Ok(own);
                    }
                    // The kernel aborts the sequence on the way back; the next stop is behind it.
                    ptrace::interrupt(tid)?;
                    ptrace::go_on(tid, 0)?;
                }
                Stop::Signal(signal) => ptrace::go_on(tid, signal)?,
                Stop::Exited(_) | Stop::Killed(_) => return Err(Refusal::Gone),
                Stop::Syscall | Stop::Event(_) => ptrace::go_on(tid, 0)?,
            }
        }
        Err(Refusal::Busy)
    }

    /// The next stop, however late: nothing else can be done with registers that are borrowed. An end is not
    /// taken from whoever waits for the program.
    fn stop(tid: u32) -> Result<Stop, Refusal> {
        if ptrace::has_ended(tid, true)? { Err(Refusal::Gone) } else { taken(tid) }
    }

    fn stop_until(tid: u32, until: Instant) -> Result<Stop, Refusal> {
        let mut pause = Duration::from_micros(20);
        loop {
            match ptrace::event_waits(tid)? {
                Some(true) => return Err(Refusal::Gone),
                Some(false) => return taken(tid),
                None if Instant::now() >= until => return Err(Refusal::DoesNotStop),
                None => thread::sleep(pause),
            }
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    fn taken(tid: u32) -> Result<Stop, Refusal> {
        match ptrace::wait(Some(tid), true)? {
            Some((_, stop)) => Ok(stop),
            None => Err(Refusal::Gone),
        }
    }

    /// The address of a `syscall` instruction.
    fn instruction(tid: u32, code: &[Range<u64>]) -> Option<u64> {
        for range in code {
            let length = usize::try_from(range.end.saturating_sub(range.start)).ok()?.min(LOOKED_THROUGH);
            let mut bytes = vec![0; length];
            let got = ptrace::read_memory(tid, range.start, &mut bytes).unwrap_or(0);
            if let Some(at) = bytes[..got].windows(2).position(|pair| pair == INSTRUCTION) {
                return Some(range.start + at as u64);
            }
        }
        None
    }
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests;
