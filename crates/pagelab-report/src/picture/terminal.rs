//! A picture on a terminal: two pixels in a character with colours, one letter a pixel without.

use std::fmt::Write;

use super::raster::Raster;
use super::{Category, Rgb};

/// Which colours a terminal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    /// 24 bits.
    True,
    /// The 256 of xterm: a cube of 6 × 6 × 6 and 24 shades of grey.
    Xterm256,
    /// None: letters.
    None,
}

const HALF: char = '▀';
const LOWER_HALF: char = '▄';
const END: &str = "\x1b[0m";

/// The picture as lines, without their ends; behind the number of pixel rows that each line shows, which the
/// caller may put labels to.
pub fn lines(raster: &Raster<'_>, colours: Colours) -> Vec<String> {
    let width = raster.path.width as usize;
    let rows: Vec<usize> = (0..raster.path.height as usize).collect();
    rows.chunks(rows_per_line(colours))
        .map(|rows| match (colours, rows) {
            (Colours::None, rows) => letters(raster, rows.iter().flat_map(|y| y * width..(y + 1) * width)),
            (_, rows) => halves(raster, rows, colours),
        })
        .collect()
}

/// Pixel rows that share a line.
pub fn rows_per_line(colours: Colours) -> usize {
    if colours == Colours::None { 1 } else { 2 }
}

/// A category's sign in a legend: its colour where there are colours, and its letter always.
pub fn swatch(category: &Category, colours: Colours) -> String {
    if colours == Colours::None {
        return visible(category.letter);
    }
    format!("{}  {END} {}", code(48, Some(category.colour), colours), visible(category.letter))
}

/// A blank in a legend would not be seen.
fn visible(letter: char) -> String {
    if letter == ' ' { "blank".to_owned() } else { letter.to_string() }
}

fn letters(raster: &Raster<'_>, cells: impl Iterator<Item = usize>) -> String {
    let letter = |at: usize| raster.legend.get(usize::from(raster.cells[at])).map_or(' ', |one| one.letter);
    let line: String = cells.map(letter).collect();
    line.trim_end().to_owned()
}

fn halves(raster: &Raster<'_>, rows: &[usize], colours: Colours) -> String {
    let width = raster.path.width as usize;
    let mut line = String::new();
    let mut last = (None, None);
    for x in 0..width {
        let colour = |row: Option<&usize>| row.and_then(|y| raster.colour(y * width + x));
        let now = (colour(rows.first()), colour(rows.get(1)));
        let (sign, front, back) =
            if now.0.is_some() { (HALF, now.0, now.1) } else { (LOWER_HALF, now.1, None) };
        if x == 0 || now != last {
            line.extend([code(38, front, colours), code(48, back, colours)]);
        }
        line.push(if front.is_none() { ' ' } else { sign });
        last = now;
    }
    if !line.is_empty() {
        line.push_str(END);
    }
    line
}

/// The escape sequence for a colour of the foreground (38) or the background (48); without a colour, what the
/// terminal has by itself.
fn code(ground: u8, colour: Option<Rgb>, colours: Colours) -> String {
    let mut code = String::new();
    let written = match (colour, colours) {
        (None, _) | (_, Colours::None) => write!(code, "\x1b[{}m", ground + 1),
        (Some([red, green, blue]), Colours::True) => {
            write!(code, "\x1b[{ground};2;{red};{green};{blue}m")
        }
        (Some(colour), Colours::Xterm256) => write!(code, "\x1b[{ground};5;{}m", nearest(colour)),
    };
    written.map_or_else(|_| String::new(), |()| code)
}

/// The nearest of xterm's colours 16 to 255.
fn nearest(colour: Rgb) -> u8 {
    let distance =
        |other: Rgb| colour.iter().zip(other).map(|(&a, b)| u32::from(a.abs_diff(b)).pow(2)).sum::<u32>();
    (16..=255).min_by_key(|&number| distance(xterm(number))).unwrap_or(16)
}

fn xterm(number: u8) -> Rgb {
    const STEPS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    if number >= 232 {
        return [8 + (number - 232) * 10; 3];
    }
    let number = usize::from(number.saturating_sub(16));
    [STEPS[number / 36 % 6], STEPS[number / 6 % 6], STEPS[number % 6]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::curve::PixelOrder;
    use crate::picture::drawing::Drawing;
    use crate::picture::raster::{Blend, Shape, raster, tests::map_of};
    use crate::picture::scheme::Scheme;
    use pagelab_model::{Order, PageClass};

    fn picture(colours: Colours) -> Vec<String> {
        use PageClass::{Anon, Free, Slab};
        let map = map_of(&[(0, &[Free, Free, Anon, Slab, Slab, Slab, Free, Free, Free, Anon, Free, Free])]);
        let drawing = Drawing::of_map(&map, Scheme::Full, Order(0));
        let shape = Shape {
            order: PixelOrder::Rows,
            pixel: Order(0),
            width: Some(5),
            blend: Blend::Majority,
            grid: false,
        };
        lines(&raster(&drawing, &shape).unwrap(), colours)
    }

    #[test]
    fn letters_say_the_same_as_colours() {
        assert_eq!(picture(Colours::None), ["..ass", "s...a", ".."]);
        let coloured = picture(Colours::True);
        assert_eq!(coloured.len(), 2);
        assert!(coloured[0].starts_with("\x1b[38;2;247;247;242m\x1b[48;2;224;112;26m▀"), "{:?}", coloured[0]);
        assert_eq!(coloured[0].matches(HALF).count(), 5);
        assert!(coloured[1].starts_with("\x1b[38;2;247;247;242m\x1b[49m▀▀\x1b[39m"), "{:?}", coloured[1]);
        assert!(picture(Colours::Xterm256)[0].starts_with("\x1b[38;5;255m\x1b[48;5;166m▀"));
    }

    #[test]
    fn colours_of_256_are_the_nearest() {
        assert_eq!(
            [[255, 255, 255], [0, 0, 0], [255, 0, 0], [128, 128, 128]].map(nearest),
            [231, 16, 196, 244]
        );
        assert_eq!([16, 231, 232, 255].map(xterm), [[0; 3], [255; 3], [8; 3], [238; 3]]);
    }
}
