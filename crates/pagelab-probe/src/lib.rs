//! Measurements of the memory system of this machine: access times and TLB misses by page size ([`probe`]),
//! the cost of a page walk ([`walk_cost`]) and of a cleared accessed bit ([`accessed_bit_cost`]), the cache
//! of what was measured, the TLBs themselves ([`machine_tlb`]), results of workloads as JSON
//! ([`workload_json`]), and the observation for a checkup ([`checkup_session`]).

pub mod accessed_bit_cost;
pub mod calibration_cache;
pub mod checkup_session;
pub mod journalled_probe;
pub mod machine_tlb;
pub mod probe;
pub mod snapshot_recording;
pub mod walk_cost;
pub mod workload_json;
