//! Values to what people and programs read: terminal text, JSON, and a page of HTML.
//!
//! Pure: nothing here prints, asks for the terminal's width or reads the clock; the caller says.

pub mod averages;
pub mod can;
pub mod checkup;
pub mod compact;
pub mod compare;
pub mod csv;
pub mod effects;
pub mod findings;
pub mod frag;
pub mod grid;
pub mod html;
pub mod json;
pub mod map;
pub mod misses;
pub mod needs;
pub mod perf_csv;
pub mod picture;
pub mod plan;
pub mod profile;
pub mod quantity;
pub mod run;
pub mod sim;
pub mod study;
pub mod style;
pub mod text;
pub mod utc;
