//! This machine, or a saved tree of its files: readers, settings, guard, capture.
//!
//! Every reader takes a [`root::Root`]; a live host and a saved tree give the same records. The names of
//! kernel files are in [`paths`] only.

pub mod address_space;
pub mod alloc_trace;
pub mod capture;
pub mod census;
pub mod cgroup;
pub mod collect;
pub mod extfrag;
#[cfg(test)]
mod fake_tree;
pub mod fast_snapshot;
pub mod guard;
pub mod hugetlb_zones;
pub mod instruments;
pub mod kernel_log;
pub mod machine;
pub mod manifest;
pub mod memory_blocks;
pub mod orphan_keeper;
pub mod page_reporting;
pub mod paths;
pub mod process_map;
pub mod processes;
pub mod reader;
pub mod root;
pub mod sampler;
pub mod settings;
pub mod tracepoints;

pub use census::page_map;
