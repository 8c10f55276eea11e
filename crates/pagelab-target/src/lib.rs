//! Operations on other programs: profiles by QEMU's user mode, accessed bits or hardware samples;
//! supervision; huge pages by a plan. What they compute is never changed.

pub mod accessed;
mod advice;
mod dontneed;
pub mod exact;
pub mod huge_page_control;
mod own_advice;
pub mod pmu;
mod priority;
mod process_failure;
pub mod process_injection;
pub mod program;
pub mod remote_collapse;
pub mod sampling;
pub mod supervisor;
