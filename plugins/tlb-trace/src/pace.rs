//! Which stretches of a run are looked at, where a window is asked for: between them the program runs as in
//! QEMU alone, with a count of instructions for each block as all that is ours in its code.
//!
//! QEMU 7.2 has no conditional callbacks. So when a stretch is over the plugin is reset
//! (`qemu_plugin_reset`): QEMU drops all translated code, and what is translated from then on counts its
//! instructions alone. A thread of ours looks at that count. When the rest is over it takes the right to
//! execute from the memory of translated code: the program's thread faults at its next instruction there,
//! where it holds no lock of QEMU's, gets the right back, and has the plugin reset once more. A signal in
//! place of that fault would end system calls with EINTR that would not end so otherwise.
//!
//! QEMU stops threads for a reset only while they are in translated code. One that is in a system call then
//! could miss a callback. So once a process has had a second thread, callbacks stay for good, and what is
//! not looked at is counted by them.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::Duration;

use crate::start::{PROGRAM_END, config};
use crate::{calls, qemu, vcpu};

/// Instructions of blocks that were begun, counted by the translated code itself.
static INSTRUCTIONS: AtomicU64 = AtomicU64::new(0);
/// Blocks that are translated now count their instructions alone.
static RESTS: AtomicBool = AtomicBool::new(false);
/// The process has or had a second thread, or is a child of one that had.
static IS_SHARED: AtomicBool = AtomicBool::new(false);
/// The plugin's number.
static ID: AtomicU64 = AtomicU64::new(0);
/// The virtual CPU that rests.
static WHO: AtomicU32 = AtomicU32::new(0);
/// Instructions, and accesses, when the stretch began.
static BEGAN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Instructions, and accesses, of the stretch.
static STRETCH: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Instructions at which the rest began, and at which it is over.
static FROM: AtomicU64 = AtomicU64::new(0);
static UNTIL: AtomicU64 = AtomicU64::new(u64::MAX);
/// The memory of translated code; 0 is not known yet, and an end of 0 that it cannot be known.
static CODE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// Translated code may not be executed, for the rest is over.
static IS_HALTED: AtomicBool = AtomicBool::new(false);
/// The thread that looks is there.
static IS_LOOKED_AT: AtomicBool = AtomicBool::new(false);
/// What a fault did before.
static BEFORE: AtomicPtr<Action> = AtomicPtr::new(std::ptr::null_mut());

/// `struct sigaction` of glibc on x86-64.
#[repr(C)]
struct Action {
    handler: usize,
    mask: [u64; 16],
    flags: c_int,
    restorer: usize,
}

unsafe extern "C" {
    fn sigaction(signal: c_int, action: *const Action, before: *mut Action) -> c_int;
    fn pthread_sigmask(how: c_int, set: *const [u64; 16], before: *mut [u64; 16]) -> c_int;
    fn mprotect(at: *mut c_void, bytes: usize, prot: c_int) -> c_int;
}

/// Rests of fewer accesses are counted by callbacks: two resets of the plugin would take longer.
const SHORTEST: u64 = 5_000_000;

/// The plugin's number, told once.
pub fn begin(id: qemu::Id) {
    ID.store(id, Relaxed);
}

/// Whether blocks that are translated now are not looked at.
pub fn rests() -> bool {
    RESTS.load(Relaxed)
}

/// Where a block's instructions are counted, if they are.
pub fn counter() -> Option<*mut c_void> {
    config().window.is_some().then(|| INSTRUCTIONS.as_ptr().cast())
}

/// A stretch is over after so many accesses of this virtual CPU.
pub fn rest(who: c_uint, accesses: u64) {
    let Some(window) = config().window else { return };
    if window.period - window.watched < SHORTEST {
        return;
    }
    let now = INSTRUCTIONS.load(Relaxed);
    let told = [now - BEGAN[0].load(Relaxed), accesses.saturating_sub(BEGAN[1].load(Relaxed))];
    if IS_SHARED.load(Relaxed) || told.contains(&0) || !can_halt() || !is_looked_at() {
        return;
    }
    STRETCH.iter().zip(told).for_each(|(field, value)| field.store(value, Relaxed));
    WHO.store(who, Relaxed);
    FROM.store(now, Relaxed);
    // A few more, so that the model's own count of the rest is over too.
    let rest = scaled(window.period - window.watched, told[0], told[1]).saturating_add(told[0] / told[1] + 1);
    UNTIL.store(now.saturating_add(rest), Relaxed);
    RESTS.store(true, Release);
    reset();
}

/// What rests is looked at again, from the next block on. Only of the thread that rests, and not in an
/// access.
pub fn wake() {
    if !RESTS.swap(false, Relaxed) {
        return;
    }
    let now = INSTRUCTIONS.load(Relaxed);
    let [instructions, accesses] = [STRETCH[0].load(Relaxed), STRETCH[1].load(Relaxed)];
    if let Some(state) = vcpu::state(WHO.load(Relaxed)) {
        state.tlb.rested(scaled(now - FROM.load(Relaxed), accesses, instructions));
        BEGAN[1].store(state.tlb.accesses(), Relaxed);
    }
    BEGAN[0].store(now, Relaxed);
    reset();
}

/// A second thread is about to begin.
pub fn share() {
    IS_SHARED.store(true, Relaxed);
    wake();
}

/// In a forked child: its account is empty, and nobody looks.
pub fn begin_anew() {
    IS_LOOKED_AT.store(false, Relaxed);
    // The parent's looking thread may have been between its two steps.
    if CODE[1].load(Relaxed) > 0 {
        allow(READ_WRITE_EXECUTE);
    }
    IS_HALTED.store(false, Relaxed);
    wake();
    BEGAN[0].store(INSTRUCTIONS.load(Relaxed), Relaxed);
    BEGAN[1].store(0, Relaxed);
}

fn scaled(value: u64, by: u64, of: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(by) / u128::from(of.max(1))).unwrap_or(u64::MAX)
}

fn reset() {
    // SAFETY: a thread of the program asks, in a callback or in its own code. JUSTIFICATION: QEMU's interface
    // is one of C.
    unsafe { qemu::qemu_plugin_reset(ID.load(Relaxed), on_reset) };
}

extern "C" fn on_reset(id: qemu::Id) {
    calls::register(id);
}

/// Whether the memory of translated code is known, and a fault there comes to us.
fn can_halt() -> bool {
    if CODE[0].load(Relaxed) == 0 {
        let (from, to) = code().unwrap_or((1, 0));
        CODE[1].store(to, Relaxed);
        CODE[0].store(from, Relaxed);
        if to > 0 && !take_faults() {
            CODE[1].store(0, Relaxed);
        }
    }
    CODE[1].load(Relaxed) > 0
}

/// The largest memory behind the program's that may be written and executed: QEMU makes it in one piece.
fn code() -> Option<(usize, usize)> {
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

fn allow(prot: c_int) -> bool {
    let [from, to] = [CODE[0].load(Relaxed), CODE[1].load(Relaxed)];
    // SAFETY: the range is that of translated code, which stays what it is. JUSTIFICATION: there is no safe
    // way to it.
    unsafe { mprotect(from as *mut c_void, to.saturating_sub(from), prot) == 0 }
}

/// Faults come to us first. QEMU has its own action for them since before the program began, and no program
/// can change that of the host.
fn take_faults() -> bool {
    let empty = || Action { handler: 0, mask: [0; 16], flags: 0, restorer: 0 };
    let before = Box::into_raw(Box::new(empty()));
    // SAFETY: `before` is never freed; the mask and the flags stay QEMU's, so that its action is called as it
    // is used to. JUSTIFICATION: a fault is the one way to a thread whose code has no callback.
    unsafe {
        if sigaction(SIGSEGV, std::ptr::null(), before) != 0 || (*before).handler <= 1 {
            return false;
        }
        BEFORE.store(before, Release);
        let ours = Action { handler: on_fault as *const () as usize, ..*before };
        sigaction(SIGSEGV, &ours, std::ptr::null_mut()) == 0
    }
}

extern "C" fn on_fault(signal: c_int, info: *const c_int, context: *mut c_void) {
    /// SEGV_ACCERR.
    const NOT_ALLOWED: c_int = 2;
    // SAFETY: the kernel hands over a siginfo_t: number, errno and code of 4 bytes each, the address behind 4
    // more. JUSTIFICATION: there is no safe interface.
    let (code, address) = unsafe { (*info.add(2), *info.add(4).cast::<usize>()) };
    let halted = CODE[0].load(Relaxed)..CODE[1].load(Relaxed);
    if code == NOT_ALLOWED && halted.contains(&address) {
        // Nothing else faults so there: it may be read and written at all times.
        allow(READ_WRITE_EXECUTE);
        if IS_HALTED.swap(false, Relaxed) && !IS_SHARED.load(Relaxed) {
            wake();
        }
        return;
    }
    // SAFETY: put there before this was made the action, and never freed; QEMU's actions take three
    // arguments (SA_SIGINFO). JUSTIFICATION: the fault is QEMU's.
    unsafe {
        let before: extern "C" fn(c_int, *const c_int, *mut c_void) =
            std::mem::transmute((*BEFORE.load(Acquire)).handler);
        before(signal, info, context);
    }
}

/// Whether there is a thread that looks when a rest is over.
fn is_looked_at() -> bool {
    if IS_LOOKED_AT.load(Relaxed) {
        return true;
    }
    const SET: c_int = 2;
    let (all, mut before) = ([u64::MAX; 16], [0; 16]);
    // SAFETY: masks of the length that glibc has. JUSTIFICATION: no signal of the program may come to a
    // thread that is none of its own, and a thread has the mask of the one that made it.
    unsafe { pthread_sigmask(SET, &all, &mut before) };
    let made = std::thread::Builder::new().stack_size(64 << 10).spawn(look).is_ok();
    // SAFETY: as above. JUSTIFICATION: as above.
    unsafe { pthread_sigmask(SET, &before, std::ptr::null_mut()) };
    IS_LOOKED_AT.store(made, Relaxed);
    made
}

fn look() {
    const SOON: Duration = Duration::from_millis(1);
    const LATE: Duration = Duration::from_millis(16);
    let (mut pause, mut last) = (SOON, 0);
    loop {
        std::thread::sleep(pause);
        let now = INSTRUCTIONS.load(Relaxed);
        pause = if now == last { (pause * 2).min(LATE) } else { SOON };
        last = now;
        if RESTS.load(Acquire) && now >= UNTIL.load(Relaxed) && !IS_HALTED.swap(true, Relaxed) {
            allow(READ_WRITE);
        }
    }
}
