//! System calls that change mappings, and those that begin or end processes.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::engine::account_layout::{events, exit_kind, image as field};
use crate::engine::mapping_table::MappedKind;
use crate::vcpu::{self, PAGE_BITS, Vcpu};
use crate::{exec, huge_page_sets, image, lock, qemu, sampling_window};

/// A system call that a thread is in.
#[derive(Clone, Copy)]
pub struct Syscall {
    number: i64,
    arguments: [u64; 6],
}

/// Numbers of x86-64 (arch/x86/entry/syscalls/syscall_64.tbl).
mod number {
    pub const MMAP: i64 = 9;
    pub const MUNMAP: i64 = 11;
    pub const BRK: i64 = 12;
    pub const MREMAP: i64 = 25;
    pub const MADVISE: i64 = 28;
    pub const SHMAT: i64 = 30;
    pub const CLONE: i64 = 56;
    pub const FORK: i64 = 57;
    pub const VFORK: i64 = 58;
    pub const EXECVE: i64 = 59;
    pub const EXIT: i64 = 60;
    pub const SHMDT: i64 = 67;
    pub const PRCTL: i64 = 157;
    pub const EXIT_GROUP: i64 = 231;
    pub const EXECVEAT: i64 = 322;
}

const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;
const MAP_SHARED: u64 = 0x01;
const MAP_ANONYMOUS: u64 = 0x20;
const MREMAP_DONTUNMAP: u64 = 4;
/// Advice on huge pages (include/uapi/asm-generic/mman-common.h), for at least one huge page.
const MADV_HUGEPAGE: u64 = 14;
const MADV_NOHUGEPAGE: u64 = 15;
const ADVISED_BYTES_MIN: u64 = 2 << 20;
/// The option of prctl that disables THP, and its flag for "but where advised" (include/uapi/linux/prctl.h).
const PR_SET_THP_DISABLE: u64 = 41;
const THP_DISABLE_EXCEPT_ADVISED: u64 = 1 << 1;

static PROGRAM_BREAK: AtomicU64 = AtomicU64::new(0);

/// Registers all callbacks: QEMU removes them when the plugin is reset.
pub fn register_callbacks(id: qemu::PluginId) {
    // SAFETY: the callbacks have the types that QEMU calls them with, and live as long as the plugin.
    // JUSTIFICATION: the interface is one of C.
    unsafe {
        qemu::qemu_plugin_register_vcpu_init_cb(id, vcpu::on_init);
        qemu::qemu_plugin_register_vcpu_exit_cb(id, vcpu::on_exit);
        qemu::qemu_plugin_register_vcpu_tb_trans_cb(id, vcpu::on_block);
        qemu::qemu_plugin_register_vcpu_syscall_cb(id, on_syscall);
        qemu::qemu_plugin_register_vcpu_syscall_ret_cb(id, on_syscall_return);
        qemu::qemu_plugin_register_atexit_cb(id, on_exit, std::ptr::null_mut());
    }
}

pub extern "C" fn on_syscall(
    _: qemu::PluginId,
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
    let Some(state) = vcpu::vcpu_state(vcpu) else { return };
    let arguments = [a, b, c, d, e, f];
    match call {
        number::MMAP | number::MUNMAP | number::BRK | number::MREMAP | number::SHMAT | number::SHMDT => {
            lock::acquire();
            state.call = Some(Syscall { number: call, arguments });
        }
        // QEMU ignores this advice, so the calls are recorded as they are made.
        number::MADVISE if matches!(c, MADV_HUGEPAGE | MADV_NOHUGEPAGE) && b >= ADVISED_BYTES_MIN => {
            record_alone(events::ADVISE, [a, a.saturating_add(b), u64::from(c == MADV_NOHUGEPAGE), 0]);
        }
        number::PRCTL if a == PR_SET_THP_DISABLE && b != 0 && c & THP_DISABLE_EXCEPT_ADVISED == 0 => {
            record_alone(events::DISABLE_THP, [0; 4]);
        }
        number::CLONE if a & CLONE_VM != 0 && a & CLONE_VFORK == 0 => {
            image::set_multithreaded();
            sampling_window::disable_skipping();
        }
        number::FORK | number::VFORK | number::CLONE => {
            state.flush();
            lock::acquire();
            state.call = Some(Syscall { number: call, arguments });
        }
        number::EXECVE => {
            state.flush();
            exec::execute_under_qemu(a, b, c, 0, 0);
        }
        number::EXECVEAT => {
            state.flush();
            exec::execute_under_qemu(b, c, d, a as i32, e as i32);
        }
        number::EXIT => state.flush(),
        number::EXIT_GROUP => {
            state.flush();
            vcpu::record_skipped_of_all();
            image::set_field(field::EXIT_KIND, exit_kind::EXIT);
        }
        _ => {}
    }
}

pub extern "C" fn on_syscall_return(_: qemu::PluginId, vcpu: c_uint, number: i64, result: i64) {
    let Some(state) = vcpu::vcpu_state(vcpu) else { return };
    let Some(call) = state.call.take_if(|call| call.number == number) else { return };
    match number {
        number::FORK | number::VFORK | number::CLONE if result == 0 => begin_child(state),
        number::FORK | number::VFORK | number::CLONE => {}
        _ => record_syscall(state, &call, result),
    }
    lock::release();
}

pub extern "C" fn on_exit(_: qemu::PluginId, _: *mut c_void) {
    // Only the thread that ends the process is certainly not in an access, and flushes; the others lose the
    // pending accesses of some tens of pages.
    image::set_field(field::EXIT_KIND, exit_kind::EXIT);
}

fn begin_child(state: &mut Vcpu) {
    huge_page_sets::reset_after_fork();
    image::begin_image(std::process::id(), image::current_image(), &[]);
    // Before the model is replaced: the new one does not skip.
    sampling_window::reset_after_fork();
    state.reset_after_fork();
}

fn record_alone(kind: u64, numbers: [u64; 4]) {
    lock::acquire();
    image::record_event(kind, numbers, &[]);
    lock::release();
}

fn page_range(from: u64, to: u64) -> (u64, u64) {
    (from >> PAGE_BITS, to.div_ceil(1 << PAGE_BITS))
}

fn round_up_to_page(bytes: u64) -> u64 {
    bytes.div_ceil(1 << PAGE_BITS) << PAGE_BITS
}

/// Invalidates the translations of these addresses, and closes their chunks.
fn discard_range(state: &mut Vcpu, from: u64, to: u64) {
    let (first, last) = page_range(from, to);
    state.invalidate(first, last);
    image::close_chunks(first, last);
}

fn record_syscall(state: &mut Vcpu, call: &Syscall, result: i64) {
    // Errors are the last numbers below 0.
    if (-4095..0).contains(&result) {
        return;
    }
    let at = result as u64;
    let [a, b, c, d, e, f] = call.arguments;
    match call.number {
        number::MMAP => record_mmap(state, at..at + round_up_to_page(b), (d, e as i32, f)),
        number::MUNMAP => {
            let end = a + round_up_to_page(b);
            discard_range(state, a, end);
            image::record_event(events::MUNMAP, [a, end, 0, 0], &[]);
            huge_page_sets::update_mappings(&[(a, end)], |table| table.record_munmap(a..end));
        }
        number::MREMAP => record_mremap(state, a..a + round_up_to_page(b), at..at + round_up_to_page(c), d),
        number::BRK => {
            let last = PROGRAM_BREAK.swap(at, Relaxed);
            if at < last {
                discard_range(state, at, last);
            }
            image::record_event(events::BRK, [at, 0, 0, 0], &[]);
            huge_page_sets::update_mappings(&[(at.min(last), at.max(last))], |table| table.record_brk(at));
        }
        number::SHMAT => {
            let bytes = read_segment_bytes(a as i32);
            let end = at + round_up_to_page(bytes);
            discard_range(state, at, end);
            image::record_event(events::MMAP, [at, end, events::SHARED, 0], &[]);
            huge_page_sets::update_mappings(&[(at, end)], |table| {
                table.record_mmap(at..end, MappedKind::Shared)
            });
        }
        // shmdt: the next mapping at these addresses discards them; nothing accesses them until then.
        _ => {}
    }
}

fn record_mmap(state: &mut Vcpu, range: std::ops::Range<u64>, (flags, fd, offset): (u64, i32, u64)) {
    let (from, to) = (range.start, range.end);
    discard_range(state, from, to);
    let (kind, word, path) = if flags & MAP_ANONYMOUS == 0 {
        let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        let path = path.to_string_lossy().into_owned();
        (MappedKind::File(path.clone()), events::FILE, path)
    } else if flags & MAP_SHARED != 0 {
        (MappedKind::Shared, events::SHARED, String::new())
    } else {
        (MappedKind::Anonymous, events::ANONYMOUS, String::new())
    };
    image::record_event(events::MMAP, [from, to, word, offset], path.as_bytes());
    huge_page_sets::update_mappings(&[(from, to)], |table| {
        match kind {
            MappedKind::File(path) => table.record_file_mmap(from..to, path, offset),
            kind => table.record_mmap(from..to, kind),
        };
    });
}

fn record_mremap(state: &mut Vcpu, old: std::ops::Range<u64>, new: std::ops::Range<u64>, flags: u64) {
    // Pages that stay in place keep their counts; removed and new ones do not.
    if old.start != new.start {
        discard_range(state, old.start, old.end);
        discard_range(state, new.start, new.end);
    } else if new.end < old.end {
        discard_range(state, new.end, old.end);
    }
    image::record_event(events::MREMAP, [old.start, old.end, new.start, new.end], &[]);
    let both = [(old.start, old.end), (new.start, new.end)];
    huge_page_sets::update_mappings(&both, |table| table.record_mremap(old.clone(), new.clone()));
    if flags & MREMAP_DONTUNMAP != 0 {
        image::record_event(events::MMAP, [old.start, old.end, events::ANONYMOUS, 0], &[]);
        huge_page_sets::update_mappings(&both, |table| table.record_mmap(old.clone(), MappedKind::Anonymous));
    }
}

/// The length of a segment of System V shared memory.
fn read_segment_bytes(id: i32) -> u64 {
    /// `struct shmid_ds` of x86-64 has 112 bytes; the length follows `struct ipc_perm` of 48 bytes.
    const WORDS: usize = 32;
    const IPC_STAT: c_int = 2;
    unsafe extern "C" {
        fn shmctl(id: c_int, what: c_int, into: *mut c_void) -> c_int;
    }
    let mut known = [0u64; WORDS];
    // SAFETY: the kernel writes less than the array has. JUSTIFICATION: there is no safe interface.
    let result = unsafe { shmctl(id, IPC_STAT, known.as_mut_ptr().cast()) };
    if result == 0 { known[6] } else { 0 }
}
