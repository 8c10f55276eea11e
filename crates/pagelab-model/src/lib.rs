//! The words that every part of pagelab speaks: page frames, orders, zones, free areas, snapshots.
//!
//! Pure: no IO, no clock, no environment. Page size, huge-page size, number of orders, zones and
//! nodes are data of the machine that a value came from, never constants of this crate.

pub mod absence;
pub mod alloc_trace;
pub mod census;
pub mod choice;
pub mod counters;
pub mod experiment;
pub mod extfrag;
pub mod free_areas;
pub mod gain;
pub mod huge_plan;
pub mod instruments;
pub mod machine;
pub mod meminfo;
pub mod page_map;
pub mod pageflags;
pub mod pagetype;
pub mod paper;
pub mod pressure;
pub mod probe;
pub mod process;
pub mod process_map;
pub mod profile;
pub mod run;
pub mod seed;
pub mod settings;
pub mod slab;
pub mod snapshot;
pub mod study;
pub mod tune;
pub mod units;
pub mod zoneinfo;

pub use absence::{Absence, AbsentWhy, Reading};
pub use census::{BlockCounts, Census, CensusZone, Coverage, OffLists, SamplePlan};
pub use choice::Choice;
pub use counters::Counters;
pub use extfrag::{ExtfragEvent, FallbackCounts, MigrateType, StackCounts, Stacks};
pub use free_areas::{BuddyInfo, FreeAreas, ZoneFree, ZoneKey};
pub use huge_plan::HugePlan;
pub use machine::Machine;
pub use meminfo::Meminfo;
pub use page_map::{Frames, MapLayout, PageMap};
pub use pageflags::{PageClass, PageFlags};
pub use process_map::ProcessMap;
pub use profile::Profile;
pub use snapshot::{Problem, Snapshot};
pub use tune::Tune;
pub use units::{Bytes, NodeId, Order, PageSize, Pages, Pfn};
pub use zoneinfo::{ZoneInfo, Zoneinfo};
