//! Interpretation of numbers: fragmentation indices, supply of huge pages, findings.
//!
//! Pure: values in, values out. An undefined metric is `None`, not NaN or 0.

pub mod address_space;
pub mod alloc_trace;
pub mod averages;
pub mod balance;
pub mod callers;
pub mod capped_index;
pub mod checkup;
pub mod compaction;
pub mod compare;
pub mod derived;
pub mod effect;
pub mod findings;
pub mod forecast;
pub mod fragment_plan;
pub mod fragmentation_index;
pub mod grouping;
#[cfg(test)]
mod healthy;
pub mod history;
pub mod hit_rates;
pub mod judge;
pub mod memory_need;
pub mod movable_request;
pub mod published_scores;
mod rules;
pub mod standard_series;
pub mod statistics;
pub mod supply;
pub mod sweep;
pub mod tune;
pub mod usage;
pub mod zone_watermark;
