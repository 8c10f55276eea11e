//! Probes on trials of this machine: what they say is held against what the kernel and other programs say.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "a test panics to fail")]
#![allow(clippy::zombie_processes, reason = "children are waited for by wait4, which is what is tested")]

mod child;
mod groups;
mod kinds;
mod memory;
mod others;
mod trial;
