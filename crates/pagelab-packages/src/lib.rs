//! Distribution packages without installation: found by [`apt`], unpacked into a directory of a [`store`],
//! whose entries are complete or absent. Nothing here needs root, and nothing outside of the store is
//! changed.

pub mod apt;
pub mod program;
pub mod store;
