//! Loops of small kernel and C library operations, counted and timed, after AIM9's allocation, process and
//! signal tests.

use std::ffi::CStr;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::wait::{check_zero, retry_interrupted, wait4};

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCondition {
    /// After at least this number of operations.
    Count(u64),
    /// After at least this number of nanoseconds.
    Nanoseconds(u64),
}

impl StopCondition {
    /// Whether the condition is reached by this number of operations and nanoseconds.
    pub fn is_reached(self, operations: u64, took_ns: u64) -> bool {
        match self {
            StopCondition::Count(count) => operations >= count,
            StopCondition::Nanoseconds(ns) => took_ns >= ns,
        }
    }
}

/// Operations done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopResult {
    /// Operations.
    pub operation_count: u64,
    /// Nanoseconds from the first to the last, without setting up.
    pub elapsed_ns: u64,
}

/// Repeats `step`, which returns its number of operations, until the condition is reached. The clock is read
/// between two steps only if the time decides: reading it may cost as much as a step.
pub fn run_until<E>(stop: StopCondition, mut step: impl FnMut() -> Result<u64, E>) -> Result<LoopResult, E> {
    let began = crate::clock::monotonic_ns();
    let mut operations = 0u64;
    loop {
        operations += step()?;
        if matches!(stop, StopCondition::Count(count) if operations < count) {
            continue;
        }
        let took_ns = crate::clock::monotonic_ns().saturating_sub(began);
        if stop.is_reached(operations, took_ns) {
            return Ok(LoopResult { operation_count: operations, elapsed_ns: took_ns });
        }
    }
}

/// The exit code of a child that could not run its program.
const EXIT_EXEC_FAILED: i32 = 127;

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
        _ => match wait_child(pid)? {
            0 => Ok(()),
            status => Err(io::Error::other(format!("the child ended with status {status:#x}"))),
        },
    }
}

/// Forks a child that runs `program` (a path) with these arguments, whose first is its name, and an empty
/// environment; waits for it. Its output goes to `output`. Its exit code.
pub fn exec_and_wait(program: &CStr, arguments: &[&CStr], output: BorrowedFd<'_>) -> io::Result<i32> {
    let output = output.as_raw_fd();
    let argv: Vec<_> = arguments.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect();
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
            libc::execve(program.as_ptr(), argv.as_ptr(), environment.as_ptr());
            libc::_exit(EXIT_EXEC_FAILED)
        },
        _ => {}
    }
    let status = wait_child(pid)?;
    match libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)) {
        Some(EXIT_EXEC_FAILED) => {
            Err(io::Error::new(io::ErrorKind::NotFound, "the program could not be executed"))
        }
        Some(code) => Ok(code),
        None => Err(io::Error::other(format!("the child ended with status {status:#x}"))),
    }
}

/// Waits for one child; its status as wait(2) gives it.
pub(crate) fn wait_child(pid: libc::pid_t) -> io::Result<libc::c_int> {
    let mut status = 0;
    // SAFETY: `status` is writable and outlives the call.
    // JUSTIFICATION: the child was not started by std, which has no way to wait for it.
    retry_interrupted(|| unsafe { libc::waitpid(pid, &mut status, 0) })?;
    Ok(status)
}

/// Signals that the handler has counted. Only children of [`run_signal_loop`] catch any.
static CAUGHT: AtomicU64 = AtomicU64::new(0);

/// Installs itself again and counts, as AIM9's handler does.
extern "C" fn count_signal(signal: libc::c_int) {
    // SAFETY: signal(2) takes numbers alone, and is allowed in a handler.
    // JUSTIFICATION: neither std nor rustix installs handlers.
    unsafe { libc::signal(signal, count_signal as *const () as libc::sighandler_t) };
    if signal == libc::SIGUSR2 {
        CAUGHT.fetch_add(1, Ordering::Relaxed);
    }
}

/// A forked child sends SIGUSR2 to itself until it is enough; each must have been caught before the next is
/// sent. In a process with one thread, kill(2) returns after the handler.
pub fn run_signal_loop(stop: StopCondition) -> io::Result<LoopResult> {
    // SAFETY: `send_signals` makes only calls that are allowed after a fork (sigaction, sigprocmask, kill,
    // clock_gettime), and allocates nothing. JUSTIFICATION: this process has threads, and a signal to it may
    // be caught by any of them; the child has one.
    unsafe { run_in_child(|| send_signals(stop)) }.map(|child| child.result)
}

/// The child's part. The error is an errno or `SIGNAL_NOT_CAUGHT`.
fn send_signals(stop: StopCondition) -> Result<LoopResult, u64> {
    let mut action = empty_action();
    action.sa_sigaction = count_signal as *const () as usize;
    // SAFETY: `action` is whole, and its mask, all zeros, is an empty set; the handler touches one atomic
    // only. JUSTIFICATION: neither std nor rustix installs handlers or has masks.
    let own = unsafe {
        check_zero(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut())).map_err(errno_of)?;
        let mut mask = action.sa_mask;
        libc::sigaddset(&mut mask, libc::SIGUSR2);
        check_zero(libc::sigprocmask(libc::SIG_UNBLOCK, &mask, std::ptr::null_mut())).map_err(errno_of)?;
        libc::getpid()
    };
    CAUGHT.store(0, Ordering::Relaxed);
    let mut sent = 0;
    run_until(stop, || {
        sent += 1;
        // SAFETY: kill touches no memory; the signal has a handler.
        // JUSTIFICATION: as above.
        check_zero(unsafe { libc::kill(own, libc::SIGUSR2) }).map_err(errno_of)?;
        if CAUGHT.load(Ordering::Relaxed) == sent { Ok(1) } else { Err(SIGNAL_NOT_CAUGHT) }
    })
}

fn empty_action() -> libc::sigaction {
    // SAFETY: all zeros is a value of this plain struct: the default action, no flags, an empty mask.
    // JUSTIFICATION: its fields differ by architecture.
    unsafe { std::mem::zeroed() }
}

// Loop of jumps out of functions: `_setjmp` and `longjmp` of the C library.
//
// Rust may not call `_setjmp`: the compiler does not know that it returns twice. So the whole loop, from the
// call of `_setjmp` to the place where `longjmp` arrives, is assembly that keeps no value over the jump
// except in registers that both restore. No frame of Rust is jumped over.

/// Frames between `longjmp` and the place where it arrives, as in AIM9.
pub const JUMP_DEPTH: u64 = 10;
/// Jumps between two looks at the clock.
#[cfg(target_arch = "x86_64")]
const BATCH: u64 = 64;

/// Bytes for a `jmp_buf` of any C library: glibc's has 200 on x86_64, musl's 200.
#[cfg(target_arch = "x86_64")]
#[repr(C, align(16))]
struct JumpBuffer([u8; 512]);

#[cfg(target_arch = "x86_64")]
const _: () = assert!(size_of::<JumpBuffer>() == 512 && align_of::<JumpBuffer>() == 16);

/// Jumps until it is enough: each time the place is kept by `_setjmp`, ten functions are called, one in the
/// other, and the last one leaves by `longjmp`.
#[cfg(target_arch = "x86_64")]
pub fn run_longjmp_loop(stop: StopCondition) -> io::Result<LoopResult> {
    let mut buffer = JumpBuffer([0; 512]);
    run_until(stop, || {
        // SAFETY: the buffer is larger and more strictly aligned than any jmp_buf and outlives the call; the
        // function keeps the C calling convention and jumps over no frame but its own. JUSTIFICATION: the
        // measurement is about non-local jumps, and Rust has none.
        let arrived = unsafe { jump_rounds(&mut buffer, BATCH) };
        match arrived == BATCH {
            true => Ok(BATCH),
            false => Err(io::Error::other(format!("{arrived} of {BATCH} jumps arrived"))),
        }
    })
}

/// Unsupported: the loop is written for x86_64 only.
#[cfg(not(target_arch = "x86_64"))]
pub fn run_longjmp_loop(until: StopCondition) -> io::Result<LoopResult> {
    run_until(until, || Err(io::ErrorKind::Unsupported.into()))
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    /// `_setjmp` does not keep the signal mask.
    fn _setjmp(buffer: *mut JumpBuffer) -> libc::c_int;
    fn longjmp(buffer: *mut JumpBuffer, value: libc::c_int) -> !;
}

/// Jumps `rounds` times, at least once; how many arrived with the value that was sent.
///
/// rbx is the buffer, r12 counts down, r13 counts arrivals: registers of the caller, which `_setjmp` saves
/// and `longjmp` restores, and which change only between two rounds.
///
/// # Safety
/// The buffer is writable and large enough for a `jmp_buf`.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn jump_rounds(buffer: *mut JumpBuffer, rounds: u64) -> u64 {
    std::arch::naked_asm!(
        "push rbx",
        "push r12",
        "push r13",
        "mov rbx, rdi",
        "mov r12, rsi",
        "xor r13d, r13d",
        // A round: the stack is aligned to 16 bytes before the call.
        "2:",
        "mov rdi, rbx",
        "call {setjmp}",
        "test eax, eax",
        "jnz 3f",
        "mov ecx, {depth}",
        "call 4f",
        "ud2",
        // Arrived: `longjmp` sent 1.
        "3:",
        "cmp eax, 1",
        "sete al",
        "movzx eax, al",
        "add r13, rax",
        "dec r12",
        "jnz 2b",
        "mov rax, r13",
        "pop r13",
        "pop r12",
        "pop rbx",
        "ret",
        // A function that calls itself ecx times, and then leaves all of its frames at once.
        "4:",
        "push rbp",
        "mov rbp, rsp",
        "test ecx, ecx",
        "jz 5f",
        "dec ecx",
        "call 4b",
        "ud2",
        "5:",
        "mov rdi, rbx",
        "mov esi, 1",
        "call {longjmp}",
        "ud2",
        setjmp = sym _setjmp,
        longjmp = sym longjmp,
        depth = const JUMP_DEPTH,
    )
}

/// Pages that are released at once and allocated again one by one, as AIM9 does.
const PAGES: usize = 16;
/// Distance of written bytes within a new page, as in AIM9.
const TOUCH_STRIDE: usize = 128;

/// Moves the break: up by `size` bytes (rounded up to pages, at least 16 of them), then, until it is enough,
/// down by 16 pages and up again page by page. An operation is one page that comes back. With `is_touched`,
/// every page that comes must be zero, and is written to.
pub fn run_break_loop(size: u64, is_touched: bool, stop: StopCondition) -> io::Result<LoopResult> {
    run_break_child(size, is_touched, stop).map(|child| child.result)
}

fn run_break_child(size: u64, is_touched: bool, stop: StopCondition) -> io::Result<ChildLoop> {
    let page = rustix::param::page_size();
    let size = usize::try_from(size).map_err(|_| io::ErrorKind::InvalidInput)?;
    let size = size.checked_next_multiple_of(page).ok_or(io::ErrorKind::InvalidInput)?.max(PAGES * page);
    // SAFETY: `move_break_in_turns` makes only calls that are allowed after a fork (brk, clock_gettime),
    // allocates nothing, and touches only memory that the break gave it. JUSTIFICATION: the break of this
    // process belongs to its allocator; that of a copy is free to move.
    unsafe { run_in_child(|| move_break_in_turns(page, size, is_touched, stop)) }
}

/// The child's part. The error is an errno or `PAGE_NOT_ZERO`.
fn move_break_in_turns(
    page: usize,
    size: usize,
    is_touched: bool,
    stop: StopCondition,
) -> Result<LoopResult, u64> {
    let first = set_break(0).checked_next_multiple_of(page).ok_or(libc::ENOMEM as u64)?;
    let top = first.checked_add(size).ok_or(libc::ENOMEM as u64)?;
    move_break(top)?;
    let low = top - PAGES * page;
    run_until(stop, || {
        move_break(low)?;
        for place in (low..top).step_by(page) {
            move_break(place + page)?;
            if is_touched {
                touch_page(place, page)?;
            }
        }
        Ok(PAGES as u64)
    })
}

/// Asks for a break; where it is then. It stays where it was if the kernel refuses, and for 0.
fn set_break(break_address: usize) -> usize {
    // SAFETY: this child has no other user of its break: libc's own record of it is not used by anything that
    // runs before _exit. JUSTIFICATION: libc's sbrk would move libc's record too.
    unsafe { libc::syscall(libc::SYS_brk, break_address) as usize }
}

fn move_break(break_address: usize) -> Result<(), u64> {
    if set_break(break_address) == break_address { Ok(()) } else { Err(libc::ENOMEM as u64) }
}

/// Writes a byte every so often in the page that begins at `page_address`, which must be zero before. The
/// first access is a write, to a byte between: a read would map the zero page, and cost a fault of its own.
fn touch_page(page_address: usize, page: usize) -> Result<(), u64> {
    let byte_at = std::ptr::with_exposed_provenance_mut::<u8>;
    // SAFETY: the page is below the break and above the old break, so it is new memory that nothing else
    // uses; volatile, so that no read comes before. JUSTIFICATION: memory of the break has no other name than
    // its address.
    unsafe { byte_at(page_address + 1).write_volatile(b' ') };
    let mut seen = 0;
    for at in (page_address..page_address + page).step_by(TOUCH_STRIDE) {
        // SAFETY: as above. JUSTIFICATION: as above.
        unsafe {
            seen |= byte_at(at).read_volatile();
            byte_at(at).write_volatile(b' ');
        }
    }
    if seen == 0 { Ok(()) } else { Err(PAGE_NOT_ZERO) }
}

/// Words that a child reports: operations, nanoseconds, error (0: none).
const RESULT_WORDS: usize = 3;
/// Errors of a child that no errno has.
const PAGE_NOT_ZERO: u64 = u64::MAX;
const SIGNAL_NOT_CAUGHT: u64 = u64::MAX - 1;

/// A loop that a child has run.
struct ChildLoop {
    result: LoopResult,
    /// Minor page faults of the whole child.
    #[cfg_attr(not(test), expect(dead_code, reason = "what a test compares with the operations"))]
    minor_faults: u64,
}

/// The errno of a failed call, as a child reports it.
fn errno_of(error: io::Error) -> u64 {
    error.raw_os_error().unwrap_or(libc::EIO) as u64
}

/// Runs a loop in a forked child, which dies with this thread, and waits for it.
///
/// # Safety
/// `run` makes only calls that are allowed after a fork of a program with threads, and allocates nothing.
unsafe fn run_in_child(run: impl FnOnce() -> Result<LoopResult, u64>) -> io::Result<ChildLoop> {
    let (mut reader, writer) = io::pipe()?;
    let parent = std::process::id();
    // SAFETY: the child makes only calls that are allowed after a fork, by the caller's promise and here
    // (prctl, getppid, write, _exit), and ends by _exit, which runs none of the parent's code.
    // JUSTIFICATION: std starts children by exec only.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => return Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: as above. JUSTIFICATION: as above.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0, 0, 0);
                if libc::getppid() as u32 != parent {
                    libc::_exit(0);
                }
            }
            let said = match run() {
                Ok(done) => [done.operation_count, done.elapsed_ns, 0],
                Err(error) => [0, 0, error],
            };
            // SAFETY: `said` is read completely. JUSTIFICATION: as above.
            unsafe {
                libc::write(writer.as_raw_fd(), said.as_ptr().cast(), size_of_val(&said));
                libc::_exit(0)
            }
        }
        _ => drop(writer),
    }
    let mut said = [0; RESULT_WORDS * size_of::<u64>()];
    let read = reader.read_exact(&mut said);
    let ended = wait4(pid.cast_unsigned(), false)?;
    let (status, usage) = ended.ok_or(io::ErrorKind::NotFound)?;
    read.map_err(|_| io::Error::other(format!("the child ended: {status}")))?;
    let word = |at: usize| {
        said.as_chunks::<{ size_of::<u64>() }>().0.get(at).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    };
    match word(2) {
        0 => {
            let result = LoopResult { operation_count: word(0), elapsed_ns: word(1) };
            Ok(ChildLoop { result, minor_faults: usage.minflt })
        }
        PAGE_NOT_ZERO => Err(io::Error::other("a new page of the program break was not zeroed")),
        SIGNAL_NOT_CAUGHT => Err(io::Error::other("a signal was not caught before kill(2) returned")),
        errno => Err(io::Error::from_raw_os_error(i32::try_from(errno).unwrap_or(libc::EIO))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;

    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_jump_arrives() {
        let done = run_longjmp_loop(StopCondition::Count(1000)).unwrap();
        assert_eq!(done.operation_count, 1024, "sixteen batches");
        // Registers of the caller are restored: sums around the jumps are correct.
        let mut sum = 0u64;
        for round in 0..100u64 {
            let kept = std::hint::black_box(round);
            sum += run_longjmp_loop(StopCondition::Count(1)).unwrap().operation_count + kept;
        }
        assert_eq!(sum, 100 * BATCH + 4950);
    }

    #[test]
    fn it_ends_when_it_is_enough() {
        let mut steps = 0;
        let done = run_until(StopCondition::Count(10), || {
            steps += 1;
            Ok::<_, io::Error>(4)
        });
        assert_eq!((done.unwrap().operation_count, steps), (12, 3));
        let done = run_until(StopCondition::Nanoseconds(1_000_000), || Ok::<_, io::Error>(1)).unwrap();
        assert!(done.elapsed_ns >= 1_000_000 && done.operation_count > 0);
        assert!(run_until(StopCondition::Count(1), || Err(io::ErrorKind::NotFound)).is_err());
    }

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

    #[test]
    fn each_signal_is_caught_and_this_process_has_no_handler() {
        assert_eq!(run_signal_loop(StopCondition::Count(1000)).unwrap().operation_count, 1000);
        let mut now = empty_action();
        // SAFETY: `now` is writable. JUSTIFICATION: the handler is read back.
        unsafe { libc::sigaction(libc::SIGUSR2, std::ptr::null(), &mut now) };
        assert_eq!(now.sa_sigaction, libc::SIG_DFL);
        assert_eq!(CAUGHT.load(Ordering::Relaxed), 0, "they were the child's");
        // A thread that blocks the signal passes its mask on to the child.
        let blocked = std::thread::spawn(|| {
            let _blocked = crate::signals::BlockedSignals::block(&[libc::SIGUSR2]).unwrap();
            run_signal_loop(StopCondition::Count(10)).unwrap().operation_count
        });
        assert_eq!(blocked.join().unwrap(), 10);
    }

    #[test]
    fn a_page_of_the_break_costs_one_fault_if_it_is_written() {
        const PAGES_MOVED: u64 = 16 * 200;
        let faults = |is_touched| {
            let child = run_break_child(1 << 20, is_touched, StopCondition::Count(PAGES_MOVED)).unwrap();
            assert_eq!(child.result.operation_count, PAGES_MOVED);
            assert!(child.result.elapsed_ns > 0);
            child.minor_faults
        };
        let (with, without) = (faults(true), faults(false));
        assert!(without < PAGES_MOVED / 4, "{without} faults of a child that touches no page of the break");
        let pages = with.saturating_sub(without);
        assert!(pages.abs_diff(PAGES_MOVED) < PAGES_MOVED / 10, "{with} - {without} faults");
    }

    #[test]
    fn a_break_that_cannot_be_moved_is_an_error() {
        assert_eq!(run_break_loop(1, false, StopCondition::Count(100)).unwrap().operation_count, 112);
        assert!(run_break_loop(u64::MAX, false, StopCondition::Count(1)).is_err());
        let huge = run_break_loop(1 << 62, false, StopCondition::Count(1)).unwrap_err();
        assert_eq!(huge.raw_os_error(), Some(libc::ENOMEM));
    }

    #[test]
    fn a_child_that_fails_reports_its_reason() {
        let fail = |error| {
            // SAFETY: the closure calls nothing. JUSTIFICATION: what is tested.
            let done = unsafe { run_in_child(move || Err(error)) };
            done.map(|child| child.result).unwrap_err().to_string()
        };
        assert!(fail(PAGE_NOT_ZERO).contains("not zeroed"));
        assert!(fail(SIGNAL_NOT_CAUGHT).contains("not caught"));
        assert_eq!(fail(libc::EAGAIN as u64), io::Error::from_raw_os_error(libc::EAGAIN).to_string());
        // SAFETY: kill and getpid are allowed after a fork. JUSTIFICATION: a child that ends by a signal.
        let killed = unsafe {
            run_in_child(|| {
                libc::kill(libc::getpid(), libc::SIGKILL);
                Err(0)
            })
        };
        assert!(killed.is_err_and(|error| error.to_string().contains("signal: 9")));
    }
}
