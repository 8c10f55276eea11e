//! What also runs inside QEMU, in our plugin: no dependency but std, since the plugin includes these files
//! as they are (`plugins/tlb-trace`).

mod entries;
pub mod front;
pub mod geometry;
pub mod layout;
pub mod ledger;
pub mod lines;
pub mod pass;
pub mod tlb;
pub mod walk;
