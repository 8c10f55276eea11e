//! Page allocators, simulated: pure, deterministic from a seed, integer arithmetic alone.
//!
//! A [`zone::Zone`] is the buddy allocator of one zone, as Linux has it; a [`policy::Policy`] decides on
//! which list a block lies and what is taken from a list of another kind. The [`naive`] twin says the same
//! things by looking through a flat array, and is compared with it event by event.

pub mod bench;
pub mod besides;
pub mod chains;
pub mod compact;
pub mod difficulty;
pub mod layout;
pub mod lists;
pub mod loads;
pub mod machine;
pub mod marks;
pub mod memory;
pub mod naive;
pub mod percpu;
pub mod plain;
mod planted;
pub mod policies;
pub mod policy;
mod prefetch;
pub mod replay;
pub mod study;
pub mod trees;
#[cfg(test)]
mod twins;
pub mod validate;
pub mod words;
pub mod zone;
