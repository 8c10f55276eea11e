//! Everything unsafe: safe faces over memory mappings, ioctls, perf events, CPUID, prctl and what a
//! child does before exec.
//!
//! Each `unsafe` block carries SAFETY (why it is sound) and JUSTIFICATION (why safe code cannot do it).
//!
//! Nothing here opens a file by name; whoever needs one passes it in.

pub mod affinity;
pub mod attach;
pub mod bytes_map;
pub mod clock;
pub mod cpuid;
pub mod faults;
pub mod map;
pub mod nudge;
pub mod own_memory;
pub mod page_cache;
pub mod pagemap_scan;
pub mod perf;
mod perf_attr;
pub mod perf_count;
pub mod perf_ring;
pub mod plain;
pub mod presence;
pub mod ptrace;
pub mod realtime;
pub mod remote_advice;
pub mod resident;
pub mod same;
pub mod seccomp;
pub mod signal_wait;
pub mod spawn;
pub mod storm;
pub mod swap;
pub mod thp_disable;
pub mod traced_child;
pub mod wait;
