//! System calls that change mappings, begin processes, or end them.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::engine::layout::{ended, events, image as field};
use crate::engine::ledger::Kind;
use crate::vcpu::{self, PAGE_BITS, Vcpu};
use crate::{exec, image, lock, pace, qemu, sets};

/// A call that a thread is in.
#[derive(Clone, Copy)]
pub struct Call {
    number: i64,
    arguments: [u64; 6],
}

/// Numbers of x86-64 (arch/x86/entry/syscalls/syscall_64.tbl).
mod number {
    pub const MMAP: i64 = 9;
    pub const MUNMAP: i64 = 11;
    pub const BRK: i64 = 12;
    pub const MREMAP: i64 = 25;
    pub const SHMAT: i64 = 30;
    pub const CLONE: i64 = 56;
    pub const FORK: i64 = 57;
    pub const VFORK: i64 = 58;
    pub const EXECVE: i64 = 59;
    pub const EXIT: i64 = 60;
    pub const SHMDT: i64 = 67;
    pub const EXIT_GROUP: i64 = 231;
    pub const EXECVEAT: i64 = 322;
}

const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;
const MAP_SHARED: u64 = 0x01;
const MAP_ANONYMOUS: u64 = 0x20;
const MREMAP_DONTUNMAP: u64 = 4;

static BREAK: AtomicU64 = AtomicU64::new(0);

/// Registers all callbacks: QEMU forgets them when the plugin is reset.
pub fn register(id: qemu::Id) {
    // SAFETY: the callbacks have the types that QEMU calls them with, and are there as long as the plugin.
    // JUSTIFICATION: the interface is one of C.
    unsafe {
        qemu::qemu_plugin_register_vcpu_init_cb(id, vcpu::on_init);
        qemu::qemu_plugin_register_vcpu_exit_cb(id, vcpu::on_exit);
        qemu::qemu_plugin_register_vcpu_tb_trans_cb(id, vcpu::on_block);
        qemu::qemu_plugin_register_vcpu_syscall_cb(id, on_call);
        qemu::qemu_plugin_register_vcpu_syscall_ret_cb(id, on_return);
        qemu::qemu_plugin_register_atexit_cb(id, on_end, std::ptr::null_mut());
    }
}

pub extern "C" fn on_call(
    _: qemu::Id,
    vcpu: c_uint,
    call: i64,
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    e: u64,
    f: u64,
    _: u64,
    _: u64,
) {
    let Some(state) = vcpu::state(vcpu) else { return };
    let arguments = [a, b, c, d, e, f];
    match call {
        number::MMAP | number::MUNMAP | number::BRK | number::MREMAP | number::SHMAT | number::SHMDT => {
            lock::take();
            state.call = Some(Call { number: call, arguments });
        }
        number::CLONE if a & CLONE_VM != 0 && a & CLONE_VFORK == 0 => {
            image::share();
            pace::share();
        }
        number::FORK | number::VFORK | number::CLONE => {
            state.flush();
            lock::take();
            state.call = Some(Call { number: call, arguments });
        }
        number::EXECVE => {
            state.flush();
            exec::instead(a, b, c, 0, 0);
        }
        number::EXECVEAT => {
            state.flush();
            exec::instead(b, c, d, a as i32, e as i32);
        }
        number::EXIT => state.flush(),
        number::EXIT_GROUP => {
            state.flush();
            vcpu::end_all();
            image::put(field::ENDED, ended::EXIT);
        }
        _ => {}
    }
}

pub extern "C" fn on_return(_: qemu::Id, vcpu: c_uint, number: i64, result: i64) {
    let Some(state) = vcpu::state(vcpu) else { return };
    let Some(call) = state.call.take_if(|call| call.number == number) else { return };
    match number {
        number::FORK | number::VFORK | number::CLONE if result == 0 => child(state),
        number::FORK | number::VFORK | number::CLONE => {}
        _ => changed(state, &call, result),
    }
    lock::give();
}

pub extern "C" fn on_end(_: qemu::Id, _: *mut c_void) {
    // Only the thread that ends the process is sure not to be in the middle of an access; the others have
    // written what they know up to some tens of pages.
    image::put(field::ENDED, ended::EXIT);
}

fn child(state: &mut Vcpu) {
    sets::begin_anew();
    image::begin(std::process::id(), image::current(), &[]);
    // Before its model is a new one, for that did not rest.
    pace::begin_anew();
    state.begin_anew();
}

fn pages(from: u64, to: u64) -> (u64, u64) {
    (from >> PAGE_BITS, to.div_ceil(1 << PAGE_BITS))
}

fn whole_pages(bytes: u64) -> u64 {
    bytes.div_ceil(1 << PAGE_BITS) << PAGE_BITS
}

/// What was at these addresses is no more.
fn cut(state: &mut Vcpu, from: u64, to: u64) {
    let (first, last) = pages(from, to);
    state.forget(first, last);
    image::close(first, last);
}

fn changed(state: &mut Vcpu, call: &Call, result: i64) {
    // Errors are the last numbers below 0.
    if (-4095..0).contains(&result) {
        return;
    }
    let at = result as u64;
    let [a, b, c, d, e, f] = call.arguments;
    match call.number {
        number::MMAP => mapped(state, at..at + whole_pages(b), (d, e as i32, f)),
        number::MUNMAP => {
            let end = a + whole_pages(b);
            cut(state, a, end);
            image::event(events::UNMAPPED, [a, end, 0, 0], &[]);
            sets::change(&[(a, end)], |ledger| ledger.unmapped(a..end));
        }
        number::MREMAP => moved(state, a..a + whole_pages(b), at..at + whole_pages(c), d),
        number::BRK => {
            let last = BREAK.swap(at, Relaxed);
            if at < last {
                cut(state, at, last);
            }
            image::event(events::BREAK, [at, 0, 0, 0], &[]);
            sets::change(&[(at.min(last), at.max(last))], |ledger| {
                ledger.break_at(at);
            });
        }
        number::SHMAT => {
            let bytes = shared_bytes(a as i32);
            let end = at + whole_pages(bytes);
            cut(state, at, end);
            image::event(events::MAPPED, [at, end, events::SHARED, 0], &[]);
            sets::change(&[(at, end)], |ledger| {
                ledger.mapped(at..end, Kind::Shared);
            });
        }
        // What comes to the addresses later cuts them; nothing is accessed until then.
        _ => {}
    }
}

fn mapped(state: &mut Vcpu, range: std::ops::Range<u64>, (flags, fd, offset): (u64, i32, u64)) {
    let (from, to) = (range.start, range.end);
    cut(state, from, to);
    let (kind, word, path) = if flags & MAP_ANONYMOUS == 0 {
        let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        let path = path.to_string_lossy().into_owned();
        (Kind::File(path.clone()), events::FILE, path)
    } else if flags & MAP_SHARED != 0 {
        (Kind::Shared, events::SHARED, String::new())
    } else {
        (Kind::Anonymous, events::ANONYMOUS, String::new())
    };
    image::event(events::MAPPED, [from, to, word, offset], path.as_bytes());
    sets::change(&[(from, to)], |ledger| {
        match kind {
            Kind::File(path) => ledger.file_mapped(from..to, path, offset),
            kind => ledger.mapped(from..to, kind),
        };
    });
}

fn moved(state: &mut Vcpu, old: std::ops::Range<u64>, new: std::ops::Range<u64>, flags: u64) {
    // What stays where it is keeps its account; what is cut or comes anew does not.
    if old.start != new.start {
        cut(state, old.start, old.end);
        cut(state, new.start, new.end);
    } else if new.end < old.end {
        cut(state, new.end, old.end);
    }
    image::event(events::MOVED, [old.start, old.end, new.start, new.end], &[]);
    let both = [(old.start, old.end), (new.start, new.end)];
    sets::change(&both, |ledger| {
        ledger.moved(old.clone(), new.clone());
    });
    if flags & MREMAP_DONTUNMAP != 0 {
        image::event(events::MAPPED, [old.start, old.end, events::ANONYMOUS, 0], &[]);
        sets::change(&both, |ledger| {
            ledger.mapped(old.clone(), Kind::Anonymous);
        });
    }
}

/// The length of a segment of System V shared memory.
fn shared_bytes(id: i32) -> u64 {
    /// `struct shmid_ds` of x86-64 has 112 bytes; the length stands behind `struct ipc_perm` of 48.
    const WORDS: usize = 32;
    const IPC_STAT: c_int = 2;
    unsafe extern "C" {
        fn shmctl(id: c_int, what: c_int, into: *mut c_void) -> c_int;
    }
    let mut known = [0u64; WORDS];
    // SAFETY: the kernel writes less than what is there. JUSTIFICATION: there is no safe interface.
    let told = unsafe { shmctl(id, IPC_STAT, known.as_mut_ptr().cast()) };
    if told == 0 { known[6] } else { 0 }
}
