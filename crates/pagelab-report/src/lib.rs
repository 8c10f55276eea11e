//! Conversion of values into terminal text, JSON and HTML pages.
//!
//! Pure: nothing in this crate prints, queries the terminal's width or reads the clock; the caller supplies
//! these.

pub mod attachments;
pub mod averages;
pub mod checkup;
pub mod compact;
pub mod compare;
pub mod csv;
pub mod effect_text;
pub mod fields;
pub mod findings;
pub mod forecast;
pub mod frag;
pub mod html;
pub mod json;
pub mod map;
pub mod memory_needs;
pub mod memory_picture;
pub mod miss_counts;
pub mod perf_csv;
pub mod plan;
pub mod profile;
pub mod quantity_format;
pub mod run;
pub mod run_plan;
pub mod sim;
pub mod simulated;
pub mod style;
pub mod text_report;
pub mod utc;
