//! Disposable guests: any command line of pagelab on a stock kernel in QEMU, in any machine layout.
//!
//! The host's side is [`boot::run_guest`]: it packs our own program, modules and the job into an initramfs
//! ([`initramfs`]), starts QEMU without leaving anything anywhere ([`qemu`]), listens ([`message`] in
//! [`packet`]s over a serial line) and says how it ended ([`outcome`]). The guest's side is [`agent`],
//! which the same program becomes as PID 1.

pub mod accelerator;
pub mod agent;
pub mod boot;
pub mod cache;
pub mod config;
pub mod console;
mod cpio;
pub mod disk;
mod elf;
pub mod file_receiver;
pub mod initramfs;
pub mod job;
pub mod json;
pub mod kernel;
pub mod kernel_module;
pub mod kernel_setup;
pub mod message;
pub mod module_build;
pub mod modules;
pub mod outcome;
pub mod packet;
mod paths;
pub mod qemu;
pub mod source_tree;
pub mod tool_disk;
