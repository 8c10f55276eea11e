//! Actions on the contiguity of physical memory: fragmentation, compaction, requests for huge pages.
//! `pagelab-metrics` judges the results.

pub mod compaction;
pub mod fragment;
pub mod host_warming;
pub mod memory_snapshot;
pub mod oom;
pub mod pcp_lists;
pub mod polluted_blocks;
pub mod procedure;
pub mod random_walk;
pub mod readback;
pub mod reserve;
pub mod thp_request;
pub mod unmovable;
pub mod verify_forecast;
