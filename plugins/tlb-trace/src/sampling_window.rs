//! Sampling windows: between them the program runs in QEMU without callbacks, and each block counts its
//! instructions.
//!
//! QEMU 7.2 has no conditional callbacks. So at the end of a window the plugin is reset
//! (`qemu_plugin_reset`): QEMU discards all translated code, and new code only counts its instructions. A
//! timer thread reads that count. At the end of the skip it makes the memory of translated code
//! non-executable: the program's thread faults at its next instruction there, where it holds no lock of QEMU,
//! makes the memory executable, and resets the plugin again. A signal in place of that fault would interrupt
//! system calls (EINTR).
//!
//! QEMU stops threads for a reset only while they are in translated code. A thread in a system call could
//! miss a callback. So once a process has had a second thread, callbacks stay, and they count the skipped
//! accesses.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::Duration;

use crate::config::{PROGRAM_END, config};
use crate::{qemu, syscalls, vcpu};

/// Instructions of executed blocks, counted by inline operations.
static INSTRUCTIONS: AtomicU64 = AtomicU64::new(0);
/// Blocks that are translated now only count their instructions.
static IS_SKIPPING: AtomicBool = AtomicBool::new(false);
/// The process has or had a second thread, or is a child of one that had.
static HAS_SECOND_THREAD: AtomicBool = AtomicBool::new(false);
static ID: AtomicU64 = AtomicU64::new(0);
/// The virtual CPU that skips.
static SKIPPING_VCPU: AtomicU32 = AtomicU32::new(0);
/// Instructions, and accesses, at the begin of the window.
static WINDOW_START: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Instructions, and accesses, of the window.
static WINDOW_LENGTH: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Instructions at the begin and at the end of the skip.
static SKIP_START: AtomicU64 = AtomicU64::new(0);
static SKIP_END: AtomicU64 = AtomicU64::new(u64::MAX);
/// The memory of translated code; a start of 0: not searched yet; an end of 0: not found.
static CODE_RANGE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// Translated code is not executable, since the skip is over.
static IS_CODE_PROTECTED: AtomicBool = AtomicBool::new(false);
static HAS_TIMER: AtomicBool = AtomicBool::new(false);
/// The action of SIGSEGV before ours.
static OLD_ACTION: AtomicPtr<SigAction> = AtomicPtr::new(std::ptr::null_mut());

/// `struct sigaction` of glibc on x86-64.
#[repr(C)]
struct SigAction {
    handler: usize,
    mask: [u64; 16],
    flags: c_int,
    restorer: usize,
}

const _: () = assert!(size_of::<SigAction>() == 152 && offset_of!(SigAction, mask) == 8);
const _: () = assert!(offset_of!(SigAction, flags) == 136 && offset_of!(SigAction, restorer) == 144);

unsafe extern "C" {
    fn sigaction(signal: c_int, action: *const SigAction, before: *mut SigAction) -> c_int;
    fn pthread_sigmask(how: c_int, set: *const [u64; 16], before: *mut [u64; 16]) -> c_int;
    fn mprotect(at: *mut c_void, bytes: usize, prot: c_int) -> c_int;
}

/// Shorter skips use callbacks: two resets of the plugin would take longer.
const SKIP_ACCESSES_MIN: u64 = 5_000_000;

pub fn set_plugin_id(id: qemu::PluginId) {
    ID.store(id, Relaxed);
}

/// Whether blocks that are translated now get no callbacks.
pub fn is_skipping() -> bool {
    IS_SKIPPING.load(Relaxed)
}

/// The counter of executed instructions, if there are sampling windows.
pub fn instruction_counter() -> Option<*mut c_void> {
    config().window.is_some().then(|| INSTRUCTIONS.as_ptr().cast())
}

/// Begins to skip: a window has ended after a number of accesses of this virtual CPU.
pub fn begin_skip(who: c_uint, accesses: u64) {
    let Some(window) = config().window else { return };
    if window.period - window.sampled < SKIP_ACCESSES_MIN {
        return;
    }
    let now = INSTRUCTIONS.load(Relaxed);
    let counts =
        [now - WINDOW_START[0].load(Relaxed), accesses.saturating_sub(WINDOW_START[1].load(Relaxed))];
    if HAS_SECOND_THREAD.load(Relaxed)
        || counts.contains(&0)
        || !can_intercept_code()
        || !ensure_timer_thread()
    {
        return;
    }
    WINDOW_LENGTH.iter().zip(counts).for_each(|(field, value)| field.store(value, Relaxed));
    SKIPPING_VCPU.store(who, Relaxed);
    SKIP_START.store(now, Relaxed);
    // A few more, so that the skip is over in the model too.
    let rest =
        scale(window.period - window.sampled, counts[0], counts[1]).saturating_add(counts[0] / counts[1] + 1);
    SKIP_END.store(now.saturating_add(rest), Relaxed);
    IS_SKIPPING.store(true, Release);
    reset_plugin();
}

/// Ends the skip from the next block on. Only called by the thread that skips, and not in an access.
pub fn end_skip() {
    if !IS_SKIPPING.swap(false, Relaxed) {
        return;
    }
    let now = INSTRUCTIONS.load(Relaxed);
    let [instructions, accesses] = [WINDOW_LENGTH[0].load(Relaxed), WINDOW_LENGTH[1].load(Relaxed)];
    if let Some(state) = vcpu::vcpu_state(SKIPPING_VCPU.load(Relaxed)) {
        state.tlb.skip_accesses(scale(now - SKIP_START.load(Relaxed), accesses, instructions));
        WINDOW_START[1].store(state.tlb.accesses(), Relaxed);
    }
    WINDOW_START[0].store(now, Relaxed);
    reset_plugin();
}

/// A second thread is about to begin: nothing is skipped without callbacks from now on.
pub fn disable_skipping() {
    HAS_SECOND_THREAD.store(true, Relaxed);
    end_skip();
}

/// In a forked child: its counts are empty, and it has no timer thread.
pub fn reset_after_fork() {
    HAS_TIMER.store(false, Relaxed);
    // The parent's timer thread may have been between its two steps.
    if CODE_RANGE[1].load(Relaxed) > 0 {
        protect_code(READ_WRITE_EXECUTE);
    }
    IS_CODE_PROTECTED.store(false, Relaxed);
    end_skip();
    WINDOW_START[0].store(INSTRUCTIONS.load(Relaxed), Relaxed);
    WINDOW_START[1].store(0, Relaxed);
}

fn scale(value: u64, by: u64, of: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(by) / u128::from(of.max(1))).unwrap_or(u64::MAX)
}

fn reset_plugin() {
    // SAFETY: called by a thread of the program, in a callback or in its own code. JUSTIFICATION: QEMU's
    // interface is one of C.
    unsafe { qemu::qemu_plugin_reset(ID.load(Relaxed), on_reset) };
}

extern "C" fn on_reset(id: qemu::PluginId) {
    syscalls::register_callbacks(id);
}

/// Whether the memory of translated code is known, and its faults are handled here.
fn can_intercept_code() -> bool {
    if CODE_RANGE[0].load(Relaxed) == 0 {
        let (from, to) = find_code_range().unwrap_or((1, 0));
        CODE_RANGE[1].store(to, Relaxed);
        CODE_RANGE[0].store(from, Relaxed);
        if to > 0 && !install_fault_handler() {
            CODE_RANGE[1].store(0, Relaxed);
        }
    }
    CODE_RANGE[1].load(Relaxed) > 0
}

/// The largest writable and executable mapping above the program's: QEMU maps it as one.
fn find_code_range() -> Option<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let range = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        let range = (number(from)?, number(to)?);
        (rest.starts_with("rwxp") && range.0 as u64 >= PROGRAM_END).then_some(range)
    };
    maps.lines().filter_map(range).max_by_key(|(from, to)| to - from)
}

const SIGSEGV: c_int = 11;
const READ_WRITE: c_int = 3;
const READ_WRITE_EXECUTE: c_int = 7;

fn protect_code(prot: c_int) -> bool {
    let [from, to] = [CODE_RANGE[0].load(Relaxed), CODE_RANGE[1].load(Relaxed)];
    // SAFETY: the range is the memory of translated code, which stays mapped. JUSTIFICATION: there is no safe
    // interface.
    unsafe { mprotect(from as *mut c_void, to.saturating_sub(from), prot) == 0 }
}

/// Installs a handler that gets faults before QEMU's. QEMU installed its own before the program began, and no
/// program can change the host's.
fn install_fault_handler() -> bool {
    let empty = || SigAction { handler: 0, mask: [0; 16], flags: 0, restorer: 0 };
    let before = Box::into_raw(Box::new(empty()));
    // SAFETY: `before` is never freed; the mask and the flags stay QEMU's, so that its handler is called as
    // before. JUSTIFICATION: only a fault reaches a thread whose code has no callback.
    unsafe {
        if sigaction(SIGSEGV, std::ptr::null(), before) != 0 || (*before).handler <= 1 {
            return false;
        }
        OLD_ACTION.store(before, Release);
        let ours = SigAction { handler: on_fault as *const () as usize, ..*before };
        sigaction(SIGSEGV, &ours, std::ptr::null_mut()) == 0
    }
}

extern "C" fn on_fault(signal: c_int, info: *const c_int, context: *mut c_void) {
    const SEGV_ACCERR: c_int = 2;
    // SAFETY: the kernel passes a siginfo_t: number, errno and code of 4 bytes each, 4 bytes of padding, the
    // address. JUSTIFICATION: there is no safe interface.
    let (code, address) = unsafe { (*info.add(2), *info.add(4).cast::<usize>()) };
    let code_range = CODE_RANGE[0].load(Relaxed)..CODE_RANGE[1].load(Relaxed);
    if code == SEGV_ACCERR && code_range.contains(&address) {
        // Only this causes such a fault: the memory stays readable and writable.
        protect_code(READ_WRITE_EXECUTE);
        if IS_CODE_PROTECTED.swap(false, Relaxed) && !HAS_SECOND_THREAD.load(Relaxed) {
            end_skip();
        }
        return;
    }
    // SAFETY: stored before this handler was installed, and never freed; QEMU's handlers take three
    // arguments (SA_SIGINFO). JUSTIFICATION: the fault is QEMU's.
    unsafe {
        let before: extern "C" fn(c_int, *const c_int, *mut c_void) =
            std::mem::transmute((*OLD_ACTION.load(Acquire)).handler);
        before(signal, info, context);
    }
}

/// Starts the timer thread, if it does not run yet. Whether it runs.
fn ensure_timer_thread() -> bool {
    if HAS_TIMER.load(Relaxed) {
        return true;
    }
    const SET: c_int = 2;
    let (all, mut before) = ([u64::MAX; 16], [0; 16]);
    // SAFETY: masks of the length that glibc has. JUSTIFICATION: the new thread inherits a mask with all
    // signals blocked, so that none of the program's is delivered to it.
    unsafe { pthread_sigmask(SET, &all, &mut before) };
    let made = std::thread::Builder::new().stack_size(64 << 10).spawn(run_timer).is_ok();
    // SAFETY: as above. JUSTIFICATION: as above.
    unsafe { pthread_sigmask(SET, &before, std::ptr::null_mut()) };
    HAS_TIMER.store(made, Relaxed);
    made
}

fn run_timer() {
    const SOON: Duration = Duration::from_millis(1);
    const LATE: Duration = Duration::from_millis(16);
    let (mut pause, mut last) = (SOON, 0);
    loop {
        std::thread::sleep(pause);
        let now = INSTRUCTIONS.load(Relaxed);
        pause = if now == last { (pause * 2).min(LATE) } else { SOON };
        last = now;
        if IS_SKIPPING.load(Acquire)
            && now >= SKIP_END.load(Relaxed)
            && !IS_CODE_PROTECTED.swap(true, Relaxed)
        {
            protect_code(READ_WRITE);
        }
    }
}
