//! A plugin of QEMU's user mode that counts TLB misses by page, also for what-if sets of huge pages. pagelab
//! builds, embeds and starts it; README.md describes how they communicate.

mod config;
mod exec;
mod huge_page_sets;
mod image;
mod lock;
mod miss_recorder;
mod opcodes;
mod qemu;
mod sampling_window;
mod shared_account;
mod syscalls;
mod vcpu;

/// The model of the TLBs: the files of pagelab-tlb as they are.
#[path = "../../../crates/pagelab-tlb/src/engine"]
mod engine {
    pub mod account_layout;
    mod entries;
    pub mod geometry;
    pub mod hit_filter;
    pub mod mapping_table;
    pub mod tlb;
    pub mod tlb_pass;
    pub mod walk_caches;
    pub mod walk_history;
}

use std::ffi::{CStr, c_char, c_int};

/// The version of the plugin interface that is used. QEMU checks it before it calls anything here.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = qemu::VERSION;

/// QEMU calls this first. Anything but 0 makes it refuse to start.
///
/// # Safety
/// QEMU hands over an array of `argc` texts and an `info` that is valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: qemu::PluginId,
    info: *const qemu::QemuInfo,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: as QEMU promises; these fields have the same offsets in all versions of the interface.
    // JUSTIFICATION: the interface is one of C.
    if let Err(why) = unsafe { (*info).check_version() } {
        eprintln!("{why}");
        return 1;
    }
    // SAFETY: as above. JUSTIFICATION: as above.
    let (target, system, arguments) = unsafe {
        let arguments: Vec<String> = (0..usize::try_from(argc).unwrap_or(0))
            .map(|at| CStr::from_ptr(*argv.add(at)).to_string_lossy().into_owned())
            .collect();
        (CStr::from_ptr((*info).target_name), (*info).system_emulation, arguments)
    };
    if system || target != c"x86_64" {
        return 1;
    }
    let value = |name: &str| arguments.iter().find_map(|one| one.strip_prefix(name)?.strip_prefix('='));
    let (Some(account), Some(prefix)) = (value("account"), value("prefix").and_then(|n| n.parse().ok()))
    else {
        return 1;
    };
    if config::initialize(account, prefix).is_none() {
        return 1;
    }
    vcpu::detect_store_bit();
    sampling_window::set_plugin_id(id);
    syscalls::register_callbacks(id);
    0
}
