//! Deliberate fragmentation of memory to a target F_u.
//!
//! Huge pages are allocated a few at a time; one page of each is kept and split off, and the rest is freed,
//! so that at no moment much more than the kept pages is held. [`inputs`] has the limits of this machine,
//! [`fragmenter`] holds the memory, [`memory_monitor`] watches the memory of other programs, [`control_loop`]
//! reaches the target, and [`fragmenter::KeptPageCheck`] verifies the positions of the kept pages.

pub mod control_loop;
pub mod fragmenter;
pub mod inputs;
pub mod memory_monitor;
