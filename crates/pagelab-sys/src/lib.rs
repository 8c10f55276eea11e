//! All unsafe code: safe interfaces to memory mappings, ioctls, perf events, CPUID, prctl, and a child before
//! exec.
//!
//! Each `unsafe` block carries SAFETY (why it is sound) and JUSTIFICATION (why safe code cannot do it).
//!
//! Nothing here opens a file by name; the caller passes it in.

pub mod advice;
pub mod bounded_write;
pub mod byte_mapping;
pub mod clock;
pub mod cpuid;
pub mod injection;
pub mod kcmp;
pub mod kernel_support;
pub mod mapping;
pub mod page_cache;
pub mod page_faults;
pub mod pagemap_scan;
pub mod perf_event;
pub mod perf_ring;
pub mod pod;
pub mod ptrace;
pub mod resident_process;
pub mod scheduling;
pub mod seccomp;
pub mod signals;
pub mod spawn;
pub mod swap;
pub mod syscall_loop;
pub mod thp_disable;
pub mod traced_child;
pub mod wait;
