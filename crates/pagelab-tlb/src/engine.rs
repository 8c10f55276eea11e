//! TLB model of `profile --source exact`: TLBs, page-walk caches, reuse distances, and the mapping table.
//!
//! It runs inside QEMU: the plugin `plugins/tlb-trace` includes these files, so they depend on std alone.

pub mod account_layout;
mod entries;
pub mod geometry;
pub mod hit_filter;
pub mod mapping_table;
pub mod tlb;
pub mod tlb_pass;
pub mod walk_caches;
pub mod walk_history;
