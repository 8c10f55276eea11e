//! A plugin of QEMU's user mode that keeps account of TLB misses: where they are, and what they would be with
//! huge pages in places. pagelab builds it, embeds it, and starts it; README.md tells how they talk.

mod arena;
mod book;
mod calls;
mod exec;
mod floats;
mod image;
mod lock;
mod pace;
mod plain;
mod qemu;
mod sets;
mod start;
mod vcpu;

/// The model of the TLBs: the files of pagelab-tlb as they are.
#[path = "../../../crates/pagelab-tlb/src/engine"]
mod engine {
    mod entries;
    pub mod front;
    pub mod geometry;
    pub mod layout;
    pub mod ledger;
    pub mod lines;
    pub mod pass;
    pub mod tlb;
    pub mod walk;
}

use std::ffi::{CStr, c_char, c_int};

/// The version of the interface that this is written for. QEMU looks at it before it calls anything here.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = qemu::VERSION;

/// QEMU calls this first. Anything but 0 makes it refuse to start.
///
/// # Safety
/// QEMU hands over an array of `argc` texts and an `info` that is valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: qemu::Id,
    info: *const qemu::Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: as QEMU promises; these words stand at the same place in all versions of the interface.
    // JUSTIFICATION: the interface is one of C.
    if let Err(why) = unsafe { (*info).takes_us() } {
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
    if start::begin(account, prefix).is_none() {
        return 1;
    }
    vcpu::learn_the_bits();
    pace::begin(id);
    calls::register(id);
    0
}
