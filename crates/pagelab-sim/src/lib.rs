//! Simulated page allocators: pure, deterministic from a seed, integer arithmetic only.
//!
//! A [`zone::Zone`] is the buddy allocator of one zone, as Linux has it; a [`policies::Policy`] decides on
//! the list of a block, and on what is taken from a list of another migratetype. A naive twin, compiled for
//! tests only, computes the same from a flat array, and is compared with it event by event.

pub mod bench;
pub mod btree_buddy;
pub mod compact_buddy;
mod frame;
pub mod free_lists;
mod injected_bugs;
pub mod layout;
pub mod llfree;
pub mod loads;
#[cfg(test)]
mod lockstep_tests;
pub mod machine;
pub mod memory;
#[cfg(test)]
mod naive;
pub mod pageblock_lists;
pub mod pcp;
pub mod policies;
mod prefetch;
pub mod replay;
pub mod study;
pub mod types;
pub mod validate;
pub mod watermarks;
pub mod zone;
pub mod zone_options;
