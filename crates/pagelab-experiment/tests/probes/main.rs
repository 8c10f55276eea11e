//! Tests of probes on trials of this machine, compared with readings of the kernel and of other programs.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "a test panics to fail")]
#![allow(clippy::zombie_processes, reason = "children are waited for by wait4, which is what is tested")]

mod child;
mod groups;
mod kinds;
mod memory;
mod other_programs;
mod trial;
