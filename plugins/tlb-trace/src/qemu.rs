//! The used part of the plugin interface of QEMU, version 1 (include/qemu/qemu-plugin.h of 7.2). Debian
//! packages no header of it.
//!
//! Version 2 (9.0) removed `qemu_plugin_register_vcpu_tb_exec_inline`, version 3 (9.1) gave
//! `qemu_plugin_insn_data` other arguments, 4 (9.2) and 5 (10.1) added functions, 6 (11.0) changed results of
//! functions on registers. A QEMU accepts [`QemuInfo::version_min`] to [`QemuInfo::version_cur`].

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;

/// A translated block.
#[repr(C)]
pub struct TranslationBlock {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct Instruction {
    _opaque: [u8; 0],
}

/// `qemu_info_t`.
#[repr(C)]
pub struct QemuInfo {
    pub target_name: *const c_char,
    pub version_min: c_int,
    pub version_cur: c_int,
    pub system_emulation: bool,
    _vcpus: [c_int; 2],
}

const _: () = assert!(size_of::<QemuInfo>() == 32 && offset_of!(QemuInfo, version_min) == 8);
const _: () =
    assert!(offset_of!(QemuInfo, version_cur) == 12 && offset_of!(QemuInfo, system_emulation) == 16);

/// The version of the interface that is declared here.
pub const VERSION: c_int = 1;

impl QemuInfo {
    /// Checks that this QEMU accepts plugins of this version.
    pub fn check_version(&self) -> Result<(), String> {
        let (min, cur) = (self.version_min, self.version_cur);
        if (min..=cur).contains(&VERSION) {
            return Ok(());
        }
        Err(format!(
            "cannot load pagelab's plugin: it uses version {VERSION} of QEMU's plugin interface, this QEMU \
             supports versions {min} to {cur}; hint: use QEMU 6.2 to 8.2"
        ))
    }
}

pub type PluginId = u64;

/// QEMU_PLUGIN_CB_NO_REGS.
pub const NO_REGS: c_int = 0;
/// QEMU_PLUGIN_MEM_RW. Callbacks for loads alone would hide stores of QEMU's helpers: 7.2 stops at the first
/// callback of another kind (plugins/core.c, qemu_plugin_vcpu_mem_cb).
pub const READ_AND_WRITE: c_int = 3;
/// QEMU_PLUGIN_INLINE_ADD_U64.
pub const ADD_U64: c_int = 0;

pub type VcpuCallback = extern "C" fn(PluginId, c_uint);
pub type BlockCallback = extern "C" fn(PluginId, *mut TranslationBlock);
pub type MemoryCallback = extern "C" fn(c_uint, u32, u64, *mut c_void);
pub type SyscallCallback = extern "C" fn(PluginId, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64);
pub type SyscallReturnCallback = extern "C" fn(PluginId, c_uint, i64, i64);
pub type ResetCallback = extern "C" fn(PluginId);
pub type ExitCallback = extern "C" fn(PluginId, *mut c_void);

unsafe extern "C" {
    pub fn qemu_plugin_register_vcpu_init_cb(id: PluginId, callback: VcpuCallback);
    pub fn qemu_plugin_register_vcpu_exit_cb(id: PluginId, callback: VcpuCallback);
    pub fn qemu_plugin_register_vcpu_tb_trans_cb(id: PluginId, callback: BlockCallback);
    pub fn qemu_plugin_register_vcpu_syscall_cb(id: PluginId, callback: SyscallCallback);
    pub fn qemu_plugin_register_vcpu_syscall_ret_cb(id: PluginId, callback: SyscallReturnCallback);
    pub fn qemu_plugin_register_atexit_cb(id: PluginId, callback: ExitCallback, userdata: *mut c_void);
    pub fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut Instruction,
        callback: MemoryCallback,
        flags: c_int,
        kind: c_int,
        userdata: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_mem_inline(
        instruction: *mut Instruction,
        kind: c_int,
        operation: c_int,
        counter: *mut c_void,
        by: u64,
    );
    pub fn qemu_plugin_register_vcpu_tb_exec_inline(
        block: *mut TranslationBlock,
        operation: c_int,
        counter: *mut c_void,
        by: u64,
    );
    pub fn qemu_plugin_reset(id: PluginId, callback: ResetCallback);
    pub fn qemu_plugin_tb_n_insns(block: *const TranslationBlock) -> usize;
    pub fn qemu_plugin_tb_get_insn(block: *const TranslationBlock, at: usize) -> *mut Instruction;
    pub fn qemu_plugin_insn_data(instruction: *const Instruction) -> *const c_void;
    pub fn qemu_plugin_insn_size(instruction: *const Instruction) -> usize;
    pub fn qemu_plugin_mem_is_store(info: u32) -> bool;
}
