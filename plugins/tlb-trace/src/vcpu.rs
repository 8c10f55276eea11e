//! Virtual CPUs, one for each thread of the program, each with its own TLBs.

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use crate::config::{self, config};
use crate::engine::account_layout::{image as field, thread};
use crate::engine::tlb::Tlb;
use crate::miss_recorder::MissRecorder;
use crate::shared_account::word;
use crate::syscalls::Syscall;
use crate::{huge_page_sets, image, opcodes, qemu, sampling_window};

/// Threads that are modelled at most at one time.
const VCPUS_MAX: usize = 4096;
/// log2 of a page of x86-64.
pub const PAGE_BITS: u32 = 12;
/// Flag of an entry of the table: something has to be done before the next access.
const ATTENTION: usize = 1;
/// QEMU 7.2 encodes the kind of an access above the bits of the operation: 1 load, 2 store.
const STORE_BIT: u32 = 2 << 16;

static TABLE: [AtomicUsize; VCPUS_MAX] = [const { AtomicUsize::new(0) }; VCPUS_MAX];
/// This QEMU does not use `STORE_BIT`: it is called for each access.
static CALLS_QEMU: AtomicBool = AtomicBool::new(false);
/// Floating-point operations, counted by inline operations.
static FLOAT_OPERATIONS: AtomicU64 = AtomicU64::new(0);
/// The counter of inline operations without a purpose, see [`opcodes::is_inline_access`].
static UNUSED_COUNTER: AtomicU64 = AtomicU64::new(0);
/// Floating-point operations before this process began.
static FLOAT_OPERATIONS_BEFORE: AtomicU64 = AtomicU64::new(0);

pub struct Vcpu {
    pub tlb: Tlb,
    pub recorder: MissRecorder,
    /// The system call that its thread is in.
    pub call: Option<Syscall>,
    /// The number of unmappings that it has applied.
    unmappings_seen: usize,
}

impl Vcpu {
    fn new(vcpu: c_uint) -> Vcpu {
        let config = config();
        let passes = config.passes as usize;
        Vcpu {
            tlb: Tlb::new(&config.geometry, passes, config.window),
            recorder: MissRecorder {
                block: image::add_thread_block(config.passes).unwrap_or(0),
                passes: config.passes,
                vcpu,
            },
            call: None,
            unmappings_seen: huge_page_sets::unmapping_count(),
        }
    }

    /// Writes all pending counts into the account.
    pub fn flush(&mut self) {
        self.tlb.flush(&mut self.recorder);
        if self.recorder.block != 0 {
            word(self.recorder.block + thread::SKIPPED).store(self.tlb.skipped(), Relaxed);
        }
        let floats = FLOAT_OPERATIONS.load(Relaxed) - FLOAT_OPERATIONS_BEFORE.load(Relaxed);
        image::set_field(field::FLOAT_OPERATIONS, floats);
    }

    /// Invalidates the translations of base pages, here and in all others before their next access.
    pub fn invalidate(&mut self, from: u64, to: u64) {
        self.tlb.invalidate(from, to, &mut self.recorder);
        huge_page_sets::queue_unmapping(from, to);
        for entry in &TABLE {
            if entry.load(Relaxed) == 0 {
                break;
            }
            entry.fetch_or(ATTENTION, AcqRel);
        }
    }

    /// The same thread in a forked child: nothing is counted yet.
    pub fn reset_after_fork(&mut self) {
        FLOAT_OPERATIONS_BEFORE.store(FLOAT_OPERATIONS.load(Relaxed), Relaxed);
        *self = Vcpu::new(self.recorder.vcpu);
    }
}

/// All threads end now: records the skipped accesses of those that do not flush.
pub fn record_skipped_of_all() {
    for at in 0..VCPUS_MAX {
        let Some(state) = vcpu_state(at as c_uint) else { break };
        if state.recorder.block != 0 {
            word(state.recorder.block + thread::SKIPPED).store(state.tlb.skipped(), Relaxed);
        }
    }
}

/// Detects whether `STORE_BIT` is set for stores, so that no call of QEMU is needed.
pub fn detect_store_bit() {
    // SAFETY: a function of a number. JUSTIFICATION: QEMU's interface is one of C.
    let is_store = |info| unsafe { qemu::qemu_plugin_mem_is_store(info) };
    let is_as_expected = is_store(STORE_BIT) && is_store(3 << 16) && !is_store(1 << 16) && !is_store(0xffff);
    CALLS_QEMU.store(!is_as_expected, Relaxed);
}

pub fn vcpu_state(vcpu: c_uint) -> Option<&'static mut Vcpu> {
    let entry = TABLE.get(vcpu as usize)?.load(Acquire) & !ATTENTION;
    // SAFETY: entries are 0 or a box that is never freed while its thread runs, and only the thread of a
    // virtual CPU uses it. JUSTIFICATION: QEMU passes a number and no state.
    unsafe { (entry as *mut Vcpu).as_mut() }
}

pub extern "C" fn on_init(_: qemu::PluginId, vcpu: c_uint) {
    let Some(entry) = TABLE.get(vcpu as usize) else {
        image::add_to_field(field::UNMODELLED_THREADS, 1);
        return;
    };
    let fresh = Vcpu::new(vcpu);
    match entry.load(Acquire) & !ATTENTION {
        0 => entry
            .store(Box::into_raw(Box::new(fresh)) as usize | ATTENTION, std::sync::atomic::Ordering::Release),
        // The number belonged to a thread that has ended. SAFETY: as in `vcpu_state`. JUSTIFICATION: as
        // there.
        old => unsafe { *(old as *mut Vcpu) = fresh },
    }
}

pub extern "C" fn on_exit(_: qemu::PluginId, vcpu: c_uint) {
    if let Some(state) = vcpu_state(vcpu) {
        state.flush();
    }
}

/// A block is translated: registers callbacks for its accesses, unless they are skipped.
pub extern "C" fn on_block(_: qemu::PluginId, block: *mut qemu::TranslationBlock) {
    let callback = if CALLS_QEMU.load(Relaxed) { on_memory_with_query } else { on_memory };
    let (mut float_operations, is_skipping) = (0, sampling_window::is_skipping());
    // SAFETY: QEMU passes a block with this number of instructions, and each with its bytes. JUSTIFICATION:
    // the interface is one of C.
    unsafe {
        let instructions = qemu::qemu_plugin_tb_n_insns(block);
        if let Some(counter) = sampling_window::instruction_counter() {
            let by = instructions as u64;
            qemu::qemu_plugin_register_vcpu_tb_exec_inline(block, qemu::ADD_U64, counter, by);
        }
        for at in 0..instructions {
            let instruction = qemu::qemu_plugin_tb_get_insn(block, at);
            let (data, bytes) =
                (qemu::qemu_plugin_insn_data(instruction), qemu::qemu_plugin_insn_size(instruction));
            let bytes = std::slice::from_raw_parts(data.cast::<u8>(), bytes);
            float_operations += u64::from(opcodes::is_float_operation(bytes));
            let (kind, nothing) = (qemu::READ_AND_WRITE, std::ptr::null_mut());
            if !is_skipping {
                qemu::qemu_plugin_register_vcpu_mem_cb(instruction, callback, qemu::NO_REGS, kind, nothing);
            } else if !opcodes::is_inline_access(bytes) {
                let nowhere = UNUSED_COUNTER.as_ptr().cast();
                qemu::qemu_plugin_register_vcpu_mem_inline(instruction, kind, qemu::ADD_U64, nowhere, 1);
            }
        }
        if float_operations > 0 {
            let counter = FLOAT_OPERATIONS.as_ptr().cast();
            qemu::qemu_plugin_register_vcpu_tb_exec_inline(block, qemu::ADD_U64, counter, float_operations);
        }
    }
}

extern "C" fn on_memory(vcpu: c_uint, info: u32, address: u64, _: *mut c_void) {
    access(vcpu, info & STORE_BIT != 0, address);
}

extern "C" fn on_memory_with_query(vcpu: c_uint, info: u32, address: u64, _: *mut c_void) {
    // SAFETY: a function of a number. JUSTIFICATION: QEMU's interface is one of C.
    access(vcpu, unsafe { qemu::qemu_plugin_mem_is_store(info) }, address);
}

#[inline(always)]
fn access(vcpu: c_uint, store: bool, address: u64) {
    let Some(entry) = TABLE.get(vcpu as usize) else { return };
    let known = entry.load(Relaxed);
    if known & ATTENTION != 0 || known == 0 {
        // A tail call in either case: so the compiler needs no stack frame for pages that hit the filter.
        return handle_attention(vcpu, store, address);
    }
    // SAFETY: as in `vcpu_state`. JUSTIFICATION: as there.
    let state = unsafe { &mut *(known as *mut Vcpu) };
    state.tlb.access(address >> PAGE_BITS, store, &mut state.recorder);
}

#[cold]
#[inline(never)]
fn handle_attention(vcpu: c_uint, store: bool, address: u64) {
    config::record_first_access(address);
    TABLE[vcpu as usize].fetch_and(!ATTENTION, AcqRel);
    if let Some(state) = vcpu_state(vcpu) {
        let (ranges, seen) = huge_page_sets::unmappings_since(state.unmappings_seen);
        state.unmappings_seen = seen;
        for (from, to) in ranges {
            state.tlb.invalidate(from, to, &mut state.recorder);
        }
        state.tlb.access(address >> PAGE_BITS, store, &mut state.recorder);
    }
}
