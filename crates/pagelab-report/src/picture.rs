//! Pictures of physical memory: a map of page frames as PNG, SVG, text for a terminal, or data of a page.
//!
//! Each picture is made in the same steps. A [`drawing::Drawing`] is the list of frames that are drawn, with
//! one category each; a [`raster::Raster`] puts them into pixels, some frames to a pixel, along a curve; and
//! the writers turn pixels into files. What a map shows and what a difference of two maps shows are
//! both drawings.

pub mod bands;
pub mod curve;
pub mod difference;
pub mod drawing;
pub mod png;
pub mod raster;
pub mod scheme;
pub mod svg;
pub mod terminal;

/// A colour, 8 bits of red, green and blue each, in sRGB.
pub type Rgb = [u8; 3];

/// What frames of a picture are told apart by: a colour and a letter in the legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Category {
    /// The same in text and JSON.
    pub name: &'static str,
    /// In a person's words.
    pub label: &'static str,
    /// Stands for it where there are no colours.
    pub letter: char,
    /// Its colour.
    pub colour: Rgb,
    /// How much it is in the way of large contiguous memory; the highest wins a pixel of `worst`, and ties.
    pub rank: u8,
}

/// Facts about a picture that travel inside of its file, so that it can be traced: names and texts.
pub type Facts = [(&'static str, String)];
