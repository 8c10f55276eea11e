//! The plugin interface of QEMU, version 1 (include/qemu/qemu-plugin.h of 7.2), as far as it is used. Debian
//! has no header for it.
//!
//! Version 2 (9.0) removed `qemu_plugin_register_vcpu_tb_exec_inline`, version 3 (9.1) gave
//! `qemu_plugin_insn_data` other arguments, 4 (9.2) and 5 (10.1) added functions, 6 (11.0) changed results of
//! functions on registers. What a QEMU takes is [`Info::version_min`] to [`Info::version_cur`].

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A translated block.
#[repr(C)]
pub struct Block {
    _opaque: [u8; 0],
}

/// An instruction of it.
#[repr(C)]
pub struct Instruction {
    _opaque: [u8; 0],
}

/// `qemu_info_t`.
#[repr(C)]
pub struct Info {
    pub target_name: *const c_char,
    pub version_min: c_int,
    pub version_cur: c_int,
    pub system_emulation: bool,
    _vcpus: [c_int; 2],
}

/// The version of the interface that is declared here.
pub const VERSION: c_int = 1;

impl Info {
    /// Whether a QEMU takes plugins of this version; otherwise why not.
    pub fn takes_us(&self) -> Result<(), String> {
        let (min, cur) = (self.version_min, self.version_cur);
        if (min..=cur).contains(&VERSION) {
            return Ok(());
        }
        Err(format!(
            "pagelab's plugin is of version {VERSION} of QEMU's plugin interface, and this QEMU takes \
             versions {min} to {cur}: QEMU 6.2 to 8.2 take it"
        ))
    }
}

/// The plugin's number.
pub type Id = u64;

/// QEMU_PLUGIN_CB_NO_REGS.
pub const NO_REGS: c_int = 0;
/// QEMU_PLUGIN_MEM_RW. Callbacks for loads alone would hide stores of QEMU's helpers: 7.2 stops at the first
/// callback of another kind (plugins/core.c, qemu_plugin_vcpu_mem_cb).
pub const READ_AND_WRITE: c_int = 3;
/// QEMU_PLUGIN_INLINE_ADD_U64.
pub const ADD_U64: c_int = 0;

pub type OnVcpu = extern "C" fn(Id, c_uint);
pub type OnBlock = extern "C" fn(Id, *mut Block);
pub type OnMemory = extern "C" fn(c_uint, u32, u64, *mut c_void);
pub type OnCall = extern "C" fn(Id, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64);
pub type OnReturn = extern "C" fn(Id, c_uint, i64, i64);
pub type OnReset = extern "C" fn(Id);
pub type OnExit = extern "C" fn(Id, *mut c_void);

unsafe extern "C" {
    pub fn qemu_plugin_register_vcpu_init_cb(id: Id, on: OnVcpu);
    pub fn qemu_plugin_register_vcpu_exit_cb(id: Id, on: OnVcpu);
    pub fn qemu_plugin_register_vcpu_tb_trans_cb(id: Id, on: OnBlock);
    pub fn qemu_plugin_register_vcpu_syscall_cb(id: Id, on: OnCall);
    pub fn qemu_plugin_register_vcpu_syscall_ret_cb(id: Id, on: OnReturn);
    pub fn qemu_plugin_register_atexit_cb(id: Id, on: OnExit, userdata: *mut c_void);
    pub fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut Instruction,
        on: OnMemory,
        flags: c_int,
        kind: c_int,
        userdata: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_mem_inline(
        instruction: *mut Instruction,
        kind: c_int,
        what: c_int,
        counter: *mut c_void,
        by: u64,
    );
    pub fn qemu_plugin_register_vcpu_tb_exec_inline(
        block: *mut Block,
        what: c_int,
        counter: *mut c_void,
        by: u64,
    );
    pub fn qemu_plugin_reset(id: Id, then: OnReset);
    pub fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    pub fn qemu_plugin_tb_get_insn(block: *const Block, at: usize) -> *mut Instruction;
    pub fn qemu_plugin_insn_data(instruction: *const Instruction) -> *const c_void;
    pub fn qemu_plugin_insn_size(instruction: *const Instruction) -> usize;
    pub fn qemu_plugin_mem_is_store(info: u32) -> bool;
}
