//! Disposable guests: any command line of pagelab on a stock kernel in QEMU, in a machine of any shape.
//!
//! The host's side is [`boot::run`]: it packs our own program, modules and the job into an initramfs
//! ([`initramfs`]), starts QEMU without leaving anything anywhere ([`qemu`]), listens ([`message`] in
//! [`frame`]s over a serial line) and says how it ended ([`outcome`]). The guest's side is [`agent`],
//! which the same program becomes as PID 1.

pub mod agent;
pub mod boot;
pub mod cache;
pub mod console;
mod cpio;
mod disks;
mod elf;
pub mod error;
pub mod frame;
pub mod initramfs;
pub mod job;
pub mod kernel;
pub mod message;
pub mod modules;
pub mod outcome;
mod places;
pub mod qemu;
pub mod setup;
pub mod shape;
pub mod taken;
