//! Values to what people and programs read: terminal text and JSON.
//!
//! Pure: nothing here prints, asks for the terminal's width or reads the clock; the caller says.

pub mod checkup;
pub mod findings;
pub mod frag;
pub mod grid;
pub mod json;
pub mod style;
pub mod text;
