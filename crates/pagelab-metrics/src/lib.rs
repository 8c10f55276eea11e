//! What the numbers mean: fragmentation indices, supply of huge pages, findings.
//!
//! Pure: values in, values out. An undefined metric is `None`, not NaN or 0.

pub mod address_space;
pub mod alloc_trace;
pub mod averages;
pub mod balance;
pub mod callers;
pub mod can;
pub mod checkup;
pub mod compaction;
pub mod compare;
pub mod derived;
pub mod effect;
pub mod findings;
pub mod frag;
pub mod fragment_plan;
#[cfg(test)]
mod healthy;
pub mod history;
pub mod hit_rates;
pub mod known_scores;
pub mod need;
pub mod over_time;
pub mod recorded;
mod rules;
pub mod statistics;
pub mod study;
pub mod supply;
pub mod tune;
pub mod usage;
