//! Common terms of all parts of pagelab: page frames, orders, zones, free areas, snapshots.
//!
//! Pure: no IO, no clock, no environment. Page size, huge-page size, number of orders, zones and nodes are
//! data of the machine of a value, never constants of this crate.

pub mod absence;
pub mod alloc_trace;
pub mod census;
pub mod counters;
pub mod dimms;
pub mod experiment;
pub mod extfrag;
pub mod failed_request;
pub mod failure;
pub mod free_areas;
pub mod guest_marker;
pub mod guest_size;
pub mod huge_plan;
pub mod instruments;
pub mod kernel_panic;
pub mod machine;
pub mod meminfo;
pub mod module_features;
pub mod names;
pub mod order_statistics;
pub mod page_map;
pub mod pageflags;
pub mod pagetype;
pub mod pressure;
pub mod probe;
pub mod process;
pub mod process_map;
pub mod profile;
pub mod published_figures;
pub mod random;
pub mod run;
pub mod settings;
pub mod simulation;
pub mod size;
pub mod slab;
pub mod snapshot;
pub mod source_tree;
pub mod time_saved;
pub mod tune;
pub mod units;
pub mod zoneinfo;

pub use absence::{Absence, AbsenceReason, Reading};
pub use census::{Census, CensusZone, Coverage, PageblockCounts, SamplePlan, UnlistedFree};
pub use counters::Counters;
pub use extfrag::{ExtfragEvent, FallbackCounts, FallbackStack, FallbackStacks, MigrateType};
pub use failure::{Failure, FailureKind};
pub use free_areas::{BuddyInfo, FreeAreas, ZoneFreeAreas, ZoneKey};
pub use huge_plan::HugePlan;
pub use machine::Machine;
pub use meminfo::Meminfo;
pub use page_map::{FrameSpan, PageMap, PageMapLayout};
pub use pageflags::{PageClass, PageFlags};
pub use process_map::ProcessMap;
pub use profile::TlbProfile;
pub use settings::SysfsChoice;
pub use snapshot::{Problem, Snapshot};
pub use tune::TuningRun;
pub use units::{Bytes, NodeId, Order, PageSize, Pages, Pfn};
pub use zoneinfo::{ZoneEntry, Zoneinfo};
