//! Virtual CPUs, one for each thread of the program, each with TLBs of its own.

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use crate::arena::word;
use crate::book::Book;
use crate::calls::Call;
use crate::engine::layout::{image as field, thread};
use crate::engine::tlb::Tlb;
use crate::start::{self, config};
use crate::{floats, image, pace, plain, qemu, sets};

/// Threads that are watched at most at one time.
const MOST: usize = 4096;
/// log2 of a page of x86-64.
pub const PAGE_BITS: u32 = 12;
/// In an entry of the table: there is something to be done before the next access.
const ATTENTION: usize = 1;
/// QEMU 7.2 keeps what an access is above the bits of the operation: 1 load, 2 store.
const STORE_BIT: u32 = 2 << 16;

static TABLE: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
/// `STORE_BIT` is not what this QEMU does.
static ASK_QEMU: AtomicBool = AtomicBool::new(false);
/// Operations with floating point, counted by the translated code itself.
static FLOATS: AtomicU64 = AtomicU64::new(0);
/// What is counted only since an instruction needs an operation.
static NOWHERE: AtomicU64 = AtomicU64::new(0);
/// Those of them that were before this process began.
static FLOATS_BEFORE: AtomicU64 = AtomicU64::new(0);

/// One virtual CPU.
pub struct Vcpu {
    pub tlb: Tlb,
    pub book: Book,
    /// The call that its thread is in.
    pub call: Option<Call>,
    /// How many unmappings of others it knows.
    seen: usize,
}

impl Vcpu {
    fn new(vcpu: c_uint) -> Vcpu {
        let config = config();
        let passes = config.passes as usize;
        Vcpu {
            tlb: Tlb::new(&config.geometry, passes, config.window),
            book: Book {
                block: image::thread_block(config.passes).unwrap_or(0),
                passes: config.passes,
                vcpu,
            },
            call: None,
            seen: sets::unmappings(),
        }
    }

    /// All that is pending stands in the account afterwards.
    pub fn flush(&mut self) {
        self.tlb.flush(&mut self.book);
        if self.book.block != 0 {
            word(self.book.block + thread::SKIPPED).store(self.tlb.skipped(), Relaxed);
        }
        let floats = FLOATS.load(Relaxed) - FLOATS_BEFORE.load(Relaxed);
        image::put(field::FLOATS, floats);
    }

    /// Translations of base pages are forgotten, here and by all others before their next access.
    pub fn forget(&mut self, from: u64, to: u64) {
        self.tlb.forget(from, to, &mut self.book);
        sets::unmapped(from, to);
        for entry in &TABLE {
            if entry.load(Relaxed) == 0 {
                break;
            }
            entry.fetch_or(ATTENTION, AcqRel);
        }
    }

    /// The same thread in a process that has just been forked off: nothing is known of its memory's cost.
    pub fn begin_anew(&mut self) {
        FLOATS_BEFORE.store(FLOATS.load(Relaxed), Relaxed);
        *self = Vcpu::new(self.book.vcpu);
    }
}

/// All threads end now: what those that do not say so have skipped stands in the account afterwards.
pub fn end_all() {
    for at in 0..MOST {
        let Some(state) = state(at as c_uint) else { break };
        if state.book.block != 0 {
            word(state.book.block + thread::SKIPPED).store(state.tlb.skipped(), Relaxed);
        }
    }
}

/// Finds out whether loads and stores can be told apart without a call.
pub fn learn_the_bits() {
    // SAFETY: a function of a number. JUSTIFICATION: QEMU's interface is one of C.
    let is_store = |info| unsafe { qemu::qemu_plugin_mem_is_store(info) };
    let as_known = is_store(STORE_BIT) && is_store(3 << 16) && !is_store(1 << 16) && !is_store(0xffff);
    ASK_QEMU.store(!as_known, Relaxed);
}

/// The state of a virtual CPU.
pub fn state(vcpu: c_uint) -> Option<&'static mut Vcpu> {
    let entry = TABLE.get(vcpu as usize)?.load(Acquire) & !ATTENTION;
    // SAFETY: entries are 0 or of a box that is never freed while its thread runs, and only the thread of a
    // virtual CPU asks for it. JUSTIFICATION: QEMU hands over a number and no state.
    unsafe { (entry as *mut Vcpu).as_mut() }
}

pub extern "C" fn on_init(_: qemu::Id, vcpu: c_uint) {
    let Some(entry) = TABLE.get(vcpu as usize) else {
        image::add(field::UNWATCHED_THREADS, 1);
        return;
    };
    let fresh = Vcpu::new(vcpu);
    match entry.load(Acquire) & !ATTENTION {
        0 => entry
            .store(Box::into_raw(Box::new(fresh)) as usize | ATTENTION, std::sync::atomic::Ordering::Release),
        // The number of a thread that has ended. SAFETY: as in `state`. JUSTIFICATION: as there.
        old => unsafe { *(old as *mut Vcpu) = fresh },
    }
}

pub extern "C" fn on_exit(_: qemu::Id, vcpu: c_uint) {
    if let Some(state) = state(vcpu) {
        state.flush();
    }
}

/// A block is translated: its accesses are watched from now on, unless they are not looked at.
pub extern "C" fn on_block(_: qemu::Id, block: *mut qemu::Block) {
    let on = if ASK_QEMU.load(Relaxed) { on_memory_asking } else { on_memory };
    let (mut floating, rests) = (0, pace::rests());
    // SAFETY: QEMU hands over a block with so many instructions, and each with its bytes.
    // JUSTIFICATION: the interface is one of C.
    unsafe {
        let instructions = qemu::qemu_plugin_tb_n_insns(block);
        if let Some(counter) = pace::counter() {
            let by = instructions as u64;
            qemu::qemu_plugin_register_vcpu_tb_exec_inline(block, qemu::ADD_U64, counter, by);
        }
        for at in 0..instructions {
            let instruction = qemu::qemu_plugin_tb_get_insn(block, at);
            let (data, bytes) =
                (qemu::qemu_plugin_insn_data(instruction), qemu::qemu_plugin_insn_size(instruction));
            let bytes = std::slice::from_raw_parts(data.cast::<u8>(), bytes);
            floating += u64::from(floats::is_float(bytes));
            let (kind, nothing) = (qemu::READ_AND_WRITE, std::ptr::null_mut());
            if !rests {
                qemu::qemu_plugin_register_vcpu_mem_cb(instruction, on, qemu::NO_REGS, kind, nothing);
            } else if !plain::is_plain(bytes) {
                let nowhere = NOWHERE.as_ptr().cast();
                qemu::qemu_plugin_register_vcpu_mem_inline(instruction, kind, qemu::ADD_U64, nowhere, 1);
            }
        }
        if floating > 0 {
            let counter = FLOATS.as_ptr().cast();
            qemu::qemu_plugin_register_vcpu_tb_exec_inline(block, qemu::ADD_U64, counter, floating);
        }
    }
}

extern "C" fn on_memory(vcpu: c_uint, info: u32, address: u64, _: *mut c_void) {
    access(vcpu, info & STORE_BIT != 0, address);
}

extern "C" fn on_memory_asking(vcpu: c_uint, info: u32, address: u64, _: *mut c_void) {
    // SAFETY: a function of a number. JUSTIFICATION: QEMU's interface is one of C.
    access(vcpu, unsafe { qemu::qemu_plugin_mem_is_store(info) }, address);
}

#[inline(always)]
fn access(vcpu: c_uint, store: bool, address: u64) {
    let Some(entry) = TABLE.get(vcpu as usize) else { return };
    let known = entry.load(Relaxed);
    if known & ATTENTION != 0 || known == 0 {
        // The last thing that is done in either case: so the compiler needs no room on the stack before it
        // knows that the page is not known.
        return attend(vcpu, store, address);
    }
    // SAFETY: as in `state`. JUSTIFICATION: as there.
    let state = unsafe { &mut *(known as *mut Vcpu) };
    state.tlb.access(address >> PAGE_BITS, store, &mut state.book);
}

#[cold]
#[inline(never)]
fn attend(vcpu: c_uint, store: bool, address: u64) {
    start::first_access(address);
    TABLE[vcpu as usize].fetch_and(!ATTENTION, AcqRel);
    if let Some(state) = state(vcpu) {
        let (ranges, seen) = sets::unmappings_since(state.seen);
        state.seen = seen;
        for (from, to) in ranges {
            state.tlb.forget(from, to, &mut state.book);
        }
        state.tlb.access(address >> PAGE_BITS, store, &mut state.book);
    }
}
