//! A picture on a terminal: two pixels per character with colours, one letter per pixel without.

use super::raster::Raster;
use super::{Category, Rgb};

/// Colours that a terminal supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TerminalColours {
    /// 24 bits.
    TrueColour,
    /// The 256 of xterm: a cube of 6 × 6 × 6 and 24 shades of grey.
    Xterm256,
    /// No colours: letters.
    NoColours,
}

const UPPER_HALF_BLOCK: char = '▀';
const LOWER_HALF_BLOCK: char = '▄';
const RESET_CODE: &str = "\x1b[0m";

/// Returns the picture as lines without line ends, and the number of pixel rows per line, so that the caller
/// can label them.
pub fn render_lines(raster: &Raster<'_>, colours: TerminalColours) -> Vec<String> {
    let width = raster.path.width as usize;
    let rows: Vec<usize> = (0..raster.path.height as usize).collect();
    rows.chunks(rows_per_line(colours))
        .map(|rows| match (colours, rows) {
            (TerminalColours::NoColours, rows) => {
                letter_line(raster, rows.iter().flat_map(|y| y * width..(y + 1) * width))
            }
            (_, rows) => half_block_line(raster, rows, colours),
        })
        .collect()
}

/// Pixel rows per line.
pub fn rows_per_line(colours: TerminalColours) -> usize {
    if colours == TerminalColours::NoColours { 1 } else { 2 }
}

/// Returns the sign of a category in a legend: its letter always, its colour if the terminal has colours.
pub fn legend_swatch(category: &Category, colours: TerminalColours) -> String {
    if colours == TerminalColours::NoColours {
        return visible_letter(category.letter);
    }
    format!(
        "{}  {RESET_CODE} {}",
        colour_code(48, Some(category.colour), colours),
        visible_letter(category.letter)
    )
}

/// A blank is not visible in a legend.
fn visible_letter(letter: char) -> String {
    if letter == ' ' { "blank".to_owned() } else { letter.to_string() }
}

fn letter_line(raster: &Raster<'_>, cells: impl Iterator<Item = usize>) -> String {
    let letter = |at: usize| raster.legend.get(usize::from(raster.cells[at])).map_or(' ', |one| one.letter);
    let line: String = cells.map(letter).collect();
    line.trim_end().to_owned()
}

fn half_block_line(raster: &Raster<'_>, rows: &[usize], colours: TerminalColours) -> String {
    let width = raster.path.width as usize;
    let mut line = String::new();
    let mut last = (None, None);
    for x in 0..width {
        let colour = |row: Option<&usize>| row.and_then(|y| raster.pixel_colour(y * width + x));
        let now = (colour(rows.first()), colour(rows.get(1)));
        let (sign, front, back) =
            if now.0.is_some() { (UPPER_HALF_BLOCK, now.0, now.1) } else { (LOWER_HALF_BLOCK, now.1, None) };
        if x == 0 || now != last {
            line.extend([colour_code(38, front, colours), colour_code(48, back, colours)]);
        }
        line.push(if front.is_none() { ' ' } else { sign });
        last = now;
    }
    if !line.is_empty() {
        line.push_str(RESET_CODE);
    }
    line
}

/// Returns the escape sequence for a colour of the foreground (38) or the background (48); without a colour,
/// the terminal's default.
fn colour_code(layer_code: u8, colour: Option<Rgb>, colours: TerminalColours) -> String {
    match (colour, colours) {
        (None, _) | (_, TerminalColours::NoColours) => format!("\x1b[{}m", layer_code + 1),
        (Some([red, green, blue]), TerminalColours::TrueColour) => {
            format!("\x1b[{layer_code};2;{red};{green};{blue}m")
        }
        (Some(colour), TerminalColours::Xterm256) => {
            format!("\x1b[{layer_code};5;{}m", nearest_xterm(colour))
        }
    }
}

/// Returns the nearest of xterm's colours 16 to 255.
fn nearest_xterm(colour: Rgb) -> u8 {
    let distance =
        |other: Rgb| colour.iter().zip(other).map(|(&a, b)| u32::from(a.abs_diff(b)).pow(2)).sum::<u32>();
    (16..=255).min_by_key(|&number| distance(xterm_colour(number))).unwrap_or(16)
}

fn xterm_colour(number: u8) -> Rgb {
    const XTERM_STEPS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    if number >= 232 {
        return [8 + (number - 232) * 10; 3];
    }
    let number = usize::from(number.saturating_sub(16));
    [XTERM_STEPS[number / 36 % 6], XTERM_STEPS[number / 6 % 6], XTERM_STEPS[number % 6]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_picture::colour_scheme::ColourScheme;
    use crate::memory_picture::drawing::Drawing;
    use crate::memory_picture::pixel_path::PixelLayout;
    use crate::memory_picture::raster::{PixelBlend, RasterOptions, rasterize, tests::map_of};
    use pagelab_model::{Order, PageClass};

    fn picture(colours: TerminalColours) -> Vec<String> {
        use PageClass::{Anon, Free, Slab};
        let map = map_of(&[(0, &[Free, Free, Anon, Slab, Slab, Slab, Free, Free, Free, Anon, Free, Free])]);
        let drawing = Drawing::from_map(&map, ColourScheme::Full, Order(0));
        let shape = RasterOptions {
            layout: PixelLayout::Rows,
            pixel_order: Order(0),
            width: Some(5),
            blend: PixelBlend::Majority,
            has_grid: false,
        };
        render_lines(&rasterize(&drawing, &shape).unwrap(), colours)
    }

    #[test]
    fn letters_say_the_same_as_colours() {
        assert_eq!(picture(TerminalColours::NoColours), ["..ass", "s...a", ".."]);
        let coloured = picture(TerminalColours::TrueColour);
        assert_eq!(coloured.len(), 2);
        assert!(coloured[0].starts_with("\x1b[38;2;247;247;242m\x1b[48;2;224;112;26m▀"), "{:?}", coloured[0]);
        assert_eq!(coloured[0].matches(UPPER_HALF_BLOCK).count(), 5);
        assert!(coloured[1].starts_with("\x1b[38;2;247;247;242m\x1b[49m▀▀\x1b[39m"), "{:?}", coloured[1]);
        assert!(picture(TerminalColours::Xterm256)[0].starts_with("\x1b[38;5;255m\x1b[48;5;166m▀"));
    }

    #[test]
    fn colours_of_256_are_the_nearest() {
        assert_eq!(
            [[255, 255, 255], [0, 0, 0], [255, 0, 0], [128, 128, 128]].map(nearest_xterm),
            [231, 16, 196, 244]
        );
        assert_eq!([16, 231, 232, 255].map(xterm_colour), [[0; 3], [255; 3], [8; 3], [238; 3]]);
    }
}
